"""The questions a bit mask answers about each element, one per family of backward ops.

Enters: nothing. Leaves: `Test`. The one idea: a backward op that only compares a saved value with bounds needs the
answer, one bit, and the answer must be the one its own kernel would have computed, NaN included. So the tests are named
after the comparison, and each says which way NaN falls. Gist (ISCA 2018) calls this Binarize, for ReLU alone.
"""

from __future__ import annotations

from enum import IntEnum


class Test(IntEnum):
    """Which elements get a 1. Bounds are compared in the element's type; 16-bit floats are widened to float32 first.

    The numbers are those of `enum test` in csrc/kernels.h.
    """

    __test__ = False  # keeps pytest from taking the class for a collection of tests

    ABOVE = 0
    """not (x <= low): NaN passes, as in aten.threshold_backward."""
    GREATER = 1
    """x > low: NaN fails, as in aten.leaky_relu_backward."""
    INSIDE = 2
    """not (x <= low or x >= high): NaN passes, as in aten.hardtanh_backward."""
    BETWEEN = 3
    """low < x < high: NaN fails, as in aten.hardsigmoid_backward."""
    NONZERO = 4
    """Any bit of the element is set: -0.0 and NaN pass. For bools and two-valued noise, in any element size."""
