"""The way in through Dynamo, as `torch.compile` goes: graphs are captured when the model is called.

Enters: a callable, and the session that gathers what it runs. Leaves: a callable that runs it. Graphs are guarded, and
captured again for new shapes; where Python gets in the way the model is captured in pieces, each handed to a
`JointCompiler` of its own.

Note: [Whole or as it is]
A budget is one account, and pieces that are planned apart would each take all of it, with the Python between them
outside. So with a budget a model is captured whole, which Dynamo decides before anything runs, or it runs as it is,
whole, in a tensor cache (`compile/eager_fallback.py`).

Note: [Are you compiled?]
A model that asks hears no, and so takes its eager branch; where Dynamo cannot trace that one, the file in which it
asked hears yes, and the capture begins again. A model without a budget is tried whole first, so that such a branch is
noticed; if it has other breaks, it is captured in pieces, and hears yes as from `torch.compile`. A branch that the
batch decides (`if mask.all()`) breaks nothing: `capture/asked_values.py`.
"""

from __future__ import annotations

import logging
import re
import weakref
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import fx, nn

from vdnn.capture.asked_values import question_about
from vdnn.capture.eager_kernels import eager_kernels
from vdnn.capture.inputs import dynamo_inputs
from vdnn.capture.numpy_calls import has_numpys_bits
from vdnn.compile.eager_fallback import EagerFallback
from vdnn.compile.joint_compiler import JointCompiler
from vdnn.compile.new_shapes import NewShapes
from vdnn.compile.session import MAX_CAPTURES, Session
from vdnn.eager.op_watch import Watch
from vdnn.errors import CaptureFailed, InexactTrace, Infeasible, Unsupported, VdnnError
from vdnn.runtime.absent_gradients import absent_stay_absent
from vdnn.runtime.backward_autocast import refusing_backward_in_autocast
from vdnn.torch_private import (
    BackendCompilerFailed,
    CompilingAnswers,
    GuardOnDataDependentSymNode,
    TorchDynamoException,
    active_modes,
    aot_autograd,
    capturing,
    forget_captures,
)

log = logging.getLogger("vdnn")

_USER_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


def compile_dynamo_graph(graph: fx.GraphModule, inputs: Sequence[Any], session: Session) -> Callable[..., Any]:
    """One graph from Dynamo, compiled. This is the whole of vdnn's torch.compile backend."""
    session.refuse_endless_captures()
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
        with eager_kernels():
            compiled = refusing_backward_in_autocast(absent_stay_absent(compile_graph(graph, inputs)))
        graph.graph = fx.Graph()  # what was compiled holds the module, and nobody reads its nodes again
        return compiled
    except InexactTrace as reason:
        if session.is_bound:
            raise
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


