"""Measuring this machine: its arithmetic, memory, disk, links and codecs. `this_machine.py` has the answer."""
