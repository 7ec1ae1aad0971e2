"""The options that several subcommands share, how their words become values, and the decorator that adds them.

Enters: the fields of `vdnn.options.Options`. Leaves: options of the command line with the fields' texts and defaults.
The one idea: a subcommand's signature annotates for typer what is its own; it takes the shared options as typed keyword
arguments, and names them in `@takes`, which shows typer one signature of both. What cannot be read raises before
anything heavy starts, with the value in the message.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Annotated, Any, TypedDict, get_args, get_origin, get_type_hints

import typer

from vdnn.cli.answer import Answer
from vdnn.codecs import LOSSY_FORMATS
from vdnn.options import COSTS, Options
from vdnn.plan.model.budget import parse_share
from vdnn.plan.model.optimizer_state import OPTIMIZERS
from vdnn.units import parse_budget

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


def amount(words: str) -> str:
    """An amount of memory; it stays as it was said."""
    try:
        parse_budget(words)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return words


def budget(words: str) -> str:
    """An amount of memory, or a share of what keeping everything takes; it stays as it was said."""
    try:
        if parse_share(words) is None:
            parse_budget(words, or_share=True)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return words


def one_of(names: Iterable[str]) -> Callable[[str], str]:
    """A reader of one of these names."""

    def name(words: str) -> str:
        if words not in names:
            raise typer.BadParameter(f"{words!r} is none of {', '.join(names)}.")
        return words

    return name


ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help="A name from `vdnn models`, or package.module:factory.")
]
BatchSize = Annotated[
    int, typer.Option("--batch", "-b", metavar="N", parser=positive, help="Samples in one training step.")
]
ImageSize = Annotated[
    int | None, typer.Option(metavar="PIXELS", parser=positive, help="Side of the square images, if not the usual.")
]
ChannelsLast = Annotated[
    bool, typer.Option("--channels-last", help="Lay images out as NHWC, where a CPU needs no workspace.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

PLANNING = ("budget", "hardware", "strategy", "lossy", "exact", "optimizer", "costs")
IMAGES = ("image_size", "channels_last")


class ImageOptions(TypedDict):
    """What a subcommand takes as `images` where `@takes` names `*IMAGES`."""

    image_size: int | None
    channels_last: bool


READERS: dict[str, Callable[[str], Any]] = {
    "budget": budget,
    "optimizer": one_of(OPTIMIZERS),
    "lossy": one_of(LOSSY_FORMATS),
    "costs": one_of(COSTS),
    "disk_budget": amount,
}
"""How the words of a field become its value; the others stay as they were said."""


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _offered() -> dict[str, inspect.Parameter]:
    """Every shared option as typer reads it. A switch is off unless it is given, whatever its field's default."""
    offered = [_parameter("image_size", ImageSize, None), _parameter("channels_last", ChannelsLast, False)]
    kinds = get_type_hints(Options)
    for field in fields(Options):
        text, metavar, switch = (field.metadata[key] for key in ("text", "metavar", "switch"))
        if switch:
            offered.append(_parameter(field.name, Annotated[bool, typer.Option(switch, help=text)], False))
        elif metavar:
            takes_text = str in (kinds[field.name], *get_args(kinds[field.name]))
            assert takes_text or field.name in READERS, f"{field.name} is no text: READERS says how its words are read"
            option = typer.Option(metavar=metavar, parser=READERS.get(field.name), help=text)
            offered.append(_parameter(field.name, Annotated[str | None, option], field.default))
    return {parameter.name: parameter for parameter in offered}


OFFERED = _offered()
SWITCHED_OFF = {field.name for field in fields(Options) if field.metadata["switch"] and field.default}


def takes(*names: str, after: str, **defaults: Any) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """The subcommand also has the shared options of these `names`, which its help shows behind the one called `after`.
    `defaults` replace those of the fields."""
    added = [OFFERED[name].replace(default=defaults.get(name, OFFERED[name].default)) for name in names]

    def with_options(command: Callable[..., Answer]) -> Callable[..., Answer]:
        def run(**given: Any) -> Answer:
            given |= {name: not given[name] for name in SWITCHED_OFF.intersection(names)}
            if IMAGES[0] in names:
                given["images"] = {name: given.pop(name) for name in IMAGES}
            return command(**given)

        own = _shown(command)
        place = 1 + [parameter.name for parameter in own].index(after)
        return _shown_as(run, command, [*own[:place], *added, *own[place:]])

    return with_options


def with_output_options(command: Callable[..., Answer]) -> Callable[..., Answer]:
    """The subcommand ends in `--json` and `--debug`. `main` follows both; a command that shows progress takes
    `as_json` too, to leave it out."""
    shows_progress = "as_json" in inspect.signature(inspect.unwrap(command)).parameters

    def run(as_json: bool, debug: bool, **given: Any) -> Answer:
        return command(**given, as_json=as_json) if shows_progress else command(**given)

    return _shown_as(
        run, command, [*_shown(command), _parameter("as_json", AsJson, False), _parameter("debug", Debug, False)]
    )


def _shown(command: Callable[..., Answer]) -> list[inspect.Parameter]:
    """The parameters that typer reads; the others are handed over by a decorator."""
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    return [parameter for parameter in parameters if get_origin(parameter.annotation) is Annotated]


def _shown_as(
    run: Callable[..., Answer], command: Callable[..., Answer], parameters: Iterable[inspect.Parameter]
) -> Callable[..., Answer]:
    """`run` with the name and the help of `command`, and these parameters."""
    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    run.__annotations__ = {}  # they are in the signature
    run.__wrapped__, run.__signature__ = command, inspect.Signature(keywords)  # type: ignore[attr-defined]
    return run
