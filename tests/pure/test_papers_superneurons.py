"""The SuperNeurons paper's networks and table, computed by our own strategies and simulator.

What follows from layer shapes and dependency lists is asserted. Published peaks that depend on more than that are not.
"""

from __future__ import annotations

import pytest

from vdnn.hardware.presets import preset
from vdnn.ir import Graph, Role
from vdnn.papers.batches import fits
from vdnn.papers.paper_table import Certainty
from vdnn.papers.superneurons_networks import NETWORKS, alexnet, bottlenecks, resnet
from vdnn.papers.superneurons_reproduced import alexnet_peaks, largest_batches, recomputation
from vdnn.papers.superneurons_tables import (
    PUBLISHED_ALEXNET_MIB,
    PUBLISHED_PEAKS_MIB,
    PUBLISHED_REPLAYS,
    RECOMPUTING,
    baseline_nbytes,
    forward_nbytes,
    moved_nbytes,
    offloading_convolutions,
    on_the_card,
    regulated_peak,
    row,
    superneurons_problem,
)
from vdnn.plan import check, solve
from vdnn.plan.model.problem import Problem
from vdnn.plan.model.segments import segments
from vdnn.plan.strategies.recompute import l_peak, needed_nbytes
from vdnn.units import MiB


def names(graph: Graph, storages: tuple[int, ...]) -> list[str]:
    return [graph.storages[storage].name for storage in storages]


def test_alexnet_has_23_layers_and_46_ops() -> None:
    graph = alexnet()
    assert (graph.num_forward, len(graph)) == (23, 46)


def test_the_outputs_of_alexnets_layers() -> None:
    assert forward_nbytes(alexnet()) / MiB == pytest.approx(1469.592, abs=0.0005)


def test_alexnets_maps_and_gradients_without_any_sharing() -> None:
    """The paper says 2189.437: it leaves out some gradients, and not which."""
    assert baseline_nbytes(alexnet()) / MiB == pytest.approx(2554.140, abs=0.0005)


def test_the_largest_layer_of_alexnet_is_the_backward_of_its_first_normalisation() -> None:
    problem = superneurons_problem(alexnet())
    largest = max(range(len(problem.graph)), key=lambda moment: needed_nbytes(problem, moment))
    assert problem.graph.ops[largest].name == "lrn1_backward"
    assert l_peak(problem) == 4 * (200 * 96 * 55 * 55 * 4)
    assert round(l_peak(problem) / MiB, 2) == PUBLISHED_PEAKS_MIB["AlexNet(200)"][1]


def test_liveness_alone_peaks_in_the_backward_of_the_last_pooling() -> None:
    kept = row(alexnet(), "keep-all")
    assert round(kept.peak_nbytes / MiB, 3) == PUBLISHED_ALEXNET_MIB["liveness"]
    assert (kept.peak_at, alexnet().ops[31].name) == ("pool5_backward", "pool5_backward")


def test_alexnets_segments_are_the_papers() -> None:
    graph = alexnet()
    assert [names(graph, segment.storages) for segment in segments(graph)] == [
        ["act1", "lrn1", "pool1"],
        ["act2", "lrn2", "pool2"],
        ["act3"],
        ["act4"],
        ["act5", "pool5"],
        ["act6", "dropout6"],
        ["act7", "dropout7"],
    ]


@pytest.mark.parametrize("network", NETWORKS)
def test_as_many_layers_run_again_as_the_paper_counts(network: str) -> None:
    """AlexNet 14, 23 and 17; ResNet-50 84, 118 and 85; ResNet-101 169, 237 and 170. A batch normalisation before a join
    is in none of them: nobody reads its output in backward.
    """
    graph = NETWORKS[network]()
    assert tuple(row(graph, strategy).num_replays for strategy in RECOMPUTING) == PUBLISHED_REPLAYS[network]


@pytest.mark.parametrize("strategy", ["keep-all", *RECOMPUTING, "superneurons", "checkpoint-sqrt"])
@pytest.mark.parametrize("network", ["AlexNet(200)", "ResNet50(32)"])
def test_every_plan_for_the_papers_networks_holds(network: str, strategy: str) -> None:
    check(solve(superneurons_problem(NETWORKS[network]()), strategy))


