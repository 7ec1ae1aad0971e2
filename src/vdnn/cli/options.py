"""The options that several subcommands share, and how their words become values.

What cannot be read raises before anything heavy starts, with the value in the message.
"""

from __future__ import annotations

from typing import Annotated

import typer

from vdnn.units import parse_nbytes

OPTIMIZERS = ("sgd", "momentum", "adam")
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


def optimizer_name(words: str) -> str:
    if words not in OPTIMIZERS:
        raise typer.BadParameter(f"{words!r} is none of {', '.join(OPTIMIZERS)}.")
    return words


Model = Annotated[str, typer.Argument(metavar="MODEL", help="A name from `vdnn models`, or package.module:factory.")]
Batch = Annotated[
    int, typer.Option("--batch", "-b", metavar="N", parser=positive, help="Samples in one training step.")
]
ImageSize = Annotated[
    int | None, typer.Option(metavar="PIXELS", parser=positive, help="Side of the square images, if not the usual.")
]
Budget = Annotated[
    int | None,
    typer.Option(
        metavar="BYTES", parser=amount, help="What the peak must stay within, as in 12GiB. Default: no bound."
    ),
]
Strategy = Annotated[str, typer.Option(metavar="NAME", help="Who decides what stays, moves and is redone.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
