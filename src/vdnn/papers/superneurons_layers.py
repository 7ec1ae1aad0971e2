"""Networks as SuperNeurons counts them: layers with dependency lists, straight into `ir.Graph`, without torch.

Enters: layer after layer. Leaves: a graph of one training step with one op per layer and direction. The one idea is the
paper's (Wang et al., PPoPP 2018, section 3.1): a layer says which of its tensors each direction reads and writes, and
all else follows. The lists are those that the authors' release registers. Unlike in `layer_network.py`

- activations have a map of their own; only their gradient is written in place;
- the backwards of pooling, of normalisation over channels and of activations read X and Y, that of batch
  normalisation X, dropout's its mask;
- a fork copies its X once per branch, a join adds branches into a new map, and their backwards read gradients alone;
- the first convolution computes a gradient of the images too;
- weights, their gradients, running statistics, dropout's masks and the images are there for the whole step and are not
  regulated: what is counted is maps and their gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from vdnn.ir import Phase, Role, Trait
from vdnn.papers.layer_network import FLOPS_PER_MULTIPLY_ADD, LayerNetwork, Map

X, Y = "x", "y"

BACKWARD_READS = {
    "conv": (X,),
    "fc": (X,),
    "pool": (X, Y),
    "lrn": (X, Y),
    "act": (X, Y),
    "bn": (X,),
    "dropout": (),
    "softmax": (X, Y),
}
"""Which of its maps a layer reads in backward, beside the gradient of Y."""


class DependencyNetwork(LayerNetwork):
    """Grows layer by layer; `graph()` adds the backward pass, in mirrored order."""

    def data(self, channels: int, height: int, width: int) -> Map:
        """The images: given, and in no layer's count."""
        made = self._new("data", (channels, height, width), Role.INPUT)
        self.inputs.append(made.value)
        return made

    def conv(
        self, name: str, x: Map, channels: int, kernel: int, stride: int = 1, padding: int = 0, *, bias: bool = True
    ) -> Map:
        height, width = (_windows(size, kernel, stride, padding) for size in x.shape[1:])
        weights = channels * x.shape[0] * kernel * kernel
        shape = (channels, height, width)
        return self._layer("conv", name, x, shape, weights + bias * channels, weights * height * width)

    def fc(self, name: str, x: Map, features: int) -> Map:
        weights = features * prod(x.shape)
        return self._layer("fc", name, x, (features,), weights + features, weights)

    def pool(self, name: str, x: Map, kernel: int, stride: int) -> Map:
        """Windows that stick out do not count, which is cuDNN's rounding."""
        sizes = (_windows(size, kernel, stride) for size in x.shape[1:])
        return self._layer("pool", name, x, (x.shape[0], *sizes))

    def lrn(self, name: str, x: Map) -> Map:
        return self._layer("lrn", name, x, x.shape)

    def act(self, name: str, x: Map) -> Map:
        return self._layer("act", name, x, x.shape)

    def bn(self, name: str, x: Map) -> Map:
        """Scale and shift per channel, and running statistics, which forward updates."""
        return self._layer("bn", name, x, x.shape, 2 * x.shape[0], state=2 * x.shape[0])

    def dropout(self, name: str, x: Map) -> Map:
        return self._layer("dropout", name, x, x.shape, state=self.batch * prod(x.shape))

    def softmax(self, name: str, x: Map) -> None:
        self._layer("softmax", name, x, x.shape)

    def fork(self, name: str, x: Map, branches: int = 2) -> list[Map]:
        copies = [self._new(f"{name}.{k}", x.shape, Role.FEATURE_MAP) for k in range(branches)]
        self._op(name, "fork", Phase.FORWARD, (x.value,), tuple(copy.value for copy in copies))

        def backward() -> None:
            """The first branch's gradient becomes X's: the others are added to it."""
            reads = tuple(self.gradients.pop(copy.storage) for copy in copies)
            self._op_on_gradient(name, "fork", reads, reads[0], x)

        self.backward.append(backward)
        return copies

    def join(self, name: str, parts: Sequence[Map]) -> Map:
        y = self._new(name, parts[0].shape, Role.FEATURE_MAP)
        self._op(name, "join", Phase.FORWARD, tuple(x.value for x in parts), (y.value,))

        def backward() -> None:
            """The first branch takes Y's gradient as it is, every other a copy."""
            gradient = self.gradients.pop(y.storage)
            self.gradients[parts[0].storage] = gradient
            self._add_gradients(name, "join_backward", (gradient,), parts[1:])

        self.backward.append(backward)
        return y

    def _layer(
        self,
        kind: str,
        name: str,
        x: Map,
        shape: tuple[int, ...],
        weights: int = 0,
        multiply_adds: int = 0,
        *,
        state: int = 0,
    ) -> Map:
        """One layer by its dependency list. `weights` and `state` are numbers of elements, `multiply_adds` per image.

        What forward leaves in `state` beside its map is not made again when the layer runs again.
        """
        y = self._new(name, shape, Role.FEATURE_MAP)
        flops = FLOPS_PER_MULTIPLY_ADD * self.batch * multiply_adds
        w = self._given(f"{name}.weight", (weights,), Role.PARAMETER) if weights else None
        dw = self._given(f"gradient of {name}.weight", (weights,), Role.GRADIENT) if weights else None
        old = self._given(f"{name}.state", (state,), Role.BUFFER) if state else None
        new = self._alias(old, f"{name}.state'") if old else None
        updates = {Trait.UPDATES} if new else set()
        traits = frozenset(updates | ({Trait.RANDOM} if kind == "dropout" else set()))
        self._op(name, kind, Phase.FORWARD, _values(x, w, old), _values(y, new), flops=flops, traits=traits)

        def backward() -> None:
            reads = _values(*({X: x, Y: y}[which] for which in BACKWARD_READS[kind]), w, dw)
            reads += _values(new) if kind == "dropout" else ()
            if kind == "act":
                gradient = self.gradients.pop(y.storage)
                self._op_on_gradient(name, kind, (gradient, *reads), gradient, x)
                return
            if kind != "softmax":  # where backward begins
                reads = (self.gradients.pop(y.storage), *reads)
            written = _values(self._alias(dw, f"gradient of {name}.weight'") if dw else None)
            self._add_gradients(name, f"{kind}_backward", reads, (x,), 2 * flops, written)

        self.backward.append(backward)
        return y

    def _op_on_gradient(self, name: str, kind: str, reads: tuple[int, ...], gradient: int, x: Map) -> None:
        """A backward op that writes X's gradient over one that exists."""
        written = self._alias(self._map_of(gradient), f"gradient of {self._name(x)}").value
        self.gradients[x.storage] = written
        traits = frozenset({Trait.IN_PLACE})
        target = f"{kind}_backward"
        self._op(f"{name}_backward", target, Phase.BACKWARD, reads, (written,), traits=traits, module=name)


def _windows(size: int, kernel: int, stride: int, padding: int = 0) -> int:
    """How many windows fit along one side, none sticking out."""
    return (size + 2 * padding - kernel) // stride + 1


def _values(*maps: Map | None) -> tuple[int, ...]:
    return tuple(x.value for x in maps if x is not None)
