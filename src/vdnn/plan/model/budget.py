"""A budget as people say it, as bytes.

Enters: 12884901888, "12GiB", "45%" or None, and the peak of a step that keeps everything. Leaves: bytes, or None for no
bound; 12 alone is asked back (`units.py`). A share is one of the keep-all peak of tensors, so "45%" means the same for
every model; what the interpreter holds for the step comes on top of a share, and is inside bytes that were named. A
model that has had more at another shape has that again: the process holds it, and a smaller last batch is no reason to
refuse. More than "100%" is allowed and bounds nothing that keep-all would not meet.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from vdnn.errors import InvalidInput
from vdnn.units import format_nbytes, parse_budget

_SHARE = re.compile(r"\s*(?P<number>\d+(?:\.\d*)?|\.\d+)\s*%\s*")


@dataclass(frozen=True, slots=True)
class Asked:
    """A budget as it was said, for who has to say something about it: a share, or nothing but bytes. `nbytes` is all of
    it, what the interpreter holds included."""

    nbytes: int
    share: Fraction | None = None

    def __str__(self) -> str:
        nbytes = format_nbytes(self.nbytes)
        return nbytes if self.share is None else f"{float(100 * self.share):g}% ({nbytes})"


def resolve_budget(
    budget: int | str | None, keep_all_peak_nbytes: int, interpreter_nbytes: int = 0, granted_nbytes: int = 0
) -> int | None:
    """Bytes that the peak must stay within; a share is rounded down to whole bytes. `granted_nbytes`: the most that a
    share was at other shapes of the model, for tensors."""
    if budget is None:
        return None
    share = parse_share(budget)
    if share is None:
        return parse_budget(budget, or_share=True)
    return max(int(share * keep_all_peak_nbytes), granted_nbytes) + interpreter_nbytes


def parse_share(budget: int | str | None) -> Fraction | None:
    """`"45%"` as 9/20; None for what is no share at all; InvalidInput for a share that cannot be meant."""
    if not isinstance(budget, str) or "%" not in budget:
        return None
    match = _SHARE.fullmatch(budget)
    if match is None:
        raise InvalidInput(
            f"cannot read {budget!r} as a share of the keep-all peak: write a positive number and a percent sign, as in"
            " '45%' or '62.5%', or an amount such as '12GiB'."
        )
    share = Fraction(match["number"]) / 100
    if share == 0:
        raise InvalidInput(f"a budget of {budget!r} leaves no byte to train in: write a share above 0%, as in '45%'.")
    return share


def least_share(nbytes: int, keep_all_peak_nbytes: int) -> str:
    """The smallest share, in tenths of a per cent, that is enough for so many bytes: `"41.8%"`, as a budget is said."""
    tenths = -(-1000 * nbytes // max(keep_all_peak_nbytes, 1))
    return f"{tenths // 10}.{tenths % 10}%" if tenths % 10 else f"{tenths // 10}%"
