"""Find timings whose processes are in one of two states, and remove the states. Pure.

A process may find its memory, its clocks or a neighbour in one of two states, which make all that
it times faster or slower by a fixed share. If both versions know both states, which process met
which says nothing about the versions, but it hides a change that is smaller than the states are
apart. Arrays are [rounds, timings].
"""

from typing import NamedTuple

import numpy as np

# The fewest processes of a version in each state.
_LEAST = 3
# The largest standard deviation within states, as a share of how far they are apart.
_WITHIN = 0.2
# By how much of that distance the versions may differ in it.
_AGREE = 0.25
# By how much of it a change may move the states: by all of it, the slower state of one version
# would be the faster state of the other.
_MOVED = 0.5


class _Split(NamedTuple):
    """A version's processes in two parts: which are in the slower one, how far the parts' means are
    apart, and the standard deviation within the parts."""

    slow: np.ndarray
    apart: np.ndarray
    within: np.ndarray


def removed(base: np.ndarray, head: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of both versions as if every process had been in the faster state.

    Each version's values are split in two where they then vary least. The parts are states if they
    are clearly apart in both versions, by the same distance and at about the same times. A change
    moves all of a version and splits nothing, and states of one version alone stay. Subjects
    without states keep their values. That one version is in the slower state more often is removed
    too.

    Where the states are as clear as this demands, to exchange the two versions in a round exchanges
    their states too: a test by such exchanges stays exact but for the distance, which is estimated.
    """
    splits = _split(base), _split(head)
    apart = (splits[0].apart + splits[1].apart) / 2
    within = np.maximum(splits[0].within, splits[1].within)
    agree = np.abs(splits[0].apart - splits[1].apart) <= _AGREE * apart
    one, other = base - apart * splits[0].slow, head - apart * splits[1].slow
    same = np.abs(other.mean(axis=0) - one.mean(axis=0)) <= _MOVED * apart
    are_states = (within <= _WITHIN * apart) & agree & same
    return np.where(are_states, one, base), np.where(are_states, other, head)


def _split(values: np.ndarray) -> _Split:
    rounds = len(values)
    ordered = np.sort(values - values.mean(axis=0), axis=0)
    below = np.arange(1, rounds)[:, None]
    sums = ordered.cumsum(axis=0)[:-1]
    between = (sums**2 * rounds / (below * (rounds - below)))[_LEAST - 1 : rounds - _LEAST]
    best = between.argmax(axis=0)
    size, columns = best + _LEAST, np.arange(values.shape[1])
    lower = sums[size - 1, columns]
    within = np.sqrt(np.maximum((ordered**2).sum(axis=0) - between[best, columns], 0) / rounds)
    apart = -lower * rounds / (size * (rounds - size))
    threshold = (ordered[size - 1, columns] + ordered[size, columns]) / 2 + values.mean(axis=0)
    return _Split(values > threshold, apart, within)