class JustInTime:
    """Runs a callable through Dynamo with vdnn as its backend."""

    def __init__(
        self, plain: Callable[..., Any], session: Session, parts: Sequence[nn.Module] = (), *, fullgraph: bool
    ) -> None:
        """`parts` are the modules whose tensors are trained."""
        weakly = weakref.ref(session)  # Dynamo keeps every backend it was given for as long as the process lives

        def backend(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            session = weakly()
            assert session is not None, "Dynamo calls the backend of a model that is gone"
            return compile_dynamo_graph(graph, inputs, session)

        self._session, self._fullgraph, self._parts = session, fullgraph, parts
        self._plain, self._backend = plain, backend
        self._new_shapes = NewShapes(session, plain, parts)
        self._fallback: EagerFallback | None = None
        self._while_modes: EagerFallback | None = None
        self._answers: CompilingAnswers | None = CompilingAnswers()
        self._forget: Callable[[], Any] = lambda: None
        self._compiled = self._nothing_captured_yet()

    def _nothing_captured_yet(self) -> Callable[..., Any]:
        compile_with_limits: Any = (
            torch.compile
        )  # its overloads do not know the last two arguments, its implementation does
        call = _inlined(self._plain)
        self._forget()  # what was captured before: Dynamo holds code for good
        self._forget = forget = weakref.finalize(self, forget_captures, call.__code__)
        forget.atexit = False
        compiled: Callable[..., Any] = compile_with_limits(
            call,
            backend=self._backend,
            dynamic=False,
            fullgraph=self._fullgraph or self._session.is_bound or self._answers is not None,
            recompile_limit=MAX_CAPTURES + 1,
            isolate_recompiles=True,
        )
        return compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._fallback is None and self._session.is_bound and active_modes():
            return self._beside_modes()(*args, **kwargs)
        if self._fallback is not None:
            return self._fallback(*args, **kwargs)
        if self._session.begins_again():
            self._compiled = self._nothing_captured_yet()
        uncaptured = self._new_shapes.runner(args, kwargs)
        if uncaptured is not None:
            return uncaptured(*args, **kwargs)
        _BoundCapture.count(self._session.is_bound)
        try:
            with capturing(
                whole=self._session.is_bound,
                answers=self._answers,
                questions=question_about,
                has_numpys_bits=has_numpys_bits,
            ):
                return self._compiled(*args, **kwargs)
        except BackendCompilerFailed as failure:
            why = failure.inner_exception
            if isinstance(why, Infeasible):
                uncaptured = self._new_shapes.instead_of_capture(why)
                if uncaptured is not None:
                    return uncaptured(*args, **kwargs)
            if isinstance(why, VdnnError) and not (isinstance(why, InexactTrace) and self._session.is_bound):
                raise why from None
            if isinstance(why, GuardOnDataDependentSymNode) and self._is_worth_another_capture(failure):
                return self(*args, **kwargs)
            if not self._session.is_bound:
                if self._captures_in_pieces():  # a size that depends on values: from now on the graph ends before it
                    return self(*args, **kwargs)
                raise
        except (TorchDynamoException, GuardOnDataDependentSymNode) as failure:
            if self._is_worth_another_capture(failure):
                return self(*args, **kwargs)
            if self._fullgraph:
                raise CaptureFailed(_explain_break(self._session.name, failure)) from failure
            if not self._session.is_bound:
                raise
            why = failure
        finally:
            _BoundCapture.count(-self._session.is_bound)
        if self._fullgraph:
            raise why
        # Nothing has run: with a budget only whole graphs are taken. Note: [Whole or as it is]
        self._fallback = self._session.fall_back(self._plain, self._parts, why)
        return self._fallback(*args, **kwargs)

    def _is_worth_another_capture(self, failure: Exception) -> bool:
        """Whether the model breaks less if it hears another answer, or has breaks where a size that only values decide
        has no place in a whole graph. Nothing of a whole graph has run when this is asked.
        Note: [Are you compiled?]"""
        if self._answers is None:
            return False
        innermost_first = reversed([place["file"] for place in _USER_LINE.finditer(str(failure))])
        if any(map(self._answers.can_say_yes_in, innermost_first)):
            return True
        return self._captures_in_pieces()

    def _captures_in_pieces(self) -> bool:
        """Whether the model is captured in pieces from now on, where it was tried whole; it has not run."""
        if self._answers is None or self._fullgraph or self._session.is_bound:
            return False
        self._answers = None
        self._compiled = self._nothing_captured_yet()
        return True

    def _beside_modes(self) -> Callable[..., Any]:
        """Under a dispatch mode Dynamo skips everything. Inside another tensor cache it is that one's budget which is
        kept, of everything in it; under a mode of the user's, a counter say, a cache of the model's own keeps it."""
        if any(isinstance(mode, Watch) for mode in active_modes()):
            return self._plain
        if self._while_modes is None:
            modes = ", ".join(type(mode).__name__ for mode in active_modes())
            why = CaptureFailed(f"PyTorch captures nothing while a dispatch mode is active, and {modes} is")
            self._while_modes = self._session.fall_back(self._plain, self._parts, why)
        return self._while_modes


class _BoundCapture:
    """How many calls of models with a budget are running. A virtualized model that Dynamo meets in one of them is a
    part of what is captured, within the budget of the whole; elsewhere it keeps its own. What is captured asks whether
    there is one, not how many: Dynamo guards the answer, and a call that begins again is one more."""

    num_open = 0
    is_open = False

    @classmethod
    def count(cls, change: int) -> None:
        cls.num_open += change
        cls.is_open = cls.num_open > 0


def is_within_a_budget() -> bool:
    return _BoundCapture.is_open


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
