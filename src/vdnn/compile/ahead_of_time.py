"""The way in with a sample: the whole step is traced before it runs.

Enters: a module, and the session that gathers what it runs. Leaves: a callable that runs the module's step, traced once
for every signature (`signature.py`) that it is called with.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any

from torch import nn

from vdnn.capture.export import export_joint
from vdnn.compile.beside_plain import measured_beside_plain
from vdnn.compile.eager_fallback import EagerFallback
from vdnn.compile.joint_compiler import JointCompiler
from vdnn.compile.new_shapes import NewShapes
from vdnn.compile.session import Session
from vdnn.compile.signature import signature_of
from vdnn.errors import CaptureFailed, Infeasible, Unsupported
from vdnn.runtime.absent_gradients import absent_stay_absent
from vdnn.runtime.backward_autocast import refusing_backward_in_autocast
from vdnn.torch_private import aot_compile_joint_with_descriptors, plain_call


class AheadOfTime:
    """Runs a module whose whole step is traced before it runs, once for every signature it is called with."""

    def __init__(
        self, module: nn.Module, session: Session, plain: Callable[..., Any] | None = None, *, fullgraph: bool = False
    ) -> None:
        """`plain` is what runs, within a budget, where no graph can be had; with `fullgraph` that is refused."""
        self._module, self._session = module, session
        self._plain, self._fullgraph = plain_call(module) if plain is None else plain, fullgraph
        self._new_shapes = NewShapes(session, self._plain, (module,))
        self._steps: dict[Hashable, Callable[..., Any]] = {}
        self._fallback: EagerFallback | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.prepare(*args, **kwargs)(*args, **kwargs)

    def prepare(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """The compiled step for these arguments, traced now if their signature is new. Where no graph can be had, and a
        budget was named: what runs the model as it is within it."""
        if self._fallback is not None:
            return self._fallback
        if self._session.begins_again():
            self._steps.clear()
        signature = signature_of(self._module, args, kwargs)
        uncaptured = self._new_shapes.runner(args, kwargs)
        if uncaptured is not None and signature not in self._steps:
            return uncaptured
        if signature not in self._steps:
            self._session.refuse_endless_captures()
            try:
                with _settings_settle(self._module, args, kwargs):
                    self._steps[signature] = self._measured_if_inexact(args, kwargs)
            except Infeasible as reason:
                uncaptured = self._new_shapes.instead_of_capture(reason)
                if uncaptured is None:
                    raise
                return uncaptured
            except (CaptureFailed, Unsupported) as why:
                if self._fullgraph or not self._session.is_bound:
                    raise
                self._fallback = self._session.fall_back(self._plain, (self._module,), why)
                return self._fallback
        return self._steps[signature]

    def _measured_if_inexact(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        """A trace with other last bits trains where neither eager's can be kept nor "strict" was asked for."""
        session, known = self._session, len(self._session.executors)
        asks_for_bits = session.options.exact == "strict" or session.options.verify is not None
        session.may_have_other_bits = not (session.is_bound or asks_for_bits)
        step = self._compile(args, kwargs)
        for executor in session.executors[known:]:
            if executor.plan.problem.graph.name in session.other_bits:
                tell = partial(session.tell_other_bits, executor)
                return measured_beside_plain(step, self._plain, self._module, tell)
        return step

    def _compile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
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

        return refusing_backward_in_autocast(absent_stay_absent(step))


@contextlib.contextmanager
def _settings_settle(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
    """A forward that counts its calls in an attribute does so while it is traced, and never again. One that leaves a
    note of what it has seen, and finds it the next time, is as it was."""
    parts = tuple(module.modules())
    before, held = signature_of(module, args, kwargs), [dict(vars(part)) for part in parts]
    yield
    after = signature_of(module, args, kwargs)
    if after == before:
        return
    with contextlib.ExitStack() as stack:
        export_joint(stack, module, args, kwargs, exact=True)
    if signature_of(module, args, kwargs) == after:
        return
    changed = [
        f"{type(part).__name__}.{name}"
        for part, values in zip(parts, held, strict=True)
        for name, value in values.items()
        if isinstance(value, (bool, int, float, str)) and vars(part).get(name, value) != value
    ]
    for part, values in zip(parts, held, strict=True):
        vars(part).update(values)
    raise Unsupported(
        f"the forward of {type(module).__name__} changes an attribute at every call"
        f" ({', '.join(changed) or 'a list, a dict or another object'}), which a step captured ahead of time would do"
        " only once. Change it outside of the forward, keep it in a buffer, or use vdnn.virtualize without a sample."
    )
