"""Find timings that are slower than they were, by a step or by a ramp. Pure; needs numpy.

All values are natural logarithms in arrays [timings, results], the oldest result first: ``own`` of
the latency, ``ratio`` of the latency over that of a reference that the same process timed. A timing
is slower at a result if there were ``BEST`` results in a row that ``AGREE`` of its newest
``RECENT`` all exceed, in both arrays, by its threshold. This compares with the best level that the
timing ever kept, so that a ramp is found as a step is, however many commits it takes. No single
outlier is either of the two levels, and what slows the whole machine leaves the ratio alone.

What it finds and how often it is wrong: :mod:`.slowdown_simulation`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

RECENT, AGREE, BEST = 5, 4, 6
SHORTEST = BEST + RECENT
"""Fewest results of a timing that can be judged."""

FLOOR = 0.01
"""Least slowdown that is looked for: the verdict's non-inferiority margin."""

PAIRS, PAIRS_BELOW = 8, 0.7
"""Commits by two toolchains that say what the change cost, and the share that stays below it."""

NOISE = 2.0
"""Least slowdown in standard deviations of the timing."""

_SHARE, _NORMAL = 0.8, 1.2816  # a share of a normal's magnitudes lies below so many deviations


def name(benchmark: str, params: Sequence[str]) -> str:
    """A timing's name as ``asv.conf.json`` matches it, from asv's texts of its parameters."""
    return f"{benchmark}({', '.join(params)})"


def floors(names: Iterable[str], thresholds: Mapping[str, float]) -> np.ndarray:
    """Least slowdown that counts, by ``regressions_thresholds`` of ``asv.conf.json`` [timings]."""
    matching = ([v for text, v in thresholds.items() if re.match(text, each)] for each in names)
    return np.array([max(FLOOR, *each, 0) for each in matching])


def slower(
    own: np.ndarray,
    ratio: np.ndarray,
    floor: np.ndarray | float = FLOOR,
    at: Sequence[int] | None = None,
) -> np.ndarray:
    """Whether each timing is slower, at some results, than it was before them.

    Parameters
    ----------
    own, ratio : array [timings, results]
        Without missing values.
    floor : array [timings] or float
        Least slowdown of each timing.
    at : sequence of int, optional
        Results to judge at, each by what was known then; by default the newest.

    Returns
    -------
    array of bool [timings, len(at)]
        False where fewer than ``SHORTEST`` results were known.
    """
    timings, results = own.shape
    floor = np.broadcast_to(np.asarray(floor, float), timings)
    at = [results - 1] if at is None else at
    found = np.zeros((timings, len(at)), bool)
    if results < SHORTEST:
        return found
    levels = [_levels(own), _levels(ratio)]
    for column, newest in enumerate(at):
        if newest + 1 < SHORTEST:
            continue
        hits = _exceeds(levels, newest, np.stack([floor, floor]))
        (likely,) = hits.any(axis=1).nonzero()
        if len(likely):
            few = [(low[likely], high[likely]) for low, high in levels]
            known = (own[likely, : newest + 1], ratio[likely, : newest + 1])
            thresholds = np.stack([np.maximum(floor[likely], NOISE * noise(x)) for x in known])
            found[likely, column] = _exceeds(few, newest, thresholds).any(axis=1)
    return found


