"""One budget for a whole iteration: steps in flight, a loss outside of the model, a model that writes to a log.

The bytes are those of the allocator's own events over a whole iteration, on top of what is there when it begins.
"""

from __future__ import annotations

import copy
import gc
import re
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn

import vdnn
from vdnn.api import session_of
from vdnn.errors import BudgetExceeded, Infeasible, InvalidInput
from vdnn.runtime.step_memory.library import step_library
from where import here, risen_nbytes, seeded

pytestmark = pytest.mark.any_device

Iteration = Callable[[nn.Module], None]

SMALL_NBYTES = 64 * 1024
"""Handles, scalars and seeds, which no plan counts."""


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.GELU())]
    return nn.Sequential(nn.Linear(32, 64), *layers, nn.Linear(64, 64))


def batch(seed: int) -> Tensor:
    return torch.randn(512, 32, generator=seeded(seed))


def microbatches(count: int) -> Iteration:
    """As a pipeline runs them: so many forwards before the first backward, then one of each."""

    def iteration(model: nn.Module) -> None:
        waiting = [model(batch(k)).square().mean() for k in range(count)]
        for k in range(count, 2 * count):
            waiting.pop(0).backward()
            waiting.append(model(batch(k)).square().mean())
        while waiting:
            waiting.pop(0).backward()

    return iteration


def wide_loss(model: nn.Module) -> None:
    """The loss holds several times what the model's output takes."""
    output = model(batch(0))
    wide = output @ torch.ones(64, 256)
    F.cross_entropy(wide, torch.zeros(512, dtype=torch.long)).backward()


def peak_nbytes(model: nn.Module, iteration: Iteration, inputs_nbytes: int) -> int:
    """Of one whole iteration that begins without gradients."""
    model.zero_grad(set_to_none=True)
    gc.collect()
    return sum(parameter.nbytes for parameter in model.parameters()) + risen_nbytes(lambda: iteration(model))


def keep_all_account(iteration: Iteration, in_flight: int) -> int:
    model = vdnn.virtualize(network())
    for _ in range(2):
        iteration(model)
    return peak_nbytes(model, iteration, in_flight)


def gradients(model: nn.Module, iteration: Iteration) -> list[Tensor]:
    model.zero_grad(set_to_none=True)
    iteration(model)
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def test_microbatches_in_flight_share_the_budget_that_was_named_for_them() -> None:
    iteration, plain = microbatches(4), network()
    budget = keep_all_account(iteration, 4) * 6 // 10
    virtual = vdnn.virtualize(network(), budget=budget, in_flight=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert peak_nbytes(virtual, iteration, 4) <= budget + SMALL_NBYTES  # the first one, planning included
    assert all(map(torch.equal, gradients(virtual, iteration), gradients(plain, iteration)))
    assert peak_nbytes(virtual, iteration, 4) <= budget + SMALL_NBYTES


def test_steps_in_flight_that_nobody_named_are_noticed_and_planned_for() -> None:
    iteration, plain = microbatches(4), network()
    budget = keep_all_account(iteration, 4) * 6 // 10
    virtual = vdnn.virtualize(network(), budget=budget)
    with pytest.warns(BudgetExceeded, match="4 steps in flight at once take"):
        iteration(virtual)
    assert all(map(torch.equal, gradients(virtual, iteration), gradients(plain, iteration)))
    assert peak_nbytes(virtual, iteration, 4) <= budget + SMALL_NBYTES


def test_what_a_skipped_batch_left_is_told_and_not_planned_for() -> None:
    budget = keep_all_account(microbatches(1), 1)
    virtual = vdnn.virtualize(network(), budget=budget)
    output = virtual(batch(0))
    output = virtual(batch(1))
    with pytest.warns(BudgetExceeded, match=r"1 step before this one had no backward.*del output, loss"):
        output.square().mean().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        output = virtual(batch(2))
        output.square().mean().backward()
    assert not session_of(virtual).seen.num_again


@pytest.mark.cpu_only("what runs outside of a model is counted in the arena of the CPU")
def test_a_loss_outside_has_its_room_in_the_budget() -> None:
    if step_library().functions is None:
        pytest.skip(f"what runs outside is counted by the wrapped allocator: {step_library().missing}")
    budget = keep_all_account(wide_loss, 1) * 3 // 4
    virtual, plain = vdnn.virtualize(network(), budget=budget), network()
    with pytest.warns(BudgetExceeded, match="outside of the model take"):
        wide_loss(virtual)
    assert all(map(torch.equal, gradients(virtual, wide_loss), gradients(plain, wide_loss)))
    assert peak_nbytes(virtual, wide_loss, 1) <= budget + SMALL_NBYTES
    assert session_of(virtual).executors[-1].plan.problem.surroundings.outside_nbytes > 2**20


def test_a_share_is_one_of_the_whole_iteration() -> None:
    four = vdnn.plan(network(), (batch(0),), budget="60%", in_flight=4)
    one = vdnn.plan(network(), (batch(0),), budget="60%")
    assert one.problem.budget_nbytes is not None
    assert four.problem.budget_nbytes is not None
    assert four.problem.budget_nbytes > 2 * one.problem.budget_nbytes


def test_too_many_steps_in_flight_are_refused_with_bytes_that_work() -> None:
    with pytest.raises(Infeasible, match="8 steps in flight") as refused:
        vdnn.plan(network(), (batch(0),), budget="12%", in_flight=8, strategy="greedy")
    vdnn.plan(network(), (batch(0),), budget=refused.value.minimum_nbytes, in_flight=8, strategy="greedy")


@pytest.mark.parametrize("in_flight", [0, -1, 2.5, True])
def test_a_number_of_steps_that_cannot_be_is_refused(in_flight: object) -> None:
    with pytest.raises(InvalidInput, match="in_flight is a number of forwards"):
        vdnn.virtualize(network(), budget="50%", in_flight=in_flight)  # type: ignore[arg-type]


def language_model() -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[dev]'")
    config = transformers.GPT2Config(
        n_layer=2, n_embd=64, n_head=2, vocab_size=300, n_positions=64, bos_token_id=1, eos_token_id=2
    )
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config)


