"""What backward asks of what forward left, where that depends on the call.

Enters: the arguments of one call. Leaves: what it needs of each, and the details behind a yes-or-no question: the test,
its bounds, and two numbers that stand for yes and no when the answer is written out as a tensor again. The details
follow aten's own kernels to the last case: `threshold_backward` lets NaN pass, `leaky_relu_backward` does not.
"""

from __future__ import annotations

from math import isinf

from vdnn.codecs.kernels.tests_of_elements import Test
from vdnn.ir import Detail, Need
from vdnn.known_ops.known_op import Arguments, Details, Needs


def _test(test: Test, low: float, high: float, on: float, off: float) -> Detail:
    return (int(test), float(low), float(high), float(on), float(off))


IS_SET = _test(Test.NONZERO, 0, 0, 1, 0)
"""What is asked of a boolean."""


def sign_or_bit(arguments: Arguments) -> Needs:
    """Against any other threshold than 0 the question "was it above?" is still one bit, but not the sign."""
    return {"self": Need.SIGN if arguments["threshold"] == 0 else Need.BOOL}


def other_statistics(arguments: Arguments) -> Needs:
    """In training the statistics of the batch are used and the running ones are not looked at; in eval it is the
    reverse."""
    unread = ("running_mean", "running_var") if arguments["train"] else ("save_mean", "save_invstd")
    return dict.fromkeys(unread, Need.NOTHING)


def other_gradients(arguments: Arguments) -> Needs:
    """The input is read for the weight's gradient, the weight for the input's."""
    wants_input_gradient, wants_weight_gradient, _ = arguments["output_mask"]
    needs: dict[str, Need] = {}
    if not wants_weight_gradient:
        needs["input"] = Need.SHAPE
    if not wants_input_gradient:
        needs["weight"] = Need.SHAPE
    return needs


def above_threshold(arguments: Arguments) -> Details:
    threshold = float(arguments["threshold"])
    on = 1.0 if threshold < 1 else 2 * threshold  # any number that is above it
    return {"self": _test(Test.ABOVE, threshold, 0, on, _number_below(threshold))}


def above_zero(arguments: Arguments) -> Details:
    return {"self": _test(Test.GREATER, 0, 0, 1, 0)}


def between_bounds(arguments: Arguments) -> Details:
    # Whether a NaN lies between, aten answers by position: not in the vectorized body of its loop, but in the few
    # elements left over at the end of each thread's share. No bit knows that position; NaN fails here.
    low, high = float(arguments["min_val"]), float(arguments["max_val"])
    return {"self": _test(Test.BETWEEN, low, high, _number_between(low, high), _number_below(low))}


def on_the_slope(arguments: Arguments) -> Details:
    return {"self": _test(Test.BETWEEN, -3, 3, 0, 3)}


def _number_below(bound: float) -> float:
    """Not the bound itself: rounded to a shorter dtype it may come out above."""
    return bound - abs(bound) - 1


def _number_between(low: float, high: float) -> float:
    """In the middle, where rounding to a shorter dtype does not leave the interval; bounds may be infinite."""
    if isinf(low) and isinf(high):
        return 0.0
    if isinf(low):
        return high - abs(high) - 1
    return low + abs(low) + 1 if isinf(high) else low / 2 + high / 2
