"""What happened and what was planned, as data first and text second.

Enters: Graph, Plan, Timeline. Leaves: versioned records (`pieces.py`, `record.py`,
`memory_profile.py`), then text for a terminal
(`text.py`, `plot.py`). The one idea: a rendering reads the record and nothing else, so whatever the terminal shows is
in the JSON.

Nothing here imports torch. The package is callable too: `vdnn.report(model)` is `vdnn.api.report`;
`src/vdnn/__init__.py` has the note that says how.
"""
