"""Passes that make a traced joint graph say what eager PyTorch does, in two clean phases (`passes.py`)."""
