"""A new trait asks its author for a decision wherever traits are told apart."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from vdnn.capture.nodes import _NEVER_A_VIEW
from vdnn.compile.forms.analysis import _WHOLE_TRAITS
from vdnn.compile.forms.stretches import _IN_ORDER
from vdnn.compile.inductor.regions import _NEVER_FUSED
from vdnn.cost.op_calls import _NEVER_TRIED
from vdnn.ir import Trait
from vdnn.plan.judge import walk
from vdnn.plan.model import replay

DECIDED: dict[str, tuple[Iterable[Trait], set[Trait]]] = {
    "a plan may replay it": (replay._NEVER_TWICE, {Trait.VIEW, Trait.IN_PLACE, Trait.RANDOM, Trait.UPDATES}),
    "the judge lets it be replayed": (walk._NEVER_TWICE, {Trait.VIEW, Trait.IN_PLACE, Trait.RANDOM, Trait.UPDATES}),
    "it may be run to measure it": (_NEVER_TRIED, {Trait.VIEW, Trait.IN_PLACE, Trait.RANDOM, Trait.UPDATES}),
    "it may be a view": (_NEVER_A_VIEW, {Trait.VIEW, Trait.RANDOM, Trait.UPDATES, Trait.COLLECTIVE}),
    "its order among such ops may change": (_IN_ORDER, {Trait.VIEW, Trait.IN_PLACE}),
    "it may run in chunks": (_WHOLE_TRAITS, {Trait.VIEW, Trait.RANDOM}),
    "Inductor may fuse it": (_NEVER_FUSED, {Trait.VIEW, Trait.IN_PLACE, Trait.UPDATES, Trait.COLLECTIVE}),
}
"""What is asked of an op: the traits for which the answer is no, and the others. Whether a random op runs in chunks is
asked apart, and so is whether a view is measured."""


@pytest.mark.parametrize("question", DECIDED)
def test_every_trait_is_on_one_side_of_a_question(question: str) -> None:
    never, may = DECIDED[question]
    assert {*never, *may} == set(Trait)
    assert not may.intersection(never)
