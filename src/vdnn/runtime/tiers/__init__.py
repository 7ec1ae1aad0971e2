"""Slower tiers: stores whose places are reserved, written, read and given back."""
