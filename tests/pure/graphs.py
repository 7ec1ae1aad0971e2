"""Tiny training steps with names, and the builder that makes them.

A graph here is written the way a person draws it: inputs, forward ops, tangents, backward ops. Sizes are in bytes and
small, so that a test can state its peak as a sum that fits on a line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vdnn.cost.table import CostTable, OpCost
from vdnn.hardware.device import Hardware, Link, Tier
from vdnn.ir import Graph, Need, Op, Phase, Read, Role, Storage, Trait, Value
from vdnn.plan import Decision, Drop, Encode, EncodeOffload, Keep, Offload, Plan, Problem, Recompute

DEVICE, HOST, DISK = "device", "host", "disk"


class Builder:
    """Grows a graph op by op. Values are named; a storage has the name of its first value."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.phase = Phase.FORWARD
        self.ops: list[Op] = []
        self.values: list[Value] = []
        self.storages: list[Storage] = []
        self.groups: dict[str, list[int]] = {"inputs": [], "tangents": [], "held": []}

    def given(self, name: str, nbytes: int, role: Role = Role.INPUT) -> str:
        """Something that exists before the step."""
        self.groups["inputs"].append(self._fresh(name, nbytes, role))
        return name

    def tangent(self, name: str, nbytes: int) -> str:
        """A gradient that arrives with backward, which begins here."""
        self.phase = Phase.BACKWARD
        self.groups["tangents"].append(self._fresh(name, nbytes, Role.GRADIENT_MAP))
        return name

    def op(
        self,
        name: str,
        reads: Sequence[str | tuple[Any, ...]],
        makes: Mapping[str, int] | None = None,
        *,
        into: Mapping[str, str] | None = None,
        roles: Mapping[str, Role] | None = None,
        dtypes: Mapping[str, str] | None = None,
        alphabets: Mapping[str, tuple[float, ...]] | None = None,
        target: str = "",
        module: str = "",
        traits: Sequence[Trait] = (),
    ) -> str:
        """`makes`: new values and the bytes of their storages; `into`: new values and the values whose they share.

        A read is a name, or a name with what else `Read` takes: need, detail, whether the op can read an encoding.
        """
        taken = tuple(Read(self.value(r)) if isinstance(r, str) else Read(self.value(r[0]), *r[1:]) for r in reads)
        usual = Role.FEATURE_MAP if self.phase is Phase.FORWARD else Role.GRADIENT_MAP
        written = [self._fresh(made, nbytes, (roles or {}).get(made, usual)) for made, nbytes in (makes or {}).items()]
        for made in makes or {}:
            self._refine(made, (dtypes or {}).get(made, "float32"), (alphabets or {}).get(made, ()))
        written += [self._alias(new, old) for new, old in (into or {}).items()]
        self.ops.append(
            Op(name, target or name, self.phase, module or name, taken, tuple(written), traits=frozenset(traits))
        )
        return self.values[written[0]].name if written else ""

    def in_place(self, name: str, value: str, *reads: str, **options: object) -> str:
        return self.op(name, [value, *reads], into={f"{value}'": value}, traits=[Trait.IN_PLACE], **options)  # type: ignore[arg-type]

    def view(self, name: str, value: str) -> str:
        return self.op(name, [value], into={f"{value}_view": value}, traits=[Trait.VIEW])

    def hold(self, *names: str) -> None:
        """The caller keeps these to the end."""
        self.groups["held"] += [self.value(name) for name in names]

    def is_held(self, name: str) -> bool:
        return any(self.values[held].storage == self.values[self.value(name)].storage for held in self.groups["held"])

    def share_storage(self, one: str, other: str) -> bool:
        return self.values[self.value(one)].storage == self.values[self.value(other)].storage

    def value(self, name: str) -> int:
        return next(position for position, value in enumerate(self.values) if value.name == name)

    def build(self) -> Graph:
        return Graph(
            self.name,
            tuple(self.ops),
            tuple(self.values),
            tuple(self.storages),
            *(tuple(self.groups[group]) for group in ("inputs", "tangents", "held")),
        )

    def _fresh(self, name: str, nbytes: int, role: Role) -> int:
        self.storages.append(Storage(name, nbytes, role, "float32", (len(self.values),)))
        self.values.append(Value(name, len(self.storages) - 1, (nbytes // 4,), "float32"))
        return len(self.values) - 1

    def _alias(self, name: str, old: str) -> int:
        position = self.values[self.value(old)].storage
        shared = self.storages[position]
        aliases = (*shared.values, len(self.values))
        self.storages[position] = replace(shared, values=aliases)
        self.values.append(Value(name, position, (shared.nbytes // 4,), "float32"))
        return len(self.values) - 1

    def _refine(self, name: str, dtype: str, alphabet: tuple[float, ...]) -> None:
        value = self.value(name)
        position = self.values[value].storage
        self.storages[position] = replace(self.storages[position], dtype=dtype, alphabet=alphabet)
        self.values[value] = replace(self.values[value], dtype=dtype)


def chain(length: int, nbytes: int = 100, weight_nbytes: int = 10) -> Graph:
    """x -> a1 -> ... -> a_n, each layer with a weight; layer i's backward reads a_(i-1), w_i and the gradient of a_i.

    Forward is moments 0 to n-1, backward n to 2n-1 with layer n first. The last map is the output, held by the caller.
    """
    b = Builder(f"chain({length})")
    b.given("a0", nbytes)
    for i in range(1, length + 1):
        b.given(f"w{i}", weight_nbytes, Role.PARAMETER)
    for i in range(1, length + 1):
        roles = {f"a{i}": Role.OUTPUT} if i == length else {}
        b.op(f"layer{i}", [f"a{i - 1}", f"w{i}"], {f"a{i}": nbytes}, target="linear", module=f"layers.{i}", roles=roles)
    b.hold(f"a{length}")
    b.tangent(f"g{length}", nbytes)
    for i in range(length, 0, -1):
        made = {f"dw{i}": weight_nbytes} | ({f"g{i - 1}": nbytes} if i > 1 else {})
        reads = [f"g{i}", f"a{i - 1}", f"w{i}"]
        roles = {f"dw{i}": Role.GRADIENT}
        b.op(f"layer{i}_backward", reads, made, target="linear_backward", module=f"layers.{i}", roles=roles)
        b.hold(f"dw{i}")
    return b.build()


def diamond(nbytes: int = 100) -> Graph:
    """One map feeds two branches that meet again: x -> stem -> (left, right) -> sum."""
    b = Builder("diamond")
    b.given("x", nbytes)
    b.op("stem", ["x"], {"s": nbytes})
    b.op("left", ["s"], {"l": nbytes})
    b.op("right", ["s"], {"r": nbytes})
    b.op("join", ["l", "r"], {"y": nbytes}, roles={"y": Role.OUTPUT})
    b.hold("y")
    b.tangent("gy", nbytes)
    b.op("join_backward", ["gy", "l", "r"], {"gl": nbytes, "gr": nbytes})
    b.op("right_backward", ["gr", "s", "r"], {"gs_r": nbytes})
    b.op("left_backward", ["gl", "s", "l"], {"gs_l": nbytes})
    b.op("sum_backward", ["gs_r", "gs_l"], {"gs": nbytes})
    b.op("stem_backward", ["gs", "x"], {"gx": nbytes}, roles={"gx": Role.GRADIENT})
    b.hold("gx")
    return b.build()


def unet(depth: int, nbytes: int = 64) -> Graph:
    """An encoder that halves, a decoder that doubles, and a skip from each level to its mirror: the longest gaps."""
    b = Builder(f"unet({depth})")
    b.given("d0", nbytes)
    for i in range(1, depth + 1):
        b.op(f"down{i}", [f"d{i - 1}"], {f"d{i}": nbytes >> i}, module=f"encoder.{i}")
    below = f"d{depth}"
    for i in range(depth - 1, -1, -1):
        roles = {"u0": Role.OUTPUT} if i == 0 else {}
        below = b.op(f"up{i}", [below, f"d{i}"], {f"u{i}": nbytes >> i}, module=f"decoder.{i}", roles=roles)
    b.hold("u0")
    gradient = b.tangent("gu0", nbytes)
    for i in range(depth):
        below = f"u{i + 1}" if i + 1 < depth else f"d{depth}"
        made = {f"g{below}": nbytes >> (i + 1), f"gskip{i}": nbytes >> i}
        gradient = b.op(f"up{i}_backward", [gradient, below, f"d{i}"], made, module=f"decoder.{i}")
    for i in range(depth, 0, -1):
        made = {f"gd{i - 1}'": nbytes >> (i - 1)}
        gradient = b.op(f"down{i}_backward", [gradient, f"d{i - 1}", f"gskip{i - 1}"], made, module=f"encoder.{i}")
    b.hold(gradient)
    return b.build()


def in_place_chain(nbytes: int = 100) -> Graph:
    """Convolution, in-place ReLU, in-place dropout with a mask, linear: three ops write one storage `c`."""
    b = Builder("in_place_chain")
    b.given("x", nbytes)
    b.given("w", 10, Role.PARAMETER)
    b.op("conv", ["x", "w"], {"c": nbytes})
    b.in_place("relu_", "c")
    b.op("noise", [], {"mask": nbytes // 4}, traits=[Trait.RANDOM], alphabets={"mask": (0.0, 2.0)})
    b.op("mul_", ["c'", "mask"], into={"c''": "c"}, traits=[Trait.IN_PLACE])
    b.op("linear", ["c''"], {"y": nbytes}, roles={"y": Role.OUTPUT})
    b.hold("y")
    b.tangent("gy", nbytes)
    b.op("linear_backward", ["gy", "c''"], {"gc": nbytes})
    b.op("mul_backward", ["gc", "mask"], {"gm": nbytes})
    b.op("relu_backward", ["gm", ("c''", Need.SIGN)], {"gr": nbytes})
    b.op("conv_backward", ["gr", "x", "w"], {"dw": 10}, roles={"dw": Role.GRADIENT})
    b.hold("dw")
    return b.build()


ABOVE_ZERO = (0, 0.0, 0.0, 1.0, 0.0)
"""What a ReLU's backward asks of an element: test, low, high, on, off."""
INSIDE_SIX = (3, 0.0, 6.0, 3.0, 0.0)
"""What a ReLU6's backward asks."""
POOL = (1, 2, 2, 1, 2, 2, 0, 0, 0, 1, 1, 1, 1, 32, 32, 1, 16, 16, 16, 1)
"""Windows of 2 x 2 over 16 planes of 32 x 32: kernel, stride, padding, dilation, input, output, outer, inner."""


def layered() -> Graph:
    """Gist's situations in one network: ReLU before a pool, ReLU before a convolution, ReLU6, dropout, average pool.

    Maps of 16 x 32 x 32 floats before the pool and of 16 x 16 x 16 behind it.
    """
    large, small, weight = 4 * 16 * 32 * 32, 4 * 16 * 16 * 16, 4 * 16 * 16 * 9
    b = Builder("layered")
    b.given("x", large)
    for weights in ("w1", "w2", "w3", "w4"):
        b.given(weights, weight, Role.PARAMETER)

    def op(name: str, target: str, *args: Any, **options: Any) -> None:
        b.op(name, *args, target=f"aten.{target}.default", module=name.removesuffix("_back"), **options)

    op("conv1", "convolution", ["x", "w1"], {"c1": large})
    op("relu1", "relu_", ["c1"], into={"r1": "c1"}, traits=[Trait.IN_PLACE])
    op("pool", "max_pool2d_with_indices", ["r1"], {"p": small, "index": 2 * small}, dtypes={"index": "int64"})
    op("conv2", "convolution", ["p", "w2"], {"c2": small})
    op("relu2", "relu_", ["c2"], into={"r2": "c2"}, traits=[Trait.IN_PLACE])
    op("conv3", "convolution", ["r2", "w3"], {"c3": small})
    op("relu6", "hardtanh", ["c3"], {"h": small})
    op("noise", "bernoulli_", [("h", Need.SHAPE)], {"n": small}, alphabets={"n": (0.0, 2.0)}, traits=[Trait.RANDOM])
    op("drop", "mul", ["h", "n"], {"d": small})
    op("mean", "avg_pool2d", ["d"], {"m": small // 4})
    op("linear", "addmm", ["m", "w4"], {"y": 64}, roles={"y": Role.OUTPUT})
    b.hold("y")
    b.tangent("gy", 64)
    op("linear_back", "mm", ["gy", "m", "w4"], {"gm": small // 4, "dw4": weight}, roles={"dw4": Role.GRADIENT})
    op("mean_back", "avg_pool2d_backward", ["gm", ("d", Need.SHAPE)], {"gd": small})
    op("drop_back", "mul", ["gd", ("n", Need.ALL, (), True)], {"gh": small})
    op("relu6_back", "hardtanh_backward", ["gh", ("c3", Need.BOOL, INSIDE_SIX, True)], {"gc3": small})
    made = {"gr2": small, "dw3": weight}
    op("conv3_back", "convolution_backward", ["gc3", "r2", "w3"], made, roles={"dw3": Role.GRADIENT})
    op("relu2_back", "threshold_backward", ["gr2", ("r2", Need.SIGN, ABOVE_ZERO, True)], {"gc2": small})
    made = {"gp": small, "dw2": weight}
    op("conv2_back", "convolution_backward", ["gc2", "p", "w2"], made, roles={"dw2": Role.GRADIENT})
    reads = ["gp", ("r1", Need.SHAPE), ("index", Need.WINDOW_INDEX, POOL, True)]
    op("pool_back", "max_pool2d_with_indices_backward", reads, {"gr1": large})
    op("relu1_back", "threshold_backward", ["gr1", ("r1", Need.SIGN, ABOVE_ZERO, True)], {"gc1": large})
    op("conv1_back", "convolution_backward", ["gc1", "x", "w1"], {"dw1": weight}, roles={"dw1": Role.GRADIENT})
    b.hold("dw4", "dw3", "dw2", "dw1")
    return b.build()


def machine(*, host_nbytes: int | None = None, disk_nbytes: int | None = None, bandwidth: float = 100.0) -> Hardware:
    """A device, a host and a disk in a row; links of `bandwidth` bytes per second, the disk's half as fast."""
    tiers = (Tier(DEVICE), Tier(HOST, host_nbytes), Tier(DISK, disk_nbytes))
    links = (
        Link(DEVICE, HOST, bandwidth),
        Link(HOST, DEVICE, bandwidth),
        Link(HOST, DISK, bandwidth / 2),
        Link(DISK, HOST, bandwidth / 2),
    )
    return Hardware("testbench", 1.0, 1.0, tiers, links)


def problem(
    graph: Graph,
    *,
    seconds: float | Sequence[float] = 1.0,
    workspace_nbytes: int | Sequence[int] = 0,
    budget_nbytes: int | None = None,
    hardware: Hardware | None = None,
    **allowed: Any,
) -> Problem:
    """The graph with costs that a test wrote: one number for all ops, or one per op; `allowed`: lossy, density."""
    durations = seconds if isinstance(seconds, Sequence) else [seconds] * len(graph)
    spaces = workspace_nbytes if isinstance(workspace_nbytes, Sequence) else [workspace_nbytes] * len(graph)
    costs = tuple(OpCost(s, space, "test") for s, space in zip(durations, spaces, strict=True))
    return Problem(graph, CostTable(costs), hardware or machine(), budget_nbytes, **allowed)


def plan(
    asked: Graph | Problem, actions: Mapping[str, object] | Sequence[tuple[str, object]] = (), reason: str = "test"
) -> Plan:
    """A plan by storage name: `plan(chain(3), {"a1": Recompute(leave=1, back=4)})`."""
    asked = problem(asked) if isinstance(asked, Graph) else asked
    pairs = actions.items() if isinstance(actions, Mapping) else actions
    decisions = tuple(Decision(storage(asked.graph, name), action, reason) for name, action in pairs)  # type: ignore[arg-type]
    return Plan(asked, "by hand", decisions)


def storage(graph: Graph, name: str) -> int:
    return next(position for position, storage in enumerate(graph.storages) if storage.name == name)


def every_action() -> Plan:
    """A chain on which each action is taken once; it need not hold."""
    asked = problem(chain(8), seconds=0.1, workspace_nbytes=3, budget_nbytes=10_000, lossy="fp16")
    actions = {
        "a1": Keep(),
        "a2": Recompute(2, 13),
        "a3": Offload("disk", 3, 10, 12),
        "a4": Encode("fp16", 50, 4, 11, 1e-3, 1 / 3),
        "a5": EncodeOffload("fp16", 50, "host", 5, 6, 9, 10),
        "a6": Drop(6),
    }
    return plan(asked, actions, reason='says "why" – in Unicode')
