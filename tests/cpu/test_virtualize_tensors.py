"""What goes into a virtualized model and what comes out of it: views, aliases, writes into inputs, unusual tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from equivalence import assert_measured_as_simulated, check, differences, pair, virtualize
from nets import EITHER_FRONT_END, PYTORCH_MAY_WARN, Using, backward, backward_of_each, options, rows
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils._pytree import tree_leaves

pytestmark = pytest.mark.any_device


def linear() -> nn.Linear:
    return nn.Linear(4, 4)


def frozen(model: nn.Module, *layers: int) -> nn.Module:
    for layer in layers:
        model.get_submodule(str(layer)).requires_grad_(False)
    return model


def zero_a_column(tensor: Tensor) -> Tensor:
    tensor[:, 0] = 0
    return tensor


OUTPUTS = {
    "views of one tensor": lambda self, x: (lambda y: (y, y.t(), y[:, :2], y.view(-1)))(self.linear(x)),
    "one tensor twice": lambda self, x: (self.linear(x),) * 2,
    "a parameter": lambda self, x: (self.linear(x), self.linear.weight),
    "a view of a parameter": lambda self, x: (self.linear(x), self.linear.weight.t()),
    "a buffer": lambda self, x: (self.linear(x), self.buffer, self.buffer + 1),
    "the input": lambda self, x: (self.linear(x), x),
    "a view of the input": lambda self, x: (self.linear(x), x.view(-1)),
    "outputs without gradient": lambda self, x: (lambda y: (y, y > 0, y.argmax(1), y.detach()))(self.linear(x)),
    "an expanded tensor": lambda self, x: self.linear(x).expand(5, 3, 4),
    "a dictionary with None and a number": lambda self, x: {"y": [self.linear(x)], "nothing": None, "number": 3},
    "a tensor written in place": lambda self, x: zero_a_column(self.linear(x)),
    "complex numbers": lambda self, x: torch.fft.fft(self.linear(x)) * self.phase,
    "nothing of the parameters": lambda self, x: (x * 2, self.linear(x).detach()),
    "rows by constant index": lambda self, x: self.linear(x)[torch.tensor([0, 2])],
    "softmax of masked scores": lambda self, x: self.linear(x).masked_fill(x > 0, -1e9).softmax(-1),
    "gradient switched off and on inside": lambda self, x: without_then_with_gradient(self, x),
    "vmap": lambda self, x: torch.func.vmap(lambda row: (self.linear.weight @ row).sin())(x),
    "a gradient taken inside": lambda self, x: torch.func.grad(lambda w: (w @ x.t()).sin().sum())(self.linear.weight),
    "a weight used twice": lambda self, x: self.linear(self.linear(x).relu()),
    "a double": lambda self, x: self.linear(x).double(),
}


def without_then_with_gradient(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        hidden = self.linear(x)
    with torch.set_grad_enabled(True):
        return self.linear(hidden)


def outputs_and_input_gradient(model: Any, x: Tensor) -> dict[str, Any]:
    x = x.clone().requires_grad_()
    output = model(x)
    backward_of_each(output)
    found: dict[str, Any] = {"input": x.detach(), "gradient of input": x.grad}
    for position, leaf in enumerate(tree_leaves(output)):
        is_tensor = isinstance(leaf, Tensor)
        found[f"output {position}"] = leaf.detach().resolve_conj() if is_tensor else leaf
        found[f"output {position} requires grad"] = is_tensor and leaf.requires_grad
    return found


@EITHER_FRONT_END
@pytest.mark.parametrize("function", OUTPUTS.values(), ids=OUTPUTS.keys())
def test_outputs_are_what_plain_pytorch_returns(front_end: str, function: Any) -> None:
    torch.manual_seed(0)
    phase = nn.Parameter(torch.randn(4, dtype=torch.cfloat))
    model = Using(function, linear=linear(), buffer=torch.ones(3), phase=phase)

    def run(virtual: Any) -> dict[str, Any]:
        return outputs_and_input_gradient(virtual, rows())

    expected, found = check(model, run, **options(front_end, rows().requires_grad_()))
    assert list(differences(expected, found)) == []


@EITHER_FRONT_END
def test_an_input_that_is_returned_is_the_same_object(front_end: str) -> None:
    virtual = virtualize(Using(lambda self, x: (self.linear(x), x), linear=linear()), **options(front_end, rows()))
    batch = rows()
    assert virtual(batch)[1] is batch


MODELS = {
    "unused parameters": lambda: Using(lambda self, x: self.used(x), used=linear(), unused=linear()),
    "frozen first layers": lambda: frozen(nn.Sequential(linear(), nn.BatchNorm1d(4), linear()), 0, 1),
    "frozen last layer": lambda: frozen(nn.Sequential(linear(), nn.BatchNorm1d(4), linear()), 2),
    "normalization first": lambda: nn.Sequential(nn.BatchNorm1d(4), linear()),
    "weight and spectral norm": lambda: nn.Sequential(
        parametrizations.weight_norm(linear()), nn.ReLU(), parametrizations.spectral_norm(linear())
    ),
    "orthogonal weights": lambda: nn.Sequential(parametrizations.orthogonal(linear())),
    "module list": lambda: Using(
        lambda self, x: torch.stack([layer(x) for layer in self.layers]).sum(0),
        layers=nn.ModuleList([linear(), linear()]),
    ),
    "tied weights": lambda: tied(),
    "bare linear": linear,
}


def tied() -> nn.Module:
    model = nn.Sequential(linear(), nn.ReLU(), linear())
    model[2].weight = model[0].weight
    return model


@EITHER_FRONT_END
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
def test_models_with_unusual_parameters_train_the_same_in_the_bytes_that_were_simulated(
    front_end: str, make: Any
) -> None:
    torch.manual_seed(0)
    batch = rows()
    plain, virtual = pair(make(), **options(front_end, batch))

    def steps(model: Any) -> list[Tensor]:
        outputs = [model(batch) for _ in range(2)]
        for output in outputs:
            output.square().sum().backward()
        return outputs

    torch.manual_seed(0)
    expected = steps(plain)
    torch.manual_seed(0)
    found = steps(virtual)
    assert all(map(torch.equal, expected, found))
    assert list(differences(*({n: p.grad for n, p in m.named_parameters()} for m in (plain, virtual)))) == []
    assert list(differences(plain.state_dict(), virtual.state_dict())) == []
    assert_measured_as_simulated(virtual)


INPUTS = {
    "an empty batch": torch.empty(0, 4),
    "a transposed input": torch.arange(16.0).view(4, 4).t(),
    "an input of stride 0": torch.ones(1, 4).expand(3, 4),
    "every second row": torch.arange(24.0).view(6, 4)[::2],
    "a single row": torch.ones(4),
    "three dimensions": torch.ones(2, 3, 4),
}


@EITHER_FRONT_END
@pytest.mark.parametrize("batch", INPUTS.values(), ids=INPUTS.keys())
def test_inputs_of_any_layout_give_the_same_gradients(front_end: str, batch: Tensor) -> None:
    model = nn.Sequential(linear(), nn.Dropout(0.5), nn.ReLU(), linear())
    check(model, lambda virtual: backward(virtual, batch), **options(front_end, batch))


@EITHER_FRONT_END
@pytest.mark.parametrize("number", [2.5, 3, torch.tensor(2.5), torch.tensor(2.5, requires_grad=True)], ids=str)
def test_scalar_arguments(front_end: str, number: Any) -> None:
    model = Using(lambda self, x, scale: self.linear(x) * scale, linear=linear())

    def run(virtual: Any) -> Any:
        backward(virtual, rows(), number)
        gradient = getattr(number, "grad", None)
        if gradient is not None:
            number.grad = None
        return gradient

    expected, found = check(model, run, **options(front_end, rows(), number))
    assert list(differences({"gradient": expected}, {"gradient": found})) == []


@EITHER_FRONT_END
@pytest.mark.parametrize(
    "layer",
    [nn.Embedding(10, 4), nn.Embedding(10, 4, padding_idx=2, max_norm=1.0), nn.EmbeddingBag(10, 4)],
    ids=["embedding", "renormalized", "bag"],
)
def test_integer_inputs(front_end: str, layer: nn.Module) -> None:
    words = torch.tensor([[1, 2], [2, 0]])
    check(layer, lambda virtual: backward_of_each(virtual(words)), **options(front_end, words))


WRITES = {
    "input": lambda self, x: (x.mul_(2), self.linear(x))[1],
    "view of input": lambda self, x: (x[:, 0].mul_(2), self.linear(x))[1],
    "input, returned": lambda self, x: (x.mul_(2), (self.linear(x), x))[1],
    "buffer, read before": lambda self, x: (self.linear(x) + self.buffer, self.buffer.add_(1))[0],
    "buffer, read after": lambda self, x: (self.buffer.copy_(x.mean(0)), self.linear(x) + self.buffer)[1],
    "buffer, read before and after": lambda self, x: (
        self.linear(x) + self.buffer + self.buffer.add_(1) + self.buffer.mul_(2)
    ),
    "buffer through a view": lambda self, x: (self.buffer[:2].add_(1), self.linear(x) * self.buffer)[1],
}


@EITHER_FRONT_END
@pytest.mark.parametrize("function", WRITES.values(), ids=WRITES.keys())
def test_writes_into_inputs_and_buffers_happen_and_are_seen(front_end: str, function: Any) -> None:
    model = Using(function, linear=linear(), buffer=torch.ones(4))

    def run(virtual: Any) -> Tensor:
        batch = rows()
        for _ in range(2):
            backward_of_each(virtual(batch))
        return batch

    expected, found = check(model, run, **options(front_end, rows()))
    assert torch.equal(expected, found)


READS = {
    "transformer": nn.Transformer(8, 2, 1, 1, 16, batch_first=True),
    "sum with a transposed input": Using(lambda self, x, y: (x.transpose(0, 1) + y.transpose(0, 1)) @ self.w),
    "negated view": Using(lambda self, x, y: (-x.view(-1, 8)) @ self.w + y.view(-1, 8).sigmoid() @ self.w),
}


@EITHER_FRONT_END
@pytest.mark.parametrize("model", READS.values(), ids=READS.keys())
def test_an_input_that_is_only_read_stays_as_it_was(front_end: str, model: nn.Module) -> None:
    # An input read through a view for the last time looks like memory that nobody needs any more.
    model.register_parameter("w", nn.Parameter(torch.ones(8, 8)))
    batches = torch.randn(2, 3, 8), torch.randn(2, 3, 8)
    kept = [batch.clone() for batch in batches]
    virtual = virtualize(model, **options(front_end, *batches))
    backward_of_each(virtual(*batches))
    assert all(map(torch.equal, batches, kept))


def test_an_argument_that_is_written_and_passed_twice_is_seen_twice() -> None:
    model = Using(lambda self, x, y: (x.add_(1), self.linear(y))[1], linear=linear())

    def run(virtual: Any) -> Tensor:
        batch = rows()
        backward(virtual, batch, batch)
        return batch

    expected, found = check(model, run)
    assert torch.equal(expected, found)


@EITHER_FRONT_END
def test_an_argument_that_is_passed_twice_is_read_twice(front_end: str) -> None:
    model = Using(lambda self, x, y: self.linear(x) * y, linear=linear())
    check(model, lambda virtual: backward(virtual, rows(), rows()), **options(front_end, rows(), rows()))
    batch = rows()
    check(model, lambda virtual: backward(virtual, batch, batch), **options(front_end, rows(), rows()))


class DoublesItsGradient(torch.autograd.Function):
    """Keeps one tensor as PyTorch wants it kept, and one in an attribute."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result = x.exp()
        ctx.save_for_backward(result)
        ctx.doubled = x * 2
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (result,) = ctx.saved_tensors
        return gradient * result + ctx.doubled


@PYTORCH_MAY_WARN
@EITHER_FRONT_END
def test_a_custom_autograd_function_keeps_its_own_backward(front_end: str) -> None:
    model = Using(lambda self, x: DoublesItsGradient.apply(self.linear(x)), linear=linear())
    check(model, lambda virtual: backward(virtual, rows()), **options(front_end, rows()))


@EITHER_FRONT_END
@pytest.mark.parametrize("channels_last", ["weights and images", "weights"])
def test_channels_last(front_end: str, channels_last: str) -> None:
    layers = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(True), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3)
    )
    model = layers.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    batch = torch.randn(2, 3, 8, 8)
    if channels_last == "weights and images":
        batch = batch.to(memory_format=torch.channels_last)
    check(model, lambda virtual: backward(virtual, batch), **options(front_end, batch))


@PYTORCH_MAY_WARN
def test_a_leaf_that_is_made_inside_the_model_does_no_harm() -> None:
    model = Using(lambda self, x: self.linear(x) + torch.zeros(4, requires_grad=True), linear=linear())
    check(model, lambda virtual: backward(virtual, rows()))