def _levels(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What ``AGREE`` of each ``RECENT`` results reach, and what none of each ``BEST`` exceeds."""
    windows = np.lib.stride_tricks.sliding_window_view
    low = np.partition(windows(values, RECENT, axis=1), RECENT - AGREE, axis=-1)
    return low[..., RECENT - AGREE], windows(values, BEST, axis=1).max(axis=-1)


def _exceeds(levels: list, newest: int, thresholds: np.ndarray) -> np.ndarray:
    """For each timing and each earlier best level: whether both arrays exceed it."""
    begin = newest - RECENT + 1
    each = [
        low[:, begin, None] - high[:, : begin - BEST + 1] >= threshold[:, None]
        for (low, high), threshold in zip(levels, thresholds, strict=True)
    ]
    return each[0] & each[1]


def noise(values: np.ndarray) -> np.ndarray:
    """Standard deviation of each timing from one result to the next [timings].

    From successive differences, of which a step changes one. The two largest do not count, nor
    does how large the largest fifth of the others are.
    """
    steps = np.sort(np.abs(np.diff(values, axis=1)), axis=1)[:, :-2]
    return steps[:, int(_SHARE * (steps.shape[1] - 1))] / (_NORMAL * 2**0.5)


class Rise(NamedTuple):
    """How a timing got slower: with which results, by a step (one) or by a ramp, how much."""

    first: int
    last: int
    change: float
    """Of the latency, relative: 0.02 is 2 % slower."""

    @property
    def kind(self) -> str:
        return "step" if self.last == self.first else "ramp"


def rise(own: np.ndarray, ratio: np.ndarray, told: int) -> Rise | None:
    """How a timing [results] that :func:`slower` told at a result got slower, None if it is not.

    It is a step if one result parts levels that lie most of the change apart. What :func:`slower`
    tells stands until both arrays came back half of the way: another state of the machine, which
    moves one of them, takes nothing back.
    """
    both = np.stack([own, ratio])
    begin = told - RECENT + 1
    gaps = [
        low[0, begin] - high[0, : begin - BEST + 1] for low, high in map(_levels, both[:, None])
    ]
    best = int(np.argmax(np.minimum(*gaps)))
    before = np.median(both[:, best : best + BEST], axis=1)
    change = np.median(both[:, begin : told + 1], axis=1) - before
    windows = np.lib.stride_tricks.sliding_window_view(both[:, begin:], RECENT, axis=1)
    share = (np.median(windows, axis=-1) - before[:, None]) / change[:, None]
    if (share.max(axis=0) < 0.5).any():
        return None
    relative = float(np.expm1(change[0]))
    possible = range(best + BEST, told - 1)
    jumps = [_jump(both, at) for at in possible]
    if max(jumps) >= 0.6 * change.min():
        near = int(np.argmax(jumps))  # the medians of a step are as far apart two results beside it
        around = possible[max(near - 2, 0) : near + 3]
        first = max(around, key=lambda at: float((both[:, at] - both[:, at - 1]).min()))
        return Rise(first, first, relative)
    smooth = np.stack([np.median(both[:, max(at - 2, 0) : at + 3], axis=1) for at in possible])
    share = ((smooth - before) / change).min(axis=1)
    below = np.flatnonzero(share < 0.15)
    first = int(below[-1]) + 1 if len(below) and below[-1] + 1 < len(share) else 0
    arrived = (
        first + int(np.argmax(share[first:] >= 0.85))
        if (share[first:] >= 0.85).any()
        else len(share) - 1
    )
    return Rise(possible[first], max(possible[arrived], possible[first] + 1), relative)


def _jump(both: np.ndarray, at: int) -> float:
    """How far the results from ``at`` on lie above those before, in the array that has less."""
    after = np.median(both[:, at : at + RECENT], axis=1)
    return float((after - np.median(both[:, max(at - RECENT, 0) : at], axis=1)).min())


def aligned(
    values: np.ndarray,
    toolchains: Sequence[int],
    pairs: Sequence[tuple[int, int]],
    anew: np.ndarray,
) -> np.ndarray:
    """The values [timings, results], NaN where missing, without what changes of toolchain cost.

    Parameters
    ----------
    toolchains : sequence of int
        Of each result; a later toolchain has a larger number.
    pairs : sequence of (int, int)
        Results of one commit by two toolchains in a row, the earlier toolchain first.
    anew : array of bool [timings]
        Those that begin anew with each toolchain.

    Notes
    -----
    Where ``PAIRS`` are known, a toolchain's cost is what ``PAIRS_BELOW`` of their changes
    stay below, a little more than their median: an error of the cost hides a slowdown or makes one
    up, of all timings for good. Where fewer are, it is the largest of their changes and of that
    between the median of the ``RECENT`` results before and the upper quartile of those after.
    Disturbed results, most of which are too fast, then make no timing slower; a slowdown by the
    first commits after the change is taken for the toolchain's. A timing whose cost is unknown
    begins anew.
    """
    numbers, shifted = np.asarray(toolchains), values.copy()
    for new in sorted(set(toolchains))[1:]:
        old = max(number for number in numbers if number < new)
        before = median(shifted[:, numbers == old][:, -RECENT:])
        beside = quantile(values[:, numbers == new][:, :RECENT], 0.75) - before
        changes = [values[:, b] - shifted[:, a] for a, b in pairs if numbers[b] == new]
        paired = np.stack([*changes, np.full(len(values), np.nan)], axis=1)
        enough = np.sum(~np.isnan(paired), axis=1) >= PAIRS
        cost = np.where(enough, quantile(paired, PAIRS_BELOW), np.fmax.reduce([beside, *changes]))
        unknown = np.isnan(cost) | anew
        shifted[np.ix_(unknown, numbers < new)] = np.nan
        shifted[:, numbers == new] -= np.where(unknown, 0, cost)[:, None]
    return shifted


def median(values: np.ndarray) -> np.ndarray:
    """Of each timing's known values [timings, results]; NaN without any."""
    return quantile(values, 0.5)


def quantile(values: np.ndarray, share: float) -> np.ndarray:
    """As :func:`median`, of another share of the values."""
    if not values.size:
        return np.full(len(values), np.nan)
    ordered = np.sort(values, axis=1)  # NaN last
    place = share * np.maximum(np.sum(~np.isnan(values), axis=1) - 1, 0)
    below = ordered[np.arange(len(values)), np.floor(place).astype(int)]
    above = ordered[np.arange(len(values)), np.ceil(place).astype(int)]
    return below + (above - below) * (place % 1)
