"""Devices, tiers and links: by name (`presets.py`), or measured on this machine (`measure.py`, `detect.py`)."""
