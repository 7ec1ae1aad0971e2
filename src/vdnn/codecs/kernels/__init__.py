"""Kernels that encode and decode tensors, three times the same functions: numpy, C, Triton."""
