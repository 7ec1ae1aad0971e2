"""Every architecture of the transformers library, tiny and with random weights, trained plain and through vdnn.

`make zoo` runs them all and prints a table by cause; `PYTHONPATH=src:tests python -m zoo --help` says what else it can.
"""
