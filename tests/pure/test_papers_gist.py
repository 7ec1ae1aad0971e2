"""Gist's arithmetic: footprints, groups of the static allocator, break-even of sparse encodings, kinds of maps."""

from __future__ import annotations

import pytest

from vdnn.ir import Role
from vdnn.papers.gist_reproduced import Encoded, break_even, encodings, lossless, pairs, sparsity
from vdnn.papers.gist_tables import NETWORKS, footprint, groups_nbytes, rounding, static_footprint
from vdnn.papers.paper_table import Certainty
from vdnn.papers.vdnn_networks import alexnet, vgg
from vdnn.papers.vdnn_tables import paper_problem, weights_nbytes
from vdnn.plan import check, solve
from vdnn.plan.model.actions import Encode


def test_blocks_that_never_live_together_share_the_bytes_of_the_largest() -> None:
    assert groups_nbytes([(4, 0, 1), (8, 2, 3), (6, 4, 5)]) == 8


def test_blocks_that_live_together_do_not_share() -> None:
    assert groups_nbytes([(4, 0, 2), (8, 2, 3)]) == 12


def test_the_largest_block_chooses_first() -> None:
    """8 opens a group; 6 overlaps it and opens another; 4 overlaps 8 only and joins 6."""
    assert groups_nbytes([(4, 0, 0), (6, 2, 3), (8, 0, 2)]) == 14


def test_groups_never_take_less_than_what_is_live() -> None:
    plan = solve(paper_problem(alexnet(64)), "keep-all")
    assert static_footprint(plan).peak_nbytes >= footprint(plan.timeline).peak_nbytes


def test_a_footprint_without_weights_leaves_out_them_and_their_gradients() -> None:
    graph = alexnet(64)
    found = footprint(solve(paper_problem(graph), "keep-all").timeline)
    assert found.peak_nbytes - found.maps_nbytes == 2 * weights_nbytes(graph)


def test_rounding_alone_halves_every_map_it_holds() -> None:
    problem = paper_problem(vgg(16, 4))
    plan = rounding(problem, "fp16")
    held = [(d.storage, d.action) for d in plan.decisions if isinstance(d.action, Encode)]
    assert len(held) == len(plan.decisions) > 0
    storages = problem.graph.storages
    assert all(2 * action.nbytes == storages[storage].nbytes for storage, action in held)
    assert all(storages[storage].role is Role.FEATURE_MAP for storage, _ in held)


def test_a_plan_that_only_rounds_holds() -> None:
    problem = paper_problem(vgg(16, 4))
    allowed = solve(problem, "gist-fp16").problem
    assert check(rounding(allowed, "fp16")).peak_nbytes < solve(problem, "keep-all").peak_nbytes


def test_csr_breaks_even_at_a_fifth_of_zeros_and_the_bit_mask_at_a_thirtieth() -> None:
    assert break_even("csr") == pytest.approx(0.203, abs=0.0005)
    assert break_even("sparse") == pytest.approx(0.032, abs=0.001)


def test_the_sizes_of_all_encodings_are_the_published_ones() -> None:
    for row in encodings().rows:
        if row.published[0].text.endswith("x"):
            assert row.ours[0].text.removesuffix(" x") == f"{float(row.published[0].text.removesuffix(' x')):.2f}"


def test_most_of_vgg_16_lies_between_a_relu_and_a_pool_or_a_convolution() -> None:
    """From shapes: 49, 40 and 10 %."""
    shares = pairs(vgg(16, 64))
    assert [round(100 * shares[pair]) for pair in ("ReLU -> conv", "ReLU -> pool", "pool -> conv")] == [49, 41, 10]
    assert sum(shares.values()) == pytest.approx(1)


def test_the_mean_is_the_only_row_with_a_published_footprint() -> None:
    *networks, mean = lossless({NETWORKS[0]: Encoded(paper_problem(alexnet(8)))}).rows
    assert {row.certainty for row in networks} == {Certainty.UNKNOWN}
    assert mean.certainty is Certainty.SECOND_HAND
    assert [figure.value for figure in mean.ours] == pytest.approx([figure.value for figure in networks[0].ours])


def test_sparsity_is_what_is_not_dense() -> None:
    row, every = sparsity({"net": [0.25, 0.75]}).rows
    assert [figure.text for figure in row.ours] == ["25.0-75.0 %", "50.0 %"]
    assert every.certainty is Certainty.FOUND
