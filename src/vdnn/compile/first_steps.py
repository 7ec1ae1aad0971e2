"""`verify="first"`: the first step of every captured program is held against plain PyTorch, bit for bit.

Enters: a call of a virtualized model, before it runs. Leaves: what it returns, and a sentence for the report. Outputs
are handed on as views, whose nodes see the tangents; hooks on the nodes of the call see the gradients that leave it for
parameters and arguments, before they are added to anything. When backward is over, and all that the step had stashed is
gone, plain PyTorch runs the same step from the same state (`plain_step.py`). Outputs, gradients, buffers and the state
of the generators must be equal.

With a budget that run happens under the watch of a tensor cache without slower tiers: it moves nothing, and refuses
before the budget is exceeded. Then the step is not verified, and the report says what it needs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from vdnn.compile.plain_step import (
    Given,
    PlainStep,
    RandomStates,
    copies_of,
    random_states,
    run_plain,
    tensors_in,
)
from vdnn.compile.session import Session
from vdnn.eager.live_bytes import LiveBytes
from vdnn.eager.tensor_cache import TensorCache
from vdnn.errors import Infeasible, StepDiffers
from vdnn.hardware.where import CPU
from vdnn.ir import Role
from vdnn.plan.shared.account import persistent_nbytes, tensors_nbytes
from vdnn.runtime.executor import Executor
from vdnn.torch_private import after_backward, backward_hooks, forward_hooks, num_writes, tree_map
from vdnn.units import format_nbytes

EQUAL = "first step equal to plain PyTorch"
MOST_COPIED_NBYTES = 16 << 20
"""Of buffers, which are copied twice beside the step: what a budget of bytes allows beyond itself is 24 MiB."""


class FirstSteps:
    """Of one virtualized model, whose tensors `module` has. `plain` is what it was."""

    def __init__(self, session: Session, plain: Callable[..., Any], module: nn.Module) -> None:
        self._session, self._plain, self._module = session, plain, weakref.ref(module)
        self._begun: dict[Any, weakref.ref[_Step] | None] = {}
        self._num_programs = 0
        self.sentences: list[str] = []

    def call(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module, session = self._module(), self._session
        assert module is not None
        key = _key(module, args, kwargs)
        if self._is_done(key) and self._num_programs == len(session.executors):
            return run(*args, **kwargs)
        reason = _why_not(module)
        given = None if reason else Given.of(module, args, kwargs, session.where)
        before = {id(executor): executor.measured.num_forward for executor in session.executors}
        returned = run(*args, **kwargs)
        self._num_programs = len(session.executors)
        ran = [each for each in session.executors if each.measured.num_forward > before.get(id(each), 0)]
        if not ran:
            return self._ran_uncaptured(key, returned)
        if given is not None and (changed := given.changed(module)):
            reason = f"{changed} is written to by the step"
        reason = reason or self._needs_to_hold(ran[-1])
        if given is None or reason:
            return self._give_up(key, reason, returned)
        step = _Step(self, given, ran, tensors_in(returned))
        self._begun[key] = weakref.ref(step)
        return step.followed(returned)

    def _needs_to_hold(self, executor: Executor) -> str:
        """Gradients that are held are there twice once they are accumulated; an accelerator's are held by the host."""
        plan, where = executor.plan, self._session.where
        problem = plan.problem
        if problem.budget_nbytes is None or where != CPU:
            return ""
        gradients_nbytes = sum(s.nbytes for s in problem.graph.storages if s.role is Role.GRADIENT)
        need_nbytes, has_nbytes = persistent_nbytes(plan) + gradients_nbytes, tensors_nbytes(problem)
        return _needs_words(need_nbytes, has_nbytes) if need_nbytes > has_nbytes else ""

    def plain(self) -> Callable[..., Any]:
        return self._plain

    def module(self) -> nn.Module:
        module = self._module()
        assert module is not None
        return module

    @property
    def session(self) -> Session:
        return self._session

    def note(self, name: str, found: str) -> None:
        self.sentences.append(f"{name}: {found}")

    def _is_done(self, key: Any) -> bool:
        """Whether such a call was verified, or waits for its backward. A step that was dropped says nothing."""
        if key not in self._begun:
            return False
        waiting = self._begun[key]
        if waiting is None:
            return True
        step = waiting()
        if step is None:
            del self._begun[key]
        return step is not None

    def done(self, step: _Step) -> None:
        for key, waiting in self._begun.items():
            if waiting is not None and waiting() is step:
                self._begun[key] = None

    def _ran_uncaptured(self, key: Any, returned: Any) -> Any:
        """As it is, which is plain PyTorch: for now, if the shape is new, or from now on."""
        cache = self._session.eager()
        if cache is None or not cache.part().is_for_new_shapes:
            self._begun[key] = None
            if cache is not None:
                self.note(self._session.name, "not verified: it runs as it is, in a tensor cache")
        return returned

    def _give_up(self, key: Any, reason: str, returned: Any) -> Any:
        self._begun[key] = None
        self.note(self._session.executors[-1].plan.problem.graph.name, f"not verified: {reason}")
        return returned


