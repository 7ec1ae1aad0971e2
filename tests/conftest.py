"""What every test finds: a cache directory of this run alone, and a garbage collector that looks at tests only.

What was measured or planned in an earlier run, or by the user of this machine, decides nothing here, and nothing that
a test measures or plans is found by anybody else. Workers of one run share the directory: a cost is measured once.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import random_examples  # noqa: F401 - registers the profiles that --hypothesis-profile names
from vdnn.environment import CACHE_DIR


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
