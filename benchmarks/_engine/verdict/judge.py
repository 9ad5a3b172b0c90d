"""Judge whether timings of two versions differ. Pure: numbers in, verdicts out.

The unit of evidence is a fresh process, which gives one median latency for each timing. A round is
one process of each version, and two rounds have both orders, A B | B A or B A | A B. For a timing,
round r gives E[r] = log(head / base). If the versions are equally fast, the two processes of a
round could be swapped, for all timings at once, without changing how likely the outcome was: every
result here rests on that and assumes nothing about the distribution (``permutation_test``).
"""

from collections.abc import Sequence, Set

import numpy as np

from . import bimodal, permutation_test, signed_rank
from .rules import Answer, Control, Family, Key, MeanChange, Rules, Spread, Timing, answered

# Power of the test at the minimum detectable effect: 90 %, the normal's 0.9 quantile.
_POWER_Z = 1.2816
# Of normal noise whose largest quarter is cut: by how much less the mean of slower rounds is, and
# the variance of the estimate over that of what was cut.
_CUT, _OF_ALL = 0.19, 1.72
# Timings of about the same duration have a floor together: so many at least.
_ALIKE = 24


def judge(
    keys: Sequence[Key],
    base: np.ndarray,
    head: np.ndarray,
    rules: Rules | None = None,
    identical: Set[Key] = frozenset(),
) -> Family:
    """Judge the timings of one family.

    Effect and interval: the pseudomedian of E and its bounds by signed ranks (``signed_rank``).
    Test: sign flips of E by round, its largest sizes cut, jointly over the timings, step-down
    max-T, once for slower and once for faster (``permutation_test``). Where the processes of both
    versions are in one of two states, the states are removed before (``bimodal``). That the order
    alternates turns an effect of who comes first into noise of alternating sign. ``rules.answered``
    makes an answer of the numbers.

    base, head: [rounds, timings], seconds a process took, in the order of the rounds. identical:
    what has the same machine code on both sides; the mean change and the spread leave it out.

    Raises ValueError if a value is not finite and positive, or the number of rounds is odd or too
    small for the rules.
    """
    rules = rules or Rules()
    base, head = _checked(keys, base, head, rules)
    logs = np.log(base), np.log(head)
    steady = bimodal.removed(*logs)
    ratios, control = steady[1] - steady[0], _control_values(*steady)
    flips = permutation_test.patterns(len(ratios))
    averages = signed_rank.walsh_averages(ratios)
    own = np.expm1(np.abs(_centre(control)))
    floor = np.maximum(rules.min_effect, _floors(own, base))
    least = np.maximum(floor, own)
    tail = 1 - rules.confidence
    low, high = signed_rank.bounds(averages, len(ratios), tail / 2)
    _, upper = signed_rank.bounds(averages, len(ratios), tail)
    tested = permutation_test.winsorized(ratios)
    columns = {
        "base": np.median(base, axis=0),
        "head": np.median(head, axis=0),
        "effect": np.expm1(signed_rank.estimate(averages)),
        "low": np.expm1(low),
        "high": np.expm1(high),
        "upper": np.expm1(upper),
        "p_slower": permutation_test.adjusted_p(tested, flips),
        "p_faster": permutation_test.adjusted_p(-tested, flips),
        "floor": least,
        "mde": _minimum_detectable(control, flips, least, rules.alpha),
    }
    rows = np.stack(list(columns.values()), axis=1).tolist()
    unjudged = (
        Timing(
            key,
            Answer.CANNOT_TELL,
            "none",
            rounds=len(ratios),
            **dict(zip(columns, row, strict=True)),
        )
        for key, row in zip(keys, rows, strict=True)
    )
    timings = tuple(answered(timing, rules) for timing in unjudged)
    failed = _changed(control, flips, floor, rules.alpha)
    noise = float(np.median(control.std(axis=0, ddof=1)))
    control_result = Control(len(keys), failed, float(np.quantile(own, 0.95)), noise)
    changed = [column for column, key in enumerate(keys) if key not in identical]
    if not changed:
        return Family(timings, control_result)
    return Family(
        timings,
        control_result,
        _mean_change(ratios[:, changed], tail),
        _spread(logs[0][:, changed], logs[1][:, changed], flips),
    )


def _centre(values: np.ndarray) -> np.ndarray:
    return signed_rank.estimate(signed_rank.walsh_averages(values))


