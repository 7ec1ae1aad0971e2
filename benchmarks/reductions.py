"""How much memory each strategy saves on the vDNN paper's networks, on its machine: average and maximum, ours beside
the published figure.

Simulated from the papers' layer-level graphs on a Titan X. `managed` leaves weights and their gradients out, as the
paper's averages must (see `src/vdnn/papers/vdnn_tables.py`). `offload` is given the peak of `vdnn-all` as its budget,
to compare times at equal memory.

    python benchmarks/reductions.py
"""

from __future__ import annotations

from vdnn.errors import Infeasible
from vdnn.papers.vdnn_networks import NETWORKS
from vdnn.papers.vdnn_tables import PUBLISHED_AVERAGE_REDUCTION, paper_problem, reduction
from vdnn.plan.strategy_table import solve

CHOSEN = ("AlexNet(128)", "OverFeat(128)", "GoogLeNet(128)", "VGG-16(128)", "VGG-16(256)")


def main() -> None:
    print(f"{'network':16} {'strategy':10} {'average':>8} {'maximum':>8} {'managed':>12} {'time':>7} {'published':>10}")
    for name in CHOSEN:
        graph = NETWORKS[name]()
        keep_all_s = solve(paper_problem(graph), "keep-all").step_time_s
        budget = reduction(graph, "vdnn-all").peak_nbytes
        for strategy in ("vdnn-all", "vdnn-conv", "vdnn-dyn", "offload"):
            try:
                row = reduction(graph, strategy, budget if strategy in ("offload", "vdnn-dyn") else None)
            except Infeasible as reason:
                print(f"{name:16} {strategy:10} {reason}")
                continue
            published = PUBLISHED_AVERAGE_REDUCTION.get(name) if strategy == "vdnn-all" else None
            print(
                f"{name:16} {strategy:10} {row.average_reduction:8.0%} {row.maximum_reduction:8.0%}"
                f" {row.managed_average_reduction:12.0%} {row.step_time_s / keep_all_s:7.3f}"
                f" {f'{published:.0%}' if published else '':>10}"
            )


if __name__ == "__main__":
    main()
