"""Cross entropy's backward goes over its log-probabilities, in parts: in the same bits, and only where nobody looks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from capture_once import captured_once
from captured import graph_of, only_op, ops_of, storages_written
from equivalence import (
    Outcome,
    assert_measured_as_simulated,
    assert_same,
    differences,
    executors,
    gradients,
    train,
    virtualize,
)
from nets import EITHER_FRONT_END, Using, options
from tiers import DISK, smallest_budget
from torch import Tensor, nn

from vdnn.capture.tidy import loss_backward
from vdnn.capture.tidy.loss_backward import NUM_PARTS
from vdnn.ir import Graph, Phase
from vdnn.plan.strategy_table import STRATEGIES
from vdnn.runtime.executor import Executor

NUM_WORDS, NUM_ROWS = 30_000, 37  # 4.2 MiB, in parts that are not all alike
Loss = Callable[[Tensor, Tensor], Tensor]


def words(loss: Loss = F.cross_entropy, num_words: int = NUM_WORDS, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    parts = {"first": nn.Linear(6, 8, dtype=dtype), "last": nn.Linear(8, num_words, dtype=dtype)}
    return Using(lambda self, x, y: loss(self.last(F.dropout(self.first(x).tanh(), 0.2)), y), **parts)


def sentences(num_words: int = NUM_WORDS, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    torch.manual_seed(2)
    return torch.randn(NUM_ROWS, 6, dtype=dtype), torch.randint(num_words, (NUM_ROWS,))


def goes_over_log_probabilities(graph: Graph) -> bool:
    made = {storage for op in graph.ops[: graph.num_forward] for storage in storages_written(graph, op)}
    backwards = ops_of(graph, "_log_softmax_backward_data")
    return all(set(storages_written(graph, op)) <= made for op in backwards) and len(backwards) == NUM_PARTS


def with_another_reader(x: Tensor, y: Tensor) -> Tensor:
    """Backward reads the log-probabilities for another gradient of x, and before it overwrites them."""
    logs = x.log_softmax(1)
    return F.nll_loss(logs, y) + (x * logs.detach()).sum() * 1e-6


LOSSES: dict[str, Loss] = {
    "mean": F.cross_entropy,
    "sum": lambda x, y: F.cross_entropy(x, y, reduction="sum"),
    "some targets ignored": lambda x, y: F.cross_entropy(x, y.masked_fill(y < NUM_WORDS // 3, -100)),
    "weighted classes": lambda x, y: F.cross_entropy(x, y, torch.linspace(0.1, 2, NUM_WORDS)),
    "scaled": lambda x, y: F.cross_entropy(x, y) * 0.3,
    "another reader": with_another_reader,
    "log-softmax apart": lambda x, y: F.nll_loss(x.log_softmax(-1), y),
}


@EITHER_FRONT_END
@pytest.mark.parametrize("name", LOSSES)
def test_the_bits_are_those_of_the_plain_step(name: str, front_end: str) -> None:
    model, args = words(LOSSES[name]), sentences()
    plain = copy.deepcopy(model)
    expected = train(plain, plain, args)
    virtual = virtualize(model, **options(front_end, *args))
    assert_same(expected, train(virtual, model, args))
    assert_measured_as_simulated(virtual)
    assert goes_over_log_probabilities(executors(virtual)[0].plan.problem.graph)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_rows_do_not_depend_on_the_rows_beside_them(dtype: torch.dtype, threads: int) -> None:
    aten, before = torch.ops.aten, torch.get_num_threads()
    torch.manual_seed(0)
    logs = torch.randn(NUM_ROWS, 1003).mul(4).to(dtype).log_softmax(1)
    gradient = torch.randn(NUM_ROWS, 1003).to(dtype)
    torch.set_num_threads(threads)
    try:
        whole = aten._log_softmax_backward_data(gradient, logs, 1, dtype)
        for begin in range(NUM_ROWS):
            rows = logs[begin : begin + 5].clone()
            aten._log_softmax_backward_data.out(gradient[begin : begin + 5], rows, 1, dtype, out=rows)
            assert torch.equal(rows, whole[begin : begin + 5])
    finally:
        torch.set_num_threads(before)


def test_one_tensor_of_that_size_is_saved() -> None:
    model, args = words(), sentences()
    graph = graph_of(model, *args)
    large = [storage for storage in graph.storages if storage.nbytes >= NUM_ROWS * NUM_WORDS * 4]
    assert [storage.name for storage in large] == ["addmm_1"]


def with_log_probabilities(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    logs = x.log_softmax(1)
    return F.nll_loss(logs, y), logs


def with_detached(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    logs = x.log_softmax(1)
    return F.nll_loss(logs, y), logs.detach()


def with_entropy(x: Tensor, y: Tensor) -> Tensor:
    logs = x.log_softmax(1)
    return F.nll_loss(logs, y) + (logs.exp() * logs).sum() * 1e-6


LEFT_WHOLE: dict[str, Any] = {
    "the log-probabilities are handed out": words(with_log_probabilities),  # type: ignore[arg-type]
    "they are handed out without a gradient": words(with_detached),  # type: ignore[arg-type]
    "somebody else has a gradient for them": words(with_entropy),
    "a loss per row": words(lambda x, y: F.cross_entropy(x, y, reduction="none").square().mean()),
    "few words": words(num_words=1000),
    "the given tensor itself": Using(
        lambda self, x, y: F.nll_loss(x, y % 6) + self.linear(x).sum(), linear=nn.Linear(6, 1)
    ),
}


@pytest.mark.parametrize("name", LEFT_WHOLE)
def test_elsewhere_it_stays_whole(name: str) -> None:
    model, args = LEFT_WHOLE[name], sentences(1000)
    plain = copy.deepcopy(model)
    expected, (_, *handed_out) = train(plain, plain, args), as_tuple(plain(*args))
    virtual = virtualize(model)
    assert_same(expected, train(virtual, model, args))
    loss, *ours = as_tuple(virtual(*args))
    loss.backward()
    torch.testing.assert_close(ours, handed_out)
    graph = executors(virtual)[0].plan.problem.graph
    assert len(ops_of(graph, "nll_loss_backward")) <= 1
    assert not goes_over_log_probabilities(graph)


def as_tuple(returned: Any) -> tuple[Tensor, ...]:
    return returned if isinstance(returned, tuple) else (returned,)


def test_a_loss_that_is_computed_twice_is_written_over_after_its_last_reader() -> None:
    model = words(lambda x, y: (lambda logs: F.nll_loss(logs, y) + F.nll_loss(logs, y.flip(0)))(x.log_softmax(1)))
    plain, args = copy.deepcopy(model), sentences()
    expected = train(plain, plain, args)
    assert_same(expected, train(virtualize(model), model, args))


def test_a_retained_graph_is_run_again() -> None:
    model, args = words(), sentences()
    plain = copy.deepcopy(model)
    expected = [gradients(plain) for _ in backwards(plain, args, 3)]
    assert [
        next(differences(one, other), None)
        for one, other in zip(expected, [gradients(model) for _ in backwards(virtualize(model), args, 3)], strict=True)
    ] == [None] * 3


def backwards(step: Any, args: Any, count: int) -> Iterator[int]:
    """Gradients grow from one to the next."""
    torch.manual_seed(1)
    loss = step(*args)
    for number in range(count):
        loss.backward(retain_graph=number < count - 1)
        yield number


def test_what_a_hook_has_seen_stays_as_it_was() -> None:
    model, args = words(), sentences()
    virtual = virtualize(model)
    virtual(*args).backward()
    shown: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        shown.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = virtual(*args)
    before = [tensor.clone() for tensor in shown]
    loss.backward()
    assert any(tensor.numel() == NUM_ROWS * NUM_WORDS for tensor in shown)
    assert all(torch.equal(one, other) for one, other in zip(before, shown, strict=True))


def test_copies_of_saved_tensors_do_as_well() -> None:
    model, args = words(), sentences()
    plain = copy.deepcopy(model)
    expected = train(plain, plain, args)
    with torch.autograd.graph.save_on_cpu():
        assert_same(expected, train(virtualize(model, strategy="keep-all"), model, args))


def test_a_backward_that_was_interrupted_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was to read may be written over. Autograd has said so to its nodes before they ran, and refuses."""
    model, args = words(), sentences()
    virtual = virtualize(model)
    virtual(*args).backward()
    loss = virtual(*args)
    with interrupted(monkeypatch), pytest.raises(KeyboardInterrupt):
        loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_a_backward_of_a_retained_graph_is_run_again_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    model, args = words(), sentences()
    plain = copy.deepcopy(model)
    next(backwards(plain, args, 1))
    virtual = virtualize(model)
    torch.manual_seed(1)
    loss = virtual(*args)
    with interrupted(monkeypatch), pytest.raises(KeyboardInterrupt):
        loss.backward(retain_graph=True)
    loss.backward()
    assert not list(differences(gradients(plain), gradients(model)))


