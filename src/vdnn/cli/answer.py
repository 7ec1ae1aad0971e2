"""What a subcommand gives back: a record for programs, a view for people, an exit code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType


@dataclass(frozen=True, slots=True)
class Answer:
    """`record` becomes the JSON; `view(width)` is what a terminal of that many columns shows."""

    record: Mapping[str, Any]
    view: Callable[[int], RenderableType]
    exit_code: int = 0
