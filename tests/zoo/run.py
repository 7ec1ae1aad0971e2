"""All architectures, each in a forked child of one process that has imported everything.

Enters: names, ways, how many children at a time. Leaves: a file of rows per architecture, in a folder of the commit:
who runs again runs only what is not there. A child that dies or takes too long costs its own rows.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from zoo.ways import DIED, UNMADE, WAYS, Row

ROOT = Path(__file__).parents[2]
MAX_PROCESSOR_S = 240
"""Of one architecture in all ways. The longest that trained took under a minute of an idle core."""

MAX_WALL_S = 1200
MAX_PROCESS_NBYTES = 10 << 30
"""A model that no rule made small must not take the machine."""


def results_dir() -> Path:
    """Of this commit, and of what differs from it in the files that matter."""
    head = _git("rev-parse", "--short", "HEAD").strip()
    changed = _git("diff", "HEAD", "--", "src", "tests/zoo")
    return ROOT / "build" / "zoo" / (head + ("-" + hashlib.sha1(changed.encode()).hexdigest()[:8] if changed else ""))


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True).stdout


@dataclass(slots=True)
class _Child:
    pid: int
    architecture: str
    ways: tuple[str, ...]
    until: float


def run(
    architectures: Iterable[str], ways: Sequence[str], folder: Path, jobs: int, max_processor_s: int = MAX_PROCESSOR_S
) -> Iterator[str]:
    """Yields each architecture when its rows are there."""
    folder.mkdir(parents=True, exist_ok=True)
    _import_everything()
    children: dict[int, _Child] = {}
    for architecture in architectures:
        missing = tuple(way for way in ways if way not in {row.way for row in kept_rows(folder, architecture)})
        if not missing:
            yield architecture
            continue
        while len(children) >= jobs:
            yield from _ended(children, folder)
        child = _fork(architecture, missing, folder, max_processor_s)
        children[child.pid] = child
    while children:
        yield from _ended(children, folder)


def kept_rows(folder: Path, architecture: str) -> list[Row]:
    """One per way, the last that was written."""
    file = folder / f"{architecture}.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    found = {row.way: row for row in (_row(json.loads(line)) for line in lines)}
    return [found[way] for way in WAYS if way in found]


def _row(record: dict[str, object]) -> Row:
    return Row(**{name: tuple(part) if isinstance(part, list) else part for name, part in record.items()})  # type: ignore[arg-type]


def _import_everything() -> None:
    """What the children share. Nothing here starts a thread: a forked child would not have it."""
    import torch._dynamo
    import transformers
    import transformers.modeling_utils
    from transformers import BertModel, LlamaModel, ViTModel  # noqa: F401 - they import what most models do

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()


def _fork(architecture: str, ways: tuple[str, ...], folder: Path, max_processor_s: int) -> _Child:
    pid = os.fork()
    if pid == 0:
        try:
            _limit(max_processor_s)
            _in_child(architecture, ways, folder)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return _Child(pid, architecture, ways, time.monotonic() + MAX_WALL_S)


def _limit(processor_s: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (processor_s, processor_s))
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_PROCESS_NBYTES, resource.RLIM_INFINITY))


def _in_child(architecture: str, ways: tuple[str, ...], folder: Path) -> None:
    from zoo.made import CannotMake, made
    from zoo.ways import rows

    log = os.open(folder / f"{architecture}.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    try:
        model = made(architecture)
    except CannotMake as why:
        _write(folder, [Row(architecture, way, UNMADE, str(why)) for way in ways])
        return
    for row in rows(model, ways):
        _write(folder, [row])
    sys.stdout.flush()
    sys.stderr.flush()


def _write(folder: Path, rows: Sequence[Row]) -> None:
    with (folder / f"{rows[0].architecture}.jsonl").open("a") as file:
        file.writelines(json.dumps(asdict(row)) + "\n" for row in rows)


def _ended(children: dict[int, _Child], folder: Path) -> Iterator[str]:
    """Waits a little; whoever ended is taken out."""
    for pid, child in list(children.items()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if not ended and time.monotonic() > child.until:
            os.kill(pid, 9)
            ended, status = os.waitpid(pid, 0)
        if ended:
            del children[pid]
            there = {row.way for row in kept_rows(folder, child.architecture)}
            code = os.waitstatus_to_exitcode(status)
            lost = [way for way in child.ways if way not in there]
            if lost:
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                _write(folder, [Row(child.architecture, way, DIED, f"the process ended: {how}") for way in lost])
            yield child.architecture
            return
    time.sleep(0.05)
