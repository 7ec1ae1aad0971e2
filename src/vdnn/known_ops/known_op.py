"""What can be known of an op: the fields of one entry of the table.

Enters: nothing. Leaves: `KnownOp`, and the small types its fields are made of. The one idea: whoever needs to know
something of an op by name reads a field here, and an op that is not in the table has the defaults, each of which is
safe: nothing is overwritten, nothing runs in chunks, all values are needed.

An entry is about every overload of its op unless a field names overloads. In place (`relu_`), an op is the same op: who
asks for a name takes the underscore away first, where that is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any

from vdnn.ir import Detail, Need, Trait

Arguments = Mapping[str, Any]
"""Of one call, by the names in the op's schema, defaults filled in."""

Needs = Mapping[str, Need]
"""By name of the argument. Arguments that are not listed: all values."""

Details = Mapping[str, Detail]
"""By name of the argument: what exactly a partial need asks for."""


@dataclass(frozen=True, slots=True)
class OutForm:
    """The overload that writes its result into an argument, and what that is called."""

    overload: str
    argument: str = "out"


@dataclass(frozen=True, slots=True)
class WithoutUpdates:
    """The overload that leaves its inputs alone, and the arguments that it does without."""

    overload: str
    left_out: frozenset[str]


@dataclass(frozen=True, slots=True)
class FromBits:
    """A backward from one bit per element of `self`: `grad_output * on` where it is set, elsewhere `grad_output * off`,
    or zero if `zero_off`; into `grad_input`, if the call has one. The op's arguments are called so. `off` may be the
    name of another one, and stands for its value."""

    on: float = 1.0
    off: float | str = 0.0
    zero_off: bool = True


@dataclass(frozen=True, slots=True)
class FromFactorBits:
    """A product from the bits of a factor that is 0 or one other number."""


@dataclass(frozen=True, slots=True)
class FromWindowIndices:
    """A max-pool's backward from the places within windows that its `indices` are."""


class KernelStorage(Enum):
    """How large a storage a kernel leaves its result in, where that is more than the result shows."""

    OF_ELEMENTS = "one element for each that it reads"  # made so, and then shrunk to the result's shape
    OF_WHOLE = "as large as the storage of its first argument"  # which is copied whole, whatever part is shown


class Linear(Enum):
    """How a result is linear in arguments that depend on one tangent. An op without it is not known to be linear."""

    IN_ITS_TENSOR = "linear in its one tensor"
    PRODUCT = "as long as only one factor depends on the tangent"
    ADDED_PRODUCT = "a product, and what is added to it"
    QUOTIENT = "in what is divided, as long as nothing rounds"
    SUM = "if every term depends on the tangent or is zero"
    JOIN = "if every part depends on the tangent or is zero"
    CHOICE = "if both branches depend on the tangent or are zero"
    MASKED = "if what is filled in is zero"
    PADDED = "if the padding is zero"
    CONVOLUTION = "a product without a bias"
    CONSTANT = "takes only the shape: depends on nothing"


@dataclass(frozen=True, slots=True)
class LinearIfPut:
    """Linear if what is put there depends on the tangent, and what it is put into does or is zero. `position` is that
    of the former; the latter comes first."""

    position: int


class Fill(Enum):
    """What a new tensor holds."""

    NOTHING = "nothing"  # of those that dropout's noise is drawn into
    ZEROS = "zeros"
    A_NUMBER = "a number"  # its `fill_value`, or `s`


class Zeros(Enum):
    """Where a result has zeros."""

    MADE = "in every other element or so"
    WHERE_ALL_HAVE = "where all that it reads have"
    WHERE_ANY_HAS = "where a factor has"


class LayerKind(StrEnum):
    """Of which of the papers' layers an op is the forward."""

    CONV = "convolution"
    POOL = "pooling"
    OTHER = "other"


