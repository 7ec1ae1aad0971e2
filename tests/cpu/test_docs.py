"""What the documentation says works: its code runs, its output is what comes out, its commands parse, its links and
paths lead somewhere.

A ```text block right after a ```python block is that block's output. Times and the process's bytes differ from run
to run, so a report's lines with those are left out of the comparison.
"""

from __future__ import annotations

import io
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from vdnn.cli.app import app, main

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")])
PACKAGE = ROOT / "src" / "vdnn"
PATH_ROOTS = (ROOT, PACKAGE)  # the tour says `capture/tidy/passes.py` for short

_FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]\n]*\]\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"`(?P<code>[^`\n]+)`")
_PATH = re.compile(
    r"[.\w-]+(/[\w.*-]+)*(/|\.(py|md|toml|txt|yaml|c|cpp|h))|(src|tests|docs|examples|benchmarks)(/[\w.*-]+)*"
)
_MEASURED = re.compile(
    r"^(step time,|peak of the process|when the model was virtualized|rise|arena of|outside of it|page faults)"
)  # of a report; a plan's time on a preset is the same everywhere


@dataclass(frozen=True)
class Block:
    """A fenced block. `line` is that of its first line of text; `follows` is what stands between it and the one
    before."""

    language: str
    text: str
    line: int
    follows: str


def blocks(document: Path) -> list[Block]:
    words = document.read_text()
    found, end = [], 0
    for fence in _FENCE.finditer(words):
        line = words.count("\n", 0, fence.start("text")) + 1
        found.append(Block(fence["language"], fence["text"], line, words[end : fence.start()]))
        end = fence.end()
    return found


def prose(document: Path) -> str:
    return _FENCE.sub("", document.read_text())


def relative(document: Path) -> str:
    return str(document.relative_to(ROOT))


WITH_PYTHON = [document for document in DOCUMENTS if any(block.language == "python" for block in blocks(document))]


@pytest.fixture(autouse=True)
def measurements_of_its_own(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """This machine is measured once for all documents, and nothing is left in the user's cache or in the checkout."""
    monkeypatch.setenv("VDNN_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "vdnn-cache"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("document", WITH_PYTHON, ids=relative)
def test_the_python_of_a_document_runs_and_prints_what_the_document_shows(
    document: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("document_under_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # Dynamo looks a function's globals up by module name
    printed: str | None = None
    for block in blocks(document):
        if block.language == "python":
            printed = run(block, document, vars(module))
        elif block.language == "text" and printed is not None and not block.follows.strip():
            assert without_times(printed) == without_times(block.text), f"{relative(document)}:{block.line}"
            printed = None
        else:
            printed = None


def run(block: Block, document: Path, namespace: dict[str, Any]) -> str:
    if 'backend="vdnn"' in block.text:
        found = entry_points(group="torch_dynamo_backends", name="vdnn")
        assert found, "torch.compile finds vdnn only where it is installed: run `make setup` first"
    # Blank lines in front: a traceback then shows the document's own line numbers.
    code = compile("\n" * (block.line - 1) + block.text, relative(document), "exec")
    with redirect_stdout(io.StringIO()) as printed:
        exec(code, namespace)
    return printed.getvalue()


def without_times(text: str) -> list[str]:
    """Lines without measured times, the blanks of each made one: columns are as wide as their widest number."""
    lines = (" ".join(line.split()).strip("─ ") for line in text.splitlines())
    return [line for line in lines if line and not _MEASURED.match(line)]


def commands() -> Iterator[tuple[str, str]]:
    """(document, command) for every line of every console block."""
    for document in DOCUMENTS:
        for block in blocks(document):
            if block.language in ("console", "bash", "sh"):
                for line in block.text.splitlines():
                    if line.startswith("$ ") or block.language != "console":
                        yield relative(document), line.removeprefix("$ ")


COMMANDS = list(commands())


@pytest.mark.parametrize("command", sorted({line for _, line in COMMANDS if line.startswith("vdnn ")}))
def test_a_vdnn_command_of_the_documentation_parses(command: str) -> None:
    _, name, *arguments = shlex.split(command, comments=True)
    group: Any = typer.main.get_command(app)
    assert name in group.commands, f"there is no `vdnn {name}`"
    context = group.commands[name].make_context(name, arguments)
    assert context.params


def test_the_models_command_of_the_readme_lists_the_models_the_readme_uses(capsys: pytest.CaptureFixture[str]) -> None:
    used = {words[2] for _, line in COMMANDS if (words := line.split())[:1] == ["vdnn"] and words[1] in TAKE_A_MODEL}
    assert main(["models"]) == 0
    listed = capsys.readouterr().out
    assert used
    assert all(model in listed for model in used)


TAKE_A_MODEL = ("inspect", "train")


@pytest.mark.parametrize("command", sorted({line for _, line in COMMANDS if line.startswith("make ")}))
def test_a_make_target_of_the_documentation_exists(command: str) -> None:
    target = shlex.split(command, comments=True)[1]
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_readme_shows_both_commands_a_newcomer_needs() -> None:
    first_screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:40])
    assert "make demo" in first_screen
    assert "make test" in first_screen


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_the_links_of_a_document_lead_somewhere(document: Path) -> None:
    targets = (link["target"].partition("#")[0] for link in _LINK.finditer(prose(document)))
    local = [target for target in targets if target and not target.startswith(("http://", "https://"))]
    assert [target for target in local if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_the_paths_a_document_names_exist(document: Path) -> None:
    named = {code["code"] for code in _CODE.finditer(prose(document)) if _PATH.fullmatch(code["code"])}
    assert sorted(path for path in named if not exists(path)) == []


@pytest.mark.parametrize("folder", sorted(path for path in PACKAGE.iterdir() if path.is_dir()), ids=lambda f: f.name)
def test_the_paths_that_the_sources_of_a_folder_name_exist(folder: Path) -> None:
    """Files stand from the package, or from the folder of the file that names them."""
    missing = [
        f"{source.relative_to(PACKAGE)}: {path}"
        for source in sorted(folder.rglob("*.py"))
        for path in sorted({code["code"] for code in _CODE.finditer(source.read_text())})
        if _PATH.fullmatch(path) and not (exists(path) or any(source.parent.glob(path.rstrip("/"))))
    ]
    assert missing == []


def exists(path: str) -> bool:
    """A path from the root or from the package, or a bare file name from anywhere in either."""
    inside = path.rstrip("/")
    return any(any(root.glob(inside)) or ("/" not in inside and any(root.rglob(inside))) for root in PATH_ROOTS)


def test_every_page_of_the_documentation_is_linked_from_its_index() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link["target"]).resolve() for link in _LINK.finditer(prose(index))}
    assert {page for page in DOCUMENTS if page.is_relative_to(index.parent) and page != index} <= linked


def run_example(name: str, *arguments: str) -> None:
    runpy.run_path(str(ROOT / "examples" / name))["main"](list(arguments))


def test_the_training_example_trains_to_the_same_losses_as_plain_pytorch(capsys: pytest.CaptureFixture[str]) -> None:
    run_example("train_resnet.py", "--small", "--batch", "2", "--image-size", "64", "--steps", "2", "--budget", "80%")
    assert capsys.readouterr().out.endswith("the same numbers\n")


def test_the_planning_example_finds_a_device_too_small_and_one_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    run_example("plan_before_buying.py", "alexnet", "--batch", "4096", "--devices", "titan-x", "a100-80gb")
    titan_x, a100 = capsys.readouterr().out.splitlines()[-2:]
    assert "misses" in titan_x
    assert a100.endswith("fits")
