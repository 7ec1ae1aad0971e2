"""Records as text for a terminal: tables of rich, and plain strings where a string is wanted.

Enters: `Report` and `MemoryProfile`. Leaves: renderables that fit 80 columns, and use more when they have them. Colour
only repeats what words, columns and shades already say.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from vdnn.ir import Role
from vdnn.report.memory_profile import LayerStash, MemoryProfile
from vdnn.report.pieces import Piece, ReportData, TimelineSummary
from vdnn.report.plot import SHADES, plot
from vdnn.report.process_part import ProcessPart
from vdnn.units import format_nbytes, format_seconds

PLAIN_WIDTH = 80
BAR_COLUMNS = 24
WIDE_COLUMNS = 110  # from here on a table can afford one more column
NAME_COLUMNS = 30
GAPS = 20  # between five columns, and room for a longer cell in another row
SHOWN_OPS = 4  # of those that are not exact: enough to see which; the record has all
LAYER_NUMBERS = 48  # what storages, bytes, share, bar and gaps take of a line
BAND_STYLES = dict(zip(SHADES.values(), ("cyan", "green", "yellow"), strict=True))


def console(**options: Any) -> Console:
    """The one kind of console that vdnn writes to: brackets and colons in a name are brackets and colons, not markup.
    What else may be in a name has been taken care of (`printable.py`)."""
    return Console(markup=False, emoji=False, highlight=False, **options)


def as_text(renderable: RenderableType, width: int = PLAIN_WIDTH) -> str:
    """The renderable as a plain string, no colour, no trailing blanks."""
    plain = console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    plain.print(renderable)
    assert isinstance(plain.file, io.StringIO)
    return "\n".join(line.rstrip() for line in plain.file.getvalue().strip("\n").splitlines())


def report_view(report: ReportData) -> RenderableType:
    """A finished run: predicted beside measured, then what the peak was made of."""
    parts: list[RenderableType] = [title(f"{report.name}, strategy {report.strategy}, {_budget_words(report)}")]
    if report.eager is not None:
        parts += [Text(sentence) for sentence in report.eager.sentences()]
    parts += [Text(sentence) for sentence in report.verified]
    if report.pieces:
        parts.append(comparison_table(report))
    if len(report.pieces) > 1:
        parts.append(_pieces_note(report))
    parts += [role_comparison(piece) for piece in _largest_pieces(report)]
    if report.process is not None:
        parts.append(process_table(report.process))
        parts += [Text(sentence) for sentence in report.process.sentences()]
    parts += [Text(sentence) for piece in report.pieces for sentence in _findings(piece, len(report.pieces) > 1)]
    return sections(*parts)


def profile_view(profile: MemoryProfile, width: int = PLAIN_WIDTH) -> RenderableType:
    """A planned step: the headline, memory by role, the curve, the peak's storages, the largest layers."""
    heading = title(f"{profile.name} on {profile.hardware}, strategy {profile.strategy}")
    return sections(
        Group(heading, _headline(profile)),
        roles_table(profile.predicted),
        plot_view(profile, width),
        residents_table(profile, width),
        layers_table(profile, width),
    )


def comparison_table(report: ReportData) -> Table:
    """Peak and step time of every piece, predicted beside measured; the ratio says how good the prediction was."""
    table = quiet_table("", ">predicted", ">measured", ">measured / predicted")
    for piece in report.pieces:
        prefix = f"{piece.name}: " if len(report.pieces) > 1 else ""
        for row in _comparison_rows(piece):
            table.add_row(prefix + row[0], *row[1:])
    if len(report.pieces) > 1:
        table.add_section()
        for row in _total_rows(report):
            table.add_row(*row)
    return table


def role_comparison(piece: Piece) -> RenderableType:
    """Bytes by role at the peak, predicted beside measured, and where each peak is."""
    if piece.measured is None:
        return roles_table(piece.predicted)
    table = quiet_table("at the peak", ">predicted", ">measured")
    predicted, measured = piece.predicted.nbytes_by_role, piece.measured.nbytes_by_role
    for role in (str(role) for role in Role):
        if predicted.get(role) or measured.get(role):
            table.add_row(_plural(role), format_nbytes(predicted.get(role, 0)), format_nbytes(measured.get(role, 0)))
    return Group(table, "", _peaks_sentence(piece.predicted, piece.measured))


def process_table(process: ProcessPart) -> Table:
    """The process as the kernel counts it, and the memory that its steps run in."""
    table = quiet_table("process", ">", "")
    for row in process.rows():
        table.add_row(*row)
    return table