@contextmanager
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Backward runs to its end, and then is interrupted before autograd has its gradients."""
    real = Executor._backward_of

    def fails(self: Executor, *args: Any) -> Any:
        real(self, *args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Executor, "_backward_of", fails)
        yield


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if STRATEGIES[name].always_rounds_to is None])
def test_every_strategy_leaves_it_right(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_backward, "WORTH_PARTS_NBYTES", 0)
    assert_trains_alike(strategy=strategy)


@pytest.mark.parametrize("strategy", ["auto", "greedy", "offload", "superneurons"])
def test_it_is_right_at_the_smallest_budget(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_backward, "WORTH_PARTS_NBYTES", 0)
    with captured_once("words"):
        budget = smallest_budget(words(num_words=500), sentences(500), strategy, DISK)
    assert_trains_alike(strategy=strategy, budget=budget)


@cache
def plain_outcome() -> Outcome:
    model = words(num_words=500)
    return train(model, model, sentences(500))


def assert_trains_alike(**options: Any) -> None:
    model, args, expected = words(num_words=500), sentences(500), plain_outcome()
    with captured_once("words"):
        virtual = virtualize(model, sample=args, hardware=DISK, **options)
    assert_same(expected, train(virtual, model, args))
    assert_measured_as_simulated(virtual)
    assert goes_over_log_probabilities(executors(virtual)[0].plan.problem.graph)


def test_the_step_needs_less_than_two_tensors_of_that_size() -> None:
    model, args = words(), sentences()
    graph = graph_of(model, *args)
    backward = [step for step, op in enumerate(graph.ops) if op.phase is Phase.BACKWARD]
    assert only_op(graph, "nll_loss_forward").phase is Phase.FORWARD
    alive = [
        sum(s.nbytes for s, life in zip(graph.storages, graph.lifetimes, strict=True) if life and step in life)
        for step in backward
    ]
    assert max(alive) < 2 * NUM_ROWS * NUM_WORDS * 4
