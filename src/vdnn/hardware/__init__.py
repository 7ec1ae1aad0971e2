"""Machines as the planner sees them: devices, tiers and links (`device.py`), by name (`presets.py`) or emulated."""
