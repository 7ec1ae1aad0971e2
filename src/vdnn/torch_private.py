"""Every private name of PyTorch that vdnn uses, and why; no other file of vdnn names one.

Enters: torch, of a release that `TESTED` covers. Leaves: those names, under words of ours where theirs say less. What
differs between the releases is bridged here. Beside each group stands what we would rather call, so that it can go when
PyTorch offers it. `tests/cpu/test_torch_private.py` lists all that are missing or have changed in the torch at hand.

Note: [Heavy names arrive on first use]
AOTAutograd, Dynamo and Inductor take two to three seconds to import, and an eager tensor cache needs none of them.
Their names are found by the module's `__getattr__`: who imports one from here pays for it, this module does not.
"""

from __future__ import annotations

import dis
import functools
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import _guards, _ops, _prims_common, _subclasses, fx, nn
from torch._functorch import config
from torch._functorch._aot_autograd import descriptors
from torch.fx import node
from torch.nn.utils import stateless
from torch.utils import _python_dispatch, _pytree

if TYPE_CHECKING:
    from torch._dynamo.backends.common import aot_autograd as aot_autograd
    from torch._dynamo.convert_frame import compile_lock as compile_lock
    from torch._dynamo.exc import BackendCompilerFailed as BackendCompilerFailed
    from torch._dynamo.exc import TorchDynamoException as TorchDynamoException
    from torch._functorch.aot_autograd import aot_compile_joint_with_descriptors as aot_compile_joint_with_descriptors
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors as aot_export_joint_with_descriptors
    from torch._inductor.compile_fx import compile_fx_inner as compile_fx_inner
    from torch._inductor.compile_fx import select_decomp_table as select_decomp_table
    from torch._inductor.exc import InductorError as InductorError
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode as GuardOnDataDependentSymNode


HEAVY = {
    # Joint graphs of forward and backward. Public `torch.export` captures forward alone.
    "aot_autograd": "torch._dynamo.backends.common",
    "aot_compile_joint_with_descriptors": "torch._functorch.aot_autograd",
    "aot_export_joint_with_descriptors": "torch._functorch.aot_autograd",
    # Who traces: all of PyTorch's compilers take it, and it is reentrant. Public: none.
    "compile_lock": "torch._dynamo.convert_frame",
    # What a call of a compiled model may raise. `torch.compiler` names none of them.
    "BackendCompilerFailed": "torch._dynamo.exc",
    "TorchDynamoException": "torch._dynamo.exc",
    "GuardOnDataDependentSymNode": "torch.fx.experimental.symbolic_shapes",
    # Kernels of a part of a graph. Public `torch.compile(backend="inductor")` takes whole functions and guards them.
    "compile_fx_inner": "torch._inductor.compile_fx",
    "select_decomp_table": "torch._inductor.compile_fx",
    "InductorError": "torch._inductor.exc",
}
"""Names of modules that are imported on first use. Note: [Heavy names arrive on first use]"""


def __getattr__(name: str) -> Any:
    if name not in HEAVY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(HEAVY[name]), name)
    return found


# Graphs and tensors of a trace


OpOverload = _ops.OpOverload
HigherOrderOperator = _ops.HigherOrderOperator
"""What a captured graph calls. Public: `torch.library` holds OpOverload and does not document it."""

FakeTensor = _subclasses.FakeTensor
FakeTensorMode = _subclasses.FakeTensorMode
"""Tensors of a trace. Public `torch.export` makes some, none of a layout that one names."""

TracingContext = _guards.TracingContext
tracing = _guards.tracing
"""The trace that runs. Public `torch.compiler.is_compiling` says only that one does."""

functorch_config = config
"""Settings of AOTAutograd. Public: none; `torch.compiler.config` has only what all compilers share."""

