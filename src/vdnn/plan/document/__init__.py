"""A plan as a JSON document: written from its data alone, and read back into data."""
