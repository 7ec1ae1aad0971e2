"""What every test finds: a cache directory of this run alone, and a garbage collector that looks at tests only.

What was measured or planned in an earlier run, or by the user of this machine, decides nothing here, and nothing that
a test measures or plans is found by anybody else. Workers of one run share the directory: a cost is measured once.

`--device NAME` runs the suite of every device there: the tests that are marked `any_device`, with their models and
batches on that device, and those that are marked `accelerator`. `vdev` is that of `tests/device`, and this process's
accelerator from then on: it cannot be unloaded. Any other name is that of the accelerator that is here.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import nullcontext
from types import ModuleType

import pytest
import torch

import device
import random_examples  # noqa: F401 - registers the profiles that --hypothesis-profile names
from device import controls
from vdnn.environment import CACHE_DIR

CPU = "cpu"
MISSING = pytest.StashKey[str]()
"""Why the device for tests is not there: its tests are skipped and say so."""

MARKERS = (
    "any_device: the claim holds wherever models are; they and their batches are made on the device of --device",
    "accelerator: the claim is about an accelerator, which --device names",
    "cpu_only(why): of a file that is any_device, asked of the CPU alone",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default=CPU, help="run the suite of every device on this one: cpu, vdev, cuda, ...")


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    if (asked := device_of(config)) == CPU:
        return
    if asked == device.NAME:
        try:
            device.load()
        except device.NoDevice as reason:
            config.stash[MISSING] = str(reason)
            return
        # torch says so wherever it forks the random state on a machine with two devices, in its own tracing too.
        config.addinivalue_line("filterwarnings", "ignore:VDEV reports that you have 2 available devices")
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type != asked:
        found = f"the accelerator here is {accelerator.type!r}" if accelerator else "torch finds no accelerator here"
        raise pytest.UsageError(f"--device {asked}: {found}; {device.NAME!r} is the one that is built for tests")
    torch.set_default_device(asked)  # before test files are imported: their tables hold modules and tensors


def device_of(config: pytest.Config) -> str:
    return str(config.getoption("--device"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On a device, the suite: what holds on every one, and what is asked of accelerators. Else all but the latter."""
    if device_of(config) == CPU:
        _skip(items, "accelerator", "needs an accelerator: --device names it")
        return
    config.hook.pytest_deselected(items=[item for item in items if not _is_of_the_suite(item)])
    items[:] = filter(_is_of_the_suite, items)
    _skip(items, "cpu_only", "of the CPU alone: {}")
    if (reason := config.stash.get(MISSING, None)) is not None:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))


def _is_of_the_suite(item: pytest.Item) -> bool:
    return any(map(item.get_closest_marker, ("any_device", "accelerator"))) or "vdev" in getattr(
        item, "fixturenames", ()
    )


def _skip(items: list[pytest.Item], name: str, reason: str) -> None:
    for item in items:
        if (marker := item.get_closest_marker(name)) is not None:
            item.add_marker(pytest.mark.skip(reason=reason.format(*marker.args)))


@pytest.fixture(autouse=True)
def default_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Claims about an accelerator say themselves what lies there and what does not."""
    is_suite = request.node.get_closest_marker("any_device") is not None
    with nullcontext() if is_suite or device_of(request.config) == CPU else torch.device(CPU):
        yield


@pytest.fixture
def vdev() -> Iterator[ModuleType]:
    """The device's controls, put back afterwards."""
    if not device.is_loaded():
        pytest.skip(f"needs --device {device.NAME}")
    gc.collect()  # what tests before it left on the device
    controls.reset()
    yield controls
    controls.reset()


def pytest_sessionfinish() -> None:
    gc.unfreeze()


@pytest.fixture(scope="module", autouse=True)
def own_garbage() -> None:
    """What imports and the files before this one have made stays, and there are millions of it: nobody who collects
    garbage or looks for tensors goes through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[None]:
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_DIR, str(shared / "vdnn-cache"))
        yield
