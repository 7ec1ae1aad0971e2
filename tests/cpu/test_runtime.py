"""One owner of what is open: shared by the models of a process, closed on demand, left open without harm."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from equivalence import assert_same_state, both, pair
from forked import exit_code_of
from nets import ConvNet, backward, images
from tiers import DISK

import vdnn
from vdnn.api import session_of
from vdnn.errors import TierFailed, TierFull
from vdnn.hardware.emulated import emulated
from vdnn.runtime.runtime import Runtime, shared_runtime
from vdnn.runtime.transfers.threads import ThreadTransfers
from vdnn.units import MiB
from where import here

pytestmark = pytest.mark.any_device

TIGHT: dict[str, Any] = {"budget": "85%", "hardware": DISK, "strategy": "offload"}


def send(runtime: Runtime, directory: Path) -> Any:
    transfers = runtime.transfers(DISK, str(directory))
    ticket = transfers.send(torch.arange(100, dtype=torch.uint8), "disk")
    transfers.wait_sent(ticket)
    return ticket


def read_back(runtime: Runtime, directory: Path, ticket: Any) -> torch.Tensor:
    transfers, target = runtime.transfers(DISK, str(directory)), torch.empty(100, dtype=torch.uint8)
    transfers.fetch(ticket, target)
    transfers.wait_fetched(ticket)
    return target


def workers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("vdnn-")}


def open_files(directory: Path) -> list[str]:
    """The disk tier's file has no name; Linux shows the directory that it had one in."""
    targets = (os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
    return [target for target in targets if target.startswith(f"{directory}{os.sep}")]


@pytest.fixture
def runtime() -> Any:
    """One of the test's own."""
    runtime = Runtime()
    yield runtime
    runtime.close()


def test_models_and_caches_of_one_process_share_their_transfers() -> None:
    one, other = (vdnn.virtualize(ConvNet(), hardware=DISK) for _ in range(2))
    shared = shared_runtime().transfers(DISK, device=here())
    assert session_of(one).transfers() is session_of(other).transfers() is shared
    assert session_of(vdnn.virtualize(ConvNet(), hardware=DISK, disk_budget="1GiB")).transfers() is not shared


def test_a_machine_whose_links_are_priced_anew_keeps_its_transfers(runtime: Runtime) -> None:
    slower = replace(DISK, links=tuple(replace(link, bandwidth_bytes_per_s=1.0) for link in DISK.links))
    assert runtime.transfers(slower) is runtime.transfers(DISK)


def test_those_who_share_keep_to_one_bound(runtime: Runtime) -> None:
    machine = emulated(host_nbytes=1000)
    mine = runtime.transfers(machine).send(torch.zeros(600, dtype=torch.uint8), "host")
    with pytest.raises(TierFull, match="600 B of its 1000 B are used"):
        runtime.transfers(machine).send(torch.zeros(600, dtype=torch.uint8), "host")
    runtime.transfers(machine).wait_sent(mine)


def test_threads_that_ask_at_once_get_the_same_transfers(runtime: Runtime) -> None:
    start, found = threading.Barrier(8), []

    def ask() -> None:
        start.wait()
        found.append(runtime.transfers(DISK))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [found[0]] * 8


def rss_nbytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def settled_workers() -> set[threading.Thread]:
    """After a moment in which threads that have been told to end do so."""
    gc.collect()
    before = workers()
    for thread in before:
        thread.join(0.05)
    return workers()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are read from /proc")
@pytest.mark.parametrize("num_models", [4, pytest.param(50, marks=pytest.mark.slow)])
def test_transfers_of_models_and_caches_that_are_gone_leave_nothing_behind(tmp_path: Path, num_models: int) -> None:
    """Each kept 12 MiB, a descriptor and two threads for ever: one for every disk_budget."""
    batch = torch.randn(8, 3, 8, 8)

    def train(number: int) -> None:
        tight = {**TIGHT, "disk_budget": 10**9 + number, "spill_dir": str(tmp_path)}
        model = vdnn.virtualize(ConvNet(), sample=(batch,) if number % 2 else None, **tight)
        model(batch).sum().backward()
        assert open_files(tmp_path)
        cache = vdnn.tensor_cache("8MiB", hardware=DISK, disk_budget=2 * 10**9 + number, spill_dir=str(tmp_path))
        transfers = cast(ThreadTransfers, cache._space._transfers())
        transfers.wait_sent(transfers.send(torch.ones(20 * MiB, dtype=torch.uint8), "disk"))

    for number in range(2):
        train(number)
    threads, before = settled_workers(), rss_nbytes()
    for number in range(num_models):
        train(number)
        gc.collect()
    assert settled_workers() <= threads
    assert open_files(tmp_path) == []
    assert rss_nbytes() - before < 30 * MiB + num_models * MiB / 2


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are read from /proc")
def test_a_backward_that_is_still_to_come_keeps_its_transfers_open(tmp_path: Path) -> None:
    plain, virtual = pair(ConvNet(), **TIGHT, spill_dir=str(tmp_path))
    batch, parameters = images(), dict(virtual.named_parameters())
    torch.manual_seed(0)
    loss = virtual(batch).sum()
    del virtual
    settled_workers()
    assert len(open_files(tmp_path)) == 1
    loss.backward()
    torch.manual_seed(0)
    plain(batch).sum().backward()
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameters[name].grad, parameter.grad)  # type: ignore[arg-type]
    del loss, parameters
    settled_workers()
    assert open_files(tmp_path) == []


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are read from /proc")
def test_closing_ends_the_threads_and_gives_the_file_back(runtime: Runtime, tmp_path: Path) -> None:
    before = workers()
    ticket = send(runtime, tmp_path)
    assert workers() > before
    assert len(open_files(tmp_path)) == 1
    runtime.close()
    runtime.close()
    assert workers() <= before
    assert open_files(tmp_path) == []
    del ticket