def _key(module: nn.Module, args: Any, kwargs: Any) -> Any:
    """Calls of one key run one program, as a rule; where a program begins without one, the next call is verified."""
    modes = tuple(part.training for part in module.modules())
    return (modes, tuple((tensor.shape, tensor.dtype, tensor.requires_grad) for tensor in tensors_in((args, kwargs))))


def _why_not(module: nn.Module) -> str:
    hooked = [
        name or type(part).__name__
        for name, part in module.named_modules()
        if any((*forward_hooks(part), *backward_hooks(part)))
    ]
    if hooked:
        return f"{hooked[0]} has hooks, which a plain step would call once more"
    nbytes = sum(buffer.untyped_storage().nbytes() for buffer in module.buffers())
    if nbytes > MOST_COPIED_NBYTES:
        return f"needs {format_nbytes(nbytes)} for copies of its buffers, has {format_nbytes(MOST_COPIED_NBYTES)}"
    return ""


class _Step:
    """One step between its forward and the end of its backward. The graph's hooks own it."""

    def __init__(self, owner: FirstSteps, given: Given, ran: Sequence[Executor], outputs: Sequence[Tensor]) -> None:
        self._owner, self._given, self._ran = owner, given, ran
        self._where = owner.session.where
        self._buffers, self._random = copies_of(owner.module()), random_states(self._where)
        self._outputs = [(output.detach(), num_writes(output)) for output in outputs]
        self._tangents: list[Tensor | None] = [None] * len(outputs)
        self._targets = _targets(owner.module(), given)
        self._found: dict[Any, Tensor | None] = {}
        self._is_queued = self._is_over = False

    def followed(self, returned: Any) -> Any:
        """The same tensors, as views whose nodes belong to this step alone."""
        outputs = tensors_in(returned)
        nodes = _nodes_behind(outputs, {node for node, _ in self._targets})
        for node in nodes:
            edges = [(number, edge) for number, edge in enumerate(node.next_functions) if edge in self._targets]
            if edges:
                node.register_hook(lambda gradients, _, edges=edges: self._note_gradients(edges, gradients))
        numbers = iter(range(len(outputs)))
        return tree_map(lambda leaf: self._seen(leaf, next(numbers)) if isinstance(leaf, Tensor) else leaf, returned)

    def _seen(self, output: Tensor, number: int) -> Tensor:
        if output.grad_fn is None:
            return output
        view = output.view_as(output)
        assert view.grad_fn is not None
        view.grad_fn.register_prehook(lambda tangents: self._note_tangent(number, tangents[0]))
        return view

    def _note_tangent(self, number: int, tangent: Tensor | None) -> None:
        if not self._is_over:
            self._tangents[number] = tangent
            self._await_end()

    def _await_end(self) -> None:
        if not self._is_queued:
            self._is_queued = True
            after_backward(self._verify)

    def _note_gradients(self, edges: Sequence[tuple[int, Any]], gradients: Sequence[Tensor | None]) -> None:
        """A gradient that is held is copied by who accumulates it: an accelerator's is held by the host."""
        if self._is_over:
            return
        self._await_end()
        for number, edge in edges:
            gradient, before = gradients[number], self._found.get(edge)
            if gradient is not None:
                gradient = gradient.detach() if self._where == CPU else gradient.detach().cpu()
                gradient = gradient if before is None else before + gradient
            self._found[edge] = before if gradient is None else gradient

    def _verify(self) -> None:
        """Backward is over, and what it raises is raised by who called that."""
        self._is_over = True
        owner, name = self._owner, self._ran[-1].plan.problem.graph.name
        owner.done(self)
        reason = self._why_not()
        if reason:
            owner.note(name, f"not verified: {reason}")
            return
        edges = list(self._found)
        wanted = [self._targets[edge][1] for edge in edges]
        try:
            with self._within_budget():
                plain = run_plain(owner.plain(), owner.module(), self._given, wanted, self._tangents)
        except (Infeasible, torch.OutOfMemoryError) as error:
            owner.note(name, f"not verified: {self._needs(error)}")
            return
        finally:
            self._tangents = []
        differing = list(self._differences(plain, edges))
        if differing:
            owner.note(name, f"differs from plain PyTorch in {', '.join(each for each, _ in differing)}")
            raise StepDiffers(_words(name, differing))
        owner.note(name, f"verified: {EQUAL}")

    def _why_not(self) -> str:
        problems = [executor.plan.problem for executor in self._ran]
        if any(problem.lossy is not None or not problem.is_exact for problem in problems):
            return "its plan rounds, or adds in another order"
        if changed := self._given.changed(self._owner.module()):
            return f"{changed} was written to before backward was over"
        if any(num_writes(output) != writes for output, writes in self._outputs):
            return "an output was written to before backward was over"
        if self._owner.session.is_bound and any(executor.steps() for executor in self._owner.session.executors):
            return "another step waits for its backward, and takes of the budget"
        return ""

    def _within_budget(self) -> AbstractContextManager[Any]:
        session, problem = self._owner.session, self._ran[-1].plan.problem
        session.memory.make_room()
        if problem.budget_nbytes is None:
            return nullcontext()
        return TensorCache(
            tensors_nbytes(problem),
            (),
            session.transfers,
            encode=False,
            where=self._where,
            count=self._count,
            watch_always=True,
        )

    def _count(self, live: LiveBytes) -> None:
        """What is there before the plain step."""
        module, graph = self._owner.module(), self._ran[-1].plan.problem.graph
        live.count_unseen(sum(s.nbytes for s in graph.storages if s.role is Role.OPTIMIZER_STATE))
        state = [*module.parameters(), *module.buffers()]
        gradients = [tensor.grad for tensor in state if tensor.grad is not None]
        held = [tensor for tensor in (*self._found.values(), *self._tangents) if tensor is not None]
        outputs = [output for output, _ in self._outputs]
        for tensor in (*state, *gradients, *held, *outputs, *tensors_in((self._given.args, self._given.kwargs))):
            live.count(tensor)

    def _needs(self, error: Exception) -> str:
        problem = self._ran[-1].plan.problem
        kept_nbytes = problem.kept_nbytes or self._ran[-1].plan.peak_nbytes
        if isinstance(error, Infeasible):
            least_nbytes = max(kept_nbytes, error.minimum_nbytes)
            return _needs_words(least_nbytes, tensors_nbytes(problem))
        free_nbytes, _ = torch.accelerator.get_memory_info(self._where)
        return f"needs {format_nbytes(kept_nbytes)}, has {format_nbytes(free_nbytes)} free on {self._where}"

    def _differences(self, plain: PlainStep, edges: Sequence[Any]) -> Iterator[tuple[str, str]]:
        """What differs, by name, and how far."""
        theirs = [leaf for leaf in plain.outputs if isinstance(leaf, Tensor)]
        for number, ((ours, _), other) in enumerate(zip(self._outputs, theirs, strict=True)):
            yield from _difference(f"output {number}", ours, other)
        for edge, gradient in zip(edges, plain.gradients, strict=True):
            yield from _difference(f"gradient of {self._targets[edge][0]}", self._found[edge], gradient)
        for name, ours in self._buffers.items():
            yield from _difference(f"buffer {name}", ours, plain.buffers[name])
        yield from _random_differences(self._random, plain.random)


