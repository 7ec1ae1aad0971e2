"""The tensor cache: eager training inside a budget, with the gradients of plain PyTorch.

Models and batches are made after the cache, so that they are within its budget.
"""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from equivalence import assert_same, train, without_garbage_collection
from tiers import DISK, THREE_TIERS, settled_nbytes
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import vdnn
from vdnn.eager.live_bytes import LiveBytes
from vdnn.eager.tensor_cache import TensorCache
from vdnn.errors import Infeasible, InvalidInput
from vdnn.hardware.device import Hardware
from vdnn.ir import Role
from vdnn.runtime.pool.states import State
from vdnn.runtime.runtime import shared_runtime
from vdnn.runtime.tracker import StorageTracker
from vdnn.units import Nbytes
from where import here, risen_nbytes, seeded

pytestmark = pytest.mark.any_device


class Decides(nn.Module):
    """Python looks at the data to choose its layers, so that two batches are two programs."""

    def __init__(self, depth: int = 10, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            if x.sum().item() > 0 or number % 3 == 0:
                x = self.dropout(torch.tanh(layer(x)))
            else:
                x = torch.relu(layer(x)) + x
        return x.square().mean()


def batch(seed: int = 0, rows: int = 256, width: int = 32) -> Tensor:
    return torch.randn(rows, width, generator=seeded(seed))


def model() -> Decides:
    torch.manual_seed(0)
    return Decides()


def cache_of(budget: int, device: Hardware = DISK, **options: Any) -> TensorCache:
    """A budget for the tensors of a test; those that other tests have left in this process come on top."""
    gc.collect()
    others = LiveBytes(here())
    others.count_everything()
    return vdnn.tensor_cache(Nbytes(budget + others.nbytes), hardware=device, **options)


def used_nbytes(device: Hardware = DISK) -> int:
    """What slower tiers hold once copies that nobody waits for are over."""
    return settled_nbytes(shared_runtime().transfers(device, device=here()))


def peak_of(net: nn.Module, args: tuple[Tensor, ...], step: Callable[[], Any]) -> int:
    """The most bytes of tensors at any moment of a step, counted by somebody else than the cache."""
    net.zero_grad()
    tracker = StorageTracker()
    tracker.count_all((*net.parameters(), *net.buffers()), Role.PARAMETER)
    tracker.count_all(args, Role.INPUT)
    with tracker:
        step()
    tracker.close()
    return tracker.peak_nbytes


def plain_peak(net: nn.Module, x: Tensor) -> int:
    return peak_of(net, (x,), lambda: net(x).backward())


def inside(cache: TensorCache, net: nn.Module, x: Tensor) -> None:
    with cache:
        net(x).backward()


def grads(net: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) > 0 and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def plain_grads(do: Callable[[nn.Module], Any]) -> list[Tensor]:
    net = model()
    torch.manual_seed(1)
    do(net)
    return grads(net)


def cached_grads(cache: TensorCache, do: Callable[[nn.Module], Any]) -> list[Tensor]:
    net = model()
    torch.manual_seed(1)
    with cache:
        do(net)
    return grads(net)


@pytest.fixture
def tight() -> TensorCache:
    """Half of what plain PyTorch needs for a step of `model()`."""
    return cache_of(plain_peak(model(), batch()) // 2)


@pytest.fixture(autouse=True)
def _nothing_stays_behind() -> Iterator[None]:
    yield
    assert used_nbytes() == 0


@pytest.mark.parametrize("policy", ["lru", "next-use"])
@pytest.mark.parametrize("device", [DISK, THREE_TIERS], ids=["disk", "three tiers"])
def test_a_model_that_decides_by_data_stays_within_half_its_peak(policy: str, device: Hardware) -> None:
    budget = plain_peak(model(), batch()) // 2
    cache = cache_of(budget, device, policy=policy)
    net = model()
    peaks = [peak_of(net, (x,), lambda x=x: inside(cache, net, x)) for x in map(batch, (0, 1, 2, 0))]  # type: ignore[misc]
    assert max(peaks) <= budget
    assert cache.findings.num_sent > 0


@pytest.mark.parametrize("policy", ["lru", "next-use"])
def test_training_within_half_the_peak_is_plain_training_bit_for_bit(policy: str) -> None:
    cache = cache_of(plain_peak(model(), batch()) // 2, policy=policy, over_budget="warn")
    net, other = model(), model()

    def step(x: Tensor) -> Tensor:
        with cache:
            return other(x)

    with warnings.catch_warnings():  # the optimizer's momentum comes on top of the peak that was halved
        warnings.simplefilter("ignore")
        assert_same(train(net, net, (batch(),), 4), train(step, other, (batch(),), 4))
    assert cache.findings.num_fetched > 0


def test_a_budget_above_the_peak_moves_nothing_and_is_soon_not_watched() -> None:
    cache, net = cache_of(1 << 30), model()
    for _ in range(5):
        inside(cache, net, batch())
    assert cache.findings.moved_nothing
    assert (cache.findings.num_steps, cache.findings.num_watched) == (5, 2)


def test_an_unwatched_step_that_departs_from_the_routine_half_way_is_right() -> None:
    """The first layers are those of the watched steps; what they saved moves too."""
    cache, net, other = cache_of(plain_peak(model(), batch()) * 13 // 10), model(), model()

    def step(net: nn.Module, repeats: int) -> None:
        net.zero_grad()
        torch.manual_seed(1)
        x = batch()
        for _ in range(repeats):
            x = torch.tanh(net.layers[0](x))  # type: ignore[index]
        net(x).backward()

    for repeats in (1, 1, 1, 12, 12, 1):
        with cache:
            step(net, repeats)
        step(other, repeats)
        assert same(grads(net), grads(other))
    assert cache.findings.num_watched == 4
    assert cache.findings.num_fetched > 0


def test_an_unwatched_step_that_grows_beyond_the_budget_makes_room_and_is_watched_next_time() -> None:
    cache = cache_of(plain_peak(model(), batch(rows=1024)) * 2 // 3)
    net, small, large = model(), batch(rows=64), batch(rows=1024)
    for x in (small, small, small, large, large):
        inside(cache, net, x)
    assert cache.findings.num_watched == 3
    assert cache.findings.num_sent > 0


def test_backward_after_the_cache_was_left_gets_what_it_needs(tight: TensorCache) -> None:
    net = model()
    torch.manual_seed(1)
    with tight:
        loss = net(batch())
    loss.backward()
    assert same(grads(net), plain_grads(lambda net: net(batch()).backward()))
    assert tight.findings.num_fetched > 0


def test_backward_after_the_cache_was_left_exceeds_the_budget_by_one_gradient_map_at_most(tight: TensorCache) -> None:
    """Nodes that read nothing saved are not watched there: what they make is counted when the next node reads it."""
    net = model()
    for _ in range(2):
        net.zero_grad()
        with tight:
            loss = net(batch())
        before = tight.findings.fetched_nbytes
        loss.backward()
        assert tight.findings.fetched_nbytes > before
    assert tight.findings.peak_nbytes <= tight.budget_nbytes + batch().nbytes


def test_backward_after_the_cache_was_left_leaves_no_mode_behind(tight: TensorCache) -> None:
    with tight:
        loss = model()(batch())
    loss.backward()
    assert torch._C._len_torch_dispatch_stack() == 0


def test_many_steps_in_one_block_are_told_apart(tight: TensorCache) -> None:
    def steps(net: nn.Module) -> None:
        for seed in range(3):
            net(batch(seed)).backward()

    assert same(cached_grads(tight, steps), plain_grads(steps))
    assert tight.findings.num_steps == 3


SITUATIONS: dict[str, Callable[[nn.Module], Any]] = {}


def situation(do: Callable[[nn.Module], Any]) -> Callable[[nn.Module], Any]:
    SITUATIONS[do.__name__.replace("_", " ")] = do
    return do


@situation
def a_graph_that_runs_twice(net: nn.Module) -> None:
    loss = net(batch())
    loss.backward(retain_graph=True)
    loss.backward()


@situation
def double_backward(net: nn.Module) -> None:
    x = batch().requires_grad_()
    (gradient,) = torch.autograd.grad(net(x), x, create_graph=True)
    gradient.square().sum().backward()


@situation
def two_forwards_before_their_backwards(net: nn.Module) -> None:
    first, second = net(batch(0)), net(batch(1))
    first.backward()
    second.backward()


@situation
def checkpointed_layers(net: nn.Module) -> None:
    hidden = net.layers[0](batch())  # type: ignore[index]
    checkpoint(net, torch.tanh(hidden), use_reentrant=False).backward()


@situation
def autocast(net: nn.Module) -> None:
    with torch.autocast(here().type, torch.float16):
        loss = net(batch())
    loss.backward()


@situation
def a_part_without_gradients(net: nn.Module) -> None:
    with torch.no_grad():
        hidden = net.layers[0](batch())  # type: ignore[index]
    net(hidden).backward()


@situation
def save_on_cpu_inside(net: nn.Module) -> None:
    with torch.autograd.graph.save_on_cpu():
        hidden = net.layers[0](batch()).tanh()  # type: ignore[index]
    net(hidden).backward()


@situation
def gradients_of_a_gradient_hook(net: nn.Module) -> None:
    x = net.layers[0](batch())  # type: ignore[index]
    x.register_hook(lambda gradient: gradient * 2)
    net(x).backward()


@situation
def complex_numbers_and_conjugates(net: nn.Module) -> None:
    x = net.layers[0](batch()).to(torch.complex64)  # type: ignore[index]
    net((x * x.conj()).real).backward()


@situation
def booleans_and_indices(net: nn.Module) -> None:
    x = net.layers[0](batch())  # type: ignore[index]
    x = torch.where(x > 0, x, x * 2)
    net(x.sort(dim=1).values).backward()


@situation
def views_of_one_storage(net: nn.Module) -> None:
    x = net.layers[0](batch())  # type: ignore[index]
    left, right = x[:, :16], x[:, 16:]
    net(torch.cat([left * right, right.exp()], dim=1)).backward()


@pytest.mark.parametrize("name", SITUATIONS)
@pytest.mark.parametrize("policy", ["lru", "next-use"])
def test_gradients_are_those_of_plain_pytorch_for(name: str, policy: str) -> None:
    do = SITUATIONS[name]
    cache = cache_of(plain_peak(model(), batch()) // 2, policy=policy, over_budget="warn")
    with warnings.catch_warnings():  # some of the situations cannot stay within the budget: they must be right anyway
        warnings.simplefilter("ignore")
        for _ in range(2):
            assert same(cached_grads(cache, do), plain_grads(do))
    assert cache.findings.num_sent > 0


def test_the_cache_works_inside_other_hooks(tight: TensorCache) -> None:
    do: Callable[[nn.Module], Any] = lambda net: net(batch()).backward()  # noqa: E731
    with torch.autograd.graph.save_on_cpu():
        found = cached_grads(tight, do)
    assert same(found, plain_grads(do))
    assert tight.findings.num_sent > 0


@pytest.mark.filterwarnings("ignore:the tensor cache cannot stay within")
def test_several_threads_share_one_cache() -> None:
    cache, alone = cache_of(700_000, over_budget="warn"), model().eval()
    alone(batch()).backward()
    nets, x = [model().eval() for _ in range(3)], batch()

    def work(net: nn.Module) -> None:
        for _ in range(3):
            net.zero_grad()
            inside(cache, net, x.clone())

    threads = [threading.Thread(target=work, args=(net,)) for net in nets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(same(grads(net), grads(alone)) for net in nets)
    assert cache.findings.num_sent > 0


def test_a_graph_that_is_dropped_takes_everything_along(tight: TensorCache) -> None:
    # Held: the cache opens its own when something has to leave.
    transfers = shared_runtime().transfers(DISK, device=here())
    accounts = transfers.accounts
    with without_garbage_collection():
        for _ in range(5):
            with tight:
                loss = model()(batch())
            assert accounts.nbytes(State.AWAY) > 0
            del loss
            assert [accounts.num(state) for state in set(State) - {State.GONE}] == [0] * 5
            assert used_nbytes() == 0


def test_an_exception_in_the_middle_leaves_a_cache_that_works(tight: TensorCache) -> None:
    def fails(net: nn.Module) -> None:
        net(batch())
        raise KeyError("in the middle")

    with pytest.raises(KeyError):
        cached_grads(tight, fails)
    do: Callable[[nn.Module], Any] = lambda net: net(batch()).backward()  # noqa: E731
    assert same(cached_grads(tight, do), plain_grads(do))


def test_a_saved_tensor_that_was_changed_in_place_is_refused_in_the_words_of_eager() -> None:
    def changes(x: Tensor) -> None:
        y = (x * 2).exp()
        y.add_(1)
        y.sum().backward()

    words = r"modified by an inplace operation: \[\S+ \[256, 32\]\].* is at version 1; expected version 0"
    with pytest.raises(RuntimeError, match=words):
        changes(batch().requires_grad_())
    with cache_of(1 << 30), pytest.raises(RuntimeError, match=words):
        changes(batch().requires_grad_())


def test_a_parameter_that_was_changed_before_backward_is_refused_as_in_eager() -> None:
    net, x = nn.Linear(32, 32), batch().requires_grad_()
    with cache_of(1 << 30):
        loss = net(x).sum()
    with torch.no_grad():
        net.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_what_somebody_else_holds_stays() -> None:
    """Moving it would free nothing."""
    cache, held = cache_of(200_000), [batch().requires_grad_()]

    def hold_everything() -> None:
        for _ in range(8):
            held.append(held[-1].sin())

    with pytest.raises(Infeasible, match="cannot stay within"), cache:
        hold_everything()
    assert len(held) == 6
    assert cache.findings.moved_nothing


def test_a_budget_that_cannot_be_kept_says_how_much_it_takes() -> None:
    cache = cache_of(20_000)
    with pytest.raises(Infeasible, match=r"the next op takes .*\n.*saved.*\n.*\nRaise the budget") as reason:
        inside(cache, model(), batch())
    assert reason.value.minimum_nbytes > 20_000


def test_a_budget_that_cannot_be_kept_warns_once_if_asked_to() -> None:
    cache, net = cache_of(20_000, over_budget="warn"), model()
    with pytest.warns(UserWarning, match="cannot stay within") as found:
        inside(cache, net, batch())
    assert len(found) == 1


def relu_chain(x: Tensor, weights: list[Tensor]) -> Tensor:
    for weight in weights:
        x = torch.relu(x @ weight - 1.5)  # one in ten is not zero
        x = x * 1.5
    return x.sum()


def test_storages_with_many_zeros_are_encoded_and_come_back_bit_for_bit() -> None:
    weights = [nn.Parameter(torch.randn(64, 64, generator=seeded(i)) / 8) for i in range(8)]
    x, net = batch(rows=1024, width=64), nn.ParameterList(weights)
    relu_chain(x, weights).backward()
    expected = grads(net)
    cache = cache_of(peak_of(net, (x,), lambda: relu_chain(x, weights).backward()) * 6 // 10)

    def step() -> None:
        with cache:
            relu_chain(x, weights).backward()

    assert peak_of(net, (x,), step) <= cache.budget_nbytes
    assert cache.findings.peak_nbytes <= cache.budget_nbytes
    assert same(grads(net), expected)
    assert cache.findings.num_encoded > 0


def test_encoding_can_be_left_out() -> None:
    weights = [nn.Parameter(torch.eye(64)) for _ in range(8)]
    with cache_of(1_400_000, encode=False, over_budget="warn") as cache, nullcontext():
        relu_chain(batch(rows=1024, width=64), weights).backward()
    assert cache.findings.num_encoded == 0
    assert cache.findings.num_sent > 0


def test_what_is_saved_by_two_ops_moves_once() -> None:
    x = batch(rows=1024).requires_grad_()
    with cache_of(600_000, policy="lru", encode=False) as cache:
        y = x.tanh()
        z = (y * y).sum() + y.exp().sum()
        del y
        z.backward()
    assert cache.findings.sent_nbytes == cache.findings.num_sent * 1024 * 32 * 4
    assert cache.findings.num_sent <= 2


def test_the_report_says_what_moved(tight: TensorCache) -> None:
    inside(tight, model(), batch())
    words = tight.report()
    assert all(name in words for name in ("budget", "peak", "moved out", "moved in", "asked for", "stalls"))
    assert "moved out  0 B" not in words


@pytest.mark.parametrize(
    ("options", "words"),
    [({"policy": "fifo"}, "one of lru, next-use"), ({"over_budget": "ignore"}, "'raise' or 'warn', not 'ignore'")],
)
def test_wrong_options_say_which_are_right(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        cache_of(1000, **options)


def test_a_step_has_no_more_than_its_budget_with_what_its_ops_take_inside_of_themselves() -> None:
    """As the device's allocator counts it, once each op has run."""
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Conv2d(16, 16, 3, padding=1), nn.Tanh())]
    net, x = nn.Sequential(*layers), torch.randn(8, 16, 24, 24)

    def step() -> None:
        net(x).sum().backward()

    step()
    net.zero_grad()
    room_nbytes = risen_nbytes(step) * 4 // 5
    net.zero_grad()
    cache = cache_of(room_nbytes)
    with cache:
        step()
    net.zero_grad()
    with cache:
        assert risen_nbytes(step) <= room_nbytes
    assert cache.findings.num_sent > 0
    assert cache.findings.peak_nbytes > cache._live.peak_nbytes
