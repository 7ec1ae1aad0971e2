"""Capture a network once, then plan, cut and run it as often as there are budgets.

Enters: a name for the step. Leaves: a context in which every ahead-of-time capture is of that step: the first is
traced, the others get a copy of its joint graph. Everything behind the trace is done anew each time: tidying, lowering,
forms, plan, cut, and AOTAutograd's own code around the two halves. What a trace itself must be is asked elsewhere.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo import compiled_autograd
from torch._subclasses import FakeTensor

import vdnn.capture.export

_trace = vdnn.capture.export.aot_export_joint_with_descriptors
_traced: dict[Any, Any] = {}
"""Joint graphs by the name of their step, for as long as the process lives."""


@contextlib.contextmanager
def captured_once(*step: Any) -> Iterator[None]:
    """While open, there is one step to capture, and it has this name. Its parameters may be other tensors each time."""

    def trace(stack: contextlib.ExitStack, module: Any, args: Any, kwargs: Any, **options: Any) -> Any:
        tensors = (*module.parameters(), *module.buffers(), *args)
        key = (step, tuple(map(_kind, tensors)))
        if key not in _traced:
            traced = _trace(stack, module, args, kwargs, **options)
            _traced[key] = _copy(traced)
            return traced
        _reenter(stack, _traced[key])
        return _copy(_traced[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vdnn.capture.export, "aot_export_joint_with_descriptors", trace)
        yield


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    """What of a tensor a trace depends on; one of stand-ins is not one of tensors that hold something."""
    is_fake = isinstance(tensor, FakeTensor)
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad, is_fake


def _reenter(stack: contextlib.ExitStack, joint: Any) -> None:
    """What a trace leaves open on the stack for those who compile the joint graph further."""
    stack.enter_context(compiled_autograd._disable())
    stack.enter_context(torch.autograd.set_multithreading_enabled(False))
    stack.enter_context(torch.random.fork_rng())
    stack.enter_context(joint.fake_mode)
    stack.enter_context(enable_python_dispatcher())


def _copy(joint: Any) -> Any:
    """With a graph and notes of its own; the fake tensors in them are shared."""
    twin = copy.copy(joint)
    twin._aot_state = copy.copy(joint._aot_state)
    twin._aot_state.fw_metadata = copy.copy(joint._aot_state.fw_metadata)
    twin._aot_graph_capture = copy.copy(joint._aot_graph_capture)
    twin._aot_graph_capture.wrappers = copy.deepcopy(joint._aot_graph_capture.wrappers)
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # torch copies its own tree specs
        twin._aot_graph_capture.graph_module = copy.deepcopy(joint.graph_module)
    return twin
