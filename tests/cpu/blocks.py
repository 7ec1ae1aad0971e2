"""Bytes as an accelerator's allocator counts them: every storage is whole blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from vdnn.ir import Graph
from vdnn.plan.model.surroundings import ACCELERATOR_BLOCK_NBYTES, rounding_nbytes
from vdnn.plan.plan import Plan
from where import here


def in_blocks(nbytes: int) -> int:
    return nbytes + -nbytes % ACCELERATOR_BLOCK_NBYTES


def block_nbytes(tensor: Tensor) -> int:
    return in_blocks(tensor.untyped_storage().nbytes())


def as_allocated(plan: Plan) -> np.ndarray[Any, Any]:
    """Bytes of the plan at every instruction, with every storage rounded up as an allocator does."""
    graph = plan.problem.graph
    storages = tuple(replace(storage, nbytes=in_blocks(storage.nbytes)) for storage in graph.storages)
    problem = replace(plan.problem, graph=replace(graph, storages=storages))
    timeline = replace(plan, problem=problem).timeline
    return timeline.nbytes[timeline.device].sum(axis=0)


def beside_nbytes(graph: Graph) -> int:
    """What a budget needs on an accelerator beside the bytes of a plan, as long as it is not known what is held."""
    return 0 if here().type == "cpu" else rounding_nbytes(graph)
