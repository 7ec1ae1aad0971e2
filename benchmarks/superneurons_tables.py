"""Recomputation on the SuperNeurons paper's networks: replays and peaks of our strategies beside the published ones.

Simulated from the papers' layer-level graphs on a K40c; bytes are maps, their gradients and workspaces (see
`src/vdnn/papers/superneurons_tables.py`). The published peaks are of a runtime that also moves the outputs of
convolutions to the host, so the row to hold beside them is `superneurons`.

    python benchmarks/superneurons_tables.py
"""

from __future__ import annotations

from collections.abc import Iterator

from vdnn.papers.superneurons_networks import NETWORKS
from vdnn.papers.superneurons_tables import (
    PUBLISHED_ALEXNET_MIB,
    PUBLISHED_PEAKS_MIB,
    PUBLISHED_REPLAYS,
    RECOMPUTING,
    baseline_nbytes,
    forward_nbytes,
    row,
    superneurons_problem,
)
from vdnn.plan.strategies.recompute import l_peak
from vdnn.units import MiB

SHOWN = ("keep-all", *RECOMPUTING, "superneurons", "checkpoint-sqrt")


def published(network: str) -> Iterator[tuple[str, int | None, float | None]]:
    """Strategy -> its published replays and peak, where there are any."""
    replays = dict(zip(RECOMPUTING, PUBLISHED_REPLAYS[network], strict=True))
    peaks = dict(zip(RECOMPUTING, PUBLISHED_PEAKS_MIB[network], strict=True))
    replays["superneurons"], peaks["superneurons"] = replays["recompute-cost"], peaks["recompute-cost"]
    if network == "AlexNet(200)":
        peaks["keep-all"] = PUBLISHED_ALEXNET_MIB["liveness"]
    yield from ((name, replays.get(name), peaks.get(name)) for name in SHOWN)


def main() -> None:
    print(
        f"{'network':14} {'strategy':17} {'replays':>8} {'published':>10} {'peak MiB':>10} {'published':>10}  peak at"
    )
    for name, network in NETWORKS.items():
        graph = network()
        for strategy, replays, peak in published(name):
            ours = row(graph, strategy)
            print(
                f"{name:14} {strategy:17} {ours.num_replays:8} {'' if replays is None else replays:>10}"
                f" {ours.peak_nbytes / MiB:10.3f} {'' if peak is None else f'{peak:.3f}':>10}  {ours.peak_at}"
            )
        print(
            f"{name:14} outputs of all layers {forward_nbytes(graph) / MiB:.3f} MiB, with all gradients"
            f" {baseline_nbytes(graph) / MiB:.3f}, largest need of one layer"
            f" {l_peak(superneurons_problem(graph)) / MiB:.3f}"
        )
    print(f"published for AlexNet(200), MiB: {PUBLISHED_ALEXNET_MIB}")


if __name__ == "__main__":
    main()