def labelled(model: nn.Module) -> Tensor:
    words = torch.randint(300, (4, 64), generator=seeded(0))
    return model(input_ids=words, labels=words).loss


def one_step(model: nn.Module) -> None:
    torch.manual_seed(1)
    labelled(model).backward()


def one_step_in_bfloat16(model: nn.Module) -> None:
    torch.manual_seed(1)
    with torch.autocast(here().type, torch.bfloat16):
        loss = labelled(model)
    loss.backward()


def four_in_flight(model: nn.Module) -> None:
    torch.manual_seed(1)
    waiting = [labelled(model) for _ in range(4)]
    for _ in range(3):
        waiting.pop(0).backward()
        waiting.append(labelled(model))
    while waiting:
        waiting.pop(0).backward()


@pytest.mark.parametrize(
    ("iteration", "in_flight"),
    [(one_step, 1), (one_step_in_bfloat16, 1), (four_in_flight, 4)],
    ids=["one step", "bfloat16", "1F1B"],
)
def test_a_language_model_with_its_labels_is_one_graph_with_one_budget(iteration: Iteration, in_flight: int) -> None:
    """The library logs from inside the step."""
    plain = language_model()
    virtual = vdnn.virtualize(copy.deepcopy(plain), budget="60%", in_flight=in_flight)
    first_nbytes = peak_nbytes(virtual, iteration, in_flight)
    budget_nbytes = vdnn.report(virtual).budget_nbytes or 0
    expected = gradients(plain, iteration)
    for _ in range(2):
        assert all(map(torch.equal, gradients(virtual, iteration), expected))
    assert max(first_nbytes, peak_nbytes(virtual, iteration, in_flight)) <= budget_nbytes + SMALL_NBYTES
    (piece,) = vdnn.report(virtual).pieces
    assert piece.measured is not None
    assert piece.measured.peak_nbytes <= budget_nbytes


class WithLoss(nn.Module):
    """Wide parameters, several small maps, and the loss inside."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [layer for _ in range(6) for layer in (nn.Conv2d(16, 16, 3, padding=1), nn.GELU())]
        self.layers = nn.Sequential(nn.Conv2d(3, 16, 3), *layers, nn.Flatten(), nn.Linear(16 * 14 * 14, 10))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images).square().mean()


@pytest.mark.cpu_only("what an allocator rounds up, another number for each batch, comes on top of a share")
def test_a_smaller_last_batch_has_the_bytes_of_the_batches_before_it() -> None:
    """Its own share would be refused: the parameters are as large as ever."""
    images = [torch.randn(size, 3, 16, 16, generator=seeded(size)) for size in (16, 3)]
    shares = [least_share_of(WithLoss(), given) for given in images]
    assert shares[0] < shares[1]
    plain, virtual = WithLoss(), vdnn.virtualize(WithLoss(), budget=f"{shares[0]}%")
    with warnings.catch_warnings():
        warnings.simplefilter("error", BudgetExceeded)
        for given in (*images, *images):
            losses = [model(given) for model in (plain, virtual)]
            for model, loss in zip((plain, virtual), losses, strict=True):
                model.zero_grad()
                loss.backward()
            assert torch.equal(*losses)
            for expected, found in zip(plain.parameters(), virtual.parameters(), strict=True):
                assert torch.equal(expected.grad, found.grad)
    budgets_nbytes = [executor.plan.problem.budget_nbytes for executor in session_of(virtual).executors]
    assert budgets_nbytes == [vdnn.report(virtual).budget_nbytes] * 2
    for executor in session_of(virtual).executors:
        assert executor.measured.timeline.peak_nbytes <= budgets_nbytes[0]
    with pytest.raises(Infeasible):
        vdnn.virtualize(WithLoss(), budget=f"{shares[0]}%")(images[1])


def least_share_of(model: nn.Module, given: Tensor) -> float:
    """In per cent, as a refusal names it."""
    with pytest.raises(Infeasible) as refused:
        vdnn.virtualize(model, budget="1%")(given)
    found = re.search(r"(?P<share>[\d.]+)% of what keeping everything takes", str(refused.value))
    assert found is not None
    return float(found["share"])
