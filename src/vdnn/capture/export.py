"""The ahead-of-time front end: a whole training step as one joint graph, without running it.

Enters: a module, or a function with the loss inside, and sample arguments: real, fake or meta tensors. Leaves: the
joint graph of AOTAutograd. For planning the parameters are replaced by fake ones, so a network of any size is captured
without allocating it.

Known limits: Python control flow is followed as the sample takes it, as in every tracer.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.fx import traceback

from vdnn.capture.eager_kernels import eager_kernels
from vdnn.errors import CaptureFailed, InvalidInput, Unsupported, VdnnError
from vdnn.torch_private import (
    FakeTensor,
    FakeTensorMode,
    OpenRegions,
    aot_export_joint_with_descriptors,
    backward_hooks,
    checkpointed_regions,
    compile_lock,
    compiled_call,
    own_buffers,
    set_compiled_call,
    tensor_tables,
    tree_leaves,
    tree_map,
    with_tensors,
)


def export_joint(
    stack: contextlib.ExitStack, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], *, exact: bool
) -> Any:
    """AOTAutograd's joint graph of one step of `module`, with descriptors. `stack` must stay open while it is compiled
    further.

    `exact` says that the graph will run and must be bit for bit what eager does; a graph that is only planned may be a
    little off."""
    if exact:
        _refuse_backward_hooks(module)
    try:
        stack.enter_context(compile_lock)  # Note: [One trace at a time]
        stack.enter_context(_tensors_stay(module))
        stack.enter_context(traceback.preserve_node_meta())
        stack.enter_context(eager_kernels())
        stack.enter_context(_uncompiled(module))
        stack.enter_context(_recording_modules(module, stack.enter_context(checkpointed_regions())))
        with _drawing_only_from_torch(module):
            return aot_export_joint_with_descriptors(
                stack, module, tuple(args), dict(kwargs), keep_inference_input_mutations=True
            )
    except VdnnError:
        raise
    except Exception as failure:
        raise CaptureFailed(
            f"could not capture {type(module).__name__} ahead of time: {type(failure).__name__}:"
            f" {_first_line(failure)}\n"
            "A step that depends on the values of tensors (`if loss > 1`, `.item()`) or on tensors outside its modules"
            " and"
            " arguments has no single graph. vdnn.virtualize without a sample captures such models piece by piece."
        ) from failure


@contextlib.contextmanager
def fake_step(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], *, device: str | torch.device = "cpu"
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """While open, the module's parameters and buffers are fake tensors on `device`; yields the arguments as fake ones
    too."""
    with compile_lock, _tensors_stay(module):  # Note: [One trace at a time]
        everything = (*args, *kwargs.values(), *module.parameters(), *module.buffers())
        fake = functools.partial(_fake, _fake_mode_in(everything) or FakeTensorMode(), device)
        state = {name: fake(tensor) for name, tensor in (*module.named_parameters(), *module.named_buffers())}
        with with_tensors(module, state, tie_weights=True):
            yield tree_map(fake, (tuple(args), dict(kwargs)))


def _fake(mode: FakeTensorMode, where: str | torch.device, leaf: Any) -> Any:
    """A fake tensor of the same layout; anything else as it is. What a step on an accelerator has on the CPU stays."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    device = "cpu" if leaf.device.type == "cpu" else where
    with mode:
        like = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=device)
    like.requires_grad_(leaf.requires_grad)
    return nn.Parameter(like, requires_grad=leaf.requires_grad) if isinstance(leaf, nn.Parameter) else like


@contextlib.contextmanager
def _tensors_stay(module: nn.Module) -> Iterator[None]:
    """Afterwards every module has its own tensors. Who swaps tensors by name, as PyTorch does for a trace, takes a
    module with two names for two and puts a stand-in back for good."""
    tables = [table for part in module.modules() for table in tensor_tables(part)]
    before = [dict(table) for table in tables]
    try:
        yield
    finally:
        for table, tensors in zip(tables, before, strict=True):
            if any(table.get(name) is not tensor for name, tensor in tensors.items()):
                table.clear()
                table.update(tensors)


