"""One architecture, trained in several ways, each held to plain PyTorch bit for bit.

Enters: a name and the ways that are wanted. Leaves: a `Row` per way: whether it was equal, else what was different and
by how much, or what was refused in which words; in how many pieces it ran, and why not in one.
"""

from __future__ import annotations

import copy
import logging
import random
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from equivalence import SEED, Outcome, differences, train
from torch import Tensor, nn
from torch._dynamo.utils import counters

import vdnn
from vdnn.api import session_of
from vdnn.errors import BudgetExceeded, Infeasible
from zoo.batches import loss_of
from zoo.made import Made

WAYS = ("keep-all", "60%", "bf16")
STEPS = 2

EQUAL, DIFFERS, REFUSED, UNREPEATABLE, UNMADE, DIED = "equal", "differs", "refused", "unrepeatable", "unmade", "died"


@dataclass(frozen=True, slots=True)
class Row:
    """`cause` groups rows in the table, `detail` is for who looks closer. `budget` is the share that was trained at."""

    architecture: str
    way: str
    verdict: str
    cause: str = ""
    detail: tuple[str, ...] = ()
    relative: float = 0.0
    """How far the first step was off: of its loss or of all its gradients together, as a share."""
    num_pieces: int = 0
    breaks: tuple[str, ...] = ()
    uncaptured: str = ""
    """Why it ran in a tensor cache, or what of it ran plain."""
    budget: str = ""
    head: str = ""
    batch: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Trained:
    outcome: Outcome
    others: Mapping[str, Any] = field(default_factory=dict)
    """The states of the generators that are not torch's."""


def rows(made: Made, ways: Sequence[str], **options: Any) -> Iterator[Row]:
    """`options` are those of `virtualize`."""
    about = {"head": made.head.class_name, "batch": ", ".join(made.batch) + ("" if made.has_loss else " (no loss)")}
    for narrow in (False, True):
        wanted = [way for way in ways if (way == "bf16") is narrow]
        if not wanted:
            continue
        try:
            expected = trained(copy.deepcopy(made.model), made, narrow=narrow)
            again = trained(copy.deepcopy(made.model), made, narrow=narrow)
        except Exception as why:
            yield from (Row(made.architecture, way, UNMADE, words_of(why), **about) for way in wanted)
            continue
        unlike = found_differences(expected, again)
        if unlike:
            yield from (
                Row(made.architecture, way, UNREPEATABLE, unlike[0], tuple(unlike[:4]), **about) for way in wanted
            )
            continue
        yield from (judged(made, way, expected, about, options) for way in wanted)


def trained(model: nn.Module, made: Made, *, narrow: bool) -> Trained:
    cast: Callable[[], AbstractContextManager[Any]] = (
        (lambda: torch.autocast("cpu", torch.bfloat16)) if narrow else nullcontext
    )

    def step() -> tuple[Tensor, Any]:
        with cast():
            output = model(**copy.copy(made.batch))
            return loss_of(output), output

    random.seed(SEED)
    np.random.seed(SEED)  # the generator that models draw from
    outcome = train(step, model, (), STEPS)
    return Trained(outcome, {"numpy's generator": str(np.random.get_state()), "Python's generator": random.getstate()})


def judged(made: Made, way: str, expected: Trained, about: Mapping[str, str], options: Mapping[str, Any]) -> Row:
    began, budget = time.monotonic(), "60%" if way == "60%" else ""
    counters.clear()
    with heard() as messages:
        try:
            virtual, found, budget = virtually(made, budget, narrow=way == "bf16", **options)
        except Exception as why:
            logging.getLogger("zoo").exception("%s %s", made.architecture, way)
            took = round(time.monotonic() - began, 1)
            return Row(made.architecture, way, REFUSED, words_of(why), budget=budget, seconds=took, **about)
    unlike = found_differences(expected, found)
    session = session_of(virtual)
    fallback = session.eager()
    return Row(
        made.architecture,
        way,
        DIFFERS if unlike else EQUAL,
        cause_of(unlike),
        tuple(unlike[:6]),
        relative_difference(expected, found) if unlike else 0.0,
        len(session.executors),
        tuple(shorten(reason, 200, placeholder=" ...") for reason in counters["graph_break"]),
        fallback.part().reason if fallback is not None else "; ".join(messages)[:400],
        budget,
        seconds=round(time.monotonic() - began, 1),
        **about,
    )


