"""The Hodges-Lehmann estimate of a centre, and exact bounds by Wilcoxon's signed ranks. Pure.

What is estimated is the pseudomedian: the median of the average of two independent values. Of a
symmetric distribution it is the centre. Arrays are [rounds, timings].

Source: J. L. Hodges, E. L. Lehmann, Estimates of location based on rank tests, 1963.
"""

import functools

import numpy as np


def walsh_averages(values: np.ndarray) -> np.ndarray:
    """Averages of all pairs of rounds and of each with itself, ascending: [averages, timings]."""
    first, second = np.triu_indices(len(values))
    averages = (values[first] + values[second]) / 2
    averages.sort(axis=0)
    return averages


def estimate(averages: np.ndarray) -> np.ndarray:
    """The Hodges-Lehmann estimates, from Walsh averages."""
    middle = len(averages) // 2
    return (averages[middle] + averages[-1 - middle]) / 2


def bounds(averages: np.ndarray, rounds: int, tail: float) -> tuple[np.ndarray, np.ndarray]:
    """Bounds below and above each centre, from Walsh averages.

    Each misses the centre with a chance of at most ``tail`` if the values are independent and
    symmetric about it. Nothing else is assumed of their distribution, and it need not be the same
    in every round. Raises ValueError if there are too few rounds for so small a tail.
    """
    beyond = int((_cumulative(rounds) <= tail).sum())
    if not beyond:
        raise ValueError(f"{rounds} rounds give no bound with an error of {tail}")
    return averages[beyond - 1], averages[-beyond]


@functools.cache
def _cumulative(rounds: int) -> np.ndarray:
    """The chances that the sum of positive ranks is at most 0, 1, 2, ..."""
    counts = np.zeros(rounds * (rounds + 1) // 2 + 1)
    counts[0] = 1
    for rank in range(1, rounds + 1):
        counts[rank:] = counts[rank:] + counts[:-rank]
    return counts.cumsum() / 2.0**rounds
