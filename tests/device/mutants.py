"""Transfers that leave out exactly one wait or event: every call that orders something, found in the source.

Enters: the source of the transfers. Leaves: `mutants()`, one for each such call, and `Parts`, the modules with one of
them left out. A call that is added tomorrow is a mutant tomorrow: nobody keeps a list. A wait that is left out is None,
an event that is left out is one that is over, and a job that is to run after another runs after none.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from vdnn.runtime import worker
from vdnn.runtime.transfers import stream_ops, streams

EVENTS = frozenset({"record", "record_event"})
WAITS = frozenset({"wait", "wait_event", "synchronize", "drain", "stop", "settle"})
AFTER = "after"  # the argument of `Job`
OVER = "event_that_is_over"  # a name that no module has
MODULES: dict[ModuleType, frozenset[str]] = {
    # The worker's other waits ask again and again: without its pause such a loop is the same one, or has no end.
    worker: frozenset({"settle"}),
    stream_ops: EVENTS | WAITS,
    streams: EVENTS | WAITS | {AFTER},
}


@dataclass(frozen=True)
class Mutant:
    """The call at (line, column) of a module's source is left out."""

    module: ModuleType
    line: int
    column: int
    words: str

    def __str__(self) -> str:
        return f"{Path(self.module.__file__ or '').name}:{self.line} {self.words}"


def mutants() -> list[Mutant]:
    return [
        Mutant(module, node.lineno, node.col_offset, words)
        for module, names in MODULES.items()
        for node, words in _sites(_tree(module), names)
    ]


@dataclass(frozen=True)
class Parts:
    """The transfers, made anew from their source, without one call or (None) as they are."""

    worker: ModuleType
    stream_ops: ModuleType
    streams: ModuleType

    @classmethod
    def without(cls, mutant: Mutant | None, event_that_is_over: Callable[[], Any]) -> Parts:
        made: dict[ModuleType, ModuleType] = {}
        for module in MODULES:
            made[module] = ModuleType(module.__name__)
            left_out = mutant if mutant is not None and mutant.module is module else None
            exec(_compiled(module, left_out), vars(made[module]))
            setattr(made[module], OVER, event_that_is_over)
        for name in vars(made[streams]).keys() & vars(made[worker]).keys():
            if getattr(made[streams], name) is getattr(worker, name, None):
                setattr(made[streams], name, getattr(made[worker], name))
        return cls(made[worker], made[stream_ops], made[streams])


def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def _sites(tree: ast.Module, names: frozenset[str]) -> Iterator[tuple[ast.Call | ast.keyword, str]]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for node in sorted((node for node in ast.walk(tree) if hasattr(node, "lineno")), key=lambda node: node.lineno):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names:
            yield node, f"{_around(functions, node)}: {ast.unparse(node)}"
        if isinstance(node, ast.keyword) and node.arg == AFTER and AFTER in names:
            yield node, f"{_around(functions, node)}: {ast.unparse(node)}"


def _around(functions: list[ast.FunctionDef], node: ast.Call | ast.keyword) -> str:
    """The innermost function, which begins last of those that reach so far."""
    return [function.name for function in functions if function.lineno <= node.lineno <= (function.end_lineno or 0)][-1]


@functools.cache
def _compiled(module: ModuleType, mutant: Mutant | None) -> Any:
    tree = _tree(module)
    if mutant is not None:
        leave_out = LeaveOut(mutant)
        tree = ast.fix_missing_locations(leave_out.visit(tree))
        assert leave_out.num_done == 1, f"{mutant} is {leave_out.num_done} places"
    return compile(tree, module.__file__ or "", "exec")


class LeaveOut(ast.NodeTransformer):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self.num_done = 0

    def _is_it(self, node: ast.Call | ast.keyword, words: str) -> bool:
        mutant = self._mutant
        is_it = (node.lineno, node.col_offset) == (mutant.line, mutant.column) and mutant.words.endswith(words)
        self.num_done += is_it
        return is_it

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not isinstance(node.func, ast.Attribute) or not self._is_it(node, f": {ast.unparse(node)}"):
            return self.generic_visit(node)
        if node.func.attr in EVENTS:
            return ast.copy_location(ast.Call(ast.Name(OVER, ast.Load()), [], []), node)
        return ast.copy_location(ast.Constant(None), node)

    def visit_keyword(self, node: ast.keyword) -> ast.AST | None:
        return None if self._is_it(node, f": {ast.unparse(node)}") else self.generic_visit(node)
