"""The papers' networks at the level of their layers, and the tables that the papers print about them."""
