"""What happened and what was planned, as data first and text second.

Enters: Graph, Plan, Timeline. Leaves: a versioned record (`record.py`, `memory.py`), then text for a terminal (`text.py`, `plot.py`).
The one idea: a rendering reads the record and nothing else, so whatever the terminal shows is also in the JSON.
Nothing here imports torch. The package is callable too: `vdnn.report(model)` is `vdnn.api.report` (see `vdnn/__init__.py`).
"""
