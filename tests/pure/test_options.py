"""Options are declared once: fields, typed keyword arguments and the command line say the same."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from vdnn.errors import InvalidInput
from vdnn.options import Options, PlanOptions, RunOptions, TierOptions


def test_the_keyword_arguments_of_virtualize_are_the_fields_with_their_types() -> None:
    assert get_type_hints(RunOptions) == get_type_hints(Options)


def test_what_plans_and_tiers_take_is_part_of_it() -> None:
    assert set(get_type_hints(PlanOptions)).isdisjoint(get_type_hints(TierOptions))
    assert get_type_hints(RunOptions).items() >= {**get_type_hints(PlanOptions), **get_type_hints(TierOptions)}.items()


def test_every_option_has_a_text_of_whole_sentences() -> None:
    texts = [field.metadata["text"] for field in fields(Options)]
    assert all(text[0].isupper() and text.endswith(".") for text in texts)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"strategy": "magic"}, "there is no strategy 'magic'. Choose one of: auto, "),
        ({"optimizer": "lion"}, "unknown optimizer 'lion': choose one of adagrad, adam, "),
        ({"lossy": "fp3"}, "lossy is one of fp16, "),
        ({"lossy": "fp8", "strategy": "offload"}, "strategy 'offload' never rounds"),
        ({"compiler": "xla"}, "compiler is 'eager' or 'inductor', not 'xla'"),
        ({"costs": "guessed"}, "costs are 'roofline', 'tried' or 'measured', not 'guessed'"),
        ({"verify_spills": "yes"}, "verify_spills is True or False, not 'yes'"),
        ({"spill_dir": 5}, "spill_dir is the path of a folder, not 5"),
        ({"spill_dir": ""}, "spill_dir is the path of a folder, not ''"),
        ({"replan": 0}, "replan is True or False, not 0"),
        ({"verify": "last"}, "verify is 'first' or None, not 'last'"),
        ({"density": 2.0}, "density is a share above 0 and up to 1, not 2.0"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_name_or_number_that_cannot_be_is_refused_when_it_is_said(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Options(**asked)
    assert words in str(caught.value)


@pytest.mark.parametrize("budget", [0, "0", "0B"])
def test_a_budget_of_nothing_is_refused_before_anything_is_captured(budget: int | str) -> None:
    with pytest.raises(InvalidInput, match=r"leaves no byte to train in: write an amount, as in '12GiB'"):
        Options(budget=budget)
