"""The options that several subcommands share, and how their words become values.

What cannot be read raises before anything heavy starts, with the value in the message.
"""

from __future__ import annotations

from typing import Annotated

import typer

from vdnn.codecs import LOSSY_FORMATS
from vdnn.plan.model.budget import parse_share
from vdnn.plan.model.optimizer_state import OPTIMIZERS as STATE_OF
from vdnn.units import parse_nbytes

OPTIMIZERS = tuple(name for name in STATE_OF if name != "none")
COSTS = ("roofline", "measured")
LARGEST_INT64 = 2**63 - 1


# A parser also sees the default of its option, which is a value already: hence `str(words)`.


def whole(words: str) -> int:
    """A whole number that torch can hold."""
    try:
        number = int(str(words))
    except ValueError as error:
        raise typer.BadParameter(f"{words!r} is not a whole number.") from error
    if abs(number) > LARGEST_INT64:
        raise typer.BadParameter(f"{words!r} does not fit into 64 bits.")
    return number


def positive(words: str) -> int:
    """A whole number of at least 1."""
    number = whole(words)
    if number < 1:
        raise typer.BadParameter(f"{words!r} is not a positive whole number.")
    return number


def rate(words: str) -> float:
    """A finite number above nothing."""
    try:
        number = float(words)
    except ValueError as error:
        raise typer.BadParameter(f"{words!r} is not a number.") from error
    if not 0 < number < float("inf"):
        raise typer.BadParameter(f"{words!r} is not a positive, finite number.")
    return number


def amount(words: str) -> int:
    """An amount of memory in bytes."""
    try:
        return parse_nbytes(words)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def budget(words: str) -> str:
    """An amount of memory, or a share of what keeping everything takes; it stays as it was said."""
    try:
        if parse_share(words) is None:
            parse_nbytes(words)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return words


def optimizer_name(words: str) -> str:
    if words not in OPTIMIZERS:
        raise typer.BadParameter(f"{words!r} is none of {', '.join(OPTIMIZERS)}.")
    return words


def lossy_format(words: str) -> str:
    if words not in LOSSY_FORMATS:
        raise typer.BadParameter(f"{words!r} is none of {', '.join(LOSSY_FORMATS)}.")
    return words


def costs_source(words: str) -> str:
    if words not in COSTS:
        raise typer.BadParameter(f"{words!r} is none of {', '.join(COSTS)}.")
    return words


Model = Annotated[str, typer.Argument(metavar="MODEL", help="A name from `vdnn models`, or package.module:factory.")]
Batch = Annotated[
    int, typer.Option("--batch", "-b", metavar="N", parser=positive, help="Samples in one training step.")
]
ImageSize = Annotated[
    int | None, typer.Option(metavar="PIXELS", parser=positive, help="Side of the square images, if not the usual.")
]
ChannelsLast = Annotated[
    bool, typer.Option("--channels-last", help="Lay images out as NHWC, where a CPU needs no workspace.")
]
Budget = Annotated[
    str | None,
    typer.Option(
        metavar="BYTES",
        parser=budget,
        help="What the peak must stay within, as in 12GiB, or 45% of what keeping everything takes. Default: no bound.",
    ),
]
Strategy = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Who decides: auto, offload, recompute-cost, superneurons, gist, keep-all and more; `vdnn compare` shows"
        " all. Default: auto with a budget, else keep-all (gist with --lossy).",
    ),
]
Lossy = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT",
        parser=lossy_format,
        help="Round feature maps between forward and backward: fp16, bf16, fp10 or fp8. Default: every bit is kept.",
    ),
]
Inexact = Annotated[
    bool,
    typer.Option(
        "--inexact",
        help="Let sums be added in another order where that is faster or smaller: in convolutions, or with the largest"
        " ops or the whole step in chunks of the batch. Gradients differ in the last bits.",
    ),
]
DiskBudget = Annotated[
    int | None,
    typer.Option(metavar="BYTES", parser=amount, help="Disk that feature maps may take. Default: all."),
]
SpillDir = Annotated[str | None, typer.Option(metavar="DIR", help="Where feature maps go on disk.")]
Device = Annotated[
    str | None, typer.Option(metavar="NAME", help="A hardware preset such as titan-x or a100. Default: this machine.")
]
StateOf = Annotated[
    str | None,
    typer.Option(
        "--optimizer", metavar="NAME", parser=optimizer_name, help=f"Count its state: {', '.join(OPTIMIZERS)}."
    ),
]
Costs = Annotated[
    str | None,
    typer.Option(
        metavar="HOW",
        parser=costs_source,
        help="How ops' times and workspaces are known: roofline, or measured on this machine. Where no default is"
        " shown: measured for a budget on this machine, else roofline.",
    ),
]
PlanFile = Annotated[str | None, typer.Option(metavar="FILE", help="Follow this saved plan instead of making one.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
