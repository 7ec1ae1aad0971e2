"""Where a step computes, as one value, and what is asked of such a device beside its ops.

Enters: the tensors that a step takes. Leaves: a `torch.device` with its index. The one idea: **the CPU is one device
among others**. What computes, moves, counts or times bytes is handed this value and asks here; only names that every
`torch.accelerator` has are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from vdnn.errors import InvalidInput

CPU = torch.device("cpu")

MOST_NAMED = 3
"""Tensors of one device that a refusal names."""


def indexed(device: torch.device | str) -> torch.device:
    """The same with its index, which the CPU has none of. What is on no device is planned as if on the CPU."""
    asked = torch.device(device)
    if asked.type in ("cpu", "meta"):
        return CPU
    return torch.device(asked.type, torch.accelerator.current_device_index() if asked.index is None else asked.index)


def present(name: str) -> torch.device:
    """The device of this name, if this machine has it."""
    accelerator, number = torch.accelerator.current_accelerator(), torch.accelerator.device_count()
    names = ["cpu", *(f"{accelerator.type}:{index}" for index in range(number) if accelerator is not None)]
    try:
        found = str(indexed(name))
    except (RuntimeError, AssertionError):  # no device is called so, or this torch is built without it
        found = name
    if found not in names:
        raise InvalidInput(f"there is no device {name!r} here: torch finds {', '.join(names)}")
    return torch.device(found)


def where_of(tensors: Iterable[tuple[str, torch.Tensor]]) -> torch.device:
    """Where a step that takes these tensors computes: on the accelerator that some of them are on, else on the CPU.
    Beside an accelerator's, tensors of the CPU are scalars, indices, a batch that the step moves itself: they take
    none of its bytes."""
    names: dict[torch.device, list[str]] = {}
    for name, tensor in tensors:
        names.setdefault(indexed(tensor.device), []).append(name)
    accelerators = [device for device in names if device != CPU]
    if len(accelerators) > 1:
        found = "; ".join(f"on {device}: {_some(names[device])}" for device in accelerators)
        raise InvalidInput(
            f"the step takes tensors of {len(accelerators)} accelerators ({found}), and its budget is one of a single"
            " device. Move them to one, or virtualize the part on each device by itself."
        )
    return accelerators[0] if accelerators else CPU


def _some(names: list[str]) -> str:
    others = len(names) - MOST_NAMED
    return ", ".join(map(repr, names[:MOST_NAMED])) + (f" and {others} more" if others > 0 else "")


def device_name(where: torch.device) -> str:
    """What kind of processor it is: two of the same name share what was measured."""
    name_it = getattr(torch.get_device_module(where), "get_device_name", None)
    return where.type if name_it is None else f"{where.type} {name_it(where)}"


@contextmanager
def own_generators(where: torch.device) -> Iterator[None]:
    """What is drawn inside leaves the generators of the CPU and of this device as they were."""
    with torch.random.fork_rng([]):
        if where == CPU:
            yield
            return
        with torch.random.fork_rng([where.index], device_type=where.type):
            yield