@pytest.mark.parametrize("strategy", RECOMPUTING)
def test_recomputation_that_keeps_checkpoints_peaks_by_the_first_convolution_above_the_largest_layer(
    strategy: str,
) -> None:
    """The published peaks are lower because the output of conv1 is on the host meanwhile."""
    graph = alexnet()
    conv1 = next(storage for storage in graph.storages if storage.name == "conv1")
    found = row(graph, strategy)
    assert found.peak_at == "lrn1_backward"
    assert found.peak_nbytes == l_peak(superneurons_problem(graph)) + conv1.nbytes


def test_with_offloading_beside_it_alexnet_peaks_at_its_largest_layer() -> None:
    found = row(alexnet(), "superneurons")
    assert (found.peak_at, round(found.peak_nbytes / MiB, 2)) == ("lrn1_backward", 886.23)


def test_a_resnet_peaks_at_four_of_its_widest_maps() -> None:
    """X, dX and dY of a batch normalisation, and the gradient that waits at the shortcut. The paper says 401 MB."""
    assert row(resnet(50), "superneurons").peak_nbytes == 4 * (32 * 256 * 56 * 56 * 4)


@pytest.mark.parametrize("network", ["ResNet50(32)", "ResNet101(32)"])
def test_the_square_root_saves_more_maps_than_cheap_layers_do_for_more_work(network: str) -> None:
    graph = NETWORKS[network]()
    cheap, root = row(graph, "recompute-cost"), row(graph, "checkpoint-sqrt")
    assert root.peak_nbytes < cheap.peak_nbytes
    assert root.num_replays > cheap.num_replays


def test_the_images_are_given_and_not_counted() -> None:
    graph = alexnet()
    assert next(storage.role for storage in graph.storages if storage.name == "data") is Role.INPUT


def test_a_depth_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="ResNets of 50, 101 layers, not of 34"):
        resnet(34)


def test_the_convolutions_of_alexnet_on_the_host_leave_1066_mib() -> None:
    """Fetched at their use; the paper has 1132.155 and does not say how far ahead it fetches."""
    plan = check(offloading_convolutions(superneurons_problem(alexnet())))
    assert regulated_peak(plan) / MiB == pytest.approx(1066.04, abs=0.005)


def test_all_outputs_of_convolutions_go_and_return() -> None:
    plan = offloading_convolutions(superneurons_problem(alexnet(256)))
    elements = 96 * 55 * 55 + 256 * 27 * 27 + (384 + 384 + 256) * 13 * 13
    assert moved_nbytes(plan) == 2 * 256 * 4 * elements


def test_nothing_moves_while_the_card_has_room() -> None:
    assert moved_nbytes(on_the_card(superneurons_problem(alexnet(256)))) == 0


def test_the_papers_deepest_network_has_2498_layers() -> None:
    assert bottlenecks((6, 32, 788, 6), 1).name == "ResNet2498(1)"


def test_the_table_of_alexnet_says_equal_only_where_figures_are() -> None:
    for row_ in alexnet_peaks().rows:
        (ours,), (published,) = row_.ours, row_.published
        assert ours.value is not None
        assert published.value is not None
        is_equal = ours.value / MiB == pytest.approx(published.value / MiB, abs=0.001)
        assert is_equal == ("equal" in row_.why)


def test_counts_of_the_resnets_are_no_confirmation() -> None:
    """The paper's counts were matched by solving for the graph, so agreeing with them proves nothing."""
    (network,) = {row_.what[0] for row_ in recomputation(["ResNet50(32)"]).rows}
    assert network == "ResNet50(32)"
    assert {row_.certainty for row_ in recomputation(["ResNet50(32)"]).rows} == {Certainty.FITTED}


def test_the_largest_batch_is_found_by_planning_what_was_captured() -> None:
    """AlexNet's list of layers stands in for a capture."""

    def capture(name: str, batch: int, device: str) -> Problem:
        return superneurons_problem(alexnet(batch))

    (found,) = largest_batches(capture, ["alexnet-lrn"]).rows
    kept, moved, ours = (figure.value for figure in found.ours)
    machine = preset("k40c")
    assert kept is not None
    assert fits(alexnet(int(kept)), machine, "keep-all")
    assert not fits(alexnet(int(kept) + 8), machine, "keep-all")
    assert moved is not None
    assert ours is not None
    assert kept < moved <= ours
    assert (found.published[-1].value, found.certainty) == (1792, Certainty.UNSURE)