def check_sample(args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The positional sample arguments as a tuple. A lone tensor is a sample of one argument."""
    sample = (args,) if isinstance(args, torch.Tensor) else args
    if not isinstance(sample, (tuple, list)):
        raise InvalidInput(
            f"the sample must be a tensor or a tuple of arguments, not {_describe(args)}: pass (x,) or (x, y)"
        )
    leaves = tree_leaves((tuple(sample), dict(kwargs)))
    for leaf in leaves:
        if isinstance(leaf, np.ndarray):
            raise InvalidInput(
                f"the sample holds a numpy array of shape {leaf.shape}: convert it with torch.from_numpy first"
            )
    if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        raise InvalidInput(
            f"the sample holds no tensor, only {', '.join(map(_describe, leaves)) or 'nothing'}:"
            " pass the arguments one training step gets, for example (torch.empty(32, 3, 224, 224, device='meta'),)"
        )
    return tuple(sample)


@contextlib.contextmanager
def _uncompiled(module: nn.Module) -> Iterator[None]:
    """While open, a module runs its own forward: a virtualized one would be captured from within its own capture."""
    compiled = [(submodule, compiled_call(submodule)) for submodule in module.modules()]
    for submodule, _ in compiled:
        set_compiled_call(submodule, None)
    try:
        yield
    finally:
        for submodule, call in compiled:
            set_compiled_call(submodule, call)


@contextlib.contextmanager
def _recording_modules(module: nn.Module, regions: OpenRegions) -> Iterator[None]:
    """Write the path of the running module into every node traced from it, in the form Dynamo uses."""
    running: list[tuple[str, type]] = []
    buffers: list[dict[str, Any]] = []

    def record() -> None:
        traceback.current_meta["nn_module_stack"] = dict(enumerate(running))

    def enter(path: str) -> Callable[..., None]:
        def hook(submodule: nn.Module, _: Any) -> None:
            running.append((path, type(submodule)))
            buffers.append(dict(own_buffers(submodule)))
            record()
            if regions.num_open:
                _refuse_second_update(path, submodule)

        return hook

    def leave(submodule: nn.Module, *_: Any) -> None:
        if running:
            path, _type = running.pop()
            _refuse_new_buffers(path, submodule, buffers.pop())
        record()

    handles = []
    for path, submodule in module.named_modules():
        handles.append(submodule.register_forward_pre_hook(enter(path)))
        handles.append(submodule.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _refuse_second_update(path: str, module: nn.Module) -> None:
    """A region of `torch.utils.checkpoint` runs again in backward, and eager mode updates its statistics again. A trace
    loses what its backward writes."""
    if module.training and any(buffer is not None for buffer in own_buffers(module).values()):
        raise Unsupported(
            f"{path or type(module).__name__} has buffers and lies in a region of torch.utils.checkpoint, whose forward"
            " runs twice: what it updates the second time a step captured ahead of time would lose. Leave out the"
            " checkpoint (a budget makes maps again by itself), or use vdnn.virtualize without a sample."
        )


def _refuse_new_buffers(path: str, module: nn.Module, before: Mapping[str, Any]) -> None:
    """A trace follows writes into a buffer. A forward that puts another tensor in its place does so once, while it is
    traced, and never again."""
    for name, buffer in own_buffers(module).items():
        if buffer is not before.get(name):
            raise Unsupported(
                f"the forward of {path or type(module).__name__} assigns a new tensor to its buffer {name!r}, which a"
                " step"
                f" captured ahead of time would do only once. Update it in place (self.{name}.copy_(...)), or use"
                " vdnn.virtualize without a sample."
            )


@contextlib.contextmanager
def _drawing_only_from_torch(module: nn.Module) -> Iterator[None]:
    """Numbers that Python or numpy draw are drawn once, while the step is traced, and would be the same ever after."""
    before = random.getstate(), np.random.get_state()
    yield
    drew_python = random.getstate() != before[0]
    drew_numpy = not all(map(np.array_equal, np.random.get_state(), before[1]))
    if drew_python or drew_numpy:
        random.setstate(before[0])
        np.random.set_state(before[1])
        who = "numpy" if drew_numpy else "Python"
        raise Unsupported(
            f"the forward of {type(module).__name__} draws random numbers from {who}, which a step captured ahead of"
            " time would do only once. Draw them with torch.rand, pass them as arguments, or use vdnn.virtualize"
            " without a sample."
        )


def _refuse_backward_hooks(module: nn.Module) -> None:
    """They are Python that runs in backward. A trace would call them once, with empty tensors, and never again."""
    for path, submodule in module.named_modules():
        if any(backward_hooks(submodule)):
            raise Unsupported(
                f"{path or type(module).__name__} has a backward hook, which a step captured ahead of time cannot call."
                " Use vdnn.virtualize without a sample, or hooks on parameters (register_hook), which are called."
            )


def _fake_mode_in(leaves: Sequence[Any]) -> FakeTensorMode | None:
    modes = (leaf.fake_mode for leaf in tree_leaves(list(leaves)) if isinstance(leaf, FakeTensor))
    return next(modes, None)


def _describe(thing: Any) -> str:
    return f"{type(thing).__name__} {thing!r}"[:60]


def _first_line(failure: BaseException) -> str:
    return next(iter(str(failure).strip().splitlines()), "no message")
