"""The two ways from a model to a joint graph, as callables that run the model.

`JustInTime` goes through Dynamo, as `torch.compile` does: graphs are captured when the model is called, guarded, and
captured again for new shapes; where Python gets in the way the model is captured in pieces. `AheadOfTime` traces the
whole step once per signature. Both hand their joint graph to the same `JointCompiler`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import warnings
from collections.abc import Callable, Hashable, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch import fx, nn

from vdnn.capture.eager_kernels import eager_kernels
from vdnn.capture.export import GRU_CELL, export_joint
from vdnn.capture.inputs import dynamo_inputs
from vdnn.compile.joint_compiler import JointCompiler
from vdnn.compile.session import Session
from vdnn.errors import CaptureFailed, InexactTrace, Unsupported, VdnnError
from vdnn.torch_private import (
    BackendCompilerFailed,
    TorchDynamoException,
    aot_autograd,
    aot_compile_joint_with_descriptors,
    backward_hooks,
    forward_hooks,
    guarding_hooks,
    storage_id,
    tree_flatten,
    tree_leaves,
)

log = logging.getLogger("vdnn")

MAX_CAPTURES = 128
"""Past so many signatures the shapes are not a few batch sizes but a stream, and every step would be a capture."""

_USER_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


def compile_dynamo_graph(graph: fx.GraphModule, inputs: Sequence[Any], session: Session) -> Callable[..., Any]:
    """One graph from Dynamo, compiled. This is the whole of vdnn's torch.compile backend."""
    _refuse_endless_captures(session)
    _refuse_symbols(inputs)
    compiler = JointCompiler(session, dynamo_inputs(graph, inputs))
    compile_graph = aot_autograd(
        fw_compiler=compiler.forward,
        bw_compiler=compiler.backward,
        inference_compiler=compiler.inference,
        partition_fn=compiler.partition,
        keep_inference_input_mutations=True,
    )
    try:
        _refuse_gru_cells(graph)
        with eager_kernels():
            return compile_graph(graph, inputs)
    except InexactTrace as reason:
        log.warning("a piece of %s runs plain, outside any plan: %s", session.name, reason)
        return graph.forward


def _refuse_symbols(inputs: Sequence[Any]) -> None:
    """A plan is about bytes, and a size that is a symbol has none."""
    sizes = [size for given in inputs for size in (given.shape if isinstance(given, torch.Tensor) else (given,))]
    if any(isinstance(size, torch.SymInt) for size in sizes):
        raise Unsupported(
            "torch.compile hands over sizes that are symbols, and a plan needs numbers. Pass"
            ' torch.compile(model, backend="vdnn", dynamic=False): each batch size then gets a plan of its own.'
        )


def _refuse_gru_cells(graph: fx.GraphModule) -> None:
    if any(getattr(node.target, "__name__", "") == "gru_cell" for node in graph.graph.nodes):
        raise InexactTrace(GRU_CELL)


def _refuse_endless_captures(session: Session) -> None:
    if len(session.executors) >= MAX_CAPTURES:
        raise Unsupported(
            f"{session.name} was captured {MAX_CAPTURES} times, each time for other shapes or settings, and is called"
            " with new ones again."
            " Pad batches to a few sizes, or run the odd ones on the plain model."
        )