def _needs_words(need_nbytes: int, has_nbytes: int) -> str:
    return f"needs {format_nbytes(need_nbytes)}, has {format_nbytes(has_nbytes)}"


def _targets(module: nn.Module, given: Given) -> dict[Any, tuple[str, Tensor]]:
    """By edge of the graph: whose gradient goes over it."""
    found: dict[Any, tuple[str, Tensor]] = {}
    arguments = [(f"argument {n}", tensor) for n, tensor in enumerate(tensors_in((given.args, given.kwargs)))]
    for name, tensor in (*module.named_parameters(), *arguments):
        if tensor.requires_grad:
            node = torch.autograd.graph.get_gradient_edge(tensor)
            found[(node.node, node.output_nr)] = name, tensor
    return found


def _nodes_behind(outputs: Sequence[Tensor], ends: set[Any]) -> list[Any]:
    """All nodes of a call, down to what it was given."""
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None and output.grad_fn not in ends]
    seen = set(waiting)
    found: list[Any] = []
    while waiting:
        node = waiting.pop()
        found.append(node)
        following = {behind for behind, _ in node.next_functions if behind is not None} - seen - ends
        seen |= following
        waiting += following
    return found


def _difference(name: str, ours: Tensor | None, theirs: Tensor | None) -> Iterator[tuple[str, str]]:
    if ours is None or theirs is None:  # a gradient of zeros may be left out
        known = ours if theirs is None else theirs
        if known is not None and known.count_nonzero():
            yield name, "one of them has none"
        return
    ours, theirs = ours.cpu(), theirs.cpu()
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        yield name, f"{ours.dtype} {list(ours.shape)} and {theirs.dtype} {list(theirs.shape)}"
    elif not _same_bits(ours, theirs):
        kind = torch.complex128 if ours.is_complex() else torch.float64
        off = (ours.to(kind) - theirs.to(kind)).abs()
        yield (
            name,
            f"by up to {float(off.nan_to_num(float('inf')).max()):g}, in {int((off != 0).sum())} of {off.numel()}",
        )


def _same_bits(ours: Tensor, theirs: Tensor) -> bool:
    return torch.equal(ours, theirs) or torch.equal(_bits(ours), _bits(theirs))


def _bits(tensor: Tensor) -> Tensor:
    """NaN is not equal to itself."""
    return tensor.detach().contiguous().flatten().view(torch.uint8)


def _random_differences(ours: RandomStates, theirs: RandomStates) -> Iterator[tuple[str, str]]:
    for device, state in ours.items():
        if not torch.equal(state, theirs[device]):
            yield f"generator of {device}", "another state"


def _words(name: str, differing: Sequence[tuple[str, str]]) -> str:
    shown = "\n".join(f"    {each}: {how}" for each, how in differing[:8])
    return (
        f'verify="first": the first step of {name} is not that of plain PyTorch on the same inputs and random numbers:'
        f" {len(differing)} tensors differ.\n{shown}\n"
        "Do not train on with it: run the plain model, and report it with this message. If two plain steps differ"
        " too, a kernel of the device is not deterministic: torch.use_deterministic_algorithms(True) names it."
    )