BufferAOTInput = descriptors.BufferAOTInput
ParamAOTInput = descriptors.ParamAOTInput
PlainAOTInput = descriptors.PlainAOTInput
SavedForBackwardsAOTOutput = descriptors.SavedForBackwardsAOTOutput
"""What an input or output of a joint graph is. Public signatures (`torch.export`) describe forward graphs."""

side_effectful_functions = node._side_effectful_functions
"""Ops that no pass may remove. Public `torch.fx.Node.is_impure` reads it; nothing public adds to it."""

is_non_overlapping_and_dense = _prims_common.is_non_overlapping_and_dense_or_false
contiguous_strides = _prims_common.make_contiguous_strides_for
"""Questions about strides. Public `Tensor.is_contiguous` does not know the other dense layouts."""

with_tensors = stateless._reparametrize_module
"""While open, a module has other tensors. Public `torch.func.functional_call` closes before a trace has ended."""

tree_flatten = _pytree.tree_flatten
tree_leaves = _pytree.tree_leaves
tree_map = _pytree.tree_map
tree_unflatten = _pytree.tree_unflatten
"""Nested arguments. Public: no `torch.utils.pytree` in 2.15; the package optree is one more to install."""

is_traceable_wrapper = _python_dispatch.is_traceable_wrapper_subclass
"""Whether a tensor is several. Its documentation (torch's notes) has it at its private place."""


