"""What the ops of a captured step cost.

Enters: a lowered step and the user's options. Leaves: a cost per op, measured on this machine or from the roofline, and
where a budget is to be kept, what ops cost computed in other ways.
"""

from __future__ import annotations

from collections.abc import Mapping

from vdnn.capture.lower import Lowered
from vdnn.cost.cost_cache import CostCache
from vdnn.cost.measured import measure, measure_variants
from vdnn.cost.op_calls import may_be_tried, op_calls
from vdnn.cost.roofline import roofline
from vdnn.cost.table import CostTable, OpCost
from vdnn.ir import Graph
from vdnn.options import Options
from vdnn.torch_private import without_modes

Variants = Mapping[int, tuple[OpCost, ...]]


def estimate(lowered: Lowered, options: Options) -> tuple[CostTable, Variants]:
    """What each op costs, as the options want it known, and where a budget is to be kept, what it costs computed in
    other ways."""
    if options.chosen_costs == "roofline":
        return roofline(lowered.graph, options.hardware), {}
    calls, cache = op_calls(lowered), CostCache()
    with without_modes():  # real ops on real tensors, in the middle of a trace
        costs = _with_untried(measure(calls, cache, progress=options.progress), lowered.graph, options)
        if options.budget is None:
            return costs, {}
        return costs, measure_variants(calls, costs, cache, exact=options.exact, progress=options.progress)


def _with_untried(costs: CostTable, graph: Graph, options: Options) -> CostTable:
    """What may not be run for the sake of measuring costs what the roofline says."""
    if all(map(may_be_tried, graph.ops)):
        return costs
    outline = roofline(graph, options.hardware)
    return CostTable(tuple(costs[k] if may_be_tried(op) else outline[k] for k, op in enumerate(graph.ops)))
