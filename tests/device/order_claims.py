"""What holds of transfers whatever runs late, and which of these claims notices that one of their waits is left out.

A claim is a short program of a training step's moves. Races in it are decided beforehand: what has to come first is
made late, by far more than what must not overtake it needs.

`python -m device.order_claims` prints which claim catches which mutant.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import device
from device.mutants import Mutant, mutants
from device.stage import CLOCKS, LATE_OPS, NBYTES, SLOW_COPIES, Mode, Stage
from vdnn.errors import TierFailed, TierFull

Claim = Callable[[Stage], None]


def a_map_is_copied_out_as_compute_leaves_it(stage: Stage) -> None:
    transfers = stage.open()
    stage.busy()
    source, value = stage.made()
    ticket = transfers.send(source, "host")
    transfers.wait_sent(ticket)
    stage.comes_back(ticket, value)


def memory_freed_after_wait_sent_is_overwritten_after_the_copy_out(stage: Stage) -> None:
    transfers = stage.open()
    source, value = stage.made()
    ticket = transfers.send(source, "host")
    transfers.wait_sent(ticket)
    del source
    stage.makes_more()
    stage.comes_back(ticket, value)


def a_map_is_read_right_after_wait_fetched(stage: Stage) -> None:
    stage.open()
    ticket, value = stage.away()
    stage.comes_back(ticket, value)


def a_map_is_fetched_into_memory_that_compute_still_reads(stage: Stage) -> None:
    stage.open()
    ticket, value = stage.away()
    target, old_value = stage.made()
    stage.busy()
    stage.reads(target, old_value)
    stage.comes_back(ticket, value, target)


def a_map_is_fetched_before_it_has_left(stage: Stage) -> None:
    """Two others leave before it."""
    transfers = stage.open()
    maps = [stage.made() for _ in range(3)]
    tickets = [transfers.send(source, "host") for source, _ in maps]
    stage.comes_back(tickets[-1], maps[-1][1])
    for ticket in tickets:
        transfers.wait_sent(ticket)


def the_copy_out_of_a_dropped_ticket_reads_the_map(stage: Stage) -> None:
    transfers = stage.open()
    source, value = stage.made()
    ticket = transfers.send(source, "host")
    pieces = ticket.place.pieces()
    del source, ticket
    stage.makes_more()
    stage.ends_as(pieces, value)


def the_copy_in_of_a_dropped_ticket_overwrites_nothing(stage: Stage) -> None:
    transfers = stage.open()
    ticket, _ = stage.away()
    target = stage.empty()
    transfers.fetch(ticket, target)
    del target, ticket
    for tensor, value in stage.makes_more():
        stage.ends_as([tensor], value)


def the_host_place_of_a_dropped_ticket_is_overwritten_after_its_copy_in(stage: Stage) -> None:
    """Others come in before it, and there is no other place for the next map to leave."""
    transfers = stage.open(host_nbytes=3 * NBYTES)
    maps = [stage.away() for _ in range(3)]
    targets = [stage.empty() for _ in maps]
    for (ticket, _), target in zip(maps, targets, strict=True):
        transfers.fetch(ticket, target)
    ticket, value = maps.pop()
    del ticket
    other, other_value = stage.made()
    stage.comes_back(transfers.send(other, "host"), other_value)
    stage.ends_as([targets[-1]], value)


def a_map_is_read_from_disk_after_it_was_written(stage: Stage) -> None:
    transfers = stage.open()
    stage.comes_back(*stage.away("disk"))  # the file and the threads are there now
    stage.busy()
    source, value = stage.made()
    ticket = transfers.send(source, "disk")
    stage.comes_back(ticket, value)
    transfers.wait_sent(ticket)


def a_map_is_copied_in_after_it_was_read_from_disk(stage: Stage) -> None:
    stage.open()
    ticket, value = stage.away("disk")
    stage.disk_is_late(read_units=4)
    stage.comes_back(ticket, value)


def a_full_disk_has_room_when_the_copy_out_of_a_dropped_ticket_is_done(stage: Stage) -> None:
    transfers = stage.open(disk_nbytes=NBYTES)
    stage.disk_is_late(write_units=2)
    transfers.send(stage.made()[0], "disk")
    source, value = stage.made()
    stage.comes_back(transfers.send(source, "disk"), value)


def a_full_disk_has_room_when_the_copy_in_of_a_dropped_ticket_is_done(stage: Stage) -> None:
    transfers = stage.open(disk_nbytes=NBYTES)
    ticket, _ = stage.away("disk")
    stage.disk_is_late(read_units=2)
    transfers.fetch(ticket, stage.empty())
    del ticket
    source, value = stage.made()
    stage.comes_back(transfers.send(source, "disk"), value)


def page_locked_memory_on_its_way_to_disk_is_bounded(stage: Stage) -> None:
    transfers = stage.open()
    transfers.transit.most_nbytes = 2 * NBYTES
    stage.disk_is_late(write_units=4)  # by more than a copy to ordinary memory holds the host up
    for _ in range(4):
        transfers.send(stage.made()[0], "disk")
        assert stage.disk.num_unwritten <= 2, f"{stage.disk.num_unwritten} maps are on their way to disk"


def close_returns_after_the_last_copy_out(stage: Stage) -> None:
    transfers = stage.open()
    stage.busy()
    source, value = stage.made()
    ticket = transfers.send(source, "host")
    pieces = ticket.place.pieces()
    transfers.close()
    stage.holds(pieces, value)


def close_returns_after_the_last_copy_in(stage: Stage) -> None:
    transfers = stage.open()
    ticket, value = stage.away()
    target = stage.empty()
    stage.busy()
    transfers.fetch(ticket, target)
    transfers.close()
    stage.reads(target, value)


def close_ends_the_threads(stage: Stage) -> None:
    transfers = stage.open()
    stage.comes_back(*stage.away("disk"))
    transfers.close()
    assert not stage.threads(), f"{stage.threads()} are left"


STREAM_CLAIMS: list[Claim] = [
    a_map_is_read_right_after_wait_fetched,
    a_map_is_copied_out_as_compute_leaves_it,
    memory_freed_after_wait_sent_is_overwritten_after_the_copy_out,
    a_map_is_fetched_into_memory_that_compute_still_reads,
    a_map_is_fetched_before_it_has_left,
    the_copy_out_of_a_dropped_ticket_reads_the_map,
    the_copy_in_of_a_dropped_ticket_overwrites_nothing,
    the_host_place_of_a_dropped_ticket_is_overwritten_after_its_copy_in,
    close_returns_after_the_last_copy_out,
    close_returns_after_the_last_copy_in,
]
DISK_CLAIMS: list[Claim] = [
    a_map_is_read_from_disk_after_it_was_written,
    a_map_is_copied_in_after_it_was_read_from_disk,
    a_full_disk_has_room_when_the_copy_out_of_a_dropped_ticket_is_done,
    a_full_disk_has_room_when_the_copy_in_of_a_dropped_ticket_is_done,
    page_locked_memory_on_its_way_to_disk_is_bounded,
    close_ends_the_threads,
]


def claims(mode: Mode) -> list[Claim]:
    """Vector clocks watch streams. What threads do with memory of the host is not told to them."""
    return STREAM_CLAIMS if mode == CLOCKS else STREAM_CLAIMS + DISK_CLAIMS


def check(claim: Claim, mode: Mode, mutant: Mutant | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(mutant, mode, Path(folder))
        try:
            with stage.compute():
                claim(stage)
                stage.look()
        finally:
            stage.end()


def caught_by(mutant: Mutant, mode: Mode) -> Claim | None:
    """The first claim that fails."""
    for tried in (mode, mode.slower()):
        for claim in claims(mode):
            try:
                check(claim, tried, mutant)
            except (AssertionError, TierFull, TierFailed):
                return claim
    return None


def main() -> None:
    device.load()
    for mutant in mutants():
        print(mutant)
        for mode in (SLOW_COPIES, LATE_OPS, CLOCKS):
            claim = caught_by(mutant, mode)
            print(f"    {mode.name:12} {claim.__name__ if claim else '-'}", flush=True)


if __name__ == "__main__":
    main()
