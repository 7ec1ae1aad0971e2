"""The report record: what a summary says of a timeline, what totals add up, what JSON keeps."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from report_samples import planned

from vdnn.errors import InvalidInput
from vdnn.report.pieces import Piece, TimelineSummary, summarize
from vdnn.report.process_part import ArenaPart, DevicePart, ProcessPart
from vdnn.report.record import Report
from vdnn.units import MiB


def summary(peak_nbytes: int = 100, step_time_s: float = 1.0, **fields: object) -> TimelineSummary:
    words = {"source": "simulated", "peak_step": "relu", "peak_module": "block.1", "nbytes_by_role": {"parameter": 100}}
    return TimelineSummary(peak_nbytes=peak_nbytes, step_time_s=step_time_s, **{**words, **fields})  # type: ignore[arg-type]


def report(*pieces: Piece) -> Report:
    return Report("net", "keep-all", 4096, pieces, {"vdnn": "0.1.0"})


def test_a_summary_names_the_op_and_module_of_the_peak() -> None:
    plan = planned()
    found = summarize(plan.timeline, plan.problem.graph)
    op = plan.problem.graph.ops[plan.timeline.peak_at]
    assert (found.peak_step, found.peak_module) == (op.name, op.module)


def test_the_roles_of_a_summary_add_up_to_its_peak() -> None:
    plan = planned()
    found = summarize(plan.timeline, plan.problem.graph)
    assert sum(found.nbytes_by_role.values()) == found.peak_nbytes == plan.peak_nbytes


def test_a_summary_takes_the_median_of_the_step_times_it_is_given() -> None:
    plan = planned()
    found = summarize(plan.timeline, plan.problem.graph, [9.0, 1.0, 2.0])
    assert (found.step_time_s, found.num_steps) == (2.0, 3)


def test_without_step_times_the_timeline_gives_the_duration() -> None:
    plan = planned()
    assert summarize(plan.timeline, plan.problem.graph).step_time_s == pytest.approx(0.002 * len(plan.problem.graph))


def test_a_summary_of_no_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one training step, not 0"):
        summary(num_steps=0)


def test_times_of_pieces_add_up_and_peaks_do_not() -> None:
    totals = report(Piece("a", summary(100, 1.0)), Piece("b", summary(300, 2.0))).predicted
    assert (totals.peak_nbytes, totals.peak_piece, totals.step_time_s) == (300, "b", 3.0)


def test_there_are_no_measured_totals_before_every_piece_has_run() -> None:
    assert report(Piece("a", summary(), summary()), Piece("b", summary())).measured is None


def test_measured_totals_come_from_the_measured_side() -> None:
    measured = report(Piece("a", summary(100), summary(101)), Piece("b", summary(50), summary(40))).measured
    assert measured is not None
    assert measured.peak_nbytes == 101


def test_json_names_its_schema_and_version() -> None:
    record = json.loads(report(Piece("a", summary())).to_json())
    assert (record["schema"], record["version"]) == ("vdnn.report", 1)


def test_a_report_survives_the_round_trip_through_json() -> None:
    original = report(Piece("a", summary(), summary(7, 0.5, source="measured", num_steps=3)), Piece("b", summary()))
    assert Report.from_json(original.to_json()) == original


@pytest.mark.parametrize("text", ['{"schema": "vdnn.report", "version": 2}', '{"schema": "other", "version": 1}', "[]"])
def test_a_record_of_another_schema_or_version_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"not a vdnn\.report record of version 1"):
        Report.from_json(text)


ON_DEVICE = DevicePart("vdev:0", 40 * MiB, 50 * MiB, 4096 * MiB)
ARENA = ArenaPart(51 * MiB, 50 * MiB, 30, 2, MiB, num_moves_refused=1, num_page_faults=7)


@pytest.mark.parametrize(
    "process",
    [
        ProcessPart(100, 120, 300, ARENA),
        ProcessPart(100, 120, 300, None, "there is no compiler", returns_freed=True),
        ProcessPart(100, 120, 300, None, "vdev:0 has an allocator of its own", device=ON_DEVICE),
    ],
)
def test_the_process_survives_the_round_trip_through_json(process: ProcessPart) -> None:
    original = replace(report(Piece("a", summary())), process=process)
    assert Report.from_json(original.to_json()) == original


def test_a_record_without_the_process_is_read_as_before() -> None:
    record = report(Piece("a", summary())).to_dict()
    del record["process"]
    assert Report.from_json(json.dumps(record)).process is None


def test_a_report_tells_the_process_and_its_arena_beside_the_tensors() -> None:
    process = ProcessPart(100 * MiB, 120 * MiB, 300 * MiB, ARENA)
    text = str(replace(report(Piece("a", summary())), process=process))
    told = {line.split("  ")[0]: line.split("  ", 1)[1].strip() for line in text.splitlines() if "  " in line}
    assert told["peak of the process"] == "300.00 MiB"
    assert told["rise"] == "200.00 MiB"
    assert told["arena of the steps"] == "51.00 MiB   1.020 x the most that lies in it"
    assert told["outside of it, per step"] == "1.00 MiB   2 of 32 blocks"
    assert told["page faults per step"] == "7"
    assert "refused to move the pages of 1 blocks" in text


def test_a_report_tells_what_the_device_allocated_and_reserved() -> None:
    process = ProcessPart(100 * MiB, 120 * MiB, 300 * MiB, device=ON_DEVICE)
    text = str(replace(report(Piece("a", summary())), process=process))
    told = {line.split("  ")[0]: line.split("  ", 1)[1].strip() for line in text.splitlines() if "  " in line}
    assert told["allocated on vdev:0, at most"] == "40.00 MiB"
    assert told["reserved there, at most"] == "50.00 MiB   1.250 x what was allocated"
    assert told["memory of the device"] == "4.00 GiB"


def test_a_peak_from_before_the_model_is_not_called_its_rise() -> None:
    text = str(replace(report(Piece("a", summary())), process=ProcessPart(100 * MiB, 300 * MiB, 300 * MiB)))
    assert "from before this model" in text
    assert "rise" not in text


def test_a_report_says_why_there_is_no_arena() -> None:
    process = ProcessPart(100, 120, 300, None, "there is no compiler", returns_freed=True)
    words = " ".join(str(replace(report(Piece("a", summary())), process=process)).split())
    assert "without planned addresses: there is no compiler; malloc returns what is freed." in words


def test_printing_a_report_shows_predicted_beside_measured() -> None:
    text = str(report(Piece("a", summary(), summary(source="measured"))))
    assert "predicted" in text
    assert "measured / predicted" in text
