"""Regions of a planned step as kernels that TorchInductor makes, where they keep to the plan's bytes.

Enters: the two programs of a plan. Leaves: the same programs with regions (`compile/inductor/regions.py`) computed by
one kernel each. The plan, its moves, encodings and replays are untouched, and so are convolutions, products and random
numbers.

The one idea: what a kernel allocates is known before any step runs. It is tried once, on tensors of its inputs'
layouts, while PyTorch's allocator reports what it takes (`cost/op_memory.py`). Shapes are fixed, so it takes the same
every time; what is on the device when the region begins is the plan's to say; the kernel is used where the sum stays
within the budget, or without one within the plan's own peak. Otherwise the region is cut in two and each part tried
again, down to single ops, which run as they did.

The same trial holds the kernel to eager mode: layouts of all results, storages that no two of them share, and values to
`TOLERANCE`. A kernel that fails is not used. So a wrong kernel costs speed, and neither bytes nor gradients.

Known weaknesses: a kernel is not timed, so one that is slower than its ops is used all the same; a trial needs room for
the inputs and results of one region twice, before the first step; `docs/inductor.md` has the measurements.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from vdnn.capture.nodes import tensor_of
from vdnn.compile.inductor.regions import Neighbours, Region, computing, neighbours_of, region_of, split
from vdnn.compile.inductor.with_kernels import Compiled, with_kernels
from vdnn.cost.op_memory import allocation_changes
from vdnn.plan.judge.schedule import Kind
from vdnn.plan.plan import Plan
from vdnn.rewrite.boxed import boxed
from vdnn.rewrite.halves import Half
from vdnn.runtime.edition import Program
from vdnn.torch_private import (
    FakeTensorMode,
    OpOverload,
    is_profiler_enabled,
    tracing,
    without_modes,
)

log = logging.getLogger("vdnn")

TOLERANCE = 1e-5
"""Of a kernel's results against eager mode's, relative to the largest of them: what sums in another order leave of
float32. Shorter floats get four of their own last places."""

InputLayout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, torch.device]


@dataclass(frozen=True)
class Kernel:
    run: Compiled
    high_nbytes: int
    """The most it has allocated at any time while all its inputs are alive, results included."""


@dataclass
class RegionKernels:
    """Kernels by what they compute: layers that are alike share one. None: it may not be used."""

    known: dict[object, Kernel | None] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    """Why Inductor could not make some."""

    def of(self, region: Region) -> Kernel | None:
        layouts = tuple(_layout(node) for node in region.inputs)
        if any(device.type != "cpu" for _, _, _, device in layouts):
            return None  # what it allocates there, the CPU allocator's events do not tell
        with without_modes(), tracing(None), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Inductor imports deprecated parts of PyTorch
            fakes = _fake(layouts)
            traced = _traced(region, fakes)
            key = (traced.code, layouts, region.scratch)
            if key not in self.known:
                compiled = self._compiled(traced, fakes)
                self.known[key] = None if compiled is None else _tried(compiled, region, layouts)
        return self.known[key]

    def _compiled(self, traced: fx.GraphModule, fakes: Sequence[Any]) -> Compiled | None:
        from vdnn.torch_private import InductorError

        try:
            return _compiled(traced, fakes)
        except InductorError as reason:
            self.failures.append(str(reason).strip().splitlines()[0])
            log.info("a region runs op by op, because Inductor failed: %s", self.failures[-1])
            return None


def fuse(programs: Sequence[Program], halves: Sequence[Half], plan: Plan) -> list[Program]:
    """The programs with as many of their ops in kernels as the plan has bytes for."""
    kernels = RegionKernels()
    fused = [_fused(program, half, plan, kernels) for program, half in zip(programs, halves, strict=True)]
    targets = [node.target for half in halves for node in computing(half.position_of)]
    num_ops = sum(isinstance(target, OpOverload) for target in targets)
    num_fused = sum(program.num_fused_ops for program in fused)
    log.info("inductor: %d of %d ops in kernels", num_fused, num_ops)
    if kernels.failures and not num_fused:
        log.warning("compiler='inductor' runs op by op: Inductor made no kernel. It said: %s", kernels.failures[0])
    return fused


def _fused(program: Program, half: Half, plan: Plan, kernels: RegionKernels) -> Program:
    chosen = [found for neighbours in neighbours_of(half) for found in _fitting(neighbours, half, plan, kernels)]
    num_ops = sum(len(region.ops) for _, region, _ in chosen)
    return (
        replace(program, run=boxed(with_kernels(half, chosen), half.name), num_fused_ops=num_ops) if chosen else program
    )


def _fitting(
    neighbours: Neighbours, half: Half, plan: Plan, kernels: RegionKernels
) -> Iterator[tuple[Neighbours, Region, Compiled]]:
    """The kernel of these neighbours, or those of their parts."""
    region = region_of(half, neighbours)
    room_nbytes = _room_nbytes(plan, half.position_of[region.ops[0]])
    kernel = kernels.of(region) if _least_nbytes(region) <= room_nbytes else None
    if kernel is not None and kernel.high_nbytes <= room_nbytes:
        yield neighbours, region, kernel.run
    else:
        for part in split(neighbours):
            yield from _fitting(part, half, plan, kernels)


def _room_nbytes(plan: Plan, position: int) -> int:
    """What the bound leaves beside everything that is on the device when an instruction begins."""
    instruction, graph = plan.program[position], plan.problem.graph
    inputs = {graph.values[value].storage for value in graph.inputs}
    there = int(plan.timeline.total()[position]) - plan.costs[instruction.op].workspace_nbytes
    if instruction.kind is Kind.RUN:  # of a replay, what it makes is counted as there: on the safe side
        written = {graph.values[value].storage for value in graph.ops[instruction.op].writes} - inputs
        born = [s for s in written if (life := graph.lifetimes[s]) is not None and life.begin == instruction.op]
        there -= sum(graph.storages[storage].nbytes for storage in born)
    bound = plan.problem.budget_nbytes
    return (plan.peak_nbytes if bound is None else bound) - there


def _least_nbytes(region: Region) -> int:
    """What any kernel of the region allocates: its results."""
    tensors = (tensor_of(node) for node in region.outputs)
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)


def _layout(node: fx.Node) -> InputLayout:
    tensor = tensor_of(node)
    assert tensor is not None, f"{node} is read in a region and is no tensor"
    return tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device


def _fake(layouts: Sequence[InputLayout]) -> list[torch.Tensor]:
    with FakeTensorMode():
        return [torch.empty_strided(shape, stride, dtype=t, device=device) for shape, stride, t, device in layouts]


def _traced(region: Region, fakes: Sequence[Any]) -> fx.GraphModule:
    """The region in the ops that Inductor knows, without writes but those that are seen outside."""
    from vdnn.torch_private import select_decomp_table

    functional = torch.func.functionalize(region.module, remove="mutations")
    with fakes[0].fake_mode:
        traced = make_fx(functional, decomposition_table=select_decomp_table())(*fakes)
    placeholders = traced.graph.find_nodes(op="placeholder")
    scratch = {placeholders[at] for at in region.scratch}
    for write in traced.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        if write.args[0] in scratch and not write.users:
            traced.graph.erase_node(write)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    return traced


def _compiled(traced: fx.GraphModule, fakes: Sequence[Any]) -> Compiled:
    from vdnn.torch_private import compile_fx_inner

    compiled: Any = compile_fx_inner(traced, fakes)

    def kernel(inputs: list[Any]) -> Sequence[torch.Tensor]:
        results: Sequence[torch.Tensor] = compiled(inputs)
        return results

    return kernel


def _tried(compiled: Compiled, region: Region, layouts: Sequence[InputLayout]) -> Kernel | None:
    """The kernel with what it allocates, if it computes what the region's ops do."""
    given, taken = _filled(layouts), _filled(layouts)
    results: list[Sequence[torch.Tensor]] = []
    high_nbytes = _high_nbytes(lambda: results.append(compiled(list(taken))))
    expected = region.module(*given)
    kept = [at for at in range(len(given)) if at not in region.scratch]
    complaint = _difference([*expected, *(given[at] for at in kept)], [*results[0], *(taken[at] for at in kept)])
    if not complaint:
        return Kernel(compiled, high_nbytes)
    log.info("a region of %d ops runs op by op: %s", len(region.ops), complaint)
    return None


