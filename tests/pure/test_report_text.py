"""The text of the report: it fits the terminal, needs no colour, and says the figures."""

from __future__ import annotations

import pytest
from report_samples import chain, planned
from rich.cells import cell_len

from vdnn.report.memory_profile import profile_memory
from vdnn.report.pieces import Piece, summarize
from vdnn.report.plot import GUTTER, plot
from vdnn.report.record import Report
from vdnn.report.text import as_text, bar, profile_view, report_view, shorten
from vdnn.units import format_nbytes

LONG = "model.encoder.layers.11.attention.self.query_key_value_projection"


def profile_text(width: int, prefix: str = "features") -> str:
    return as_text(profile_view(profile_memory(planned(chain(prefix=prefix))), width), width)


def report_of(num_pieces: int, has_run: bool = True) -> Report:
    plan = planned()
    predicted = summarize(plan.timeline, plan.problem.graph)
    measured = summarize(plan.timeline, plan.problem.graph, [0.05]) if has_run else None
    return Report("net", "keep-all", None, tuple(Piece(f"piece {i}", predicted, measured) for i in range(num_pieces)))


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("prefix", ["features", LONG])
def test_no_line_of_a_profile_is_wider_than_the_terminal(width: int, prefix: str) -> None:
    assert max(cell_len(line) for line in profile_text(width, prefix).splitlines()) <= width


def test_a_profile_says_what_dominates_and_how_high_it_is() -> None:
    text = profile_text(80)
    assert f"peaks at {format_nbytes(planned().peak_nbytes)}" in text
    assert "feature maps dominate" in text


def test_a_narrow_terminal_keeps_the_bytes_and_the_end_of_a_name() -> None:
    text = profile_text(80, LONG)
    assert "projection.0" in text
    assert "64.00 MiB" in text


def test_a_peak_larger_than_the_device_is_said() -> None:
    plan = planned(chain(nbytes=1 << 31))
    assert "x the 2.00 GiB of toy" in as_text(profile_view(profile_memory(plan)))


def test_the_plot_marks_both_phases_and_the_peak() -> None:
    text = "\n".join(plot(profile_memory(planned()).curve))
    assert "─ forward ─" in text
    assert "─ backward ─" in text
    assert "▲" in text


@pytest.mark.parametrize("num_layers", [1, 2, 6, 500])
@pytest.mark.parametrize("width", [30, 80, 200])
def test_every_line_of_the_plot_fits(num_layers: int, width: int) -> None:
    lines = plot(profile_memory(planned(chain(num_layers))).curve, width=width, height=5)
    assert all(len(line) <= max(width, GUTTER + 1 + 62) for line in lines[:-1])
    assert len(lines) == 5 + 4


def test_the_mark_stands_under_a_column_that_reaches_the_top() -> None:
    lines = plot(profile_memory(planned()).curve)
    column = next(line for line in lines if "▲" in line).index("▲")
    assert lines[0][column] != " "


def test_bands_are_told_apart_by_shade() -> None:
    body = "\n".join(plot(profile_memory(planned()).curve)[:8])
    assert {"░", "█", "▒"} <= set(body)


def test_a_terminal_too_narrow_for_a_plot_gets_none() -> None:
    assert plot(profile_memory(planned()).curve, width=15) == []


def test_a_report_shows_the_ratio_of_measured_to_predicted() -> None:
    lines = as_text(report_view(report_of(1))).splitlines()
    assert next(line for line in lines if line.startswith("peak memory")).endswith("1.000")


def test_a_report_before_the_first_step_says_so() -> None:
    assert "not run yet" in as_text(report_view(report_of(1, has_run=False)))


def test_a_report_of_several_pieces_warns_that_peaks_do_not_add_up() -> None:
    assert "captured in 2 pieces" in as_text(report_view(report_of(2)))


def test_text_carries_no_colour_codes() -> None:
    assert "\x1b" not in profile_text(80)


@pytest.mark.parametrize(("share", "columns"), [(0.0, 0), (1e-9, 1), (0.5, 12), (1.0, 24), (2.0, 24)])
def test_a_bar_is_as_long_as_its_share(share: float, columns: int) -> None:
    assert len(bar(share)) == columns


def test_a_name_that_fits_is_left_alone() -> None:
    assert shorten("abc", 3) == "abc"


def test_a_name_that_is_too_long_keeps_its_end() -> None:
    assert shorten("features.12.conv", 6) == "….conv"