def _floors(own: np.ndarray, base: np.ndarray) -> np.ndarray:
    """What 95 % of the A/A effects of timings of about the same duration stay below."""
    floors, order = np.empty_like(own), np.argsort(np.median(base, axis=0))
    for alike in np.array_split(order, max(1, len(order) // _ALIKE)):
        floors[alike] = np.quantile(own[alike], 0.95)
    return floors


def _mean_change(ratios: np.ndarray, tail: float) -> MeanChange:
    """The geometric mean over timings, of each round, and the pseudomedian over the rounds."""
    averages = signed_rank.walsh_averages(ratios.mean(axis=1, keepdims=True))
    ends = signed_rank.bounds(averages, len(ratios), tail / 2)
    effect, low, high = (
        float(np.expm1(values[0])) for values in (signed_rank.estimate(averages), *ends)
    )
    return MeanChange(ratios.shape[1], effect, low, high)


def _spread(base: np.ndarray, head: np.ndarray, flips: np.ndarray) -> Spread:
    """How far the processes of each version lie from the middle of both.

    Of a version that is slower, the processes lie above the middle as far as the others' lie below:
    only a version that varies more lies further away. A round's difference of that is
    flipped with the round, so the test is the exact one of the effects, of the mean over timings.
    """
    away = np.abs(np.stack([base, head]) - np.median(np.concatenate([base, head]), axis=0))
    more = away[1] - away[0]
    usual = np.abs(more).mean(axis=0)
    share = (more / np.where(usual > 0, usual, 1.0)).mean(axis=1, keepdims=True)
    p = permutation_test.adjusted_p(share, flips)
    return Spread(*map(float, (*away.mean(axis=(1, 2)), p[0])))


def _checked(
    keys: Sequence[Key], base: np.ndarray, head: np.ndarray, rules: Rules
) -> tuple[np.ndarray, np.ndarray]:
    base, head = np.asarray(base, float), np.asarray(head, float)
    rounds = len(base)
    if rounds % 2:
        raise ValueError(f"an even number of rounds is needed, got {rounds}")
    if 2.0**-rounds > rules.alpha:
        raise ValueError(f"{rounds} rounds can never be significant at alpha {rules.alpha}")
    for side, values in (("base", base), ("head", head)):
        bad = ~(np.isfinite(values) & (values > 0))
        if bad.any():
            row, column = np.argwhere(bad)[0]
            raise ValueError(
                f"seconds must be finite and positive, {side} of {keys[column]} is "
                f"{values[row, column]} in round {row}"
            )
    return base, head


def _control_values(base: np.ndarray, head: np.ndarray) -> np.ndarray:
    """A version against itself: [rounds, timings] of log ratios with the variance of E.

    base, head: logarithms.

    In each block of two rounds, such as A1 B1 | B2 A2, these are A2 / A1 and B2 / B1. The sign
    alternates from block to block, so that a steady drift of the machine cancels as it does in E
    (with an odd number of blocks, but for one block's share of it).
    """
    signs = (-1.0) ** np.arange(len(base) // 2)[:, None]
    return np.concatenate([signs * (side[1::2] - side[::2]) for side in (base, head)])


def _changed(control: np.ndarray, flips: np.ndarray, floor: np.ndarray, alpha: float) -> int:
    """Subjects that differ from themselves, by the rule that judges the versions."""
    tested, effects = permutation_test.winsorized(control), _centre(control)
    failed = 0
    for sign in (1, -1):
        large = np.expm1(sign * effects) >= floor
        if large.any():  # or the test, which takes longest, would change nothing
            p = permutation_test.adjusted_p(sign * tested, flips)
            failed += int(np.sum(large & (p <= alpha)))
    return failed


def _minimum_detectable(
    control: np.ndarray, flips: np.ndarray, floor: np.ndarray, alpha: float
) -> np.ndarray:
    """The smallest slowdown that fails with a power of 90 %, by the noise of the control.

    A slowdown d moves the mean to d and the mean square up by d^2: the statistic reaches t where
    d = t * sqrt((s^2 + s0^2) / (1 - t^2)), s0 being the family's part of the scale. Added
    to d is how far the mean of n rounds may be off, and their spread, here and in the test.
    Sizes that are cut give the spread: s is that of what the test sees.
    """
    tested = permutation_test.winsorized(control)
    spread = np.mean(tested**2, axis=0)
    squares = spread + permutation_test.common_square(tested)
    t = min(permutation_test.critical(tested, flips, alpha), 1 - 1e-9)
    reach = t * np.sqrt(squares / (1 - t * t)) + _CUT * np.sqrt(spread)
    significant = reach + _POWER_Z * np.sqrt((spread + reach**2) / len(control))
    large = np.log1p(floor) + _POWER_Z * np.sqrt(spread * _OF_ALL / len(control))
    return np.expm1(np.maximum(significant, large))
