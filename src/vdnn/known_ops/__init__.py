"""One table of ops: all that vdnn knows of an op by its name is one entry here. No torch, so planning reads it too.

`known("relu").in_place` answers a question about one op, `names_of(lambda op: op.draws)` lists the ops of which
something holds. Entries lie by kind in the files beside this one; `known_op.py` says what each field means. To teach
vdnn an op is to write its entry, or to add its name to a family of which the same is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType

from vdnn.known_ops import activations, arithmetic, creation, layer_ops, loss_ops, rearranging
from vdnn.known_ops.known_op import KnownOp

_FILES = (activations, loss_ops, layer_ops, arithmetic, rearranging, creation)


def _table() -> Mapping[str, KnownOp]:
    entries = [entry for file in _FILES for entry in file.OPS]
    twice = sorted(name for name, times in Counter(entry.name for entry in entries).items() if times > 1)
    assert not twice, f"ops have two entries: {', '.join(twice)}"
    return MappingProxyType({entry.name: entry for entry in entries})


KNOWN_OPS = _table()
"""Every entry, by name."""

KNOWN_NAMESPACES = frozenset({"aten", "prims", "vdnn"})
"""Whose ops the entries are about: an op of another library is not the one that has its name here. Their schemas tell
the truth about views, mutation and randomness, because PyTorch's own tests check them; ours are copies of them."""

_UNKNOWN = KnownOp("")


def known(name: str) -> KnownOp:
    """What is known of an op. Of one without an entry: nothing, which is safe."""
    return KNOWN_OPS.get(name, _UNKNOWN)


def names_of(holds: Callable[[KnownOp], object]) -> frozenset[str]:
    """The ops of which something holds."""
    return frozenset(name for name, op in KNOWN_OPS.items() if holds(op))
