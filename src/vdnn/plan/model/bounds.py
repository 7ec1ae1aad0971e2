"""What no plan that moves storages can go below.

Enters: a problem. Leaves: the smallest budget that offloading can meet, and the op that needs it. The one idea: with
everything away whenever it is unused, a moment holds what it uses and what no plan may move, whatever the links do;
this is SuperNeurons' max over layers (PPoPP 2018, section 3.2) counted in storages, persistent ones included. It is
reached: the plan that uses every gap to the full has this peak, as long as the slower tiers have room for it.
"""

from __future__ import annotations

from math import prod

from vdnn.cost.table import CostTable, OpCost
from vdnn.ir import PERSISTENT_ROLES, Graph, Op
from vdnn.plan.model.gaps import gaps, moment_nbytes, without
from vdnn.plan.model.problem import Problem
from vdnn.plan.model.tier_room import has_slower_tier
from vdnn.units import NBYTES_PER_ELEMENT


def minimum_budget(problem: Problem) -> tuple[int, int]:
    """(bytes, op): the least that a plan of offloads can peak at, and the first op that needs it."""
    if not len(problem.graph):
        return 0, 0
    # Dropping needs no tier: nobody reads the bytes again.
    away = [gap for gap in gaps(problem.graph) if gap.is_last or has_slower_tier(problem.hardware)]
    nbytes = without(moment_nbytes(problem.graph, smallest_costs(problem)), away)
    moment = int(nbytes.argmax())
    return int(nbytes[moment]), moment


def largest_op_nbytes(problem: Problem) -> int:
    """What no plan at all can go below: the largest op, with everything away or made again that it does not use."""
    nbytes = without(moment_nbytes(problem.graph, smallest_costs(problem)), gaps(problem.graph))
    return int(nbytes.max(initial=0))


def largest_eager_op_nbytes(graph: Graph) -> int:
    """What an op has in its hands at most, beside parameters and other inputs, where nobody lets it write over what it
    reads: as ops run that no plan has arranged."""
    return max((_eager_nbytes(graph, op) for op in graph.ops), default=0)


def _eager_nbytes(graph: Graph, op: Op) -> int:
    storages = {graph.values[read.value].storage for read in op.reads}
    read = sum(graph.storages[at].nbytes for at in storages if graph.storages[at].role not in PERSISTENT_ROLES)
    written = (graph.values[at] for at in op.writes)
    return read + sum(prod(value.shape) * NBYTES_PER_ELEMENT[value.dtype] for value in written)


def smallest_costs(problem: Problem) -> CostTable:
    """The cost table with the smallest workspace wherever the problem offers a choice."""
    if not problem.variants:
        return problem.costs
    costs = list(problem.costs.ops)
    for moment, offered in problem.variants.items():
        costs[moment] = min((*offered, costs[moment]), key=_workspace_nbytes)
    return CostTable(tuple(costs))


def _workspace_nbytes(cost: OpCost) -> int:
    return cost.workspace_nbytes
