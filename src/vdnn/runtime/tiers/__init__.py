"""Slower tiers: room that is reserved, written, read and given back."""
