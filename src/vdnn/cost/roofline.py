"""Time of every op from shapes and two rates of the device, for a machine that is not here to be measured.

Enters: a graph and a `Hardware`. Leaves: a `CostTable`. The one idea is the roofline (Williams, Waterman and
Patterson, CACM 2009): an op lasts as long as its arithmetic at peak rate or its memory traffic at full bandwidth,
whichever is longer, plus one launch.

    seconds = max(flops / flops_per_s, bytes / memory_bandwidth) + launch

Weaknesses: no efficiency factor, so times are lower bounds and the arithmetic of small or odd shapes is flattered; no
caches between ops; no workspaces, because shapes do not tell which algorithm a library picks. `measured.py` has none
of the three where it can run.
"""

from __future__ import annotations

from math import prod

from vdnn.cost.element_sizes import element_nbytes
from vdnn.cost.table import CostTable, OpCost
from vdnn.hardware.device import Hardware
from vdnn.ir import Graph, Need, Op, Trait

_READS_NO_BYTES = frozenset({Need.NOTHING, Need.SHAPE})


def roofline(graph: Graph, hardware: Hardware) -> CostTable:
    return CostTable(tuple(OpCost(op_seconds(graph, op, hardware)) for op in graph.ops))


def op_seconds(graph: Graph, op: Op, hardware: Hardware) -> float:
    """A view is bookkeeping on the host: nothing is launched."""
    if op.has(Trait.VIEW):
        return 0.0
    compute_s = op.flops / hardware.flops_per_s
    memory_s = traffic_nbytes(graph, op) / hardware.memory_bandwidth_bytes_per_s
    return max(compute_s, memory_s) + hardware.launch_s


def traffic_nbytes(graph: Graph, op: Op) -> int:
    """Bytes of the distinct values an op reads and writes: a value read twice comes from memory once."""
    read = {read.value for read in op.reads if read.need not in _READS_NO_BYTES}
    return sum(value_nbytes(graph, value) for value in read | set(op.writes))


def value_nbytes(graph: Graph, value: int) -> int:
    """Never more than its storage holds: an expanded value repeats the same bytes."""
    looked_at = graph.values[value]
    nbytes = prod(looked_at.shape) * element_nbytes(looked_at.dtype)
    return min(nbytes, graph.storages[looked_at.storage].nbytes)