def roles_table(summary: TimelineSummary) -> Table:
    """Bytes of every role at the peak, with a bar whose length is the share."""
    table = quiet_table("memory by role, at the peak", ">bytes", ">share", "")
    for role, nbytes in summary.nbytes_by_role.items():
        share = nbytes / max(summary.peak_nbytes, 1)
        table.add_row(_plural(role), format_nbytes(nbytes), f"{share:.1%}", bar(share))
    table.add_section()
    table.add_row("total", format_nbytes(summary.peak_nbytes), "", "")
    return table


def residents_table(profile: MemoryProfile, width: int = PLAIN_WIDTH) -> RenderableType:
    """The largest storages alive at the peak. A wide terminal also gets their names in the graph."""
    has_names = width >= WIDE_COLUMNS
    table = quiet_table("made in", "role", ">shape", "dtype", ">bytes", *(["name"] if has_names else []))
    for resident in profile.residents:
        made_in = resident.module or resident.name
        shape = "x".join(str(size) for size in resident.shape) or "scalar"
        cells = (resident.role, shape, resident.dtype, format_nbytes(resident.nbytes))
        room = width - sum(len(cell) for cell in cells) - GAPS - (NAME_COLUMNS if has_names else 0)
        table.add_row(shorten(made_in, room), *cells, *([shorten(resident.name, NAME_COLUMNS)] if has_names else []))
    more = profile.num_residents - len(profile.residents)
    if more > 0:
        rest = profile.predicted.peak_nbytes - sum(resident.nbytes for resident in profile.residents)
        table.add_row(f"{more} smaller", "", "", "", format_nbytes(rest))
    return Group(Text(f"The peak is at {_peak_name(profile.predicted)}. Alive there:", style="bold"), "", table)


def layers_table(profile: MemoryProfile, width: int = PLAIN_WIDTH) -> Table:
    """The modules that stash most for backward."""
    table = quiet_table("largest layers, by stashed bytes", ">storages", ">bytes", ">share", "")
    for layer in profile.layers:
        name, *numbers = _layer_row(layer, profile.stashed_nbytes)
        table.add_row(shorten(name, width - LAYER_NUMBERS), *numbers)
    more = profile.num_layers - len(profile.layers)
    if more > 0:
        rest = profile.stashed_nbytes - sum(layer.stashed_nbytes for layer in profile.layers)
        table.add_row(f"{more} smaller", "", format_nbytes(rest), f"{rest / max(profile.stashed_nbytes, 1):.1%}", "")
    return table


def plot_view(profile: MemoryProfile, width: int = PLAIN_WIDTH) -> RenderableType:
    """The curve of device bytes over the ops; the shades carry the meaning, colour repeats it."""
    text = Text("\n".join(plot(profile.curve, width=width)), no_wrap=True, overflow="crop")
    for shade, style in BAND_STYLES.items():
        text.highlight_regex("[▁▂▃▄▅▆▇█]+" if shade == "█" else f"{shade}+", style)
    return text


def bar(share: float, columns: int = BAR_COLUMNS) -> str:
    """A share of 1 as `columns` full blocks; anything above nothing shows at least an eighth."""
    eighths = round(max(0.0, min(share, 1.0)) * columns * 8)
    if share > 0 and eighths == 0:
        eighths = 1
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]


def shorten(name: str, columns: int) -> str:
    """The end of a name that is too long: module paths differ there."""
    return name if len(name) <= columns else "…" + name[len(name) - max(columns - 1, 1) :]


def _comparison_rows(piece: Piece) -> Iterable[tuple[str, str, str, str]]:
    predicted, measured = piece.predicted, piece.measured
    yield _row("peak memory", predicted.peak_nbytes, measured.peak_nbytes if measured else None, format_nbytes)
    yield _row(_time_words(measured), predicted.step_time_s, measured.step_time_s if measured else None, format_seconds)


def _total_rows(report: ReportData) -> Iterable[tuple[str, str, str, str]]:
    predicted, measured = report.predicted, report.measured
    yield _row("largest peak", predicted.peak_nbytes, measured.peak_nbytes if measured else None, format_nbytes)
    yield _row(
        "step time, all pieces", predicted.step_time_s, measured.step_time_s if measured else None, format_seconds
    )


def _row(
    label: str, predicted: float, measured: float | None, words: Callable[[float], str]
) -> tuple[str, str, str, str]:
    if measured is None:
        return label, words(predicted), "not run yet", ""
    return label, words(predicted), words(measured), f"{measured / predicted:.3f}" if predicted else "-"


def _time_words(measured: TimelineSummary | None) -> str:
    return "step time" if measured is None or measured.num_steps < 2 else f"step time, median of {measured.num_steps}"


def _peaks_sentence(predicted: TimelineSummary, measured: TimelineSummary) -> Text:
    expected, found = _peak_name(predicted), _peak_name(measured)
    if expected == found:
        return Text(f"Predicted and measured peak are at {found}.")
    return Text(f"The peak was predicted at {expected} and measured at {found}.")


