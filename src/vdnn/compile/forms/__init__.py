"""Other forms of a training step: the same inputs, the same outputs, smaller steps in between.

`forms(joint, ...)` offers them; each is made from the traced joint graph by a rewrite and is planned and run like it.
Read first: `offers.py`, then `rows.py`.
"""

from vdnn.compile.forms.offers import Form, forms

__all__ = ["Form", "forms"]
