"""`torch.compile(model, backend="vdnn", options={"budget": "12GiB"})`: vdnn by its name in the ecosystem.

PyTorch finds `vdnn` below through the `torch_dynamo_backends` entry point of the installed package.

Note: [One dictionary of options is one account]
torch.compile hands over graph after graph, each with the dictionary that it was given, and says nothing of the model
they are of. So all graphs that come with one dictionary are one model's, with one session. What several of them hold at
once is not planned together: with a budget a graph that is only a piece is refused.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from vdnn.compile.just_in_time import compile_dynamo_graph
from vdnn.compile.session import Session
from vdnn.errors import Unsupported
from vdnn.options import Options
from vdnn.runtime.shared_budget import Budget
from vdnn.torch_private import ends_in_a_break

_SESSIONS: weakref.WeakValueDictionary[int, Session] = weakref.WeakValueDictionary()


def vdnn(graph: fx.GraphModule, inputs: Sequence[Any], *, options: dict[str, Any] | None = None) -> Callable[..., Any]:
    """A torch.compile backend. `options` takes what `vdnn.virtualize` takes: budget, strategy, device."""
    session = _session_of({} if options is None else options)
    if session.is_bound and torch.is_grad_enabled():
        _refuse_pieces(graph, session)
    return compile_dynamo_graph(graph, inputs, session)


def _session_of(options: dict[str, Any]) -> Session:
    """Note: [One dictionary of options is one account]. The session holds the dictionary, so that no other one gets
    its address meanwhile."""
    known = _SESSIONS.get(id(options))
    if known is None or known.asked is not options:
        _refuse_budget(options.get("budget"))
        _refuse_verify(options.get("verify"))
        known = _SESSIONS[id(options)] = Session("torch.compile", Options.parse(options), asked=options)
    return known


def _refuse_budget(budget: Any) -> None:
    """Its members are captured again when their parts change, and here only PyTorch captures."""
    if isinstance(budget, Budget):
        raise Unsupported(
            f"torch.compile(backend='vdnn') cannot train in {budget} that several models have together: it plans a"
            " model once, and parts change as members are seen to run. Call vdnn.virtualize(model, budget=budget), or"
            " name a number of bytes."
        )


def _refuse_verify(verify: Any) -> None:
    """Only graphs come here, and what they are to be held against is the model."""
    if verify is not None:
        raise Unsupported(
            f"torch.compile(backend='vdnn') cannot verify={verify!r}: it is given graphs, and a first step is held"
            " against the plain model. Call vdnn.virtualize(model, verify='first')."
        )


def _refuse_pieces(graph: fx.GraphModule, session: Session) -> None:
    """Each would have the whole budget, and what runs between them none."""
    num_in_flight = sum(executor.num_in_flight for executor in session.executors)
    if not (ends_in_a_break(graph) or num_in_flight):
        return
    found = (
        f"a graph was captured while {num_in_flight} steps of others wait for their backward"
        if num_in_flight
        else "Dynamo hands over a graph that ends where Python gets in the way"
    )
    raise Unsupported(
        f"torch.compile(backend='vdnn') with a budget takes a whole model, and this is a piece of one: {found}."
        " A budget is for all pieces at once, and the code between them is not seen here.\n"
        "Call vdnn.virtualize(model, budget=...) instead, which trains such a model within its budget, pass"
        " fullgraph=True to see the line that breaks, or leave out the budget."
    )