class JustInTime:
    """Runs a callable through Dynamo with vdnn as its backend."""

    def __init__(self, plain: Callable[..., Any], session: Session, *, fullgraph: bool) -> None:
        def backend(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            return compile_dynamo_graph(graph, inputs, session)

        self._session, self._fullgraph, self._has_warned = session, fullgraph, False
        compile_with_limits: Any = (
            torch.compile
        )  # its overloads do not know the last two arguments, its implementation does
        self._compiled = compile_with_limits(
            _inlined(plain),
            backend=backend,
            dynamic=False,
            fullgraph=fullgraph,
            recompile_limit=MAX_CAPTURES + 1,
            isolate_recompiles=True,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            with guarding_hooks():  # a hook added later must run
                returned = self._compiled(*args, **kwargs)
        except BackendCompilerFailed as failure:
            if isinstance(failure.inner_exception, VdnnError):
                raise failure.inner_exception from None
            raise
        except TorchDynamoException as failure:
            if self._fullgraph:
                raise CaptureFailed(_explain_break(self._session.name, failure)) from failure
            raise
        self._warn_if_plain(returned)
        return returned

    def _warn_if_plain(self, returned: Any) -> None:
        """Dynamo gives up on some frames whole (a loop that branches on data), and then the plain model has run."""
        budget = self._session.options.budget
        if budget is None or self._session.executors or self._has_warned:
            return
        if any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in tree_leaves(returned)):
            self._has_warned = True
            warnings.warn(
                f"{self._session.name} could not be captured, not even in pieces, and ran plain: budget {budget!r} does"
                " not hold for it. `with vdnn.tensor_cache(budget=...)` keeps a budget for models as they are;"
                " fullgraph=True names the line that stops the capture.",
                stacklevel=4,
            )


def _inlined(plain: Callable[..., Any]) -> Callable[..., Any]:
    """`plain`, called from a function with a code object of its own.

    Dynamo does not look into frames of torch itself, so a bare nn.Sequential would run uncaptured, silently; called
    from here it is inlined. And Dynamo counts captures per code object: a shared one would run out after a few hundred
    models in one process."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return plain(*args, **kwargs)

    return FunctionType(call.__code__.replace(), call.__globals__, "call", None, call.__closure__)


def _explain_break(name: str, failure: Exception) -> str:
    text = str(failure)
    reason = text.strip().splitlines()[0] if text.strip() else type(failure).__name__
    places = list(_USER_LINE.finditer(text))
    where = f" at {places[-1]['file']}, line {places[-1]['line']}" if places else ""
    return (
        f"{name} is not one graph: capture breaks{where}: {reason}\n"
        "fullgraph=True refuses that. Rewrite the line, or drop fullgraph=True and let vdnn run the model in pieces."
    )


class AheadOfTime:
    """Runs a module whose whole step is traced before it runs, once for every signature it is called with."""

    def __init__(self, module: nn.Module, session: Session) -> None:
        self._module, self._session = module, session
        self._steps: dict[Hashable, Callable[..., Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.prepare(*args, **kwargs)(*args, **kwargs)

    def prepare(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """The compiled step for these arguments, traced now if their signature is new."""
        signature = self._signature(args, kwargs)
        if signature not in self._steps:
            self._steps[signature] = self._compile(args, kwargs)
        return self._steps[signature]

    def _compile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        _refuse_endless_captures(self._session)
        compiler = JointCompiler(self._session, ())
        with contextlib.ExitStack() as stack:
            joint = export_joint(stack, self._module, args, kwargs, exact=True)
            compiled = aot_compile_joint_with_descriptors(
                joint, partition_fn=compiler.partition, fw_compiler=compiler.forward, bw_compiler=compiler.backward
            )
        module, names = self._module, (*joint.params_spec, *joint.buffers_spec)

        def step(*args: Any, **kwargs: Any) -> Any:
            # By name and on every call: a parameter may have been replaced, and tied ones are expected once per name.
            state = dict(
                (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
            )
            return compiled(*(state[name] for name in names), *args, **kwargs)

        return step

    def _signature(self, args: Any, kwargs: Any) -> Hashable:
        """Everything the trace depended on: arguments, parameters, modes. Equal signatures run the same program."""
        leaves, spec = tree_flatten((args, kwargs))
        settings = tuple(map(_settings, self._module.modules()))
        autocast = (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.get_default_dtype())
        state = tuple(_leaf_signature(t) for t in (*self._module.parameters(), *self._module.buffers()))
        return (tuple(map(_leaf_signature, leaves)), _aliases(leaves), str(spec), settings, autocast, state)


def _leaf_signature(leaf: Any) -> Hashable:
    if isinstance(leaf, torch.Tensor):
        return (tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad)
    return (type(leaf), repr(leaf))


def _aliases(leaves: Sequence[Any]) -> Hashable:
    """For every tensor the first one that shares its memory, and how far it is from those it overlaps: a step may write
    into one argument and read another."""
    sharing: dict[int, list[tuple[int, range]]] = {}
    found: list[Hashable] = []
    for position, tensor in enumerate(leaf for leaf in leaves if isinstance(leaf, torch.Tensor)):
        ours, others = _spanned(tensor), sharing.setdefault(storage_id(tensor.untyped_storage()), [])
        overlapped = [(k, ours.start - o.start) for k, o in others if ours.start < o.stop and o.start < ours.stop]
        others.append((position, ours))
        found.append((others[0][0], tuple(overlapped)))
    return tuple(found)


def _spanned(tensor: torch.Tensor) -> range:
    """The bytes of its storage from the first that it shows to the last."""
    begin = tensor.storage_offset()
    last = begin + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return range(begin * tensor.element_size(), (last + 1 if tensor.numel() else begin) * tensor.element_size())


_NOT_SETTINGS = frozenset(vars(nn.Module())) - {"training"} | {"_compiled_call_impl"}
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_LONGEST_SETTING = 256
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, functools.partial)


def _settings(module: nn.Module) -> Hashable:
    """What its forward may depend on: numbers and words among its attributes (dropout's p, BatchNorm's momentum), also
    in lists, dicts and configuration objects, functions it holds, and its hooks. What grows from call to call is none:
    lists of anything else are left out, and so are tables: this is asked at every call."""
    held = [(name, value) for name, value in vars(module).items() if name not in _NOT_SETTINGS]
    settings = [(name, _setting(value)) for name, value in held]
    return (type(module), repr(settings), *map(tuple, (*forward_hooks(module), *backward_hooks(module))))


def _setting(value: Any, depth: int = 3) -> Any:
    """Something whose repr tells whether the value has changed; None where nobody can tell."""
    if type(value) in _PLAIN:
        return (value,)
    if isinstance(value, _FUNCTIONS):
        return id(value.__func__) if isinstance(value, MethodType) else id(value)
    if depth == 0 or isinstance(value, (torch.Tensor, nn.Module)):
        return None
    if isinstance(value, (list, tuple, dict)):
        if len(value) > _LONGEST_SETTING:
            return None
        items = value.items() if isinstance(value, dict) else enumerate(value)
        settings = [(key, _setting(item, depth - 1)) for key, item in items]
        return settings if settings and all(setting is not None for _, setting in settings) else None
    return [(name, _setting(item, depth - 1)) for name, item in getattr(value, "__dict__", {}).items()]
