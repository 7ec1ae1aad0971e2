"""The subcommands under one name, and `main`, which prints their answers and turns what goes wrong into one clear line.

torch is imported inside the subcommands only, so that `vdnn --help` answers at once.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from typing import Any

import typer
from rich.text import Text

from vdnn.cli.answer import Answer
from vdnn.cli.arguments import with_output_options
from vdnn.cli.compare import compare
from vdnn.cli.doctor import doctor
from vdnn.cli.explain import explain
from vdnn.cli.failures import INTERRUPTED, explain_failure
from vdnn.cli.fit import fit
from vdnn.cli.inspect import inspect
from vdnn.cli.models import models
from vdnn.cli.plan import plan
from vdnn.cli.reproduce import reproduce
from vdnn.cli.train import train
from vdnn.printable import printable_lines
from vdnn.report.text import console

app = typer.Typer(
    name="vdnn",
    help="Virtual memory for neural-network training: see where the bytes go, and train within fewer.",
    epilog="MODEL is a name from [bold]vdnn models[/] or your own [bold]package.module:factory[/].",
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _add(command: Callable[..., Answer], *examples: str) -> None:
    """A subcommand whose help ends in commands that work when pasted."""
    app.command(epilog="\n\n".join(("Examples:", *(f"  {example}" for example in examples))))(
        with_output_options(command)
    )


_add(models, "vdnn models", "vdnn models --json")
_add(inspect, "vdnn inspect vgg16 --batch 256", "vdnn inspect resnet50 --batch 64 --hardware v100 --optimizer adam")
_add(
    plan,
    "vdnn plan vgg16 --batch 256 --budget 12GiB --hardware titan-x",
    "vdnn plan resnet50 --batch 8 --budget 60% --save resnet50.json",
)
_add(
    explain,
    "vdnn explain vgg16 --batch 64 --budget 75% --hardware titan-x",
    "vdnn explain alexnet --batch 256 --strategy gist --hardware titan-x --all",
)
_add(
    compare,
    "vdnn compare vgg16 --batch 128 --hardware titan-x",
    "vdnn compare resnet50 --batch 64 --budget 8GiB --hardware v100 --json",
)
_add(
    fit,
    "vdnn fit vgg16 --budget 12GiB --hardware titan-x",
    "vdnn fit resnet-6-32-1-6 --depth --batch 16 --budget 12GiB --hardware k40c",
)
_add(
    train,
    "vdnn train resnet50 --batch 4 --steps 3 --verify",
    "vdnn train alexnet --batch 16 --steps 3 --optimizer adam --lr 1e-4 --json",
)
_add(reproduce, "vdnn reproduce vdnn --quick", "vdnn reproduce superneurons gist --json")
_add(doctor, "vdnn doctor", "vdnn doctor --quick --json")


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = (sys.argv[1:] if argv is None else argv) or ["--help"]
    as_json = "--json" in arguments
    try:
        return _show(_run(arguments, as_json), as_json)
    except (Exception, KeyboardInterrupt) as error:
        if "--debug" in arguments:
            traceback.print_exc()
        message, exit_code = explain_failure(error)
        _show_error(message, as_json)
        return exit_code


def _run(arguments: list[str], as_json: bool) -> Any:
    """What the subcommand returns. With --json, whatever a model or a library prints goes to stderr."""
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        answer = app(args=arguments, prog_name="vdnn", standalone_mode=False)
    if answer == INTERRUPTED:  # typer swallows the exception and hands over the code
        raise KeyboardInterrupt
    return answer


def _show(answer: Any, as_json: bool) -> int:
    """Print an answer. Help has printed itself and leaves an exit code or nothing."""
    if not isinstance(answer, Answer):
        return int(answer or 0)
    if as_json:
        print(json.dumps(answer.record, indent=2))
    else:
        terminal = console()
        terminal.print(answer.view(terminal.width))
    return answer.exit_code


def _show_error(message: str, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"error": message}, indent=2))
    else:
        words = Text.assemble(("error:", "bold red"), " ", printable_lines(message))
        console(stderr=True, soft_wrap=True).print(words)
