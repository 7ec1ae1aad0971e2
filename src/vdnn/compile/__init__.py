"""The way of a step from a captured graph to programs that run: `pipeline.py` reads as the sentence."""