def test_a_closed_runtime_opens_anew(runtime: Runtime, tmp_path: Path) -> None:
    first = send(runtime, tmp_path)
    runtime.close()
    second = send(runtime, tmp_path)
    assert read_back(runtime, tmp_path, second).tolist() == list(range(100))
    del first, second


def test_a_runtime_of_ones_own_leaves_the_shared_one_alone(runtime: Runtime, tmp_path: Path) -> None:
    shared = send(shared_runtime(), tmp_path)
    send(runtime, tmp_path)
    runtime.close()
    assert read_back(shared_runtime(), tmp_path, shared).tolist() == list(range(100))
    assert runtime.handles.num_alive == 0


def test_a_model_trains_on_after_the_runtime_was_closed() -> None:
    plain, virtual = pair(ConvNet(), **TIGHT)
    both(plain, virtual, lambda model: backward(model, images()))
    shared_runtime().close()
    both(plain, virtual, lambda model: backward(model, images()))
    assert_same_state(plain, virtual)


def test_a_backward_whose_storages_were_closed_away_says_so() -> None:
    _, virtual = pair(ConvNet(), **TIGHT)
    loss = virtual(images()).sum()
    shared_runtime().close()
    with pytest.raises(TierFailed, match="been closed"):
        loss.backward()


def test_a_backward_that_needs_no_tier_outlives_a_close() -> None:
    def train(model: Any) -> None:
        loss = model(images()).sum()
        shared_runtime().close()
        loss.backward()

    plain, virtual = pair(ConvNet(), hardware=DISK)
    both(plain, virtual, train)
    assert_same_state(plain, virtual)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_forked_child_opens_its_own_tiers(tmp_path: Path) -> None:
    """Its parent's transfers have no threads there, and would wait for ever."""
    runtime = shared_runtime()
    parents = runtime.transfers(DISK, str(tmp_path))
    ticket = send(runtime, tmp_path)

    def is_right() -> int:
        own = send(runtime, tmp_path)
        is_read = read_back(runtime, tmp_path, own).tolist() == list(range(100))
        return is_read and runtime.transfers(DISK, str(tmp_path)) is not parents

    assert exit_code_of(is_right) == 1
    assert read_back(runtime, tmp_path, ticket).tolist() == list(range(100))


PREAMBLE = """
import sys, time
import torch
from vdnn.hardware.emulated import emulated
from vdnn.runtime.runtime import shared_runtime

def sent(transfers, num_copies, nbytes):
    return [transfers.send(torch.zeros(nbytes, dtype=torch.uint8), "disk") for _ in range(num_copies)]

transfers = shared_runtime().transfers(emulated(bandwidth=1e6), sys.argv[1])
"""


def run_child(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PREAMBLE + textwrap.dedent(code), str(directory)]
    return subprocess.run(command, capture_output=True, text=True, timeout=50)


@pytest.mark.parametrize("end", ["", "sys.exit(0)"], ids=["falls off its end", "exits"])
def test_a_process_that_leaves_copies_under_way_ends_clean_and_soon(end: str, tmp_path: Path) -> None:
    """Two hundred copies of half a second each are waiting; the one that has begun is finished, the others are not."""
    done = run_child(f"tickets = sent(transfers, 200, 500_000); time.sleep(0.1); {end}", tmp_path)
    assert (done.returncode, done.stderr, list(tmp_path.iterdir())) == (0, "", [])


def test_a_process_that_closes_and_copies_again_ends_clean(tmp_path: Path) -> None:
    code = """
        transfers.wait_sent(sent(transfers, 1, 1000)[0])
        shared_runtime().close()
        again = shared_runtime().transfers(emulated(bandwidth=1e6), sys.argv[1])
        again.wait_sent(sent(again, 1, 1000)[0])
        print(again is not transfers)
    """
    done = run_child(code, tmp_path)
    assert (done.returncode, done.stdout, done.stderr, list(tmp_path.iterdir())) == (0, "True\n", "", [])
