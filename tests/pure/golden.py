"""Golden listings: plans whose annotated program is kept in `tests/golden/`, so that a change is a readable diff.

To accept a change: `PYTHONPATH=src:tests python -m pure.golden`, then read the diff.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pure import graphs
from vdnn.ir import Graph, Op, Phase
from vdnn.plan import Decision, Encode, EncodeOffload, Offload, Plan, Recompute, listing, solve

FOLDER = Path(__file__).parent.parent / "golden"


def kept_chain() -> Plan:
    return graphs.plan(graphs.problem(graphs.chain(3), budget_nbytes=640))


def mixed_unet() -> Plan:
    graph = graphs.unet(4, nbytes=1 << 20)
    hardware = graphs.machine(bandwidth=1e9)
    problem = graphs.problem(graph, workspace_nbytes=1 << 10, seconds=0.01, hardware=hardware, lossy="fp16")
    decisions = (
        ("d1", Offload("host", 1, 5, 6), "next use 40 ms away, copy takes 0.5 ms"),
        ("d2", Encode("fp16", 1 << 17, 2, 5, 1e-4, 1e-4), "half the bytes between its forward uses"),
        ("d1", EncodeOffload("fp16", 1 << 18, "disk", 6, 7, 8, 9, 1e-4, 1e-4), "the longest gap of all"),
        ("u3", Recompute(5, 9), "one op redoes it"),
        ("u2", Recompute(6, 9), "one op redoes it, from u3 and d2"),
    )
    return Plan(
        problem, "by hand", tuple(Decision(graphs.storage(graph, s), action, why) for s, action, why in decisions)
    )


def in_place() -> Plan:
    graph = graphs.in_place_chain(nbytes=4096)
    return graphs.plan(
        graph,
        {"c": Recompute(4, 5), "mask": Encode("bool-mask", 32, 3, 5, detail=(4, 0.0, 0.0, 2.0, 0.0))},
        reason="chosen by hand",
    )


def convolutional(graph: Graph, *, pooling: tuple[str, ...] = ()) -> Graph:
    """The graph with every op a convolution, but for those named: they are pooling layers."""

    def layer(op: Op) -> Op:
        kind = "max_pool2d_with_indices" if op.name.removesuffix("_backward") in pooling else "convolution"
        suffix = "_backward" if op.phase is Phase.BACKWARD else ""
        module = op.name.removesuffix("_backward")
        return replace(op, target=f"aten.{kind}{suffix}.default", module=module)

    return replace(graph, ops=tuple(layer(op) for op in graph.ops))


def by_strategy(name: str, graph: Graph, budget_nbytes: int | None = None) -> Callable[[], Plan]:
    """On a machine whose link copies a map of a MiB in a tenth of the time of an op."""
    hardware = graphs.machine(bandwidth=1e9)
    return lambda: solve(graphs.problem(graph, seconds=0.01, hardware=hardware, budget_nbytes=budget_nbytes), name)


def gist(name: str) -> Callable[[], Plan]:
    """On a machine that encodes a MiB in a tenth of the time of an op."""
    hardware = replace(graphs.machine(bandwidth=1e9), memory_bandwidth_bytes_per_s=1e9)
    return lambda: solve(graphs.problem(graphs.layered(), seconds=0.01, hardware=hardware), name)


CHAIN = convolutional(graphs.chain(6, nbytes=1 << 20), pooling=("layer3",))
UNET = convolutional(graphs.unet(4, nbytes=1 << 20))
DIAMOND = convolutional(graphs.diamond(nbytes=1 << 20), pooling=("join",))

GOLDEN: dict[str, Callable[[], Plan]] = {
    "kept_chain": kept_chain,
    "mixed_unet": mixed_unet,
    "in_place": in_place,
    "vdnn_all_chain": by_strategy("vdnn-all", CHAIN),
    "vdnn_conv_chain": by_strategy("vdnn-conv", CHAIN),
    "offload_chain": by_strategy("offload", CHAIN, 7 << 20),
    "vdnn_all_diamond": by_strategy("vdnn-all", DIAMOND),
    "vdnn_conv_diamond": by_strategy("vdnn-conv", DIAMOND),
    "offload_diamond": by_strategy("offload", DIAMOND, 7 << 20),
    "vdnn_all_unet": by_strategy("vdnn-all", UNET),
    "vdnn_conv_unet": by_strategy("vdnn-conv", UNET),
    "offload_unet": by_strategy("offload", UNET, 5 << 20),
    "gist_layered": gist("gist"),
    "gist_fp8_layered": gist("gist-fp8"),
}


def path(name: str) -> Path:
    return FOLDER / f"{name}.txt"


if __name__ == "__main__":
    for name, make in GOLDEN.items():
        path(name).write_text(listing(make()), encoding="utf-8")
        print(f"wrote {path(name).name}")
