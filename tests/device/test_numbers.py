"""The device's numbers are the CPU's, in eager mode and through the capture that vdnn builds on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._pytree import tree_leaves

pytestmark = pytest.mark.usefixtures("vdev")


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LSTMCell(8, 16), nn.GRUCell(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        hidden = cell = last = x.new_zeros(x.shape[0], 16)
        for step in range(x.shape[1]):
            hidden, cell = self.first(x[:, step], (hidden, cell))
            last = self.second(hidden, last)
        return last


def convolutions(dropout: float = 0.0) -> nn.Module:
    stem = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    body = [nn.Conv2d(8, 8, 3, groups=2), nn.GroupNorm(2, 8), nn.GELU(), nn.Dropout(dropout)]
    return nn.Sequential(*stem, *body, nn.Flatten(), nn.Linear(8 * 6 * 6, 4))


def transformer(dropout: float = 0.0) -> nn.Module:
    return nn.TransformerEncoderLayer(32, 4, 64, dropout=dropout, batch_first=True)


IMAGES, TOKENS, SERIES = (2, 3, 16, 16), (2, 5, 32), (3, 4, 8)
OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, 0.01, foreach=True),
    "fused adam": lambda parameters: torch.optim.Adam(parameters, 0.01, fused=True),
}


def trained(make: Callable[[], nn.Module], shape: tuple[int, ...], device: str, optimizer: str) -> list[Tensor]:
    torch.manual_seed(0)
    model, x = make().to(device), torch.randn(shape).to(device)
    steps = OPTIMIZERS[optimizer](list(model.parameters()))
    losses = []
    for _ in range(3):
        steps.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        steps.step()
        losses.append(loss.detach())
    return [tensor.detach().cpu() for tensor in (*model.parameters(), *model.buffers(), *losses)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("make", "shape"), [(convolutions, IMAGES), (transformer, TOKENS)])
def test_training_has_the_bits_of_the_cpu(
    make: Callable[[], nn.Module], shape: tuple[int, ...], optimizer: str
) -> None:
    on_cpu, here = trained(make, shape, "cpu", optimizer), trained(make, shape, "vdev", optimizer)
    assert all(torch.equal(a, b) for a, b in zip(on_cpu, here, strict=True))


def test_fused_cells_are_the_cpus_up_to_rounding() -> None:
    for on_cpu, here in zip(
        trained(Recurrent, SERIES, "cpu", "sgd"), trained(Recurrent, SERIES, "vdev", "sgd"), strict=True
    ):
        torch.testing.assert_close(on_cpu, here)


def gradients(model: Callable[[Tensor], Tensor], parameters: list[Tensor], x: Tensor) -> list[Tensor]:
    torch.manual_seed(1)
    x = x.detach().requires_grad_()
    loss = model(x).square().mean()
    return [loss.detach(), *torch.autograd.grad(loss, [x, *parameters])]


@pytest.mark.parametrize(
    ("make", "shape"),
    [(lambda: convolutions(0.3), IMAGES), (lambda: transformer(0.3), TOKENS), (Recurrent, SERIES)],
    ids=["convolutions", "transformer", "recurrent"],
)
def test_captured_training_has_the_gradients_of_eager(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    model, x = make().to("vdev"), torch.randn(shape, device="vdev")
    parameters = list(model.parameters())
    captured = torch.compile(model, backend="aot_eager", fullgraph=True)
    eager, here = gradients(model, parameters, x), gradients(captured, parameters, x)
    assert all(torch.equal(a, b) for a, b in zip(eager, here, strict=True))


def test_attention_with_dropout_has_the_gradients_of_its_own_mask() -> None:
    length, p = 6, 0.4
    query, key, value = (torch.randn(2, 3, length, length, device="vdev", requires_grad=True) for _ in range(3))
    grad = torch.randn(2, 3, length, length)

    def attention(values: Tensor) -> Tensor:
        torch.manual_seed(7)
        return functional.scaled_dot_product_attention(query, key, values, dropout_p=p)

    here = torch.autograd.grad(attention(value), [query, key, value], grad.to("vdev"))
    shown = attention(torch.eye(length, device="vdev").expand(2, 3, -1, -1)).detach().cpu()  # weights × mask / (1 - p)
    q, k, v = (tensor.detach().cpu().requires_grad_() for tensor in (query, key, value))
    weights = functional.softmax(q @ k.transpose(-2, -1) / length**0.5, -1)
    mask = (shown != 0) / (1 - p)
    torch.testing.assert_close(shown, (weights * mask).detach())
    assert 0 < (shown == 0).sum() < shown.numel()
    expected = torch.autograd.grad((weights * mask) @ v, [q, k, v], grad)
    for a, b in zip(here, expected, strict=True):
        torch.testing.assert_close(a.cpu(), b)


def test_tensors_of_two_devices_do_not_meet() -> None:
    first, second = torch.ones(3, device="vdev:0"), torch.ones(3, device="vdev:1")
    for other in (second, torch.ones(3)):
        with pytest.raises(RuntimeError, match="same device"):
            first + other
        with pytest.raises(RuntimeError, match="same device"):
            torch.nn.functional.layer_norm(first, (3,), other)
    assert torch.equal((first + second.to("vdev:0") + torch.tensor(1.0)).cpu(), torch.full((3,), 3.0))


def maps(channels_last: bool = False) -> Tensor:
    x = torch.randn(2, 8, 6, 6, device="vdev")
    return x.to(memory_format=torch.channels_last) if channels_last else x


CALLS: dict[str, Callable[[], object]] = {
    "batch norm in evaluation": lambda: torch.ops.aten._native_batch_norm_legit_no_training(
        maps(), None, None, torch.zeros(8, device="vdev"), torch.ones(8, device="vdev"), 0.1, 1e-5
    ),
    "dropout's backward, turned": lambda: torch.ops.aten.native_dropout_backward(
        maps().transpose(0, 1), torch.ones(8, 2, 6, 6, dtype=torch.bool, device="vdev"), 2.0
    ),
    "an embedding bag": lambda: torch.ops.aten._embedding_bag(
        torch.randn(5, 4, device="vdev"), torch.tensor([0, 2, 4], device="vdev"), torch.tensor([0, 2], device="vdev")
    ),
    "a convolution in channels last": lambda: torch.ops.aten.convolution(
        maps(True), torch.randn(4, 8, 3, 3, device="vdev"), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1
    ),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_results_are_laid_out_as_torchs_tracer_expects_of_a_device_that_is_not_the_cpu(
    call: Callable[[], object],
) -> None:
    def layouts() -> list[tuple[object, ...]]:
        return [(t.shape, t.stride(), t.dtype) for t in tree_leaves(call()) if isinstance(t, Tensor)]

    with FakeTensorMode():
        expected = layouts()
    assert layouts() == expected


def test_a_view_in_inference_mode_is_of_the_kind_of_its_base() -> None:
    x = torch.ones(4, 4, device="vdev")
    with torch.inference_mode():
        assert not x.view(-1).is_inference()
        assert x.add(1).is_inference()


def test_an_op_that_is_written_out_has_the_bits_of_one_that_is_not() -> None:
    """Also where work is cut into parts for threads, which the worker of a stream has to know of."""
    x, grad = (torch.randn(90_902, dtype=torch.bfloat16, device="vdev") for _ in range(2))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        returned = torch.ops.aten.silu_backward(grad, x)
        out = torch.ops.aten.silu_backward.grad_input(grad, x, grad_input=torch.empty_like(x))
        assert torch.equal(returned, out)
    finally:
        torch.set_num_threads(before)


def test_a_generator_of_another_device_is_refused() -> None:
    with pytest.raises(RuntimeError, match="Expected a 'vdev' device type for generator but found 'cpu'"):
        torch.rand(4, device="vdev", generator=torch.Generator())
