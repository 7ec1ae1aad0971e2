"""Devices by name: every number has a source, and the numbers are those of the source."""

from __future__ import annotations

import pytest

from vdnn.errors import InvalidInput
from vdnn.hardware.device import Hardware
from vdnn.hardware.presets import PRESETS, pcie, preset
from vdnn.units import GiB

EVERY = pytest.mark.parametrize("hardware", PRESETS.values(), ids=PRESETS)


def constants(hardware: Hardware) -> set[str]:
    """The name of every number in a `Hardware`."""
    rates = {"flops_per_s", "memory_bandwidth_bytes_per_s", "launch_s"}
    return rates | {tier.name for tier in hardware.tiers} | {link.name for link in hardware.links}


@EVERY
def test_every_constant_has_exactly_one_source(hardware: Hardware):
    assert sorted(name for name, _ in hardware.sources) == sorted(constants(hardware))


@EVERY
def test_no_source_is_empty(hardware: Hardware):
    assert all(source.strip() for _, source in hardware.sources)


@EVERY
def test_the_source_of_the_rate_says_it_is_fp32(hardware: Hardware):
    assert "fp32" in dict(hardware.sources)["flops_per_s"]


@EVERY
def test_tiers_are_device_host_disk_and_neighbours_are_linked_both_ways(hardware: Hardware):
    links = {link.name for link in hardware.links}
    assert [tier.name for tier in hardware.tiers] == ["device", "host", "disk"]
    assert links == {"device->host", "host->device", "host->disk", "disk->host"}


@EVERY
def test_the_bus_is_faster_than_the_drive_behind_it(hardware: Hardware):
    assert hardware.link("device", "host").bandwidth_bytes_per_s > hardware.link("host", "disk").bandwidth_bytes_per_s


def test_the_titan_x_is_the_one_of_the_vdnn_paper():
    titan = preset("titan-x")
    assert (titan.flops_per_s, titan.memory_bandwidth_bytes_per_s, titan.device.nbytes) == (7e12, 336e9, 12 * GiB)
    assert titan.link("device", "host").bandwidth_bytes_per_s == 12.8e9


def test_the_derated_bus_of_generation_3_is_the_one_of_the_vdnn_paper():
    assert pcie(3).value == pytest.approx(12.8e9)


def test_names_are_found_in_any_case():
    assert preset("Titan-X") is PRESETS["titan-x"]


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(InvalidInput, match=r"'titan-y'.*titan-x, k40c, v100, a100-80gb, h100, rtx-4090"):
        preset("titan-y")


def test_a_device_that_comes_in_sizes_has_a_short_name() -> None:
    assert preset("A100") is PRESETS["a100-80gb"]
