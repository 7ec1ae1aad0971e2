"""Transfers on an accelerator; skipped where there is none. `pytest --device vdev` runs them on the device of
`tests/device`, which every machine with a compiler has.

`tests/cpu/test_stream_order.py` checks the order of the same code anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from vdnn.errors import TierFull
from vdnn.hardware.emulated import emulated
from vdnn.runtime.open_transfers import AskedTiers, open_transfers
from vdnn.runtime.transfers.streams import StreamTransfers
from vdnn.units import MiB

pytestmark = [pytest.mark.accelerator, pytest.mark.timeout(120)]


PERIOD = 65521  # prime: no two pages or pieces of a copy begin alike


def on_device(nbytes: int) -> torch.Tensor:
    """Random bytes, repeated: to draw them all would take longer than to copy them."""
    drawn = torch.randint(0, 256, (PERIOD,), dtype=torch.uint8, device=torch.accelerator.current_accelerator())
    return drawn.repeat(-(-nbytes // PERIOD))[:nbytes].clone()


@pytest.fixture
def transfers(tmp_path: Path) -> Iterator[StreamTransfers]:
    hardware = emulated(host_nbytes=256 * MiB)
    transfers = open_transfers(AskedTiers.of(hardware, tmp_path, torch.accelerator.current_accelerator() or "cpu"))
    assert isinstance(transfers, StreamTransfers)
    yield transfers
    transfers.close()


@pytest.mark.parametrize("tier", ["host", "disk"])
@pytest.mark.parametrize("nbytes", [1, 4097, 100 * MiB])
def test_bytes_come_back(transfers: StreamTransfers, tier: str, nbytes: int) -> None:
    source = on_device(nbytes)
    expected = source.cpu()
    ticket = transfers.send(source, tier)
    transfers.wait_sent(ticket)
    del source
    for _ in range(2):
        target = torch.empty(nbytes, dtype=torch.uint8, device=torch.accelerator.current_accelerator())
        transfers.fetch(ticket, target)
        transfers.wait_fetched(ticket)
        assert torch.equal(target.cpu(), expected)


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_memory_reused_right_after_the_wait_does_not_disturb_the_copy(transfers: StreamTransfers, tier: str) -> None:
    for seed in range(20):
        source = torch.full_like(on_device(32 * MiB), seed)
        ticket = transfers.send(source, tier)
        transfers.wait_sent(ticket)
        source.fill_(255)  # the memory of a map that was freed, written by what came next
        target = torch.zeros_like(source)
        transfers.fetch(ticket, target)
        transfers.wait_fetched(ticket)
        assert bool((target == seed).all())


def test_a_ticket_dropped_in_flight_gives_its_place_back_and_later_copies_are_right(
    transfers: StreamTransfers,
) -> None:
    for seed in range(20):
        transfers.send(on_device(100 * MiB), "host")  # dropped at once
        source = torch.full_like(on_device(100 * MiB), seed)
        ticket, target = transfers.send(source, "host"), torch.empty_like(source)
        transfers.fetch(ticket, target)
        transfers.wait_fetched(ticket)
        assert bool((target == seed).all())


def test_the_host_tier_is_page_locked_and_bounded(transfers: StreamTransfers) -> None:
    ticket = transfers.send(on_device(200 * MiB), "host")
    assert all(piece.is_pinned() for piece in ticket.place.pieces())  # type: ignore[union-attr]
    with pytest.raises(TierFull, match="the host tier has no room"):
        transfers.send(on_device(100 * MiB), "host")