@contextmanager
def tangents_traced_as(make: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """While open, AOTAutograd traces the gradient of each output as what `make` makes of the one it would take: a view
    like the output. What it takes is also the layout into which it brings the real one. Public: none."""
    from torch._functorch._aot_autograd import collect_metadata_analysis as analysis

    traced = analysis.coerce_tangent_and_suggest_memory_format

    def made(x: torch.Tensor) -> tuple[Any, Any, bool]:
        shown, layout, is_new = traced(x)
        is_plain = isinstance(shown, torch.Tensor) and not is_traceable_wrapper(shown)
        return (make(shown), layout, True) if is_plain else (shown, layout, is_new)

    analysis.coerce_tangent_and_suggest_memory_format = made
    try:
        yield
    finally:
        analysis.coerce_tangent_and_suggest_memory_format = traced


@contextmanager
def corrected_fake_results(correct: Callable[..., Any]) -> Iterator[None]:
    """While open, what an op of fake tensors returns is what `correct(op, result, args, kwargs)` makes of it. Results
    that fake tensors remember for the next call like it are corrected ones. Public `torch.library.register_fake`
    refuses ops that have a stand-in."""
    original = FakeTensorMode._dispatch_impl

    def dispatch(self: Any, op: Any, types: Any, args: Any, kwargs: Any) -> Any:
        result = original(self, op, types, args, kwargs)
        if result is NotImplemented:
            return result
        with self:
            return correct(op, result, args, kwargs)

    FakeTensorMode._dispatch_impl = dispatch  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        FakeTensorMode._dispatch_impl = original  # type: ignore[method-assign]


without_autocast = torch._C._DisableAutocast
"""While open, no op of this thread casts its arguments. Public `torch.autocast(enabled=False)` is one of a device."""


@contextmanager
def strided_writes_traced() -> Iterator[None]:
    """While open, an op that writes into a tensor with holes, a part of another one, is traced as a functional op whose
    result has the same holes. Functionalization would lay it out without. Public: none."""
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

    written, original = threading.local(), FakeTensorMode._dispatch_impl
    functionalize = FunctionalTensorMode.__torch_dispatch__

    def into_holes(op: Any, args: Any) -> torch.Tensor | None:
        first = args[0] if args and isinstance(op, OpOverload) and op._schema.name.endswith("_") else None
        if not isinstance(first, FunctionalTensor) or not op._schema.is_mutable or not first.is_base_tensor():
            return None
        return None if is_non_overlapping_and_dense(first) else first

    def torch_dispatch(self: Any, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before, written.into = getattr(written, "into", None), into_holes(op, args)
        try:
            return functionalize(self, op, types, args, kwargs)
        finally:
            written.into = before

    def dispatch(self: Any, op: Any, types: Any, args: Any, kwargs: Any) -> Any:
        result, into = original(self, op, types, args, kwargs), getattr(written, "into", None)
        if into is None or not isinstance(result, FakeTensor) or op.is_view or op._schema.is_mutable:
            return result
        if (result.shape, result.dtype) != (into.shape, into.dtype):
            return result
        strides, written.into = into.stride(), None
        try:
            with self:
                return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device)
        finally:
            written.into = into

    FunctionalTensorMode.__torch_dispatch__ = torch_dispatch  # type: ignore[method-assign, assignment]
    FakeTensorMode._dispatch_impl = dispatch  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        FunctionalTensorMode.__torch_dispatch__ = functionalize  # type: ignore[method-assign]
        FakeTensorMode._dispatch_impl = original  # type: ignore[method-assign]


def schema_of(op: OpOverload) -> Any:
    """Arguments, results and what aliases what. Public `torch.library` writes schemas and does not read them."""
    return op._schema


def python_kernels(op: OpOverload) -> dict[Any, Callable[..., Any]]:
    """By dispatch key, the Python versions of an op that a trace prefers. Public `torch.library.impl` adds, and does
    not take away. Whoever changes them calls `forget_dispatch`."""
    return op.py_kernels


def forget_dispatch(op: OpOverload) -> None:
    """Have the op look its kernels up anew."""
    op._dispatch_cache.clear()


# Dispatch


TorchDispatchMode = _python_dispatch.TorchDispatchMode
active_modes = _python_dispatch._get_current_dispatch_mode_stack
push_mode = _python_dispatch._push_mode
"""Seeing every op of a thread. The class is documented (torch's notes, "Extending PyTorch"), at its private place."""


@contextmanager
def without_modes() -> Iterator[None]:
    """While open, no mode is active, not even those of a running trace, nor a default device: tensors that are made
    here are real. Public: none."""
    with _python_dispatch._disable_current_modes(), torch._C.DisableTorchFunction():
        yield


without_torch_dispatch = torch._C._DisableTorchDispatch
"""While open, no mode and no subclass sees this thread's ops: the runtime's own bytes are not the model's, and no
tracker counts them. The class itself, because every transfer enters it. Public: none."""


below_autograd = torch._C._AutoDispatchBelowAutograd
"""While open, ops are not recorded for a backward, whatever they take and whether gradients are on. Public `no_grad`
turns gradients off, and some kernels ask whether they are on."""


def is_profiler_enabled() -> bool:
    """Whether this thread records. Public: none; `torch.profiler` fails when it is entered a second time."""
    return torch.autograd._profiler_enabled()


def start_recording_memory() -> None:
    """Record this thread's allocations. Public `torch.profiler` takes over a second the first time and writes to
    stderr; this takes 30 microseconds. Note: [What the allocator's events see]"""
    from torch._C._autograd import _enable_profiler_legacy
    from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

    shapes, memory, stacks, flops, modules = False, True, False, False, False
    _enable_profiler_legacy(
        ProfilerConfig(ProfilerState.CPU, shapes, memory, stacks, flops, modules, _ExperimentalConfig())
    )


def stop_recording_memory() -> list[int]:
    """What was allocated since, in order; a release is negative."""
    from torch._C._autograd import _disable_profiler_legacy

    threads = _disable_profiler_legacy()
    return [event.cpu_memory_usage() for events in threads for event in events if event.kind() == "memory_alloc"]


# Autograd


def compiled_forward_of(node: Any) -> Any:
    """What AOTAutograd calls in forward for which this node of an autograd graph is the backward; None of any other
    node. Public: none."""
    return getattr(getattr(type(node), "_forward_cls", None), "compiled_fw", None)


def ends_in_a_break(captured: Any) -> bool:
    """Whether Dynamo captured this graph up to a line that it cannot, and will capture what follows by itself.
    Public: none."""
    return bool(captured.compile_subgraph_reason.graph_break)


def is_graph_kept() -> bool:
    """Whether the running backward leaves its graph for another one (`retain_graph=True`). Public: none."""
    return torch._C._autograd._get_current_graph_task_keep_graph()


def is_in_backward() -> bool:
    """Whether this thread runs a backward. Public: none."""
    return torch._C._current_graph_task_id() != -1


class OpenRegions:
    """How many regions of `torch.utils.checkpoint` run inside each other."""

    num_open = 0


@contextmanager
def checkpointed_regions() -> Iterator[OpenRegions]:
    """While open, regions of `torch.utils.checkpoint` are counted. A trace records them once. Public: none."""
    from torch.utils import checkpoint

    regions, original = OpenRegions(), checkpoint._checkpoint_without_reentrant_generator

    def counted(*args: Any, **kwargs: Any) -> Iterator[None]:
        regions.num_open += 1
        try:
            yield from original(*args, **kwargs)
        finally:
            regions.num_open -= 1

    checkpoint._checkpoint_without_reentrant_generator = counted
    try:
        yield regions
    finally:
        checkpoint._checkpoint_without_reentrant_generator = original


def after_backward(call: Callable[[], None]) -> None:
    """Have it called when the backward that runs now is over. Public: none; FSDP and DDP use the same."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def is_backward_differentiated() -> bool:
    """Whether the running backward of AOTAutograd is recorded for a second one (`create_graph=True`).

    The engine's grad mode would say so, but AOTAutograd calls us under `no_grad` either way, from a function named
    `_double_backward` in this case. No flag tells the two apart, so we look for that caller, and only when autograd
    says that the graph is kept at all."""
    frame = sys._getframe(1) if is_graph_kept() else None
    while frame is not None and frame.f_code.co_name != "backward":
        if frame.f_code.co_name == "_double_backward":
            return True
        frame = frame.f_back
    return False


def are_saved_tensors_hooked() -> bool:
    """Whether a hook of `torch.autograd.graph.saved_tensors_hooks` sees what is saved now. Public: none."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def is_in_function_transform() -> bool:
    """Whether this thread runs inside `torch.func.grad`, `vmap` or their like. Public: none."""
    return torch._C._functorch.peek_interpreter_stack() is not None


# Tensors and storages


@functools.cache
def fuses_dropout() -> frozenset[str]:
    """Devices on which eager's dropout is one kernel. Public: none asks `is_fused_kernel_acceptable`."""
    return frozenset({"cuda", "xpu", "lazy", torch._C._get_privateuse1_backend_name()})


def storage_at(address: int, device: torch.device, nbytes: int) -> torch.UntypedStorage:
    """A storage that owns nothing. Public: none for an accelerator; `torch.frombuffer` does so on the CPU."""
    storage: Any = torch._C._construct_storage_from_data_pointer(address, device, nbytes)
    return cast(torch.UntypedStorage, storage)


def storage_id(storage: torch.UntypedStorage) -> int:
    """The same for all tensors of one storage while it lives. Public `data_ptr()` is 0 for fake and empty ones."""
    return storage._cdata


def num_holders(storage: torch.UntypedStorage) -> int:
    """How many tensors and Python objects hold the storage. Public: none."""
    return torch._C._storage_Use_Count(storage._cdata)


def num_writes(tensor: torch.Tensor) -> int:
    """How often the tensor's memory was written in place. The autograd notes document the attribute as it is."""
    return tensor._version


def negated_view(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, read with the opposite sign. Public: only as `x.conj().imag`."""
    return torch._neg_view(tensor)


# Modules


def tensor_tables(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """A module's own parameters and buffers, to be changed. Public `named_parameters` leaves out those that are None,
    and setting attributes goes through `__setattr__`."""
    return module._parameters, module._buffers


def own_buffers(module: nn.Module) -> dict[str, torch.Tensor | None]:
    """A module's own buffers, also those that are None, which public `named_buffers` leaves out."""
    return module._buffers


def forward_hooks(module: nn.Module) -> tuple[dict[int, Any], ...]:
    """Before and after. Public: hooks are registered and removed, not read."""
    return module._forward_hooks, module._forward_pre_hooks


def backward_hooks(module: nn.Module) -> tuple[dict[int, Any], ...]:
    return module._backward_hooks, module._backward_pre_hooks


def plain_call(module: nn.Module) -> Callable[..., Any]:
    """What calling a module does when nothing was compiled: hooks and forward."""
    return module._call_impl


def compiled_call(module: Any) -> Any:
    """What calling a module does instead, or None. Public `Module.compile` sets only what torch.compile made."""
    return module._compiled_call_impl


def set_compiled_call(module: Any, call: Callable[..., Any] | None) -> None:
    module._compiled_call_impl = call


def mark_boxed(function: Any) -> None:
    """Say that a callable takes one list and empties it. On the instance: Dynamo's wrappers carry over an instance's
    attributes, not its class's. Public: none."""
    function._boxed_call = True


OURS = str(Path(__file__).parent)
"""Where the files of this package are."""

NUM_ASKERS = 4
"""How far up the calls of a model one may have asked: libraries ask through a helper or two of their own."""


@dataclass
class CompilingAnswers:
    """What a model hears that asks `torch.compiler.is_compiling()` while it is captured: no, as in eager mode, because
    some models take another branch for compilers, with other bits. Files whose eager branch Dynamo cannot trace, as a
    capture that failed has shown, hear yes."""

    asked: set[str] = field(default_factory=set)
    hear_yes: set[str] = field(default_factory=set)

    def answer(self, files: Iterable[str]) -> bool:
        self.asked |= (files := set(files))
        return not files.isdisjoint(self.hear_yes)

    def can_say_yes_in(self, file: str) -> bool:
        """Whether somebody in this file asked and heard no; from now on it hears yes."""
        is_new = file in self.asked and file not in self.hear_yes
        if is_new:
            self.hear_yes.add(file)
        return is_new


class Asked(Protocol):
    """A program from `inputs`, placeholders of the graph that Dynamo captures, to a truth; None: it cannot say."""

    @property
    def inputs(self) -> tuple[fx.Node, ...]: ...

    def __call__(self, *tensors: torch.Tensor) -> bool | None: ...


class _Capture(threading.local):
    answers: CompilingAnswers | None = None
    questions: Callable[[fx.Node], Asked | None] | None = None
    has_numpys_bits: Callable[[str], bool] | None = None


_CAPTURE = _Capture()
"""Who answers the model that this thread captures; nobody: Dynamo, which always says yes. `questions` finds what
decides a branch that values decide; nobody: Dynamo breaks the graph there."""


class _TracingStates(dict[Callable[[], Any], bool | None]):
    """What Dynamo answers code that asks in which state it is traced."""

    questions: frozenset[Callable[[], Any]] = frozenset()

    def __getitem__(self, question: Callable[[], Any]) -> bool | None:
        frame = sys._getframe(1).f_locals.get("tx")  # who asks: Dynamo passes it to the one that asks us, not to us
        if _CAPTURE.answers is None or question not in self.questions or frame is None:
            return super().__getitem__(question)
        if frame.f_code.co_filename.startswith(OURS):  # a virtualized model inside of the one that is captured
            return super().__getitem__(question)
        files: list[str] = []
        while frame is not None and len(files) < NUM_ASKERS:
            files.append(frame.f_code.co_filename)
            frame = frame.parent
        return _CAPTURE.answers.answer(files)


@functools.cache
def _answer_for_dynamo() -> None:
    """Dynamo folds `torch.compiler.is_compiling()` to True, cannot trace a question about streams, and breaks at every
    branch that values decide. There is no setting for any of these."""
    from torch._dynamo import external_utils, trace_rules
    from torch._dynamo.variables import tensor as dynamo_tensor
    from torch._dynamo.variables import torch as dynamo_torch

    states = _TracingStates(dynamo_torch.tracing_state_functions())
    # What a model marks in eager mode for CUDA graphs says nothing to us, and Dynamo would not even ignore it.
    vars(torch._dynamo.mark_static_address)["_dynamo_forbidden"] = False
    streams = (torch.cuda.is_current_stream_capturing, torch.xpu.is_current_stream_capturing)
    states |= dict.fromkeys(streams, False)
    asking = (torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling)
    states.questions = frozenset({*asking, torch._utils.is_compiling, external_utils.is_compiling})
    vars(dynamo_torch)["tracing_state_functions"] = lambda: states
    dynamo_torch.TorchInGraphFunctionVariable._get_handlers.cache_clear()
    trace_rules.get_torch_obj_rule_map().update(dict.fromkeys(streams, dynamo_torch.TorchInGraphFunctionVariable))

    _take_any_type_in_grouped_products()
    _ask_at_jumps()
    truth_of = dynamo_tensor.TensorVariable.bool_impl

    def bool_impl(self: Any, tx: Any) -> Any:
        truth = _asked_of_the_batch(tx, self)
        return truth_of(self, tx) if truth is None else dynamo_tensor.VariableTracker.build(tx, truth)

    dynamo_tensor.TensorVariable.bool_impl = bool_impl  # type: ignore[method-assign]


def _take_any_type_in_grouped_products() -> None:
    """Dynamo's stand-in for `_grouped_mm` takes bfloat16 alone, the kernels take what others take. They pad rows where
    CUDA is, and there the stand-in knows how. Mixtures of experts call it."""
    op = torch.ops.aten._grouped_mm.default
    known = python_kernels(op)[torch.DispatchKey.Meta]

    def meta(left: torch.Tensor, right: torch.Tensor, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
        if _CAPTURE.answers is None or torch.version.cuda is not None:
            return known(left, right, offs, bias, out_dtype)
        return grouped_product(left, right, offs, out_dtype)

    python_kernels(op)[torch.DispatchKey.Meta] = meta
    forget_dispatch(op)


def grouped_product(left: torch.Tensor, right: torch.Tensor, offs: Any, type: torch.dtype | None) -> torch.Tensor:
    """What `_grouped_mm` returns, empty: a group is some rows of what has two dims, or one matrix of what has three
    (ATen/native/GroupedMMUtils.h)."""
    groups = () if left.dim() != right.dim() else (left.shape[0] if left.dim() == 3 else offs.shape[0],)
    return left.new_empty((*groups, left.shape[-2], right.shape[-1]), dtype=type)


def _ask_at_jumps() -> None:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase

    def asking(name: str, jump: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def asked(tx: Any, instruction: Any) -> None:
            truth = _asked_of_the_batch(tx, tx.stack[-1])
            if truth is None:
                jump(tx, instruction)
                return
            value = tx.pop()
            if truth is ("IF_TRUE" in name):
                if name.endswith("OR_POP"):
                    tx.push(value)
                tx.jump(instruction)

        return asked

    kinds: list[Any] = [InstructionTranslatorBase]
    for kind in kinds:
        kinds += kind.__subclasses__()
        for name, code in dis.opmap.items():
            if "JUMP" in name and name.removesuffix("_OR_POP").endswith(("IF_TRUE", "IF_FALSE")):
                kind.dispatch_table[code] = asking(name, kind.dispatch_table[code])


def _asked_of_the_batch(tx: Any, value: Any) -> bool | None:
    """The truth of a tensor that Dynamo traces, if the batch at hand decides it. The graph is for such batches from
    now on."""
    from torch._dynamo.guards import install_guard
    from torch._dynamo.source import GlobalStateSource

    if _CAPTURE.questions is None or not value.is_tensor():
        return None
    node = value.as_proxy().node
    question = _CAPTURE.questions(node) if node.graph is tx.output.root_tracer.graph else None
    if question is None:
        return None
    given: list[Any] = [node.meta.get("grapharg") for node in question.inputs]
    if not all(_is_real(one) for one in given):
        return None
    truth = question(*(one.example for one in given))
    if truth is not None:
        names = [one.source.name for one in given]
        install_guard(GlobalStateSource().make_guard(functools.partial(_answered_so, question, names, truth)))
    return truth


def _is_real(given: Any) -> bool:
    """Whether it is a plain tensor that the call brings along."""
    return (
        given is not None
        and given.source is not None
        and not given.pass_arg_as_tensor
        and type(given.example) in (torch.Tensor, nn.Parameter, nn.Buffer)
        and not isinstance(given.example, FakeTensor)
    )


def _answered_so(question: Asked, names: list[str], truth: bool, builder: Any, _: Any) -> None:
    """Before each call, after all other guards: whether the batch gives the same answer."""
    from torch._dynamo.guards import _get_closure_vars

    found = [compile(name, "<source>", "eval") for name in names]
    known = {**_get_closure_vars(), "G": builder.scope["G"]}

    def holds(local: Any) -> bool:
        return question(*(eval(one, known | {"L": local}) for one in found)) is truth

    builder.guard_manager.root.add_epilogue_lambda_guard(holds, [f"the batch answers {truth}"], None)


@contextmanager
def capturing(
    *,
    whole: bool,
    answers: CompilingAnswers | None,
    questions: Callable[[fx.Node], Asked | None] | None,
    has_numpys_bits: Callable[[str], bool] | None,
) -> Iterator[None]:
    """While open, Dynamo looks at a module's hooks before each call: one that was added later must run; `answers`
    speaks to a model that asks whether it is compiled, and `questions` finds what decides a branch. No graph is broken
    for a line that a model writes to a log; one is where a trace would compute something else than eager mode, as
    `has_numpys_bits` knows of numpy (Note: [What only eager mode can do]). Recurrent layers are captured. With `whole`,
    none is cut at the buckets of DDP: a budget is given out once. Public `torch.compiler.config` does not have the
    settings."""
    _answer_for_dynamo()
    _break_where_eager_differs()
    before = _CAPTURE.answers, _CAPTURE.questions, _CAPTURE.has_numpys_bits
    _CAPTURE.answers, _CAPTURE.questions, _CAPTURE.has_numpys_bits = answers, questions, has_numpys_bits
    try:
        with _dynamo_settings(whole):
            yield
    finally:
        _CAPTURE.answers, _CAPTURE.questions, _CAPTURE.has_numpys_bits = before


def _break_here(what: str, why: str) -> None:
    """For Dynamo: what follows is not to be captured. Public: none."""
    from torch._dynamo.exc import unimplemented

    unimplemented(gb_type=what, context="", explanation=why, hints=[])


@functools.cache
def _break_where_eager_differs() -> None:
    """Note: [What only eager mode can do]
    Dynamo traces numpy as torch ops whose last bits may be others, draws numpy's random numbers from torch's generator,
    and runs a checkpointed region once, where eager mode updates its running statistics twice. While we capture, the
    graph breaks there. There are no settings for it, but for the random numbers."""
    from torch._dynamo import utils
    from torch._dynamo.variables import higher_order_ops, misc, tensor

    def only_moved(name: str, args: Iterable[Any]) -> None:
        asked = _CAPTURE.has_numpys_bits
        if asked is None or asked(name) or all(one.is_python_constant() for one in args):
            return
        _break_here(f"numpy's {name}", f"what numpy's {name} computes has other last bits when it is traced")

    function, method = misc.NumpyVariable.call_function, tensor.NumpyNdarrayVariable.call_method
    operator, checkpoint = utils.numpy_operator_wrapper.__init__, higher_order_ops.CheckpointHigherOrderVariable

    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        only_moved(self.value.__name__, (*args, *kwargs.values()))
        return function(self, tx, args, kwargs)

    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        only_moved(name, (self,))
        return method(self, tx, name, args, kwargs)

    def operate(self: Any, op: Callable[..., Any]) -> None:
        if _CAPTURE.has_numpys_bits is not None and not _CAPTURE.has_numpys_bits(op.__name__):
            _break_here(f"numpy's {op.__name__}", f"numpy's {op.__name__} has other last bits when it is traced")
        operator(self, op)

    wrapped = checkpoint.create_wrapped_node

    def checkpointed(self: Any, *args: Any, **kwargs: Any) -> Any:
        node = wrapped(self, *args, **kwargs)
        updated = _updates_in(node[4]) if _CAPTURE.has_numpys_bits is not None else None
        if updated is not None:
            _break_here(
                f"a checkpointed region that updates {updated}",
                f"a checkpointed region updates {updated}: eager mode does so again when it runs the region for"
                " backward, and a trace does it once",
            )
        return node

    patched: tuple[tuple[Any, str, Any], ...] = (
        (misc.NumpyVariable, "call_function", call_function),
        (tensor.NumpyNdarrayVariable, "call_method", call_method),
        (utils.numpy_operator_wrapper, "__init__", operate),
        (checkpoint, "create_wrapped_node", checkpointed),
    )
    for owner, name, ours in patched:
        setattr(owner, name, ours)


def _updates_in(region: Any) -> str | None:
    """What a region that Dynamo captured writes into among the things it was given."""
    given = set(region.graph.find_nodes(op="placeholder"))
    for one in region.graph.nodes:
        running = one.args[1] if len(one.args) > 1 else one.kwargs.get("running_mean")
        is_norm = one.op == "call_function" and getattr(one.target, "__name__", "") in ("batch_norm", "instance_norm")
        trains = one.args[5] if len(one.args) > 5 else one.kwargs.get("training", one.kwargs.get("use_input_stats"))
        if is_norm and running is not None and trains:
            return str(running)
        name = one.target if isinstance(one.target, str) else getattr(one.target, "__name__", "")
        is_written = name.endswith("_") and not name.endswith("__") and one.op in ("call_method", "call_function")
        if is_written and one.args and one.args[0] in given:
            return str(one.args[0])
    return None


def _dynamo_settings(whole: bool) -> AbstractContextManager[Any]:
    from torch._dynamo import config as dynamo_config
    from torch._dynamo import mark_static_address

    written = {method for method in vars(logging.Logger).values() if callable(method)}
    settings: dict[str, Any] = {
        "skip_nnmodule_hook_guards": False,
        "ignore_logging_functions": dynamo_config.ignore_logging_functions | written | {mark_static_address},
        "use_numpy_random_stream": True,
        "allow_rnn": True,
    }
    return dynamo_config.patch(settings | ({"optimize_ddp": False} if whole else {}))


def forget_captures(code: CodeType) -> None:
    """Let go of all that Dynamo captured for a function that is gone: it holds the function's code for good, and with
    it every graph. Public `torch.compiler.reset` forgets everybody's."""
    from torch._dynamo import reset_code

    reset_code(code)


# Releases

TESTED = ((2, 13), (2, 15))
"""The first and the last minor release that the tests have passed on."""


def torch_version() -> str:
    """The release at hand, as torch writes it: 2.13.0+cpu. Public, but spelled like a private name."""
    return str(torch.__version__)


def minor_release(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def warn_if_untested(version: str) -> None:
    """A newer release than those tested may work as well; whoever takes it should know."""
    if minor_release(version) > TESTED[1]:
        warnings.warn(
            f"vdnn has been tested with torch {_dotted(TESTED[0])} to {_dotted(TESTED[1])}, and this is {version}:"
            " compare a step with the plain model before you rely on it (`vdnn train --verify`).",
            stacklevel=2,
        )


def _dotted(release: Iterable[int]) -> str:
    return ".".join(map(str, release))


warn_if_untested(torch_version())  # once: a module is imported once
