"""Imports point one way, and the pure half works on a machine without torch.

The table is the architecture: what a folder may import, direct imports only, whether at the top of a file, inside a
function or for type checking alone. `api` and the files beside it join the parts and may import all of them but `cli`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import vdnn

SOURCE = Path(vdnn.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

VOCABULARY = {"ir", "units", "errors", "printable", "environment", "reading", "torch_private"}
MAY_IMPORT = {
    "printable": set(),
    "ir": {"printable"},
    "units": {"errors"},
    "errors": {"printable"},
    "reading": {"printable", "errors", "units", "environment"},
    "environment": set(),
    "torch_private": set(),
    "hardware": VOCABULARY,
    "codecs": VOCABULARY,
    "known_ops": VOCABULARY | {"codecs"},  # the questions that bits answer are listed there
    "capture": VOCABULARY | {"known_ops", "hardware"},  # where a step computes is a device
    "convolutions": VOCABULARY | {"capture"},
    "cost": VOCABULARY | {"known_ops", "hardware", "capture", "convolutions"},
    "plan": VOCABULARY | {"known_ops", "hardware", "cost", "codecs"},
    "report": VOCABULARY | {"plan"},
    "runtime": VOCABULARY | {"plan", "codecs", "hardware", "convolutions"},  # tiers and links are described there
    "rewrite": VOCABULARY
    | {"known_ops", "convolutions", "plan", "codecs", "capture", "runtime"},  # what it writes calls the runtime
    "eager": VOCABULARY | {"codecs", "cost", "hardware", "plan", "runtime"},  # ops are counted as for a plan
    "calibrate": VOCABULARY | {"hardware", "codecs", "cost", "runtime"},
    "compile": VOCABULARY
    | {
        "known_ops",
        "convolutions",
        "options",
        "capture",
        "cost",
        "hardware",
        "codecs",
        "plan",
        "rewrite",
        "runtime",
        "report",
        "calibrate",
        "eager",
    },
    "models": {"errors", "papers"},  # the widths that a paper prints
    "papers": VOCABULARY | {"plan", "cost", "hardware", "codecs"},  # a problem needs a cost table and a machine
}
INSIDE_PLAN = {
    "model": set(),
    "judge": {"model"},
    "document": {"model"},
    "plan": {"model", "judge", "document"},  # plan.py: the data with its schedule, its timeline and its file
    "addresses": {"model", "judge", "plan"},
    "shared": {"model", "judge", "plan", "addresses"},
    "strategies": {"model", "judge", "plan", "shared"},
    "auto": {"model", "judge", "plan", "shared", "strategies"},
    "strategy_table": {"model", "plan", "shared", "strategies", "auto"},
    "exact_counterpart": {"model", "judge", "plan", "shared", "strategy_table"},
    "files": {"model", "judge", "document", "plan"},
    "planner": {"model", "judge", "plan", "shared", "strategy_table", "files"},
    "planner_process": {"model", "plan", "shared", "planner"},
    "views": {"model", "judge", "plan", "auto", "strategy_table"},
}
"""What the folders and files of `plan/` may import of each other, in the order in which they build on each other."""

MOST_AT_THE_TOP = 8
"""Modules beside the folders, apart from `__init__` and `__main__`."""

SAME_NAME_IN_THE_COMMAND_LINE = {"plan.py": "`vdnn plan` has the name of what it shows"}
"""File names that occur twice, once of them as a subcommand, and why."""

NEVER_TORCH = (
    "options",
    "ir",
    "units",
    "errors",
    "printable",
    "reading",
    "known_ops",
    "plan",
    "papers",
    "report",
    "hardware.device",
    "hardware.presets",
    "cost.table",
    "cost.collector",
    "codecs",
)
ON_AN_ACCELERATOR = "codecs.kernels.triton_", "codecs.kernels.torch_"
"""Kernels over tensors, imported only where there are some."""

TORCH_WHERE_TENSORS_ARE = {"codecs.codec"}
"""Looks at the elements of whatever it is handed: tensors only where torch has made one."""


def module_name(path: Path) -> str:
    """`plan/judge/simulate.py` as `plan.judge.simulate`; a package's own file has the package's name."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def imports(path: Path) -> Iterator[str]:
    """Full names of everything a file imports; `from vdnn import models` counts as `vdnn.models`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute in this project"
            base = node.module or ""
            yield from (f"{base}.{alias.name}" for alias in node.names) if base == "vdnn" else (base,)


def our_folders(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imports(path) if name.startswith("vdnn.")}


def is_in(name: str, places: tuple[str, ...]) -> bool:
    return any(name == place or name.startswith(f"{place}.") for place in places)


def full_name(path: Path) -> str:
    parts = ("vdnn", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {full_name(path): path for path in FILES}


def imported_modules(path: Path) -> set[str]:
    """Modules of ours that a file imports by name; `from vdnn.plan import views` names a module, not its package."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            named = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= named & MODULES.keys() or {node.module}
    return (found & MODULES.keys()) - {full_name(path)}


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_a_folder_imports_only_what_it_may(path: Path) -> None:
    folder = module_name(path).split(".")[0]
    if folder in MAY_IMPORT:
        assert our_folders(path) - MAY_IMPORT[folder] - {folder} == set()


