"""What a benchmark's record has to say besides its figures: which tree, which versions, which machine, which command.

Enters: lines of Markdown as a benchmark finds them. Leaves: the same lines on the terminal at once, and in a file when
all are there. The one idea: whoever reads a figure later can tell what it is a figure of, without asking.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import torch

from vdnn.codecs.kernels import kernels_of

ROOT = Path(__file__).parents[1]


class Record:
    """Lines that are printed as they come and can be saved together."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def say(self, *lines: str) -> None:
        self._lines += lines
        print(*lines, sep="\n", flush=True)

    def table(self, head: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
        """A row is printed as soon as it is known."""
        names = list(head)
        self.say("", _row(names), _row("---" for _ in names))
        for row in rows:
            self.say(_row(row))
        self.say("")

    def save(self, path: Path) -> None:
        path.write_text("\n".join(self._lines).strip() + "\n")


def provenance() -> Iterable[str]:
    """The setting, one list item each."""
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    kernels = kernels_of("cpu").__name__.rpartition(".")[2]
    yield f"- Command: `{command}`"
    yield f"- {datetime.now(UTC):%d %B %Y, %H:%M} UTC, commit {commit()}, {tree()}."
    yield f"- Python {platform.python_version()}, torch {torch.__version__}, codec kernels: {kernels}."
    load = os.getloadavg()[0]
    yield (
        f"- {platform.machine()} with {os.cpu_count()} cores, {torch.get_num_threads()} torch threads,"
        f" {load:.1f} processes wanting a core in the minute before."
    )


def commit() -> str:
    return _git("rev-parse", "--short", "HEAD") or "unknown: not a git checkout"


def tree() -> str:
    """Whether the sources are the commit's. Files that git does not know count as changes, except what is ignored."""
    changed = [line for line in _git("status", "--porcelain", "--", "src", "benchmarks").splitlines() if line]
    return f"a tree with {len(changed)} changed or new files in src and benchmarks" if changed else "a clean tree"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
