"""Model → joint forward and backward graph → `ir.Graph`: `export.py` traces, `tidy/` cleans, `lower.py` translates."""
