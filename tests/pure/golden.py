"""Golden listings: plans whose annotated program is kept in `tests/golden/`, so that a change is a readable diff.

To accept a change: `PYTHONPATH=src:tests python -m pure.golden`, then read the diff.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pure import graphs
from vdnn.plan import Decision, Encode, EncodeOffload, Offload, Plan, Recompute, listing

FOLDER = Path(__file__).parent.parent / "golden"


def kept_chain() -> Plan:
    return graphs.plan(graphs.problem(graphs.chain(3), budget_nbytes=640))


def mixed_unet() -> Plan:
    graph = graphs.unet(4, nbytes=1 << 20)
    hardware = graphs.machine(bandwidth=1e9)
    problem = graphs.problem(graph, workspace_nbytes=1 << 10, seconds=0.01, hardware=hardware)
    decisions = (
        ("d1", Offload("host", 1, 5, 6), "next use 40 ms away, copy takes 0.5 ms"),
        ("d2", Encode("float16", 1 << 17, 2, 5, 1e-4, 1e-4), "half the bytes between its forward uses"),
        ("d1", EncodeOffload("float16", 1 << 18, "disk", 6, 7, 8, 9, 1e-4, 1e-4), "the longest gap of all"),
        ("u3", Recompute(5, 9), "one op redoes it"),
        ("u2", Recompute(6, 9), "one op redoes it, from u3 and d2"),
    )
    return Plan(
        problem, "by hand", tuple(Decision(graphs.storage(graph, s), action, why) for s, action, why in decisions)
    )


def in_place() -> Plan:
    graph = graphs.in_place_chain(nbytes=4096)
    return graphs.plan(graph, {"c": Recompute(4, 5), "mask": Encode("bits", 32, 3, 5)}, reason="chosen by hand")


GOLDEN: dict[str, Callable[[], Plan]] = {"kept_chain": kept_chain, "mixed_unet": mixed_unet, "in_place": in_place}


def path(name: str) -> Path:
    return FOLDER / f"{name}.txt"


if __name__ == "__main__":
    for name, make in GOLDEN.items():
        path(name).write_text(listing(make()), encoding="utf-8")
        print(f"wrote {path(name).name}")
