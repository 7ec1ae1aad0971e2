"""Transfers by worker threads: order, exact memory, and faults that end in one clear error instead of a hang."""

from __future__ import annotations

import _thread
import ctypes
import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import exit_code_of
from hypothesis import given
from hypothesis import strategies as st

from random_examples import examples
from vdnn.errors import InvalidInput, TierFailed, TierFull
from vdnn.hardware.device import Hardware, Tier
from vdnn.hardware.emulated import emulated
from vdnn.hardware.observed_links import observed_since
from vdnn.options import Options
from vdnn.runtime.open_transfers import AskedTiers, open_transfers
from vdnn.runtime.tiers.disk import DiskStore
from vdnn.runtime.tiers.host import HostStore
from vdnn.runtime.transfers.threads import ThreadTransfers
from vdnn.units import MiB

pytestmark = pytest.mark.timeout(60)  # nothing here may hang


def random_bytes(nbytes: int) -> torch.Tensor:
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8)


def bring_back(transfers: Any, ticket: Any, nbytes: int) -> torch.Tensor:
    target = torch.empty(nbytes, dtype=torch.uint8)
    transfers.fetch(ticket, target)
    transfers.wait_fetched(ticket)
    return target


class SlowStore(HostStore):
    """A host tier whose copies wait at a gate, so that a test decides when they happen."""

    def __init__(self, capacity_nbytes: int | None = None) -> None:
        super().__init__(capacity_nbytes, pin=False)
        self.gate = threading.Event()

    def pieces(self, lease: Any) -> Iterator[Any]:
        self.gate.wait(30)
        return super().pieces(lease)


@pytest.fixture
def transfers(tmp_path: Path) -> Iterator[ThreadTransfers]:
    transfers = ThreadTransfers({"host": HostStore(pin=False), "disk": DiskStore(tmp_path)})
    yield transfers
    transfers.close()


@pytest.fixture
def slow() -> Iterator[tuple[ThreadTransfers, SlowStore]]:
    store = SlowStore(1000)
    transfers = ThreadTransfers({"host": store})
    yield transfers, store
    store.gate.set()
    transfers.close()


@examples(30)
@given(
    st.lists(st.tuples(st.sampled_from(["host", "disk"]), st.integers(0, 100_000), st.booleans()), max_size=12),
    st.randoms(use_true_random=False),
)
def test_bytes_come_back_in_any_order_and_as_often_as_asked(
    tmp_path_factory: pytest.TempPathFactory, sends: list[tuple[str, int, bool]], rng: Any
) -> None:
    transfers = ThreadTransfers({"host": HostStore(pin=False), "disk": DiskStore(tmp_path_factory.getbasetemp())})
    held = []
    for tier, nbytes, waits in sends:
        source = random_bytes(nbytes)
        held.append((transfers.send(source, tier), source.clone()))
        if waits:
            transfers.wait_sent(held[-1][0])
    rng.shuffle(held)
    for ticket, expected in held:
        for _ in range(2):
            assert torch.equal(bring_back(transfers, ticket, expected.numel()), expected)
    transfers.close()


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_after_wait_sent_nobody_else_holds_the_source(transfers: ThreadTransfers, tier: str) -> None:
    source = random_bytes(5 * MiB)
    storage = weakref.ref(source.untyped_storage())
    ticket = transfers.send(source, tier)
    del source
    assert storage() is not None
    transfers.wait_sent(ticket)
    assert storage() is None


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_after_wait_fetched_only_the_caller_holds_the_target(transfers: ThreadTransfers, tier: str) -> None:
    ticket = transfers.send(random_bytes(5 * MiB), tier)
    target = torch.empty(5 * MiB, dtype=torch.uint8)
    storage = weakref.ref(target.untyped_storage())
    transfers.fetch(ticket, target)
    del target
    assert storage() is not None
    transfers.wait_fetched(ticket)
    assert storage() is None


def test_the_source_lives_until_it_is_waited_for_even_when_its_copy_is_long_done(transfers: ThreadTransfers) -> None:
    """Memory is decided by position: a copy that happens to be early must not lower the count."""
    source = random_bytes(100)
    storage = weakref.ref(source.untyped_storage())
    ticket = transfers.send(source, "host")
    del source
    ticket.sent.settle()
    assert storage() is not None