class Checkpoint(Enum):
    """Whether a result is worth keeping where cheap ones are recomputed (SuperNeurons, PPoPP 2018, section 3.4)."""

    ALWAYS = "always"
    OF_TWO_MAPS = "of two maps"  # a join; adding a bias is none


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownOp:
    """One op. `name` is that of aten, without overload: `max_pool2d_with_indices_backward`."""

    name: str = field(kw_only=False)

    # What it takes and what it does

    traits: frozenset[Trait] = frozenset()
    """Traits that its schema does not tell."""
    needs: Needs | Callable[[Arguments], Needs] = field(default_factory=dict)
    """What it takes of its arguments, or a function that says so of a call."""
    details: Callable[[Arguments], Details] | None = None
    """What exactly the partial needs of a call ask for. None: whether a boolean is set."""
    window_dims: int = 0
    """Of a max-pool's backward: over how many dims the window reaches in which its `indices` are places."""
    encoded: FromBits | FromFactorBits | FromWindowIndices | None = None
    """The form of it that reads an argument encoded, without decoding it. `runtime/encoded_ops.py` computes it."""
    without_updates: Mapping[str, WithoutUpdates] = field(default_factory=dict)
    """By overload that updates inputs on the way: the form that does not. Its results are the same bit for bit."""

    # Over what it may write: `capture/ops/in_place_forms.py` says why no bit changes

    in_place: Mapping[str, str] = field(default_factory=dict)
    """By overload that may write over its first argument: the overload of the op with a trailing underscore."""
    out: Mapping[str, OutForm] = field(default_factory=dict)
    """By overload that may write over any argument: its form with an output argument."""
    row_by_row: bool = False
    """Its out-form is exact on the CPU and on contiguous results only: Note [Rows are read before they are written]."""
    replaces: str = ""
    """It replaces a part of its first argument; this view shows that part, as `select.int`."""
    over_second: bool = False
    """It has the values of its second argument and the layout of its first: where they agree, it is the second."""

    # How it is traced: `capture/eager_kernels.py`, `capture/ops/kernel_storages.py`

    traced_in_cpp: bool = False
    """Tracers prefer its Python version, whose bits are not those of the C++ version that eager mode runs."""
    kernel_storage: KernelStorage | None = None
    """The storage of its result, where the stand-in that traces it has a smaller one."""
    inexact_because: str = ""
    """Why no trace of it can be exact."""
    draws: bool = False
    """It draws random numbers, so that no pass may remove it: those drawn after it would be others."""

    # How its training step may be written another way: `compile/forms`, `compile/inductor`

    chunks: str = ""
    """The rule, by its function's name in `compile/forms/rules_of_*.py`, by which it runs on a part of the batch.
    Empty: it runs whole, unless PyTorch calls it pointwise."""
    linear: Linear | LinearIfPut | None = None
    """How it is linear in the gradient that arrives."""
    fill: Fill | None = None
    """What the new tensor that it makes holds."""
    inductor_fuses: bool | None = None
    """Whether Inductor writes it out as a loop. None: if PyTorch tags it pointwise or reduction."""

    # What planning and measuring expect of it

    layer: LayerKind = LayerKind.OTHER
    checkpoint: Checkpoint | None = None
    zeros: Zeros | None = None
    in_loss: bool = False
    """What it computes is no map but part of a loss: gradients begin there, and rounding it would spoil all of them."""
    divides: bool = False
    """It divides by its second argument, which must not be zero when it is made up to measure the op."""


def alike(names: str, **fields: Any) -> tuple[KnownOp, ...]:
    """Several ops of which the same is known."""
    return tuple(KnownOp(name, **fields) for name in names.split())


def same(*overloads: str) -> dict[str, str]:
    """In place under the overload that it has otherwise."""
    return {overload: overload for overload in overloads}


IN_PLACE = same("default")
OUT = {"default": OutForm("out")}
GRAD_INPUT = {"default": OutForm("grad_input", "grad_input")}
SHAPE_OF_SELF: Needs = {"self": Need.SHAPE}