def _word(piece: Piece) -> str:
    return "Inexact" if piece.inexact or piece.other_bits else "Lossy"


def _findings(piece: Piece, is_one_of_many: bool) -> Iterable[str]:
    """What only a run can know: rounding and sparsity."""
    prefix = f"{piece.name}: " if is_one_of_many else ""
    error, density = piece.gradient_error, piece.density
    if piece.inexact:
        yield f"{prefix}Inexact, as exact=False allows: sums in another order ({_some(piece.inexact)})."
    if piece.other_bits:
        yield f"{prefix}Inexact: PyTorch's trace has other last bits than eager mode in {_some(piece.other_bits)}."
    if piece.nondeterministic:
        yield (
            f"{prefix}PyTorch lists kernels of this device as nondeterministic, so that two plain steps may differ in"
            f" last bits too: {_some(piece.nondeterministic)}."
        )
    if error is not None and error.relative is not None:
        worst = f", at most {error.worst:.2g} ({error.worst_name})" if error.worst_name else ""
        yield f"{prefix}{_word(piece)}: the first step's gradients are {error.relative:.2g} off the exact ones{worst}."
    elif error is not None:
        yield f"{prefix}{_word(piece)}: the error of the gradients was not measured; {error.note}."
    if density is not None:
        too_dense = f"{density.num_too_dense} maps were denser and were kept whole" if density.num_too_dense else ""
        words = f"{prefix}Sparse maps: {density.planned:.0%} non-zero elements planned for, {density.densest:.0%} found"
        yield f"{words} at most{'; ' + too_dense if too_dense else ''}."


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN_OPS]) + (", ..." if len(names) > SHOWN_OPS else "")


def _pieces_note(report: ReportData) -> Text:
    return Text(
        f"The model was captured in {len(report.pieces)} pieces. What an earlier piece stashes stays alive while a"
        " later one runs, so the process needs more than the largest piece's own peak.",
        style="italic",
    )


def _largest_pieces(report: ReportData) -> list[Piece]:
    """The piece that carries the peak; empty for a report without pieces."""
    return sorted(report.pieces, key=lambda piece: -piece.predicted.peak_nbytes)[:1]


def _headline(profile: MemoryProfile) -> Text:
    """The one sentence to take away: how high, and what it is made of."""
    peak, role = profile.predicted.peak_nbytes, profile.dominant_role
    text = Text(f"One training step peaks at {format_nbytes(peak)}", style="bold")
    if role:
        share = profile.predicted.nbytes_by_role[role] / max(peak, 1)
        verb = "dominate" if share >= 0.5 else "are the largest part"
        text.append(f": {_plural(role)} {verb} with {share:.0%}")
    text.append(f". {_room_words(profile)}Predicted step time {format_seconds(profile.predicted.step_time_s)}.")
    return text


def _room_words(profile: MemoryProfile) -> str:
    """Whether the peak fits the device it was planned for."""
    peak, room = profile.predicted.peak_nbytes, profile.device_nbytes
    if room is None:
        return ""
    if peak <= room:
        return f"It fits the {format_nbytes(room)} of {profile.hardware}. "
    return f"That is {peak / room:.1f}x the {format_nbytes(room)} of {profile.hardware}. "


def _layer_row(layer: LayerStash, stashed_nbytes: int) -> tuple[str, str, str, str, str]:
    share = layer.stashed_nbytes / max(stashed_nbytes, 1)
    name = layer.module or "(outside any module)"
    return name, str(layer.num_storages), format_nbytes(layer.stashed_nbytes), f"{share:.1%}", bar(share, 16)


def _peak_name(summary: TimelineSummary) -> str:
    return f"{summary.peak_step} in {summary.peak_module}" if summary.peak_module else summary.peak_step or "-"


def _budget_words(report: ReportData) -> str:
    return "no budget" if report.budget_nbytes is None else f"budget {format_nbytes(report.budget_nbytes)}"


def _plural(role: str) -> str:
    """`feature map` as `feature maps`; a word that has no plural in our use stays."""
    return "optimizer state" if role == Role.OPTIMIZER_STATE else f"{role}s"


def sections(*parts: RenderableType) -> RenderableType:
    """One under the other with a blank line between."""
    return Group(*(line for part in parts for line in ("", part)))


def title(words: str) -> Text:
    return Text(words, style="bold underline")


def quiet_table(*headers: str) -> Table:
    """A table with quiet lines; a header that starts with `>` is right-aligned."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for header in headers:
        table.add_column(header.removeprefix(">"), justify="right" if header.startswith(">") else "left")
    return table
