"""From names in the table of ops to PyTorch's own objects, and back."""

from __future__ import annotations

import torch

from vdnn.known_ops import KNOWN_NAMESPACES
from vdnn.torch_private import OpOverload, schema_of


def overload(name: str, overload_name: str) -> OpOverload:
    """`aten.name.overload_name`."""
    found = getattr(getattr(torch.ops.aten, name), overload_name)
    assert isinstance(found, OpOverload), f"aten.{name}.{overload_name} is no op"
    return found


def overloads(name: str) -> list[OpOverload]:
    """All of an op."""
    return [overload(name, each) for each in getattr(torch.ops.aten, name).overloads()]


def base_name(op: OpOverload) -> str:
    """`threshold_backward` for every overload of it; empty for an op of another library, of which nothing is known."""
    return schema_of(op).name.split("::")[1] if op.namespace in KNOWN_NAMESPACES else ""
