"""Who is dominated by whom: measured points judged, in words.

Enters: points of one network, each a peak and the times of its steps, taken in the same rounds. Leaves: lines of text.
A point is dominated when a peer has no more bytes and no more time, times being medians. How sure that is, the rounds
say: of the ratios within each round, the middle half; where it does not lie on the medians' side of 1, the two are
alike within noise. Peaks that differ by less than a page are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

PAGE_NBYTES = 4096
"""The least memory a process can have. A virtualized step carries a handle of 8 bytes; a loss is held here or there."""


@dataclass(frozen=True)
class Point:
    """`seconds[i]` is from round i. `is_same_step` is False for who computes something else than the plain step.
    `staging_nbytes` is memory outside the tensors' peak that goes with it."""

    name: str
    family: str
    peak_nbytes: int
    seconds: tuple[float, ...]
    is_same_step: bool = True
    staging_nbytes: int = 0

    @property
    def time_s(self) -> float:
        return median(self.seconds)

    @property
    def total_nbytes(self) -> int:
        return self.peak_nbytes + self.staging_nbytes


def dominates(peer: Point, point: Point) -> bool:
    return peer.total_nbytes < point.total_nbytes + PAGE_NBYTES and peer.time_s <= point.time_s


def middle_half(point: Point, base: Point) -> tuple[float, float]:
    """Of the ratios of times within a round: first and third quartile."""
    ratios = [ours / its for ours, its in zip(point.seconds, base.seconds, strict=True)]
    if len(ratios) < 2:
        return ratios[0], ratios[0]
    low, _, high = quantiles(ratios, n=4, method="inclusive")
    return low, high


def over(point: Point, base: Point) -> str:
    """Its time over another's, with what the rounds say."""
    low, high = middle_half(point, base)
    noise = ", within noise" if is_noise(point, base) else ""
    return f"{point.time_s / base.time_s:.3f} of the time ({low:.3f} – {high:.3f}{noise})"


def is_noise(point: Point, base: Point) -> bool:
    """Whether the rounds do not bear out what the medians say."""
    low, high = middle_half(point, base)
    is_borne_out = high < 1 if point.time_s < base.time_s else low > 1 and point.time_s > base.time_s
    return not is_borne_out and low < high


def verdicts(points: Sequence[Point], families: Sequence[str], compiled: Sequence[str] = ()) -> Iterator[str]:
    """A line for each of our `families` beside peers that run op by op, one beside `compiled` ones, and one for the
    peers that it dominates."""
    peers = [point for point in points if point.family not in families]
    beside = {
        "beside eager peers": [peer for peer in peers if peer.family not in compiled],
        "beside compiled ones": [peer for peer in peers if peer.family in compiled],
    }
    for family in families:
        ours = [point for point in points if point.family == family]
        if not ours:
            yield f"- {family}: no point of its own: its plans are other rows', or there are none."
            continue
        for where, some in beside.items():
            if some:
                yield f"- {family} {where}: {verdict(ours, [peer for peer in some if peer.is_same_step])}"
                yield from aside(ours, [peer for peer in some if not peer.is_same_step])
        if peers:
            yield f"- {family}, the other way round: {beaten_by(ours, peers)}"


def verdict(ours: Sequence[Point], peers: Sequence[Point]) -> str:
    found = [(peer, point) for point in ours if (peer := strongest(point, peers)) is not None]
    if not found:
        return f"**not dominated**: no peer of {len(peers)} has as few bytes in as little time as any of {len(ours)}."
    num_clear = sum(not is_noise(peer, point) for peer, point in found)
    head = f"**dominated: {num_clear} of {len(ours)}**" if num_clear else "**not dominated beyond noise**"
    return f"{head}. " + "; ".join(f"{point.name} by {against(peer, point)}" for peer, point in found) + "."


def aside(ours: Sequence[Point], others: Sequence[Point]) -> Iterator[str]:
    """Who computes something else does not judge, but is not passed over in silence either."""
    below = [other.name for other in others if any(dominates(other, point) for point in ours)]
    if below:
        yield f"  - below some of them, but not the same computation: {', '.join(below)}."


def strongest(point: Point, peers: Sequence[Point]) -> Point | None:
    """Of the peers that dominate a point, the fastest."""
    return min((peer for peer in peers if dominates(peer, point)), key=lambda peer: peer.time_s, default=None)


def against(peer: Point, point: Point) -> str:
    return f"{peer.name}, {peer.total_nbytes / point.total_nbytes:.3f} of the bytes, {over(peer, point)}"


def beaten_by(ours: Sequence[Point], peers: Sequence[Point]) -> str:
    beaten = [peer.name for peer in peers if any(dominates(point, peer) for point in ours)]
    others = [peer.name for peer in peers if peer.name not in beaten]
    said = f"{len(beaten)} of {len(peers)} peers are dominated"
    return f"{said}; not dominated: {', '.join(others)}." if others else f"{said}."


def sufficient(point: Point, peer: Point) -> str:
    """Whether a point that was given a peer's bytes as its budget is at no more bytes at least as fast."""
    if point.peak_nbytes >= peer.peak_nbytes + PAGE_NBYTES:
        return "no: more bytes"
    if point.time_s <= peer.time_s:
        return "yes"
    return "alike within noise" if is_noise(point, peer) else "no: slower"