def test_no_module_imports_itself_through_others() -> None:
    """Also not inside a function, and not for type checking alone."""
    try:
        TopologicalSorter({name: imported_modules(path) for name, path in MODULES.items()}).prepare()
    except CycleError as error:
        pytest.fail(f"an import cycle: {' <- '.join(error.args[1])}")


IN_PLAN = [path for path in FILES if path.is_relative_to(SOURCE / "plan") and path != SOURCE / "plan" / "__init__.py"]


@pytest.mark.parametrize("path", IN_PLAN, ids=module_name)
def test_the_folders_of_the_planner_build_on_each_other_in_one_order(path: Path) -> None:
    folder = module_name(path).split(".")[1]
    used = {name.split(".")[2] for name in imported_modules(path) if name.startswith("vdnn.plan.")}
    assert used - INSIDE_PLAN[folder] - {folder} == set()


def test_few_modules_stand_at_the_top() -> None:
    top = {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__"}
    assert len(top) <= MOST_AT_THE_TOP, sorted(top)


def test_a_file_name_occurs_once() -> None:
    counted = Counter(path.name for path in FILES if path.name != "__init__.py")
    twice = {name for name, number in counted.items() if number > 1}
    assert twice == SAME_NAME_IN_THE_COMMAND_LINE.keys()
    assert all(counted[name] == 2 and (SOURCE / "cli" / name).exists() for name in twice)


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_nothing_but_its_entry_points_imports_the_command_line(path: Path) -> None:
    folder = module_name(path).split(".")[0]
    assert "cli" not in our_folders(path) or folder in ("cli", "__main__")


def is_pure(path: Path) -> bool:
    name = module_name(path)
    is_excepted = name.startswith(ON_AN_ACCELERATOR) or name in TORCH_WHERE_TENSORS_ARE
    return is_in(name, NEVER_TORCH) and not is_excepted


@pytest.mark.parametrize("path", [path for path in FILES if is_pure(path)], ids=module_name)
def test_the_pure_half_never_imports_torch(path: Path) -> None:
    assert not [name for name in imports(path) if name.split(".")[0] == "torch" or name == "vdnn.torch_private"]


def test_every_folder_has_its_row_in_the_table() -> None:
    folders = {path.parent.name for path in FILES if path.parent.parent == SOURCE}
    assert folders - {"cli"} <= set(MAY_IMPORT)


def test_planning_and_reporting_work_where_torch_cannot_be_imported() -> None:
    code = """
import sys
sys.modules["torch"] = None
import vdnn, vdnn.ir, vdnn.plan, vdnn.report, vdnn.plan.judge.simulate, vdnn.plan.document.serialize
import vdnn.report.text, vdnn.hardware.presets, vdnn.codecs, vdnn.codecs.kernels.reference
print(vdnn.hardware.presets.preset("titan-x").name)
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_importing_vdnn_leaves_torch_alone() -> None:
    assert run_python("import sys, vdnn, vdnn.cli; sys.exit('torch' in sys.modules)").returncode == 0


def test_names_that_are_packages_and_functions_stay_callable_when_their_modules_are_imported() -> None:
    """Note: [Two names that are packages and functions]. tests/cpu/test_public_names.py calls them."""
    code = "import vdnn.plan.judge.simulate, vdnn.report.record; assert callable(vdnn.plan) and callable(vdnn.report)"
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_a_name_that_does_not_exist_says_which_do() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'virtualise': it has .*virtualize"):
        vdnn.virtualise  # noqa: B018
