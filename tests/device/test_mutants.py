"""Every wait and every event of the transfers is needed: whichever call is left out, a claim fails.

`python -m device.order_claims` prints which one.
"""

from __future__ import annotations

from types import ModuleType

import pytest

from device.mutants import EVENTS, WAITS, Mutant, mutants
from device.order_claims import Claim, caught_by, check, claims
from device.stage import CLOCKS, LATE_OPS, SLOW_COPIES, Mode
from vdnn.runtime.transfers import streams
from vdnn.runtime.transfers.stream_ops import StreamOps

pytestmark = pytest.mark.timeout(60)
on_the_device = pytest.mark.parametrize("mode", [SLOW_COPIES, LATE_OPS], ids=lambda mode: mode.name)


def orders_streams(mutant: Mutant) -> bool:
    """What the disk's thread waits for is not told to the clocks."""
    function, call = mutant.words.split(": ", 1)
    return mutant.module is streams and call.startswith("self._ops.") and function != "write"


@on_the_device
@pytest.mark.parametrize("claim", claims(SLOW_COPIES), ids=lambda claim: claim.__name__)
def test_it_holds_of_the_transfers_as_they_are(vdev: ModuleType, claim: Claim, mode: Mode) -> None:
    check(claim, mode)


@pytest.mark.parametrize("claim", claims(CLOCKS), ids=lambda claim: claim.__name__)
def test_it_holds_on_vector_clocks(claim: Claim) -> None:
    check(claim, CLOCKS)


@on_the_device
@pytest.mark.parametrize("mutant", mutants(), ids=str)
def test_a_call_that_is_left_out_is_noticed(vdev: ModuleType, mutant: Mutant, mode: Mode) -> None:
    assert caught_by(mutant, mode) is not None, f"no claim notices that this is left out: {mutant}"


@pytest.mark.parametrize("mutant", list(filter(orders_streams, mutants())), ids=str)
def test_vector_clocks_notice_each_that_orders_streams(mutant: Mutant) -> None:
    assert caught_by(mutant, CLOCKS) is not None, f"no claim notices that this is left out: {mutant}"


def test_no_operation_of_streams_escapes_the_search_for_mutants() -> None:
    operations = {name for name in vars(StreamOps) if not name.startswith("_")}
    assert operations - {"current_stream", "new_stream", "copy"} <= EVENTS | WAITS
