"""Regions of a planned step as kernels that TorchInductor makes, where they keep to the plan's bytes."""
