"""One Budget for several models: what they have alive at once stays within it.

The bytes are those of the allocator's own events over a whole iteration, on top of the parameters of all models.
"""

from __future__ import annotations

import copy
import gc
import pickle
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vdnn
from vdnn.api import session_of
from vdnn.errors import BudgetExceeded, Infeasible, InvalidInput, Unsupported
from vdnn.runtime.step_memory.library import step_library
from vdnn.units import Nbytes
from where import risen_nbytes, seeded

Iteration = Callable[[Any, Any], None]

pytestmark = [
    pytest.mark.any_device,
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]
"""Dynamo looks at what a generator hands to a discriminator."""

SMALL_NBYTES = 64 * 1024
"""Handles, scalars and seeds, which no plan counts."""

NOISE = torch.randn(512, 16, generator=seeded(0))
REAL = torch.randn(512, 32, generator=seeded(1))


def network(width_in: int, width_out: int, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.GELU())]
    return nn.Sequential(nn.Linear(width_in, 64), *layers, nn.Linear(64, width_out))


def generator() -> nn.Module:
    return network(16, 32, 2)


def discriminator() -> nn.Module:
    return network(32, 1, 3)


class LooksAtValues(nn.Module):
    """Captured by nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = discriminator()

    def forward(self, images: Tensor) -> Tensor:
        return self.inner(images) if float(images.detach().abs().sum()) >= 0 else images


def in_flight_together(g: Any, d: Any) -> None:
    """As a generator is trained: its step waits while the discriminator's runs."""
    d(g(NOISE)).square().mean().backward()


def taking_turns(g: Any, d: Any) -> None:
    g(NOISE).square().mean().backward()
    d(REAL).square().mean().backward()


def iterate(count: int, iteration: Iteration, g: Any, d: Any) -> None:
    for _ in range(count):
        iteration(g, d)


def peak_nbytes(iteration: Iteration, g: Any, d: Any) -> int:
    """Of one whole iteration that begins without gradients."""
    for model in (g, d):
        model.zero_grad(set_to_none=True)
    gc.collect()
    parameters = sum(parameter.nbytes for model in (g, d) for parameter in model.parameters())
    return parameters + risen_nbytes(lambda: iteration(g, d))


def keep_all_nbytes(iteration: Iteration) -> int:
    g, d = vdnn.virtualize(generator()), vdnn.virtualize(discriminator())
    for _ in range(2):
        iteration(g, d)
    return peak_nbytes(iteration, g, d)


def budget_of(nbytes: float) -> vdnn.Budget:
    return vdnn.Budget(Nbytes(nbytes))


def gradients(*models: Any) -> list[Tensor]:
    found = [parameter.grad for model in models for parameter in model.parameters()]
    assert all(gradient is not None for gradient in found)
    return found


def assert_same_gradients(iteration: Iteration, g: Any, d: Any, *, plain: Any = None) -> None:
    plain_g, plain_d = (generator(), discriminator()) if plain is None else plain
    for model in (g, d):
        model.zero_grad(set_to_none=True)
    iteration(g, d)
    iteration(plain_g, plain_d)
    assert all(map(torch.equal, gradients(g, d), gradients(plain_g, plain_d)))


def planned_in(model: Any) -> int:
    return session_of(model).executors[-1].plan.problem.budget_nbytes or 0


@pytest.mark.parametrize("iteration", [in_flight_together, taking_turns])
@pytest.mark.parametrize("has_sample", [False, True], ids=["", "sample"])
def test_two_models_stay_within_their_budget_together(iteration: Iteration, has_sample: bool) -> None:
    budget = budget_of(keep_all_nbytes(iteration) * 3 / 4)
    samples: list[Any] = [(NOISE,), (REAL,)] if has_sample else [None, None]
    g = vdnn.virtualize(generator(), samples[0], budget=budget)
    d = vdnn.virtualize(discriminator(), samples[1], budget=budget)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BudgetExceeded)
        for _ in range(3):  # the first one too, planning included
            assert peak_nbytes(iteration, g, d) <= budget.nbytes + SMALL_NBYTES
    assert_same_gradients(iteration, g, d)


def test_who_is_in_flight_together_divides_and_who_takes_turns_does_not() -> None:
    both, turns = (budget_of(keep_all_nbytes(i) * 3 / 4) for i in (in_flight_together, taking_turns))
    for budget, iteration in ((both, in_flight_together), (turns, taking_turns)):
        g, d = vdnn.virtualize(generator(), budget=budget), vdnn.virtualize(discriminator(), budget=budget)
        for _ in range(3):
            iteration(g, d)
        together_nbytes = planned_in(g) + planned_in(d)
        if iteration is in_flight_together:
            assert together_nbytes <= budget.nbytes
        else:
            assert together_nbytes > 1.5 * budget.nbytes


