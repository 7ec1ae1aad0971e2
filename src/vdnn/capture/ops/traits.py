"""May vdnn move, repeat or drop an op, and what does a call take of what it reads?

Enters: an op (`OpOverload`) and the arguments of one call. Leaves: its traits, and the `Need` of each argument by name,
from its schema and its entry in the table (`known_ops/`).

The one idea (Gist, section 3, made general): **what backward needs is information, not a tensor**. ReLU's backward
wants one bit of each element, a max-pool's backward an index into a window, an average pool's backward only a shape.
Ops the table does not know are treated safely: they need all values, and if nothing is known of their effects they are
kept and never repeated.
"""

from __future__ import annotations

from typing import Any

import torch

from vdnn.capture.ops.overloads import base_name, overload
from vdnn.ir import Trait
from vdnn.known_ops import KNOWN_NAMESPACES, KNOWN_OPS, known
from vdnn.known_ops.known_op import Arguments, KnownOp, Needs
from vdnn.torch_private import OpOverload, schema_of

COLLECTIVE_NAMESPACES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd"})

WITHOUT_UPDATES: dict[Any, tuple[OpOverload, frozenset[str]]] = {
    overload(op.name, updating): (overload(op.name, form.overload), form.left_out)
    for op in KNOWN_OPS.values()
    for updating, form in op.without_updates.items()
}
"""Ops that update their inputs on the way, the form that does not, and the arguments it does without."""


def needs_of(op: OpOverload, arguments: Arguments) -> Needs:
    """What a call takes of its arguments. Arguments that are not listed need all values."""
    needs = _entry(op).needs
    return needs(arguments) if callable(needs) else needs


def traits_of(op: object) -> frozenset[Trait]:
    """What a rewrite must know of an op. Anything that is not an op with a schema has effects nobody declared."""
    if not isinstance(op, OpOverload):
        return frozenset({Trait.MUST_KEEP})
    traits = set(_entry(op).traits)
    if op.namespace in COLLECTIVE_NAMESPACES:
        traits.add(Trait.COLLECTIVE)
    elif op.namespace not in KNOWN_NAMESPACES:
        traits.add(Trait.MUST_KEEP)
    if schema_of(op).is_mutable:
        traits.add(Trait.IN_PLACE)
    elif op.is_view:
        traits.add(Trait.VIEW)
    if op in WITHOUT_UPDATES:
        traits.add(Trait.UPDATES)
    if torch.Tag.nondeterministic_seeded in op.tags:
        traits.add(Trait.RANDOM)
    return frozenset(traits)


def _entry(op: OpOverload) -> KnownOp:
    """What is known of an op; in place it takes what it takes otherwise, and may do no more."""
    return known(base_name(op).removesuffix("_"))
