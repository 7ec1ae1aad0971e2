"""The ahead-of-time front end: a whole training step as one joint graph, without running it.

Enters: a module, or a function with the loss inside, and sample arguments: real, fake or meta tensors. Leaves: the
joint graph of AOTAutograd. For planning the parameters are replaced by fake ones, so a network of any size is captured
without allocating it.

Known limits: Python control flow is followed as the sample takes it, as in every tracer; fused recurrent layers are
refused where the traced program would differ from the eager one (Note [Fused recurrent layers]).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.fx import traceback
from torch.overrides import TorchFunctionMode

from vdnn.capture.eager_kernels import eager_kernels
from vdnn.errors import CaptureFailed, InexactTrace, InvalidInput, Unsupported, VdnnError
from vdnn.torch_private import (
    FakeTensor,
    FakeTensorMode,
    aot_export_joint_with_descriptors,
    backward_hooks,
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
        stack.enter_context(_recording_modules(module))
        stack.enter_context(_WatchRecurrent(exact=exact))
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
def _recording_modules(module: nn.Module) -> Iterator[None]:
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


def _refuse_backward_hooks(module: nn.Module) -> None:
    """They are Python that runs in backward. A trace would call them once, with empty tensors, and never again."""
    for path, submodule in module.named_modules():
        if any(backward_hooks(submodule)):
            raise Unsupported(
                f"{path or type(module).__name__} has a backward hook, which a step captured ahead of time cannot call."
                " Use vdnn.virtualize without a sample, or hooks on parameters (register_hook), which are called."
            )


GRU_CELL = (
    "nn.GRUCell has other last bits when it is traced. Leave it plain, or write its gates out with ops of their own."
)


class _WatchRecurrent(TorchFunctionMode):
    """Note [Fused recurrent layers]: a traced nn.LSTM, nn.GRU or nn.RNN is a decomposition. It leaves inter-layer
    dropout out (torch/_decomp/decompositions.py compares `num_layers < i - 1`), silently, and where eager runs a fused
    kernel its last bits differ. The first is wrong even for a plan; the second is wrong for a run that promises the
    same bits."""

    _FUSED = frozenset({torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu})

    def __init__(self, *, exact: bool) -> None:
        super().__init__()
        self._exact = exact

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self._FUSED:
            self._judge(func, args)
        elif func is torch.gru_cell and self._exact:
            raise InexactTrace(GRU_CELL)
        return func(*args, **(kwargs or {}))

    def _judge(self, func: Any, args: Sequence[Any]) -> None:
        # With or without packed sequences, the numbers are (has_biases, num_layers, dropout, train, ...).
        _, num_layers, dropout, train = [arg for arg in args if isinstance(arg, (bool, int, float))][:4]
        if train and num_layers > 1 and dropout > 0:
            raise Unsupported(
                f"{func.__name__} with dropout={dropout} between its {num_layers} layers loses that dropout when it is"
                " traced, and its gradients"
                " with it. Write the layers as separate modules with nn.Dropout between them, or use vdnn.virtualize"
                " without a sample,"
                " which runs the layer eagerly."
            )
        if self._exact:
            raise Unsupported(
                f"{func.__name__} runs as one fused kernel in eager mode and as separate ops when traced, with other"
                " last bits."
                " Use vdnn.virtualize without a sample, which runs the layer eagerly, or write it with nn.LSTMCell /"
                " nn.GRUCell."
            )


def _fake_mode_in(leaves: Sequence[Any]) -> FakeTensorMode | None:
    modes = (leaf.fake_mode for leaf in tree_leaves(list(leaves)) if isinstance(leaf, FakeTensor))
    return next(modes, None)


def _describe(thing: Any) -> str:
    return f"{type(thing).__name__} {thing!r}"[:60]


def _first_line(failure: BaseException) -> str:
    return next(iter(str(failure).strip().splitlines()), "no message")
