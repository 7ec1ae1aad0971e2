"""A graph as the text of a Python function that lets go of every tensor at its last use.

Enters: a graph of calls, and where marks belong. Leaves: a `Source`: one line per call, and the values that the lines
name. The one idea: the text of a program is a tenth of its graph, so a source outlives the graph that it was written
from, and becomes a function when one is wanted: as it is, or with a mark before every instruction.

The function takes one list, which it empties. With ordinary arguments the caller's frame would keep every saved tensor
alive through the whole backward pass; a list that the function empties keeps none.
"""

from __future__ import annotations

import itertools
import keyword
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from vdnn.runtime.edition import Boxed

_NUMBERS = itertools.count()  # of functions: a traceback finds lines by name
_OURS = "K_"  # begins the names of what is no tensor of the graph
_ARGUMENTS = f"{_OURS}arguments"


@dataclass(frozen=True, slots=True)
class Mark:
    """What a marked program says before a call, and what a checked one asks after it."""

    before: str
    after: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One call, with what it is the last to read; `unread` lets go of a result that nobody reads."""

    text: str
    unread: str = ""
    mark: Mark | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """The body of a program. `values` are what its lines name beside tensors: ops, constants, types."""

    name: str
    head: tuple[str, ...]
    lines: tuple[Line, ...]
    result: str
    values: Mapping[str, Any]

    def text(self, *, marked: bool = False, checked: bool = False) -> str:
        return "\n    ".join((f"def run({_ARGUMENTS}):", *self.head, *self._body(marked, checked), self.result))

    def _body(self, marked: bool, checked: bool) -> Iterator[str]:
        for line in self.lines:
            if marked and line.mark is not None:
                yield line.mark.before
            yield line.text
            if checked and line.mark is not None and line.mark.after:
                yield line.mark.after
            if line.unread:
                yield line.unread

    def function(self, *, marked: bool = False, checked: bool = False) -> Boxed:
        """The program as Python runs it. A traceback finds its lines in this source."""
        text, name = self.text(marked=marked, checked=checked), f"vdnn {self.name} {next(_NUMBERS)}"
        names: dict[str, Any] = {**self.values, "__name__": name, "__loader__": _Loader(self, marked, checked)}
        exec(compile(text, name, "exec", dont_inherit=True), names)
        run: Boxed = names["run"]
        return run


@dataclass(frozen=True, slots=True)
class _Loader:
    """What the traceback module asks for the lines of a function."""

    source: Source
    marked: bool
    checked: bool

    def get_source(self, _: str) -> str:
        return self.source.text(marked=self.marked, checked=self.checked)


MarkOf = Callable[[fx.Node, "Speller"], Mark | None]


def source_of(module: fx.GraphModule, name: str, mark_of: MarkOf = lambda node, speller: None) -> Source:
    """The module's graph written out; `mark_of` says where marks belong."""
    speller, last_reads = Speller(), _last_reads(module.graph)
    placeholders = module.graph.find_nodes(op="placeholder")
    lines, result = [], "return ()"
    for node in module.graph.nodes:
        assert not node.name.startswith(_OURS), f"{node} has a name that the text of a program keeps for its own"
        if node.op == "output":
            result = f"return {speller.spelled(node.args[0])}"
        elif node.op != "placeholder":
            parts = (f"{node.name} = {_call(node, module, speller)}", _gone(last_reads[node]))
            lines.append(
                Line("; ".join(filter(None, parts)), _gone([] if node.users else [node]), mark_of(node, speller))
            )
    taken = f"{''.join(f'{node.name}, ' for node in placeholders)}= {_ARGUMENTS}" if placeholders else ""
    head = taken, f"{_ARGUMENTS}.clear()", _gone([node for node in placeholders if not node.users])
    return Source(name, tuple(filter(None, head)), tuple(lines), result, speller.values)


def _call(node: fx.Node, module: fx.GraphModule, speller: Speller) -> str:
    if node.op == "get_attr":
        found: Any = module
        for part in str(node.target).split("."):
            found = getattr(found, part)
        return speller.named(found)
    assert node.op == "call_function", f"{node} is a {node.op}: captured graphs call functions only"
    args = [speller.spelled(arg) for arg in node.args]
    plain = {name: arg for name, arg in node.kwargs.items() if not keyword.iskeyword(name)}
    args += [f"{name}={speller.spelled(arg)}" for name, arg in plain.items()]
    args += [f"**{{{name!r}: {speller.spelled(arg)}}}" for name, arg in node.kwargs.items() if name not in plain]
    return f"{speller.named(node.target)}({', '.join(args)})"


def _last_reads(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """By node, what nobody reads after it."""
    last: dict[fx.Node, list[fx.Node]] = {}
    seen: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        last[node] = [read for read in node.all_input_nodes if read not in seen]
        seen.update(last[node])
    return last


def _gone(nodes: Sequence[fx.Node]) -> str:
    return f"del {', '.join(node.name for node in nodes)}" if nodes else ""


@dataclass
class Speller:
    """Values as text: tensors of the graph, numbers and words as they are, everything else by a name of ours."""

    values: dict[str, Any] = field(default_factory=dict)
    _names: dict[Any, str] = field(default_factory=dict)

    def named(self, value: Any) -> str:
        """Tuples that are equal share a name."""
        key = value if type(value) is tuple else id(value)
        if key not in self._names:
            self._names[key] = f"{_OURS}{len(self._names)}"
            self.values[self._names[key]] = value
        return self._names[key]

    def spelled(self, value: Any) -> str:
        if isinstance(value, fx.Node):
            return value.name
        if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
            return repr(value)
        if isinstance(value, slice):
            return f"slice({', '.join(map(self.spelled, (value.start, value.stop, value.step)))})"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{self.spelled(key)}: {self.spelled(item)}' for key, item in value.items())}}}"
        if isinstance(value, list):
            return f"[{', '.join(map(self.spelled, value))}]"
        if type(value) is tuple:
            return f"({''.join(f'{self.spelled(item)}, ' for item in value)})"
        return self.named(value)
