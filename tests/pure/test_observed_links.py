"""Links as copies showed them: sums, differences of sums, and a machine that is priced by them."""

from __future__ import annotations

import pytest

from vdnn.hardware.device import Hardware, Link, Tier
from vdnn.hardware.emulated import emulated
from vdnn.hardware.observed_links import OBSERVED, ObservedLink, as_observed, observed_since

MACHINE = Hardware(
    name="RAM above disk",
    flops_per_s=1.0,
    memory_bandwidth_bytes_per_s=1.0,
    tiers=(Tier("device"), Tier("disk")),
    links=(Link("device", "disk", 1000.0, 0.5, 0.4), Link("disk", "device", 2000.0)),
    sources=(("device->disk", "assumed"), ("disk->device", "assumed")),
)


def test_the_difference_of_two_looks_is_what_came_between_them() -> None:
    first, second = ObservedLink("disk", False, 2, 100, 1.0), ObservedLink("disk", False, 5, 400, 7.0)
    new = ObservedLink("host", True, 1, 10, 1.0)
    assert observed_since([second, new], [first]) == (ObservedLink("disk", False, 3, 300, 6.0), new)
    assert second.since(first).bytes_per_s == 50.0
    assert ObservedLink("disk", True).bytes_per_s is None


def test_a_link_that_took_twice_as_long_is_priced_so_and_the_other_stays() -> None:
    """Four copies of 1000 bytes: 4 · (0.5 + 1.0) s were believed."""
    seen = (ObservedLink("disk", False, 4, 4000, 12.0), ObservedLink("disk", True))
    assert [link.slowdown(MACHINE) for link in seen] == [2.0, None]
    priced = as_observed(MACHINE, seen)
    assert priced.links == (Link("device", "disk", 500.0, 1.0, 0.2), MACHINE.links[1])
    assert 4 * priced.links[0].seconds(1000) == pytest.approx(12.0)
    assert dict(priced.sources) == {"device->disk": OBSERVED, "disk->device": "assumed"}


def test_a_link_that_was_faster_drags_at_most_all_of_the_compute() -> None:
    priced = as_observed(MACHINE, [ObservedLink("disk", False, 4, 4000, 0.75)])
    assert priced.link("device", "disk") == Link("device", "disk", 8000.0, 0.0625, 1.0)


def test_a_tier_behind_another_tells_of_the_last_link() -> None:
    machine = emulated()
    priced = as_observed(machine, [ObservedLink("disk", True, 1, 10**9, 20.0)])
    assert priced.link("disk", "host").bandwidth_bytes_per_s == pytest.approx(5e7)
    assert priced.links[:3] == machine.links[:3]
