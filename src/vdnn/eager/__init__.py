"""Eager models inside a budget: what autograd saves leaves the device when memory is short (`tensor_cache.py`)."""