def virtually(made: Made, budget: str, *, narrow: bool, **options: Any) -> tuple[Any, Trained, str]:
    """Trained within the budget, or within the least that a refusal named."""
    for _ in range(4):
        virtual: Any = vdnn.virtualize(copy.deepcopy(made.model), budget=budget or None, **options)
        try:
            return virtual, trained(virtual, made, narrow=narrow), budget
        except Infeasible as why:
            share = re.search(r"([\d.]+%) of what keeping everything takes", str(why))
            if not budget or share is None or share[1] == budget:
                raise
            budget = share[1]
    raise AssertionError(f"four refusals, the last named {budget}")


def found_differences(plain: Trained, other: Trained) -> list[str]:
    losses = [{f"loss of step {at}": loss for at, loss in enumerate(t.outcome.losses)} for t in (plain, other)]
    states = [{"torch's generator": t.outcome.rng_state, **t.others} for t in (plain, other)]
    states_differ = [name for name in states[0] if _is_other(states[0][name], states[1][name])]
    return [
        *differences(*losses),
        *differences(plain.outcome.tensors, other.outcome.tensors),
        *(f"{name}: advanced differently" for name in states_differ),
    ]


def _is_other(plain: Any, other: Any) -> bool:
    return not torch.equal(plain, other) if isinstance(plain, Tensor) else plain != other


def cause_of(unlike: list[str]) -> str:
    """What kind of difference it is; the first of these that is there."""
    if not unlike:
        return ""
    if any("advanced differently" in line for line in unlike):
        return "random numbers: " + next(line for line in unlike if "advanced differently" in line)
    if all(
        line.startswith("step") and re.search(r": None / ", line) for line in unlike if "gradient of" in line
    ) and any("gradient of" in line for line in unlike):
        return "a gradient where plain has None"
    if any(re.search(r" / None$", line) for line in unlike):
        return "None where plain has a gradient"
    if any("torch.Size" in line for line in unlike):
        return "shape, strides or type of a gradient"
    if unlike[0].startswith("loss of step 0"):
        return "the forward has other bits"
    return "gradients have other bits"


def relative_difference(plain: Trained, other: Trained) -> float:
    """Of the first step, which later ones carry on: the norm of what its gradients differ by, as a share of theirs. The
    same of its loss, if that is more."""
    of_loss = [(plain.outcome.losses[0], other.outcome.losses[0])]
    first = [name for name in plain.outcome.tensors if name.startswith("step 0")]
    return max(_share(of_loss), _share([(plain.outcome.tensors[n], other.outcome.tensors.get(n)) for n in first]))


def _share(pairs: Sequence[tuple[Any, Any]]) -> float:
    off = whole = 0.0
    for one, two in pairs:
        if isinstance(one, Tensor) and isinstance(two, Tensor) and one.shape == two.shape:
            off += float((one.double() - two.double()).square().sum())
            whole += float(one.double().square().sum())
    return (off / whole) ** 0.5 if whole else 0.0


@contextmanager
def heard() -> Iterator[list[str]]:
    """What vdnn says in its log or as a warning meanwhile."""
    messages: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    ear, log = Ear(logging.WARNING), logging.getLogger("vdnn")
    log.addHandler(ear)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield messages
            messages += [str(w.message) for w in warned if issubclass(w.category, BudgetExceeded)]
    finally:
        log.removeHandler(ear)


def words_of(why: BaseException) -> str:
    """Its kind and its first line, without what differs from one model to the next."""
    lines = [line.strip() for line in str(why).splitlines() if line.strip()]
    first = lines[0] if lines else ""
    return f"{type(why).__name__}: {first}"[:300]
