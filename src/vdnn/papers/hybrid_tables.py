"""When several devices per worker beat more workers. Pal et al., "Optimizing Multi-GPU Parallelization Strategies for
Deep Learning Training", IEEE Micro 2019.

Enters: how many epochs a network needs on so many data-parallel workers, how well steps scale, and what splitting the
network over M devices gains per step. Leaves: speedups, gains and the point where hybrid parallelism begins to win. The
one idea is the paper's C = T x S x E: time to converge is time per step, times steps per epoch, times epochs. Workers
shrink S and, past some number of them, grow E; splitting the network shrinks T and leaves S and E alone.

    data parallel     SU_N   = SE_N x N x E_1 / E_N                       with SE_N = T_1 / T_N
    hybrid            SU_N^M = SU^M x SE_N x N x E_1 / E_N                on N x M devices
    hybrid wins when  SU^M   > M x (SE_MN / SE_N) x (E_N / E_MN)

The paper's projection sets SE = 1 for every N, which favours data parallelism.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp, log

Efficiency = Callable[[int], float]
"""Number of workers -> T_1 / T_N."""


def perfect(workers: int) -> float:
    """Steps take as long on any number of workers: the paper's assumption."""
    return 1.0


def time_to_converge(step_s: float, steps_per_epoch: float, epochs: float) -> float:
    """C = T x S x E, in seconds."""
    return step_s * steps_per_epoch * epochs


@dataclass(frozen=True)
class Convergence:
    """Epochs to the target by number of workers, where it was measured.

    Below the smallest number the epochs are those of the smallest; between two they are interpolated in logarithms;
    beyond the largest nothing is known.
    """

    epochs: Mapping[int, float]

    def __post_init__(self) -> None:
        if not self.epochs or min(self.epochs) < 1 or min(self.epochs.values()) <= 0:
            raise ValueError(f"epochs are positive numbers by at least 1 worker, not {dict(self.epochs)}")

    def at(self, workers: int) -> float:
        known = sorted(self.epochs)
        if workers <= known[0]:
            return self.epochs[known[0]]
        if workers > known[-1]:
            raise ValueError(f"epochs are known up to {known[-1]} workers, not for {workers}")
        above = next(number for number in known if number >= workers)
        below = known[known.index(above) - 1]
        share = (log(workers) - log(below)) / (log(above) - log(below))
        return exp((1 - share) * log(self.epochs[below]) + share * log(self.epochs[above]))


def data_parallel_speedup(workers: int, convergence: Convergence, efficiency: Efficiency = perfect) -> float:
    """SU_N over one device."""
    return efficiency(workers) * workers * convergence.at(1) / convergence.at(workers)


def hybrid_speedup(
    devices: int, split: int, split_speedup: float, convergence: Convergence, efficiency: Efficiency = perfect
) -> float:
    """SU_N^M over one device, for workers of `split` devices each."""
    if devices % split:
        raise ValueError(f"{devices} devices are not whole workers of {split}")
    return split_speedup * data_parallel_speedup(devices // split, convergence, efficiency)


def hybrid_gain(
    devices: int, split: int, split_speedup: float, convergence: Convergence, efficiency: Efficiency = perfect
) -> float:
    """How much sooner hybrid converges than data parallelism on the same devices: 0.1 is a tenth more speed."""
    hybrid = hybrid_speedup(devices, split, split_speedup, convergence, efficiency)
    return hybrid / data_parallel_speedup(devices, convergence, efficiency) - 1


def winning_epoch_ratio(split: int, split_speedup: float, efficiency_ratio: float = 1.0) -> float:
    """E_MN / E_N beyond which hybrid wins; `efficiency_ratio` is SE_MN / SE_N."""
    return split * efficiency_ratio / split_speedup


def epoch_ratio_of_gain(gain: float, split: int, split_speedup: float) -> float:
    """E_MN / E_N at which hybrid gains that much with SE = 1: what a published gain implies."""
    return (1 + gain) * winning_epoch_ratio(split, split_speedup)


def first_winning_devices(
    candidates: tuple[int, ...], split: int, split_speedup: float, convergence: Convergence
) -> int | None:
    """The smallest of these numbers of devices on which hybrid wins."""
    return next((n for n in candidates if hybrid_gain(n, split, split_speedup, convergence) > 0), None)


def ring_efficiency(step_s: float, gradient_nbytes: int, bandwidth_bytes_per_s: float) -> Efficiency:
    """SE_N when a ring all-reduce follows each step and nothing overlaps: 2 (N - 1) / N of the gradients per link."""

    def efficiency(workers: int) -> float:
        exchange_s = 2 * (workers - 1) / workers * gradient_nbytes / bandwidth_bytes_per_s
        return step_s / (step_s + exchange_s)

    return efficiency
