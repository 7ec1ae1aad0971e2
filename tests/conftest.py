"""What every test finds: a cache directory of this run alone, and a garbage collector that looks at tests only.

What was measured or planned in an earlier run, or by the user of this machine, decides nothing here, and nothing that
a test measures or plans is found by anybody else. Workers of one run share the directory: a cost is measured once.

`--device vdev` makes the device of `tests/device` this process's accelerator, for the whole run: it cannot be unloaded.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

import device
import random_examples  # noqa: F401 - registers the profiles that --hypothesis-profile names
from device import controls
from vdnn.environment import CACHE_DIR


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", choices=["cpu", device.NAME], default="cpu", help="the accelerator of this run")
    parser.addoption("--default-device", action="store_true", help="tests make their models and batches on --device")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cpu_only(why): what the test asks is asked of the CPU alone")
    if config.getoption("--device") != device.NAME:
        return
    try:
        device.load()
    except device.NoDevice as reason:
        raise pytest.UsageError(f"--device {device.NAME}: {reason}") from reason
    # torch says so wherever it forks the random state on a machine with two devices, in its own tracing too.
    config.addinivalue_line("filterwarnings", "ignore:VDEV reports that you have 2 available devices")


@pytest.fixture(autouse=True)
def default_device(request: pytest.FixtureRequest) -> Iterator[None]:
    if not request.config.getoption("--default-device"):
        yield
        return
    with torch.device(request.config.getoption("--device")):
        yield


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--default-device"):
        return
    for item in items:
        if (marker := item.get_closest_marker("cpu_only")) is not None:
            item.add_marker(pytest.mark.skip(reason=f"of the CPU alone: {marker.args[0]}"))


@pytest.fixture
def vdev() -> Iterator[ModuleType]:
    """The device's controls, put back afterwards."""
    if not device.is_loaded():
        pytest.skip(f"needs --device {device.NAME}")
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
