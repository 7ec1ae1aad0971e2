"""What a plan comes to (`simulate.py`), and whether it may (`validate.py`). The two share no code."""
