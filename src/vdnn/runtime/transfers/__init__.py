"""Copies between the device and its slower tiers."""
