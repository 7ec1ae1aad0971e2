"""The memory profile: what fills the peak, which layers stash most, the curve over the ops."""

from __future__ import annotations

import json

import numpy as np
import pytest
from report_samples import chain, planned

from vdnn.plan.model.actions import Decision, Offload
from vdnn.report.memory_profile import (
    FEATURE_MAPS,
    PERSISTENT,
    TRANSIENT,
    curve,
    profile_memory,
    residents_at_peak,
    stash_by_layer,
)
from vdnn.units import MiB

BANDS = (PERSISTENT, FEATURE_MAPS, TRANSIENT)


def offload_first_map() -> Decision:
    graph = chain()
    storage = next(i for i, storage in enumerate(graph.storages) if storage.name == "map_0")
    last = len(graph) - 2  # the backward op that reads map_0 first
    return Decision(storage, Offload("host", 2, last, last), "next use is far away")


def test_what_is_alive_at_the_peak_adds_up_to_the_peak() -> None:
    plan = planned()
    assert sum(resident.nbytes for resident in residents_at_peak(plan)) == plan.peak_nbytes


def test_what_was_offloaded_is_not_alive_at_the_peak() -> None:
    kept, moved = planned(), planned(decisions=(offload_first_map(),))
    assert "map_0" in {resident.name for resident in residents_at_peak(kept)}
    assert "map_0" not in {resident.name for resident in residents_at_peak(moved)}
    assert sum(resident.nbytes for resident in residents_at_peak(moved)) == moved.peak_nbytes < kept.peak_nbytes


def test_the_workspace_of_the_peak_op_is_among_the_residents() -> None:
    plan = planned(workspace_nbytes=5 * MiB)
    workspaces = [resident for resident in residents_at_peak(plan) if resident.role == "workspace"]
    assert [resident.nbytes for resident in workspaces] == [5 * MiB]


def test_residents_come_largest_first() -> None:
    sizes = [resident.nbytes for resident in residents_at_peak(planned())]
    assert sizes == sorted(sizes, reverse=True)


def test_layers_share_out_all_stashed_bytes() -> None:
    graph = chain()
    total = sum(graph.storages[storage].nbytes for storage in graph.stashed)
    assert sum(layer.stashed_nbytes for layer in stash_by_layer(graph)) == total


def test_the_layer_with_the_largest_map_comes_first() -> None:
    assert stash_by_layer(chain())[0].module == "features.0"


def test_the_highest_column_of_a_squeezed_curve_is_the_peak() -> None:
    plan = planned(chain(40))
    squeezed = curve(plan.timeline, plan.problem.graph.num_forward, max_columns=7)
    total = np.sum([squeezed.bands[band] for band in BANDS], axis=0)
    assert total.max() == total[squeezed.peak_column] == plan.peak_nbytes


@pytest.mark.parametrize("max_columns", [2, 7, 1000])
def test_forward_and_backward_never_share_a_column(max_columns: int) -> None:
    plan = planned(chain(40))
    squeezed = curve(plan.timeline, plan.problem.graph.num_forward, max_columns)
    assert 0 < squeezed.backward_from < squeezed.num_columns


def test_a_profile_lists_no_more_than_asked_and_counts_the_rest() -> None:
    profile = profile_memory(planned(chain(20)), top=3)
    assert (len(profile.residents), len(profile.layers)) == (3, 3)
    assert profile.num_layers == 20


def test_feature_maps_dominate_a_chain_of_large_maps() -> None:
    assert profile_memory(planned()).dominant_role == "feature map"


def test_the_json_of_a_profile_is_json() -> None:
    record = json.loads(profile_memory(planned()).to_json())
    assert (record["schema"], record["version"]) == ("vdnn.memory-profile", 1)
