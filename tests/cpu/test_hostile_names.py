"""Names of modules and tensors may hold anything; what vdnn shows of them holds only what people see, and no markup."""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from equivalence import train, virtualize
from torch import nn

import vdnn
from vdnn.cli.app import main
from vdnn.errors import Infeasible, InvalidInput
from vdnn.plan import listing
from vdnn.printable import printable, printable_lines
from vdnn.report.memory_profile import profile_memory
from vdnn.report.text import as_text, profile_view

MARKUP = "[bold red]layer[/]:smile:"
ESCAPES = "\x1b[2J\x1b]0;title\x07"
MARKS = "\u202eevil\u2066\u200b\ud800"
NAME = f"{MARKUP}{ESCAPES}{MARKS}\nno 'auto' plan fits"
SHOWN = MARKUP + r"\x1b[2J\x1b]0;title\x07\u202eevil\u2066\u200b\ud800\nno 'auto' plan fits"


def hostile() -> nn.Module:
    torch.manual_seed(0)
    named = type(f"Net{ESCAPES}", (nn.Sequential,), {})()
    for number in range(3):
        named.add_module(f"{NAME}{number}", nn.Linear(16, 16))
        named.add_module(f"tanh{number}", nn.Tanh())
    return named


def shown(*texts: str) -> Iterator[str]:
    """Each of the texts, which has no character that people do not see."""
    for text in texts:
        assert text.replace("\n", "").isprintable(), repr(text)
        yield text


def test_what_is_shown_of_a_name_is_what_people_see() -> None:
    assert printable(NAME) == SHOWN
    assert printable(SHOWN) == SHOWN  # once is enough
    assert printable("größe.0 – 層") == "größe.0 – 層"
    assert printable_lines("one\n\ttwo") == "one\n\\ttwo"


def test_an_error_shows_no_escape_whatever_it_quotes() -> None:
    assert str(InvalidInput(f"no model {ESCAPES}\nsecond line")) == "no model \\x1b[2J\\x1b]0;title\\x07\nsecond line"


def test_a_model_with_hostile_names_trains_and_is_shown_harmlessly(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, batch = hostile(), (torch.randn(64, 16),)

    def step(x: torch.Tensor) -> torch.Tensor:
        return model(x).square().mean()

    with caplog.at_level(logging.INFO, logger="vdnn"):
        virtual = virtualize(model, batch)
        train(lambda x: virtual(x).square().mean(), model, batch, steps=1)
        plan = vdnn.plan(step, batch, hardware="titan-x", strategy="offload")
        with pytest.raises(Infeasible) as refusal:
            vdnn.plan(step, batch, hardware="titan-x", budget="1KiB")
    profile = as_text(profile_view(profile_memory(plan, top=30), 200), 200)
    texts = (str(vdnn.report(virtual)), str(plan), listing(plan), profile, str(refusal.value), caplog.text)
    found = list(shown(*texts))
    assert all(MARKUP in text for text in (found[2], found[3], found[4]))
    assert main(["explain", str(plan.save(tmp_path / "plan.json")), "--all"]) == 0
    [told] = shown(capsys.readouterr().out)
    assert MARKUP in told.replace("\n", "").replace(" ", "") or "[bold red]layer[/]" in told


def test_an_error_of_the_command_line_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", f"[bold]no{ESCAPES}model[/]", "--batch", "1"]) != 0
    [told] = shown(capsys.readouterr().err)
    assert "[bold]no" in told


def test_there_is_one_kind_of_console() -> None:
    """`report/text.py` makes it, without markup."""
    package = Path(vdnn.__file__).parent
    makers = {
        source.relative_to(package).as_posix()
        for source in package.rglob("*.py")
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Console"
    }
    assert makers == {"report/text.py"}
