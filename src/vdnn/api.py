"""The public functions: `virtualize` a model, `plan` a step that is not run, `report` what a virtualized model did, and
`tensor_cache` for models that stay eager.

model = vdnn.virtualize(model)                  # captured piece by piece as it is called, through torch.compile
model = vdnn.virtualize(model, sample=(x,))     # captured whole and ahead of time, before the first step
plan = vdnn.plan(model, (x,))                   # no memory is allocated; meta tensors are welcome
vdnn.report(model)
cache = vdnn.tensor_cache(budget="4GiB")        # eager mode: `with cache:` around each step of a model as it is
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar, Unpack, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from vdnn.capture.export import check_sample
from vdnn.capture.function_module import as_module
from vdnn.compile.ahead_of_time import AheadOfTime
from vdnn.compile.first_steps import FirstSteps
from vdnn.compile.just_in_time import JustInTime, is_within_a_budget
from vdnn.compile.planned_step import name_of, plan_of
from vdnn.compile.session import Session
from vdnn.compile.virtual_module import ForwardIsACall, Recipe, bare_copy, follow_copies
from vdnn.eager.tensor_cache import TensorCache
from vdnn.errors import InvalidInput, Unsupported
from vdnn.hardware.device import Hardware
from vdnn.hardware.where import CPU, indexed
from vdnn.options import Options, PlanOptions, RunOptions, TierOptions, check_names
from vdnn.plan.plan import Plan
from vdnn.report.record import Report
from vdnn.runtime.open_transfers import AskedTiers
from vdnn.runtime.runtime import SharedTiers, shared_runtime
from vdnn.torch_private import compiled_call, is_in_function_transform, plain_call, set_compiled_call
from vdnn.units import parse_budget

Model = TypeVar("Model", bound=Callable[..., Any])


def virtualize(model: Model, sample: Any = None, *, fullgraph: bool = False, **options: Unpack[RunOptions]) -> Model:
    """The same model, trained inside `budget` bytes with the same gradients.

    A module comes back as another object of its class that shares all parameters, buffers and submodules with it; the
    original stays plain. A function comes back as a function. Without gradients (`torch.no_grad()`) nothing is stashed
    and the plain model runs.

    `budget` is a number of bytes or text such as "12GiB", or "80%" of what keeping everything takes. It bounds the peak
    of a step on the device, parameters and gradients included, and what an optimizer keeps beside them where
    `optimizer` names one ("adam", "momentum", ...). A `vdnn.Budget` is one for several models: all that they have alive
    at once stays within it. Without one everything is kept; on an accelerator that may not have room for that, steps
    are held to what is free there, less a reserve, and the report says so. `strategy` chooses how it is kept: "auto"
    weighs all mechanisms; see `vdnn.plan.strategies` for the others.

    `sample`, the arguments of one step, has the whole step captured ahead of time and now; without it the model is
    captured when it is called, in pieces where Python gets in the way. `fullgraph=True` refuses such models and names
    the line.

    `lossy="fp16"` (or "bf16", "fp10", "fp8") lets feature maps be rounded between forward and backward; the report then
    says how far the first step's gradients are from the exact ones. `density` is the share of non-zero elements for
    which sparse encodings get room.

    `exact="strict"` refuses what could only train with other last bits than plain PyTorch's; by default it trains, and
    a warning and the report name the ops and how far they are off. `exact=False` lets sums be added up in another order
    where that is faster or needs less: convolutions, the largest ops in chunks of the batch, or the whole step.
    Gradients then differ in the last bits; the report says where, and by how much if the exact step fits the budget
    too.

    `plan`, one that `vdnn.plan` made or the file it was saved in, is followed instead of making a new one; of another
    model, of other shapes or of another torch it is refused with what differs.

    `compiler="inductor"` has TorchInductor fuse ops into kernels wherever the kernels keep to the plan's bytes; each is
    held to 1e-5 of eager mode, so results are no longer those of eager mode bit for bit.

    `verify_spills=True` adds a checksum to all that goes to disk: a bit that has changed there is an error that names
    the tensor, where it would have been a wrong gradient.

    `verify="first"` holds the first step of every captured program against plain PyTorch on the same inputs and random
    numbers: outputs, gradients, buffers, generators, bit for bit. A difference is an error; where the plain step does
    not fit, the report says what it needs.

    `costs="tried"`, the default with a budget on this machine, runs every distinct op once to learn its workspace and a
    first time; `costs="measured"` runs each until its time is steady. `replan=False` keeps the first plan, which a
    better one otherwise replaces between two steps once the first steps were timed.
    """
    if not callable(model):
        raise InvalidInput(f"virtualize takes an nn.Module or a function, not {type(model).__name__} {model!r}"[:200])
    if not isinstance(model, nn.Module) and model in shared_runtime().sessions:
        model = model.__wrapped__  # type: ignore[attr-defined]  # virtualized before: start again from the plain function
    check_names(options, RunOptions, "virtualize")
    if isinstance(model, DistributedDataParallel):
        return cast(Model, _distributed(model, virtualize(model.module, sample, fullgraph=fullgraph, **options)))
    is_module = isinstance(model, nn.Module)
    virtual: Any = bare_copy(model) if isinstance(model, nn.Module) else _wrap(model)
    run = _replace_call(virtual, Recipe(sample is not None, fullgraph, options), None if is_module else model)
    if isinstance(run, AheadOfTime):
        run.prepare(*check_sample(sample, {}))
    return cast(Model, virtual)


def _distributed(model: DistributedDataParallel, inner: nn.Module) -> DistributedDataParallel:
    """The same wrapper around the virtual module: gradients are reduced as they leave its backward."""
    virtual = cast(DistributedDataParallel, bare_copy(model))
    virtual._modules["module"] = inner
    shared_runtime().sessions[virtual] = session_of(inner)
    return virtual


def _replace_call(virtual: Any, recipe: Recipe, function: Callable[..., Any] | None = None) -> JustInTime | AheadOfTime:
    """What runs from now on when `virtual` is called: a bare module, or the wrapper of a function."""
    plain = plain_call(virtual) if function is None else function
    trained = as_module(virtual if function is None else function)
    session = Session(name_of(virtual), Options(**recipe.options), trained=weakref.ref(trained))
    if recipe.has_sample:
        run: JustInTime | AheadOfTime = AheadOfTime(trained, session, plain, fullgraph=recipe.fullgraph)
    else:
        run = JustInTime(plain, session, (trained,), fullgraph=recipe.fullgraph)
    within: AbstractContextManager[Any] = nullcontext()
    if function is None:
        follow_copies(virtual, _revive, recipe)
        has_its_own = "forward" in virtual.__dict__  # given to this one object by the user
        within = ForwardIsACall(virtual) if session.is_bound and not has_its_own else within
    if session.options.verify is not None:
        first_steps = FirstSteps(session, functools.partial(_plainly, plain, within), trained)
        session.verified = first_steps.sentences
        run_verified = functools.partial(_verified, first_steps, run)
        set_compiled_call(virtual, functools.partial(_call, run_verified, plain, within, session))
    else:
        set_compiled_call(virtual, functools.partial(_call, run, plain, within, session))
    weakref.finalize(run, session.disk_room.end).atexit = False  # not the session: it goes with the model
    if session.part is not None:
        weakref.finalize(run, session.part.member.leave).atexit = False
    shared_runtime().sessions[virtual] = session
    return run


def _verified(first_steps: FirstSteps, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return first_steps.call(run, args, kwargs)


def _plainly(plain: Callable[..., Any], within: AbstractContextManager[Any], *args: Any, **kwargs: Any) -> Any:
    with within:
        return plain(*args, **kwargs)


def _revive(bare: nn.Module, recipe: Recipe) -> nn.Module:
    """A module that was copied or loaded, virtual again. Saved files name this function."""
    _replace_call(bare, recipe)
    return bare


def _call(
    run: Callable[..., Any],
    plain: Callable[..., Any],
    within: AbstractContextManager[Any],
    session: Session,
    *args: Any,
    **kwargs: Any,
) -> Any:
    if torch.compiler.is_dynamo_compiling() and is_within_a_budget():
        return plain(*args, **kwargs)
    with within:
        if not torch.is_grad_enabled():  # there is no backward to keep anything for
            session.make_room_outside_steps()
            return plain(*args, **kwargs)
        if session.is_bound and is_in_function_transform():
            raise Unsupported(
                "a virtualized model with a budget was called inside torch.func (grad, vjp, jvp, vmap): what it"
                " computes there is no training step that was captured, and its budget would not be kept. Call the"
                " plain model there; torch.func.functional_call alone works."
            )
        with session.called():
            return run(*args, **kwargs)


def _wrap(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def virtual(*args: Any, **kwargs: Any) -> Any:
        return compiled_call(virtual)(*args, **kwargs)

    return virtual


def plan(
    model: Callable[..., Any],
    args: Any,
    kwargs: Mapping[str, Any] | None = None,
    **options: Unpack[PlanOptions],
) -> Plan:
    """What one training step of `model` would do on `hardware`, without running or allocating it.

    `model` is a module (the loss is outside: its output's gradient arrives as an input) or a function with the loss
    inside. Of the options of `virtualize` it takes those that shape a plan. Nothing is run unless `costs="tried"` or
    `costs="measured"` asks for it.
    """
    if not callable(model):
        raise InvalidInput(f"plan takes an nn.Module or a function, not {type(model).__name__} {model!r}"[:200])
    check_names(options, PlanOptions, "plan")
    options.setdefault("costs", "roofline")
    return plan_of(model, args, kwargs or {}, Options(**options).on_known_machine())


def report(model: Any) -> Report:
    """What the last steps of a virtualized model did, next to what was planned for them."""
    return session_of(model).report()


def tensor_cache(
    budget: int | str,
    *,
    policy: str = "next-use",
    encode: bool = True,
    over_budget: str = "raise",
    hardware: str | Hardware | None = None,
    **options: Unpack[TierOptions],
) -> TensorCache:
    """A context in which eager training stays within `budget` bytes, with the same gradients.

    For models that cannot be captured: Python control flow, hooks, anything. Make one and enter it around every step,
    forward and backward: it learns from each step. What autograd saves leaves the device only when memory is short:
    `policy="lru"`, the least recently used first; "next-use", what the step before asked for latest. `encode` lets
    storages with many zeros, and booleans, be held in a shorter form of the same bits.

    `verify_spills=True` adds a checksum to all that goes to disk; a bit that has changed there is an error.

    `over_budget="raise"` raises `Infeasible` when what cannot leave exceeds the budget; "warn" warns and goes on.
    `print(cache.report())` says what it did.
    """
    if over_budget not in ("raise", "warn"):
        raise InvalidInput(f"over_budget is 'raise' or 'warn', not {over_budget!r}")
    check_names(options, TierOptions, "tensor_cache")
    known = Options(hardware=hardware, **options)
    known.require_spill_dir()
    where = indexed(torch.accelerator.current_accelerator() or CPU)
    machine = known.machine_of(str(where))
    tiers = [tier.name for tier in machine.tiers[1:]]
    if where != CPU and "host" not in tiers:
        tiers.insert(0, "host")  # what is behind an accelerator's memory, whatever this machine is described as
    asked = AskedTiers.of(machine, known.spill_dir, where, verify_spills=known.verify_spills)
    return TensorCache(
        parse_budget(budget),
        tiers,
        SharedTiers(shared_runtime(), asked),
        policy=policy,
        encode=encode,
        over_budget=over_budget,
        where=where,
    )


def session_of(model: Any) -> Session:
    try:
        return cast(Session, shared_runtime().sessions[model])
    except (KeyError, TypeError):
        raise InvalidInput(
            f"{name_of(model)} is not virtualized: pass the object that vdnn.virtualize returned, not the plain model"
        ) from None
