"""Planning in a process of its own, so that what it takes is gone when the plan is there.

Enters: questions (`planner.py`). Leaves: plans. The one idea: a plan of two thousand ops is a few kilobytes, and
finding it takes a hundred megabytes of small objects, which an interpreter keeps in holes for ever. Who named a number
of bytes has a step to put there. So another interpreter, one without torch, finds the plan and ends; and while a model
trains, it does not hold the lock that the training thread needs.

Where no other process can be had, where it dies, or where a hard limit of the budget would have no room for it, the
question is answered here.
"""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, BinaryIO

from vdnn.errors import VdnnError
from vdnn.plan.model.problem import Problem
from vdnn.plan.plan import Plan
from vdnn.plan.planner import Question, planned
from vdnn.plan.shared.account import room_between_steps
from vdnn.units import MiB

log = logging.getLogger("vdnn")

LARGE_STEP_OPS = 250
"""Ops from which on planning takes more than another interpreter needs to start: some 10 MiB and 0.3 s."""

SOLVER = "ortools"
"""Loading it takes 17 MiB and 0.2 s, and solving with it for the first time as much again: what is not loaded here yet
is loaded in the other process."""

PROCESS_NBYTES = 112 * MiB
"""What the other process takes: 78 to 91 MiB of its own for steps of 400 to 2,200 ops, and libraries that nobody else
has read. A container counts it."""

_BEGIN = "import sys; sys.path.insert(0, sys.argv[1]); from vdnn.plan.planner_process import serve; serve()"
_APART: dict[str, Any] = {
    "stdin": subprocess.PIPE,
    "stdout": subprocess.PIPE,
    "stderr": subprocess.DEVNULL,
    "start_new_session": True,  # a Ctrl-C is for the process that trains
}
_NICER = 10  # steps of nice by which planning in the background steps back


@dataclass(frozen=True)
class _Answer:
    """The plan without its problem, which who asked has; what the strategy changed of that; or why there is none."""

    plan: Mapping[str, Any] = field(default_factory=dict)
    changed: Mapping[str, Any] = field(default_factory=dict)
    reason: VdnnError | None = None

    def to(self, question: Question) -> Plan:
        if self.reason is not None:
            raise self.reason
        return Plan(problem=replace(question.problem, **self.changed), **self.plan)


class PlannerProcess:
    """A planner (`Planner`). Small steps are planned here; for large ones an interpreter is started with the first
    question and ends with the `with` block."""

    def __init__(self, *, is_background: bool = False) -> None:
        self._is_background, self._is_gone = is_background, not sys.executable
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> PlannerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def __call__(self, question: Question) -> Plan:
        with self._lock:
            answer = self._asked(question) if is_planned_apart(question.problem) else None
        return planned(question) if answer is None else answer.to(question)

    def _started(self) -> subprocess.Popen[bytes] | None:
        if self._process is None and not self._is_gone:
            package = str(Path(__file__).parents[2])
            command = (sys.executable, "-c", _BEGIN, package, str(_NICER * self._is_background))
            try:
                self._process = subprocess.Popen(command, **_APART)
            except OSError as problem:
                self._is_gone = True
                log.info("planning in this process, another one cannot be had: %s", problem)
        return self._process

    def _asked(self, question: Question) -> _Answer | None:
        """None where nobody answers."""
        process = self._started()
        if process is None:
            return None
        assert process.stdin is not None, "it listens"
        assert process.stdout is not None, "it answers"
        try:
            pickle.dump(question, process.stdin, pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()
            answer: _Answer = pickle.load(process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError) as problem:
            log.info("planning in this process, the other one is gone: %r", problem)
            self._is_gone = True
            self.__exit__()
            return None
        return answer


def is_planned_apart(problem: Problem) -> bool:
    """Whether planning would leave much behind here, and the budget has room for another process while nothing of a
    step is there."""
    room_nbytes = room_between_steps(problem)
    is_large = len(problem.graph) >= LARGE_STEP_OPS
    if room_nbytes is None:
        return is_large
    return room_nbytes >= PROCESS_NBYTES and (is_large or SOLVER not in sys.modules)


def serve() -> None:
    """The other process: answer until nobody asks any more."""
    os.nice(int(sys.argv[2]))
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what others print does not come between answers
    _answer_all(sys.stdin.buffer, answers)


def _answer_all(questions: BinaryIO, answers: BinaryIO) -> None:
    while True:
        try:
            question = pickle.load(questions)
        except EOFError:
            return
        pickle.dump(_answered(question), answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()


def _answered(question: Question) -> _Answer:
    try:
        plan = planned(question)
    except VdnnError as reason:
        return _Answer(reason=reason)
    found = {field.name: getattr(plan, field.name) for field in fields(plan) if field.name != "problem"}
    return _Answer(found, _changed(plan.problem, question.problem))


def _changed(found: Problem, asked: Problem) -> dict[str, Any]:
    values = {field.name: (getattr(found, field.name), getattr(asked, field.name)) for field in fields(found)}
    return {name: now for name, (now, before) in values.items() if now is not before and now != before}
