"""Write a program of whole ops and stretches as a joint graph.

Enters: a choice of ops, its program, and the bounds of the parts. Leaves: a joint graph with the inputs and outputs of
the traced one. In a stretch every op is written once per part:

- a value that is made and read in parts is a storage per part, which a plan can move or free by itself;
- of a value that somebody reads whole there is room for all of it, into which every part is copied;
- of a whole value a part reads its rows, a view;
- what sums over the batch starts as the first part's result, to which those of the others are added.

What each new call returns is run on fake tensors and compared with the rows that the rules promised: a rule that is
wrong about an op is found here, and the op is barred from running in parts (`CannotSplit`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import torch
from torch import fx

from vdnn.capture.copied_graph import GraphWithoutCode
from vdnn.capture.nodes import is_getitem, op_of, tensor_of, tensors_of
from vdnn.compile.forms.calls import Caller
from vdnn.compile.forms.rows import Result, Rows, Split
from vdnn.compile.forms.stretches import ChosenOps, PartsProgram, Stretch, producer, read_by_whole_ops, values_of
from vdnn.torch_private import contiguous_strides, is_non_overlapping_and_dense, schema_of

aten = torch.ops.aten

Bounds = Sequence[tuple[int, int]]


class CannotSplit(Exception):
    """An op does not return the promised rows when it runs on a part of the batch."""

    def __init__(self, op: fx.Node) -> None:
        super().__init__(f"{op.target} does not run on a part of the batch")
        self.op = op


def bounds_of(batch: int, parts: int) -> Bounds:
    """As even as can be, larger parts first."""
    sizes = [batch // parts + (part < batch % parts) for part in range(parts)]
    starts = [sum(sizes[:part]) for part in range(parts)]
    return [(start, start + size) for start, size in zip(starts, sizes, strict=True)]


class PartsWriter:
    """The graph being written. `whole` and `parts` find what a traced node has become; `_here`, parts that are read in
    the stretch being written and not after it."""

    def __init__(self, choice: ChosenOps, program: PartsProgram, bounds: Bounds) -> None:
        self.choice, self.analysis, self.bounds = choice, choice.analysis, bounds
        self.graph = fx.Graph()
        self.whole: dict[fx.Node, fx.Node] = {}
        self.parts: dict[tuple[fx.Node, int], fx.Node] = {}
        self.in_stretches: set[fx.Node] = set()
        self._here: dict[tuple[fx.Node, int], fx.Node] = {}
        self._cuts: dict[tuple[fx.Node, Rows, int], fx.Node] = {}
        self._caller = Caller(self.graph, self.analysis.graph)
        self._wanted_whole = read_by_whole_ops(choice, program)
        self._write_inputs()
        for item in program:
            self._write_stretch(item) if isinstance(item, Stretch) else self._write_whole(item)

    def _write_inputs(self) -> None:
        for node in self.analysis.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                self.whole[node] = self.graph.node_copy(node)

    def finish(self, joint: fx.GraphModule) -> fx.GraphModule:
        """With the outputs of the traced graph, in its order."""
        self.graph.node_copy(self.analysis.graph.output_node(), self.read)
        return GraphWithoutCode(joint, self.graph)

    # Whole values

    def _write_whole(self, op: fx.Node) -> None:
        self.whole[op] = self.graph.node_copy(op, self.read)
        for user in filter(is_getitem, op.users):
            self.whole[user] = self.graph.node_copy(user, self.read)

    def read(self, node: fx.Node) -> fx.Node:
        """The whole of a value. A view is taken when it is first read."""
        if node not in self.whole:
            assert node in self.analysis.views, f"{node} is read whole and was not put together"
            self.whole[node] = self._view(node)
        return self.whole[node]

    def _view(self, view: fx.Node) -> fx.Node:
        if is_getitem(view):
            position: Any = view.args[1]
            return self._caller.getitem(self.read(producer(view)), position, view, name=view.name)
        args, kwargs = fx.map_arg((view.args, view.kwargs), self.read)
        try:
            return self._caller.call(view, view.target, *args, name=view.name, **kwargs)
        except RuntimeError as refusal:  # what was put together or added up is laid out in another way
            raise CannotSplit(producer(next(self.choice.made_by(view)))) from refusal

    # Parts

    def _write_stretch(self, stretch: Stretch) -> None:
        first = next(reversed(self.graph.nodes))
        for value in (value for op in stretch.ops for value in values_of(op)):
            if value in self._wanted_whole:
                self.whole[value] = self._room_for(value)
        for part in range(len(self.bounds)):
            for op in stretch.ops:
                self._write_part(op, part)
        self.in_stretches.update(_after(first, self.graph))
        self._here.clear()

    def _keep_part(self, node: fx.Node, part: int, made: fx.Node) -> None:
        """What is whole after its stretch is read from there, so that its parts can go, and views of parts with
        them."""
        is_for_now = node in self._wanted_whole or node in self.analysis.views
        (self._here if is_for_now else self.parts)[node, part] = made

    def _part_of(self, node: fx.Node, part: int) -> fx.Node | None:
        return self._here.get((node, part)) or self.parts.get((node, part))

    def _room_for(self, value: fx.Node) -> fx.Node:
        tensor = tensor_of(value)
        assert tensor is not None, f"{value} is no tensor and has no rows"
        is_dense = is_non_overlapping_and_dense(tensor)
        strides = tensor.stride() if is_dense else contiguous_strides(tensor.shape)
        sizes, options = (list(tensor.shape), list(strides)), {"dtype": tensor.dtype, "device": tensor.device}
        return self._caller.call(value, aten.empty_strided.default, *sizes, name=f"{value.name}_whole", **options)

    def _write_part(self, op: fx.Node, part: int) -> None:
        results = self.analysis.splits[op].results
        if op.target is aten.mm.default and part > 0 and self.analysis.is_summed(op):
            factors = [self._read_part(factor, op, part) for factor in op.args]
            self.whole[op] = self._caller.call(op, aten.addmm_.default, self.whole[op], *factors)
            return
        made = self._call_part(op, part)
        if tensor_of(op) is not None:
            self._settle(op, results[0], part, made)
        for user in filter(is_getitem, op.users):
            position: Any = user.args[1]
            taken = self._caller.getitem(made, position, user, name=f"{user.name}_part{part}")
            self._settle(user, results[position], part, taken)

    def _call_part(self, op: fx.Node, part: int) -> fx.Node:
        split, samples = self.analysis.splits[op], self.bounds[part][1] - self.bounds[part][0]
        args, kwargs = _resized(op, split, samples)
        args, kwargs = fx.map_arg((args, kwargs), lambda source: self._read_part(source, op, part))
        try:
            made = self._caller.call(op, op.target, *args, name=f"{op.name}_part{part}", **kwargs)
        except (RuntimeError, ValueError, IndexError) as refusal:
            raise CannotSplit(op) from refusal
        if not _is_as_promised(op, made, split, samples):
            raise CannotSplit(op)
        return made

    def _settle(self, value: fx.Node, result: Result, part: int, made: fx.Node) -> None:
        """Keep a part, copy it to where it belongs in the whole, or add it to what the parts before gave."""
        if isinstance(result, Rows):
            self._keep_part(value, part, made)
            if value in self._wanted_whole:
                self._caller.call(value, aten.copy_.default, self._cut(value, result, part, value), made)
        elif result is not None:
            is_first = part == 0
            self.whole[value] = made if is_first else self._caller.call(value, aten.add.Tensor, self.whole[value], made)

    def _read_part(self, source: Any, op: fx.Node, part: int) -> Any:
        """What `op` reads of an argument: the rows of some samples, or all of what is the same for all of them."""
        rows = self.analysis.splits[op].takes.get(source)
        if rows is None:
            return self.read(source) if isinstance(source, fx.Node) else source
        made = self._part_of(source, part)
        if made is not None:
            return made
        if source in self.analysis.views and self.choice.in_parts(source):
            return self._view_part(source, part)
        return self._cut(source, rows, part, op)

    def _view_part(self, view: fx.Node, part: int) -> fx.Node:
        """A view is taken in parts when it is first read so."""
        op = producer(view)
        made = self._part_of(op, part) or self._call_part(op, part)
        self._keep_part(op, part, made)
        if is_getitem(view):
            position: Any = view.args[1]
            made = self._caller.getitem(made, position, view)
            self._keep_part(view, part, made)
        return made

    def _cut(self, source: fx.Node, rows: Rows, part: int, like: fx.Node) -> fx.Node:
        key = (source, rows, part)
        if key not in self._cuts:
            start, stop = (rows.of(bound) for bound in self.bounds[part])
            bounds, name = (rows.dim, start, stop), f"{source.name}_rows{part}"
            self._cuts[key] = self._caller.call(like, aten.slice.Tensor, self.read(source), *bounds, name=name)
        return self._cuts[key]


def _after(node: fx.Node, graph: fx.Graph) -> list[fx.Node]:
    """The nodes written since."""
    return list(takewhile(lambda later: later is not node, reversed(graph.nodes)))


def _resized(op: fx.Node, split: Split, samples: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments that spell out how many rows there are, for so many samples."""
    args, kwargs = list(op.args), dict(op.kwargs)
    names = [argument.name for argument in schema_of(op_of(op)).arguments]
    for name, rows in split.sizes.items():
        position = names.index(name)
        size: Any = kwargs[name] if name in kwargs else args[position]
        if not isinstance(size, int):
            size = [*size[: rows.dim], rows.of(samples), *size[rows.dim + 1 :]]
        else:
            size = rows.of(samples)
        if name in kwargs:
            kwargs[name] = size
        else:
            args[position] = size
    return tuple(args), kwargs


def _is_as_promised(op: fx.Node, made: fx.Node, split: Split, samples: int) -> bool:
    for whole, part, result in zip(tensors_of(op), tensors_of(made), split.results, strict=True):
        if whole is None or result is None:
            continue
        shape = list(whole.shape)
        if isinstance(result, Rows):
            shape[result.dim] = result.of(samples)
        if part is None or list(part.shape) != shape or part.dtype != whole.dtype:
            return False
    return True
