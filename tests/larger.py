"""Parameters for `make test-all` alone: `parametrize("name", ["unet", *larger("googlenet", "densenet121")])`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def larger(*cases: Any) -> list[Any]:
    """These cases, marked slow. A tuple is one case of several parameters."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow) for case in cases]


def all_but_larger(few: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """All cases, those that are not among the few marked slow."""
    return [case if case in few else larger(case)[0] for case in cases]