def _high_nbytes(run: Callable[[], None]) -> int:
    """The most that is allocated at a time. A thread has one profiler: while the user's is on, ours is on another."""
    if not is_profiler_enabled():
        return max(accumulate(allocation_changes(run), initial=0))
    with ThreadPoolExecutor(max_workers=1) as other_thread:
        return max(accumulate(other_thread.submit(allocation_changes, run).result(), initial=0))


def _filled(layouts: Sequence[InputLayout]) -> list[torch.Tensor]:
    """Tensors of the given layouts, the same each time: random floats and truths, zeros for what may be an index."""
    tensors = []
    for seed, (shape, stride, dtype, device) in enumerate(layouts):
        span = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if 0 not in shape else 0
        flat = torch.randn(span, generator=torch.Generator().manual_seed(seed))
        flat = flat > 0 if dtype is torch.bool else flat if dtype.is_floating_point else torch.zeros(span)
        tensors.append(flat.to(device, dtype).as_strided(shape, stride))
    return tensors


def _difference(expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> str:
    """What is wrong with tensors that a kernel returned or wrote; empty when nothing is."""
    storages = [tensor.untyped_storage().data_ptr() for tensor in found if tensor.numel()]
    if len(storages) != len(set(storages)):
        return "two of its tensors share a storage"
    for eager, fused in zip(expected, found, strict=True):
        if (eager.shape, eager.stride(), eager.dtype) != (fused.shape, fused.stride(), fused.dtype):
            return f"{tuple(fused.shape)}, {fused.stride()} is not {tuple(eager.shape)}, {eager.stride()}"
        if not _is_close(eager, fused):
            return "its values are not those of eager mode"
    return ""


def _is_close(eager: torch.Tensor, fused: torch.Tensor) -> bool:
    if not eager.dtype.is_floating_point or not eager.numel():
        return torch.equal(eager, fused)
    eager, fused, last_place = eager.double(), fused.double(), torch.finfo(eager.dtype).eps
    finite = eager.isfinite()
    if not torch.equal(finite, fused.isfinite()):
        return False
    eager, fused = eager[finite], fused[finite]
    if not eager.numel():
        return True
    bound = max(TOLERANCE, 4 * last_place) * max(1.0, float(eager.abs().max()))
    return float((eager - fused).abs().max()) <= bound
