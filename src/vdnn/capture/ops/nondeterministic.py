"""Which kernels PyTorch itself says may leave other bits in the next run.

Enters: an op's name, and the kind of device it runs on. Leaves: yes or no. The one idea: **torch is asked, in one
place**. It has no table of them (the tag `nondeterministic_bitwise` exists and no op carries it), and its kernels tell
only while they run under `use_deterministic_algorithms`, which gives everybody in the process other kernels. But that
function's documentation has the list: public names, whether their gradient is meant, and the devices. A public name is
the beginning of an op's, without case and underscores; three are called otherwise as ops.

Known weakness: what the list says of arguments (a mode, a flag) is not read, so an op is named that only may be one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import torch

_ENTRY = re.compile(
    r"^\s*\* :(?:class|func):`torch\.(?:[\w.]*\.)?(?P<name>\w+)`(?P<when>(?:.(?!^\s*\* :|^\s*$))*)", re.M | re.S
)
_OF_GRADIENTS = re.compile(r"differentiate|requires grad")
_DEVICES = ("CPU", "CUDA")  # the kinds that the list tells apart
_AS_OPS = (("interpolate", "upsample"), (re.compile(r"conv(transpose)?\dd"), "convolution"), ("getitem", "indexput"))
_SPARSE = ("sparse", "quantized")


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of torch's list. `devices` is empty where it is of all."""

    name: str
    is_of_gradient: bool
    devices: frozenset[str]

    def is_of(self, op: str, device: str) -> bool:
        """Whether it means this op: an op's name begins with the public one, as `max_pool3d_with_indices_backward`."""
        plain = _plain(op)
        is_meant = plain.startswith(self.name) and ("nearest" not in plain or self.name != "upsample")
        is_there = not self.devices or device.upper() in self.devices
        return is_meant and is_there and ("backward" in plain or not self.is_of_gradient)


@cache
def listed() -> tuple[Entry, ...]:
    """What torch lists, of dense tensors."""
    text = torch.use_deterministic_algorithms.__doc__ or ""
    found = [(match["name"], match["when"]) for match in _ENTRY.finditer(text)]
    return tuple(
        Entry(_as_op(name), bool(_OF_GRADIENTS.search(when)), frozenset(d for d in _DEVICES if d in when))
        for name, when in found
        if not any(kind in when for kind in _SPARSE)
    )


def may_differ(op: str, device: str) -> bool:
    """Whether the kernel of an op ("aten.cumsum.default") may leave other bits in the next run on such a device."""
    name = op.removeprefix("aten.").partition(".")[0]
    return any(entry.is_of(name, device) for entry in listed())


def nondeterministic(ops: Iterable[tuple[str, str]], device: str) -> tuple[str, ...]:
    """Of ops and their names in a graph, the names of those that may differ."""
    return tuple(name for op, name in ops if may_differ(op, device))


def _as_op(name: str) -> str:
    plain = _plain(name)
    for public, op in _AS_OPS:
        if re.fullmatch(public, plain):
            return op
    return plain


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