def test_a_newcomer_that_finds_too_little_warns_once_and_the_next_iteration_is_within() -> None:
    budget = budget_of(keep_all_nbytes(in_flight_together) * 0.6)
    g, d = vdnn.virtualize(generator(), budget=budget), vdnn.virtualize(discriminator(), budget=budget)
    with pytest.warns(BudgetExceeded, match=r"what is left of a Budget of .* while steps of others wait"):
        in_flight_together(g, d)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BudgetExceeded)
        for _ in range(2):
            assert peak_nbytes(in_flight_together, g, d) <= budget.nbytes + SMALL_NBYTES
    assert_same_gradients(in_flight_together, g, d)


def test_turns_that_become_one_flight_are_planned_again() -> None:
    budget = budget_of(keep_all_nbytes(in_flight_together) * 3 / 4)
    g, d = vdnn.virtualize(generator(), budget=budget), vdnn.virtualize(discriminator(), budget=budget)
    taking_turns(g, d)
    for _ in range(2):
        in_flight_together(g, d)
        taking_turns(g, d)
    assert peak_nbytes(in_flight_together, g, d) <= budget.nbytes + SMALL_NBYTES
    known = [*session_of(g).executors, *session_of(d).executors]
    taking_turns(g, d)
    in_flight_together(g, d)
    assert [*session_of(g).executors, *session_of(d).executors] == known
    assert_same_gradients(taking_turns, g, d)


@pytest.mark.cpu_only("an arena has idle pages, and it is in RAM")
def test_idle_pages_go_back_before_another_member_takes_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    if step_library().functions is None:
        pytest.skip(f"pages are kept by the wrapped allocator: {step_library().missing}")
    budget = budget_of(keep_all_nbytes(taking_turns) * 3 / 4)
    g, d = vdnn.virtualize(generator(), budget=budget), vdnn.virtualize(discriminator(), budget=budget)
    for _ in range(4):
        taking_turns(g, d)
    memory, given_back = session_of(g).memory, []
    assert memory.arena_nbytes > budget.nbytes / 4
    monkeypatch.setattr(memory, "make_room", lambda: given_back.append(True))
    d(REAL)
    assert given_back


def test_a_function_is_a_member_too() -> None:
    own, plain = (generator(), discriminator()), (generator(), discriminator())

    def of(models: tuple[nn.Module, nn.Module]) -> tuple[Any, Any]:
        g, d = models
        return lambda noise: g(noise), lambda images: d(images)

    nbytes = keep_all_nbytes(in_flight_together) * 3 / 4
    budget = budget_of(nbytes)
    g, d = (vdnn.virtualize(function, budget=budget) for function in of(own))
    for _ in range(3):
        for model in (*own, *plain):
            model.zero_grad()
        in_flight_together(g, d)
        in_flight_together(*of(plain))
    assert planned_in(g) + planned_in(d) <= budget.nbytes
    pairs = zip(
        (*own[0].parameters(), *own[1].parameters()), (*plain[0].parameters(), *plain[1].parameters()), strict=True
    )
    assert all(torch.equal(one.grad, other.grad) for one, other in pairs)  # type: ignore[arg-type]


@pytest.mark.parametrize("iteration", [in_flight_together, taking_turns])
def test_a_model_that_nobody_captures_has_its_part_too(iteration: Iteration) -> None:
    budget = budget_of(keep_all_nbytes(iteration) * 0.85)
    g, d = vdnn.virtualize(generator(), budget=budget), vdnn.virtualize(LooksAtValues(), budget=budget)
    for _ in range(3):
        iteration(g, d)
    assert vdnn.report(d).strategy == "tensor-cache"
    for _ in range(2):
        assert peak_nbytes(iteration, g, d) <= budget.nbytes + SMALL_NBYTES
    assert_same_gradients(iteration, g, d, plain=(generator(), LooksAtValues()))


def test_a_member_that_is_gone_gives_its_part_back() -> None:
    budget = budget_of(keep_all_nbytes(in_flight_together) * 3 / 4)
    g, d = vdnn.virtualize(generator(), budget=budget), vdnn.virtualize(discriminator(), budget=budget)
    for _ in range(2):
        in_flight_together(g, d)
    before_nbytes = planned_in(g)
    del d
    gc.collect()
    g(NOISE).square().mean().backward()
    assert before_nbytes < 0.7 * budget.nbytes
    assert planned_in(g) == budget.nbytes


