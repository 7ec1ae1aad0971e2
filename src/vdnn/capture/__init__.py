"""Model → joint forward+backward graph → `ir.Graph`. Two front ends (`dynamo.py`, `export.py`) meet at `piece.py`."""