def test_a_failed_copy_holds_no_tensor_once_it_is_waited_for(
    transfers: ThreadTransfers, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = random_bytes(MiB)
    storage = weakref.ref(source.untyped_storage())
    monkeypatch.setattr(os, "pwritev", fail_with(errno.EIO))
    ticket = transfers.send(source, "disk")
    del source
    with pytest.raises(TierFailed):
        transfers.wait_sent(ticket)
    assert storage() is None


def test_a_place_is_free_as_soon_as_a_finished_ticket_is_dropped(transfers: ThreadTransfers) -> None:
    for _ in range(50):
        ticket = transfers.send(random_bytes(1000), "host")
        transfers.wait_sent(ticket)
        bring_back(transfers, ticket, 1000)
        del ticket
        assert transfers.stores["host"].used_nbytes == 0


def test_a_fetch_of_a_copy_still_queued_comes_after_it(slow: tuple[ThreadTransfers, SlowStore]) -> None:
    transfers, store = slow
    source = random_bytes(500)
    ticket, target = transfers.send(source, "host"), torch.zeros(500, dtype=torch.uint8)
    transfers.fetch(ticket, target)
    store.gate.set()
    transfers.wait_fetched(ticket)
    assert torch.equal(target, source)


def test_a_ticket_dropped_in_flight_gives_its_place_back_afterwards(slow: tuple[ThreadTransfers, SlowStore]) -> None:
    transfers, store = slow
    ticket = transfers.send(random_bytes(1000), "host")
    del ticket
    assert store.used_nbytes == 1000
    threading.Timer(0.1, store.gate.set).start()
    transfers.wait_sent(transfers.send(random_bytes(1000), "host"))  # the room is full until the first copy is done
    assert store.used_nbytes == 0


def test_an_exhausted_host_budget_is_said_at_the_send_and_room_made_later_is_used() -> None:
    transfers = ThreadTransfers({"host": HostStore(1000, pin=False)})
    ticket = transfers.send(random_bytes(800), "host")
    with pytest.raises(TierFull, match=r"the host tier has no room for 300 B: 800 B of its 1000 B are used"):
        transfers.send(random_bytes(300), "host")
    transfers.wait_sent(ticket)
    del ticket
    transfers.wait_sent(transfers.send(random_bytes(300), "host"))
    transfers.close()


def fail_with(code: int) -> Any:
    def fail(*_: Any) -> int:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize(("code", "kind"), [(errno.EIO, TierFailed), (errno.ENOSPC, TierFull), (errno.EFBIG, TierFull)])
def test_an_error_of_the_disk_is_raised_where_it_is_waited_for_and_the_next_copy_works(
    transfers: ThreadTransfers, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", fail_with(code))
        ticket = transfers.send(random_bytes(MiB), "disk")
        with pytest.raises(kind, match=r"the disk tier .*" + os.strerror(code)):
            transfers.wait_sent(ticket)
        with pytest.raises(kind, match=r"the disk tier"):
            bring_back(transfers, ticket, MiB)
    source = random_bytes(MiB)
    assert torch.equal(bring_back(transfers, transfers.send(source, "disk"), MiB), source)


def test_a_file_size_limit_of_the_process_is_a_full_tier(tmp_path: Path) -> None:
    done = run_child(
        """
        import resource, torch
        from vdnn.errors import TierFull
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        transfers = ThreadTransfers({"disk": DiskStore(DIRECTORY)})
        try:
            transfers.wait_sent(transfers.send(torch.zeros(4 << 20, dtype=torch.uint8), "disk"))
        except TierFull as error:
            print(error)
        """,
        tmp_path,
    )
    assert "the disk tier" in done.stdout, done.stderr


def kill_thread(thread: threading.Thread) -> None:
    """An asynchronous SystemExit, which ends the thread at its next bytecode."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_dies_is_noticed_and_a_later_send_gets_a_new_one(
    slow: tuple[ThreadTransfers, SlowStore],
) -> None:
    transfers, store = slow
    running, queued = transfers.send(random_bytes(100), "host"), transfers.send(random_bytes(100), "host")
    thread = transfers._out["host"]._thread
    assert thread is not None
    kill_thread(thread)
    store.gate.set()
    for ticket in (running, queued):
        with pytest.raises(TierFailed, match=r"copying 100 B to the host tier failed"):
            transfers.wait_sent(ticket)
    with pytest.raises(TierFailed, match=r"to the host tier failed"):
        bring_back(transfers, queued, 100)
    source = random_bytes(100)
    assert torch.equal(bring_back(transfers, transfers.send(source, "host"), 100), source)
    thread.join()  # its last word belongs to this test


def test_a_worker_that_vanished_without_a_word_is_noticed_too(slow: tuple[ThreadTransfers, SlowStore]) -> None:
    transfers, _store = slow
    ticket = transfers.send(random_bytes(100), "host")
    gone = threading.Thread(target=lambda: None)
    gone.start()
    gone.join()
    ticket.sent.begin_on(gone)
    with pytest.raises(TierFailed, match="worker thread that copies has died"):
        transfers.wait_sent(ticket)


def test_ctrl_c_interrupts_a_wait_and_the_ticket_can_be_waited_for_again(
    slow: tuple[ThreadTransfers, SlowStore],
) -> None:
    transfers, store = slow
    ticket = transfers.send(random_bytes(100), "host")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test runner's worker may ignore Ctrl-C
    try:
        threading.Timer(0.2, _thread.interrupt_main).start()
        with pytest.raises(KeyboardInterrupt):
            transfers.wait_sent(ticket)
    finally:
        signal.signal(signal.SIGINT, before)
    store.gate.set()
    transfers.wait_sent(ticket)


def test_copies_in_and_out_run_side_by_side() -> None:
    """Throttled to 0.4 s each: one after the other they would take 0.8 s."""
    throttled = ThreadTransfers({"host": HostStore(pin=False)}, throttle={"host": 2500.0})
    first = throttled.send(random_bytes(1000), "host")
    throttled.wait_sent(first)
    target = torch.empty(1000, dtype=torch.uint8)
    begin = time.perf_counter()
    second = throttled.send(random_bytes(1000), "host")
    throttled.fetch(first, target)
    throttled.wait_sent(second)
    throttled.wait_fetched(first)
    assert 0.4 <= time.perf_counter() - begin < 0.79
    throttled.close()


def test_copies_are_timed_per_link_and_a_link_that_becomes_slow_shows_in_the_next_copies() -> None:
    transfers = ThreadTransfers({"host": HostStore(pin=False)})
    ticket = transfers.send(random_bytes(1000), "host")
    bring_back(transfers, ticket, 1000)
    before = transfers.observed_links()
    assert [(link.tier, link.is_back, link.num_copies, link.nbytes) for link in before] == [
        ("host", False, 1, 1000),
        ("host", True, 1, 1000),
    ]
    transfers.throttle["host"] = 20_000.0
    bring_back(transfers, ticket, 1000)
    out, back = observed_since(transfers.observed_links(), before)
    assert (out.num_copies, back.num_copies, back.nbytes) == (0, 1, 1000)
    assert 0.05 <= back.busy_s < 1
    assert back.bytes_per_s is not None
    assert back.bytes_per_s <= 20_000
    transfers.close()


def test_a_copy_that_fails_is_not_among_the_timed_ones(
    transfers: ThreadTransfers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwritev", fail_with(errno.EIO))
    with pytest.raises(TierFailed):
        transfers.wait_sent(transfers.send(random_bytes(MiB), "disk"))
    assert all(link.num_copies == 0 for link in transfers.observed_links())


def test_closing_finishes_what_is_in_flight_and_may_be_repeated(tmp_path: Path) -> None:
    transfers = ThreadTransfers({"disk": DiskStore(tmp_path)})
    ticket = transfers.send(random_bytes(MiB), "disk")
    transfers.close()
    transfers.close()
    transfers.wait_sent(ticket)
    with pytest.raises(TierFailed, match="have been closed"):
        transfers.send(random_bytes(10), "disk")


def test_threads_end_when_transfers_are_dropped_without_being_closed(tmp_path: Path) -> None:
    transfers = ThreadTransfers({"disk": DiskStore(tmp_path)})
    transfers.wait_sent(transfers.send(random_bytes(20 * MiB), "disk"))
    thread = transfers._out["disk"]._thread
    assert thread is not None
    del transfers
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_forked_child_gets_a_clear_error_and_does_not_hang(transfers: ThreadTransfers) -> None:
    ticket = transfers.send(random_bytes(100), "disk")
    transfers.wait_sent(ticket)

    def refusals() -> int:
        count = 0
        for call in (lambda: transfers.send(torch.zeros(1), "disk"), lambda: transfers.wait_sent(ticket)):
            try:
                call()
            except TierFailed as error:
                count += "forked" in str(error)
        return count

    assert exit_code_of(refusals) == 2
    assert transfers.stores["disk"].used_nbytes == 100


PREAMBLE = """
import sys, time
import torch
from vdnn.runtime.tiers.disk import DiskStore
from vdnn.runtime.transfers.threads import ThreadTransfers
DIRECTORY = sys.argv[1]
"""


def run_child(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PREAMBLE + textwrap.dedent(code), str(directory)]
    return subprocess.run(command, capture_output=True, text=True, timeout=50)


def test_the_interpreter_exits_with_copies_in_flight(tmp_path: Path) -> None:
    done = run_child(
        """
        transfers = ThreadTransfers({"disk": DiskStore(DIRECTORY)}, throttle={"disk": 1e6})
        tickets = [transfers.send(torch.zeros(30_000_000, dtype=torch.uint8), "disk") for _ in range(3)]
        transfers.fetch(tickets[0], torch.empty(30_000_000, dtype=torch.uint8))
        print("leaving")
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, "leaving\n"), done.stderr


def test_a_process_killed_in_mid_copy_leaves_no_file(tmp_path: Path) -> None:
    code = """
    transfers = ThreadTransfers({"disk": DiskStore(DIRECTORY)})
    source = torch.zeros(64 << 20, dtype=torch.uint8)
    tickets = [transfers.send(source, "disk")]
    transfers.wait_sent(tickets[0])
    tickets += [transfers.send(source, "disk") for _ in range(8)]
    print("copying", flush=True)
    time.sleep(60)
    """
    command = [sys.executable, "-c", PREAMBLE + textwrap.dedent(code), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "copying\n"
        child.send_signal(signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []


def test_an_emulated_machine_opens_host_and_disk_bounded_and_makes_no_file_yet(tmp_path: Path) -> None:
    bounded = Options(hardware=emulated(host_nbytes=2000), host_budget="1000B", disk_budget="5000B").machine
    transfers = open_transfers(AskedTiers.of(bounded, tmp_path))
    assert isinstance(transfers, ThreadTransfers)
    bounds = {name: store.capacity_nbytes for name, store in transfers.stores.items()}
    assert bounds == {"host": 1000, "disk": 5000}
    assert transfers.stores["disk"]._file is None  # type: ignore[attr-defined]
    transfers.close()


def test_an_emulated_link_takes_as_long_as_its_bandwidth_says() -> None:
    transfers = open_transfers(AskedTiers.of(emulated(disk=False, bandwidth=1e5)))
    begin = time.perf_counter()
    transfers.wait_sent(transfers.send(random_bytes(20_000), "host"))
    assert time.perf_counter() - begin >= 0.2
    transfers.close()


FAR = Hardware("far", 1.0, 1.0, (Tier("device"), Tier("remote")))


def test_a_tier_that_nothing_is_kept_on_is_refused_with_those_that_can_be_trained_with() -> None:
    with pytest.raises(InvalidInput, match=r"a tier 'remote'.* planned for, with vdnn\.plan.* host and disk"):
        open_transfers(AskedTiers.of(FAR))


def test_a_tier_that_no_stream_reaches_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vdnn.runtime.open_transfers._store", lambda tier, asked: HostStore(None))
    with pytest.raises(InvalidInput, match="streams carry to host and disk, and not to 'remote'"):
        open_transfers(AskedTiers.of(FAR, device="cuda"))


def test_a_machine_without_slower_tiers_opens_nothing() -> None:
    transfers = open_transfers(AskedTiers.of(Hardware("lonely", 1.0, 1.0, (Tier("device"),))))
    assert isinstance(transfers, ThreadTransfers)
    assert transfers.stores == {}
    transfers.close()
