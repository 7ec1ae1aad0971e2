"""What every op costs in seconds and workspace: from shapes (`roofline.py`), or measured once (`measured.py`)."""
