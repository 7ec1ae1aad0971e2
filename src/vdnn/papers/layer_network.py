"""Networks as the papers count them: layers straight into `ir.Graph`, forward and backward, without torch.

Enters: layer after layer, as a paper's table lists them. Leaves: a graph of one training step. Conventions are vDNN's
(MICRO 2016, section 2), which are cuDNN's:

- a map is float32, batch x channels x height x width, and the batch of images is a map that the step loads itself;
- activations run in place, forward and backward, and have no map of their own;
- a convolution's backward reads X, W and dY and not Y; a pooling's reads X, Y and dY;
- the gradients of weights exist all the time, as the weights do: both count from the first moment to the last;
- a map that several layers take has one gradient, which all of them add to;
- dropout and local response normalisation are left out, as in the networks that vDNN lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from vdnn.ir import Graph, Op, Phase, Read, Role, Storage, Trait, Value

FLOAT32_NBYTES = 4
FLOPS_PER_MULTIPLY_ADD = 2


@dataclass(frozen=True, slots=True)
class Map:
    """A map of the network: its value (the last that lives in its storage) and what one image has of it."""

    value: int
    storage: int
    shape: tuple[int, ...]


class LayerNetwork:
    """Grows layer by layer; `graph()` adds the backward pass."""

    def __init__(self, name: str, batch: int) -> None:
        self.name, self.batch = name, batch
        self.ops: list[Op] = []
        self.values: list[Value] = []
        self.storages: list[Storage] = []
        self.inputs: list[int] = []
        self.backward: list[Callable[[], None]] = []  # of each layer, run last to first
        self.gradients: dict[int, int] = {}  # storage of a map -> value of its gradient so far

    def images(self, channels: int, height: int, width: int) -> Map:
        """The batch, loaded by the step: vDNN may offload it like any X."""
        made = self._new("images", (channels, height, width), Role.FEATURE_MAP)
        self._op("images", "load", Phase.FORWARD, (), (made.value,))
        return made

    def convolution(self, name: str, x: Map, channels: int, kernel: int, stride: int = 1, padding: int = 0) -> Map:
        """Convolution with bias, then ReLU in place."""
        height, width = (_length(size, kernel, stride, padding) for size in x.shape[1:])
        multiply_adds = self.batch * channels * height * width * x.shape[0] * kernel * kernel
        weight = (channels, x.shape[0], kernel, kernel)
        return self._relu(
            name, self._weighted("convolution", name, x, (channels, height, width), weight, multiply_adds)
        )

    def linear(self, name: str, x: Map, features: int, *, relu: bool = True) -> Map:
        """Fully connected, with bias; ReLU in place unless it is the last."""
        taken = prod(x.shape)
        made = self._weighted("addmm", name, x, (features,), (features, taken), self.batch * features * taken)
        return self._relu(name, made) if relu else made

    def pooling(self, name: str, x: Map, kernel: int, stride: int, *, padding: int = 0, kind: str = "max") -> Map:
        """Windows that stick out count (Caffe's rounding), as in the published networks."""
        sizes = (_length(size, kernel, stride, padding, round_up=True) for size in x.shape[1:])
        target = {"max": "max_pool2d_with_indices", "average": "avg_pool2d"}[kind]
        y = self._new(name, (x.shape[0], *sizes), Role.FEATURE_MAP)
        self._op(name, f"aten.{target}.default", Phase.FORWARD, (x.value,), (y.value,))

        def backward() -> None:
            reads = (self.gradients.pop(y.storage), x.value, y.value)
            self._add_gradients(name, f"aten.{target}_backward.default", reads, (x,))

        self.backward.append(backward)
        return y

    def concat(self, name: str, parts: Sequence[Map]) -> Map:
        """Maps side by side in a new one; backward reads gradients only."""
        y = self._new(name, (sum(x.shape[0] for x in parts), *parts[0].shape[1:]), Role.FEATURE_MAP)
        self._op(name, "aten.cat.default", Phase.FORWARD, tuple(x.value for x in parts), (y.value,))

        def backward() -> None:
            self._add_gradients(name, "split", (self.gradients.pop(y.storage),), parts)

        self.backward.append(backward)
        return y

    def softmax(self, name: str, x: Map) -> None:
        """The loss: where backward begins."""
        y = self._new(name, x.shape, Role.FEATURE_MAP)
        self._op(name, "aten._softmax.default", Phase.FORWARD, (x.value,), (y.value,))
        self.backward.append(lambda: self._add_gradients(name, "softmax_loss_backward", (y.value,), (x,)))

    def graph(self) -> Graph:
        """Forward as it was grown, then backward from the last layer to the first."""
        while self.backward:
            self.backward.pop()()
        return Graph(self.name, tuple(self.ops), tuple(self.values), tuple(self.storages), tuple(self.inputs), (), ())

    def _weighted(
        self, kind: str, name: str, x: Map, shape: tuple[int, ...], weight: tuple[int, ...], multiply_adds: int
    ) -> Map:
        flops = FLOPS_PER_MULTIPLY_ADD * multiply_adds
        w = self._given(f"{name}.weight", (prod(weight) + weight[0],), Role.PARAMETER)
        dw = self._given(f"gradient of {name}.weight", (prod(weight) + weight[0],), Role.GRADIENT)
        y = self._new(name, shape, Role.FEATURE_MAP)
        self._op(name, f"aten.{kind}.default", Phase.FORWARD, (x.value, w.value), (y.value,), flops=flops)

        def backward() -> None:
            reads = (self.gradients.pop(y.storage), x.value, w.value, dw.value)
            wanted = () if self.storages[x.storage].name == "images" else (x,)
            written = self._alias(dw, f"{self.values[dw.value].name}'").value
            target = f"aten.{kind}_backward.default"
            self._add_gradients(name, target, reads, wanted, flops * (1 + len(wanted)), (written,))

        self.backward.append(backward)
        return y

    def _relu(self, name: str, x: Map) -> Map:
        y = self._alias(x, f"{name}.relu")
        traits = frozenset({Trait.IN_PLACE})
        module = f"{name}.relu"
        self._op(module, "aten.relu_.default", Phase.FORWARD, (x.value,), (y.value,), traits=traits)

        def backward() -> None:
            gradient = self.gradients[y.storage]
            written = self._alias(self._map_of(gradient), f"gradient of {name}").value
            self.gradients[y.storage] = written
            target = "aten.threshold_backward.grad_input"
            reads = (gradient, y.value)
            self._op(f"{module}_backward", target, Phase.BACKWARD, reads, (written,), traits=traits, module=module)

        self.backward.append(backward)
        return y

    def _add_gradients(
        self,
        name: str,
        target: str,
        reads: tuple[int, ...],
        to: Sequence[Map],
        flops: int = 0,
        writes: tuple[int, ...] = (),
    ) -> None:
        """The backward op of a layer: makes the gradients of `to`, or adds to those that exist."""
        for x in to:
            if x.storage in self.gradients:
                reads += (self.gradients[x.storage],)
                made = self._alias(self._map_of(self.gradients[x.storage]), f"gradient of {self._name(x)} by {name}")
            else:
                made = self._new(f"gradient of {self._name(x)}", x.shape, Role.GRADIENT_MAP)
            self.gradients[x.storage] = made.value
            writes += (made.value,)
        self._op(f"{name}_backward", target, Phase.BACKWARD, reads, writes, flops=flops, module=name)

    def _op(
        self,
        name: str,
        target: str,
        phase: Phase,
        reads: tuple[int, ...],
        writes: tuple[int, ...],
        *,
        flops: int = 0,
        traits: frozenset[Trait] = frozenset(),
        module: str | None = None,
    ) -> None:
        taken = tuple(Read(value) for value in reads)
        self.ops.append(Op(name, target, phase, name if module is None else module, taken, writes, flops, traits))

    def _new(self, name: str, shape: tuple[int, ...], role: Role) -> Map:
        return self._store(name, (self.batch, *shape), shape, role)

    def _given(self, name: str, shape: tuple[int, ...], role: Role) -> Map:
        made = self._store(name, shape, shape, role)
        self.inputs.append(made.value)
        return made

    def _store(self, name: str, whole: tuple[int, ...], shape: tuple[int, ...], role: Role) -> Map:
        value, storage = len(self.values), len(self.storages)
        self.storages.append(Storage(name, FLOAT32_NBYTES * prod(whole), role, "float32", (value,)))
        self.values.append(Value(name, storage, whole, "float32"))
        return Map(value, storage, shape)

    def _alias(self, x: Map, name: str) -> Map:
        value, old = len(self.values), self.storages[x.storage]
        self.storages[x.storage] = Storage(old.name, old.nbytes, old.role, old.dtype, (*old.values, value))
        self.values.append(Value(name, x.storage, self.values[x.value].shape, "float32"))
        return Map(value, x.storage, x.shape)

    def _map_of(self, value: int) -> Map:
        return Map(value, self.values[value].storage, self.values[value].shape[1:])

    def _name(self, x: Map) -> str:
        return self.storages[x.storage].name


def _length(size: int, kernel: int, stride: int, padding: int, *, round_up: bool = False) -> int:
    """How many windows fit along one side."""
    slack = size + 2 * padding - kernel
    return (-(-slack // stride) if round_up else slack // stride) + 1
