"""What goes wrong, each with the words that help: what was asked, what was found, the numbers, the way out.

User mistakes are kin of ValueError so that ordinary code catches them; every class also descends from `VdnnError`,
which the command line turns into one line on the terminal. Bugs of our own are `assert`s, not classes here. What a
message quotes may come from anywhere, so none shows a character that people do not see (`printable.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from vdnn.printable import printable_lines


class VdnnError(Exception):
    """The root of everything vdnn raises on purpose."""

    def __str__(self) -> str:
        return printable_lines(super().__str__())


class InvalidInput(VdnnError, ValueError):
    """Something the user passed cannot be used: an unknown model, a batch of -1, a sample that is not a tensor."""


class InvalidFile(InvalidInput):
    """A file that was passed is not what it should be: too large, too deep, not JSON, another schema, or a field that
    holds something else. `field` is the place in it, as in `graph.ops.rows[3][0]`; empty for the file as a whole."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(InvalidFile, field=self.field), self.args


class CaptureFailed(VdnnError, RuntimeError):
    """The model could not be turned into one graph. The message names the line that stops it."""


class Unsupported(VdnnError, RuntimeError):
    """PyTorch can do this and vdnn cannot do it exactly; refusing is better than a silently different gradient."""


class InexactTrace(Unsupported):
    """The model uses an op whose traced form has other last bits than its eager form, or none that can be planned."""


class OtherLastBits(UserWarning):
    """A model trains whose trace has other last bits than eager mode, because nothing of it would train otherwise.
    Names the ops, and how far the first step's gradients are off."""


class LostHandle(VdnnError, RuntimeError):
    """The backward pass came with a handle whose step is gone, so what was stashed for it is gone too."""


class StepDiffers(VdnnError, RuntimeError):
    """A first step that was to be verified is not that of plain PyTorch. Names each tensor, and how far it is off."""


class EncodingTooLarge(VdnnError, RuntimeError):
    """A map was denser than its encoding had been planned for, and nothing else could hold it."""


class BudgetExceeded(UserWarning):
    """A watched step took more than its budget. Says by how much, where, and what was larger than planned."""


class TierFull(VdnnError, MemoryError):
    """A slower tier has no room for what the plan sends there. Names the tier, what was asked, what is used, and the
    bound."""


class TierFailed(VdnnError, OSError):
    """Reading from or writing to a slower tier failed. Names the tier, the bytes and the system's own words."""


class DeviceLost(VdnnError, RuntimeError):
    """The accelerator answers no call of this process any more: it was reset, or has failed. Names the step and the
    device, with the device's own words."""


class Infeasible(VdnnError, ValueError):
    """No plan fits the budget. Carries the smallest budget that works, and in `way_out` what else would help, for who
    says it again with more in the account."""

    def __init__(self, message: str, *, minimum_nbytes: int, way_out: str = "") -> None:
        super().__init__(message)
        self.minimum_nbytes, self.way_out = minimum_nbytes, way_out

    def __reduce__(self) -> tuple[Any, ...]:  # it crosses to other processes, whole
        return partial(Infeasible, minimum_nbytes=self.minimum_nbytes, way_out=self.way_out), self.args


class InvalidPlan(VdnnError, ValueError):
    """A plan that breaks its own rules. Lists every violation, not only the first."""

    def __init__(self, violations: Sequence[str]) -> None:
        self.violations = tuple(violations)
        lines = "\n".join(f"    {violation}" for violation in self.violations)
        super().__init__(f"the plan breaks {len(self.violations)} rule(s):\n{lines}")

    def __reduce__(self) -> tuple[Any, ...]:
        return InvalidPlan, (self.violations,)


class ForeignPlan(VdnnError, ValueError):
    """A saved plan does not belong here: other model, other shapes, other machine, other torch."""