def refusal_in(budget: vdnn.Budget, iteration: Iteration) -> Infeasible | None:
    g, d = vdnn.virtualize(generator(), budget=budget), vdnn.virtualize(discriminator(), budget=budget)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BudgetExceeded)
        try:
            iterate(3, iteration, g, d)
        except Infeasible as reason:
            return reason
    assert peak_nbytes(iteration, g, d) <= budget.nbytes + SMALL_NBYTES
    return None


@pytest.mark.parametrize("iteration", [in_flight_together, taking_turns])
def test_too_small_a_budget_is_refused_with_one_that_works(iteration: Iteration) -> None:
    first = refusal_in(budget_of(keep_all_nbytes(iteration) * 0.25), iteration)
    assert first is not None
    assert re.search(r"has no plan in its part of a Budget of (.|\n)*Raise the Budget to at least", str(first))
    assert "parameters, buffers, gradients and optimizer state of Sequential" in str(first)
    # Who was refused first did not know what the other needs.
    second = refusal_in(vdnn.Budget(first.minimum_nbytes), iteration)
    assert second is None or refusal_in(vdnn.Budget(second.minimum_nbytes), iteration) is None


def test_the_optimizer_state_of_every_member_counts() -> None:
    budget = budget_of(keep_all_nbytes(taking_turns))
    g = vdnn.virtualize(generator(), budget=budget)
    d = vdnn.virtualize(discriminator(), budget=budget, optimizer="adam")
    taking_turns(g, d)
    persistent_nbytes = sum(4 * parameter.nbytes for parameter in d.parameters())
    assert budget.nbytes - planned_in(g) >= persistent_nbytes


def test_who_switches_gradients_off_for_a_while_is_not_planned_again_each_time() -> None:
    budget = budget_of(keep_all_nbytes(in_flight_together) * 0.8)
    g, d = vdnn.virtualize(generator(), budget=budget), vdnn.virtualize(discriminator(), budget=budget)

    def iteration() -> None:
        d.requires_grad_(False)
        in_flight_together(g, d)
        d.requires_grad_(True)
        d(REAL).square().mean().backward()

    for _ in range(3):
        iteration()
    known = [*session_of(g).executors, *session_of(d).executors]
    for _ in range(2):
        iteration()
    assert [*session_of(g).executors, *session_of(d).executors] == known


def test_models_may_be_called_from_several_threads() -> None:
    budget = budget_of(keep_all_nbytes(in_flight_together) * 0.8)
    models = [vdnn.virtualize(generator(), budget=budget), vdnn.virtualize(generator(), budget=budget)]
    plain = generator()
    plain(NOISE).square().mean().backward()
    wrong: list[BaseException] = []

    def train(model: nn.Module) -> None:
        try:
            for _ in range(4):
                model.zero_grad()
                model(NOISE).square().mean().backward()
        except BaseException as error:  # told below
            wrong.append(error)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BudgetExceeded)
        threads = [threading.Thread(target=train, args=(model,), daemon=True) for model in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong
    for model in models:
        assert all(map(torch.equal, gradients(model), gradients(plain)))


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_is_one_more_member(copied: Callable[[nn.Module], nn.Module]) -> None:
    budget = vdnn.Budget("64MiB")
    model = vdnn.virtualize(generator(), budget=budget)
    other = copied(model)
    assert session_of(other).options.budget is budget
    assert len(budget.members()) == 2


def test_another_process_makes_one_budget_of_the_same_bytes(tmp_path: Path) -> None:
    budget, file = vdnn.Budget("3MiB"), tmp_path / "budget.pickle"
    file.write_bytes(pickle.dumps([budget, pickle.dumps(budget)]))
    code = f"""
import pickle, pathlib
one, rest = pickle.loads(pathlib.Path({str(file)!r}).read_bytes())
print(one is pickle.loads(rest), one)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "True a Budget of 3.00 MiB", done.stderr


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        ("45%", "a Budget is an amount of bytes, not '45%': .* of which of them would it be a share"),
        ("0B", "leaves no byte to train in"),
        (12, "did you mean 12GiB"),
        ("much", "cannot read 'much' as an amount"),
    ],
)
def test_what_is_no_amount_is_refused(amount: int | str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        vdnn.Budget(amount)


def test_a_backend_that_plans_once_refuses_it() -> None:
    compiled = torch.compile(generator(), backend="vdnn", options={"budget": vdnn.Budget("64MiB")})
    with pytest.raises(Exception, match="several models have together") as refused:
        compiled(NOISE)
    assert isinstance(getattr(refused.value, "inner_exception", refused.value), Unsupported)


def test_a_plan_is_of_one_model_in_the_whole_budget() -> None:
    plan = vdnn.plan(generator(), (NOISE,), budget=vdnn.Budget("64MiB"))
    assert plan.problem.budget_nbytes == 64 * 2**20
