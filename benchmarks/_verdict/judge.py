"""Judge whether timings of two versions differ. Pure: numbers in, verdicts out.

The unit of evidence is a fresh process, which gives one median latency for each subject. Processes
of the two versions alternate, A B | B A | A B | ..., and a round is one process of each. For a
subject, round r gives E[r] = log(head / base). If the versions are equally fast, the two processes
of a round could be swapped, for all subjects at once, without changing how likely the outcome was:
every result here rests on that and assumes nothing about the distribution (``permutation_test``).
"""

from collections.abc import Sequence

import numpy as np

from . import permutation_test
from .rules import Control, Family, Rules, Subject, Timing, answered

# Fewer give no interval; at the usual alpha more are needed (``rules.MIN_ROUNDS``).
_LEAST_ROUNDS = 8
# Power of the test at the minimum detectable effect: 90 %, the normal's 0.9 quantile.
_POWER_Z = 1.2816


def judge(
    subjects: Sequence[Subject], base: np.ndarray, head: np.ndarray, rules: Rules | None = None
) -> Family:
    """Judge the timings of one family.

    Test: sign flips of E by round, jointly over the subjects, step-down max-T, once for slower and
    once for faster (``permutation_test``). The alternating order turns an effect of who comes first
    into noise of alternating sign. ``rules.answered`` makes an answer of the numbers.

    Parameters
    ----------
    subjects : sequence of Subject
        What was measured, each once.
    base, head : array of [rounds, subjects]
        Seconds a process took, in the order of the rounds; the version that goes first alternates.

    Raises
    ------
    ValueError
        If shapes do not agree, a value is not finite and positive, the number of rounds is odd,
        below 8 or too small for the rules, or a subject comes twice.
    """
    rules = rules or Rules()
    base, head = _checked(subjects, base, head, rules)
    ratios, control = np.log(head / base), _control_values(base, head)
    flips = permutation_test.patterns(len(ratios))
    own = np.expm1(np.abs(control.mean(axis=0)))
    floor = float(np.quantile(own, 0.95))
    least = np.maximum(max(rules.min_effect, floor), own)
    tail = 1 - rules.confidence
    low, high = permutation_test.typical_bounds(ratios, flips, tail / 2)
    _, upper = permutation_test.typical_bounds(ratios, flips, tail)
    columns = {
        "base": np.median(base, axis=0),
        "head": np.median(head, axis=0),
        "effect": np.expm1(ratios.mean(axis=0)),
        "low": np.expm1(low),
        "high": np.expm1(high),
        "upper": np.expm1(upper),
        "p_slower": permutation_test.adjusted_p(ratios, flips),
        "p_faster": permutation_test.adjusted_p(-ratios, flips),
        "floor": least,
        "mde": _minimum_detectable(control, flips, least, rules.alpha),
    }
    rows = np.stack(list(columns.values()), axis=1).tolist()
    timings = tuple(
        _timing(subject, dict(zip(columns, row, strict=True)), len(ratios), rules)
        for subject, row in zip(subjects, rows, strict=True)
    )
    failed = _changed(control, flips, max(rules.min_effect, floor), rules.alpha)
    noise = float(np.median(control.std(axis=0, ddof=1)))
    return Family(timings, Control(len(subjects), failed, floor, noise))


def _timing(subject: Subject, row: dict[str, float], rounds: int, rules: Rules) -> Timing:
    answer, change = answered(
        row["effect"], row["upper"], row["floor"], row["p_slower"], row["p_faster"], rules
    )
    return Timing(subject, answer, change, rounds=rounds, **row)


def _checked(
    subjects: Sequence[Subject], base: np.ndarray, head: np.ndarray, rules: Rules
) -> tuple[np.ndarray, np.ndarray]:
    base, head = np.asarray(base, float), np.asarray(head, float)
    if base.shape != head.shape or base.ndim != 2 or base.shape[1] != len(subjects):
        raise ValueError(
            f"base and head must be [rounds, {len(subjects)} subjects], "
            f"got {list(base.shape)} and {list(head.shape)}"
        )
    if not len(subjects) or len(set(subjects)) < len(subjects):
        raise ValueError("there must be subjects, each once")
    rounds = len(base)
    if rounds < _LEAST_ROUNDS or rounds % 2:
        raise ValueError(
            f"an even number of rounds, {_LEAST_ROUNDS} or more, is needed, got {rounds}"
        )
    if 2.0**-rounds > rules.alpha:
        raise ValueError(f"{rounds} rounds can never be significant at alpha {rules.alpha}")
    for side, values in (("base", base), ("head", head)):
        bad = ~(np.isfinite(values) & (values > 0))
        if bad.any():
            row, column = np.argwhere(bad)[0]
            raise ValueError(
                f"seconds must be finite and positive, {side} of {subjects[column]} is "
                f"{values[row, column]} in round {row}"
            )
    return base, head


def _control_values(base: np.ndarray, head: np.ndarray) -> np.ndarray:
    """A version against itself: [rounds, subjects] of log ratios with the variance of E.

    In each block of two rounds, A1 B1 | B2 A2, these are A2 / A1 and B2 / B1. The sign alternates
    from block to block, so that a steady drift of the machine cancels as it does in E (with an odd
    number of blocks, but for one block's share of it).
    """
    signs = (-1.0) ** np.arange(len(base) // 2)[:, None]
    return np.concatenate([signs * np.log(side[1::2] / side[::2]) for side in (base, head)])


def _changed(control: np.ndarray, flips: np.ndarray, floor: float, alpha: float) -> int:
    """Subjects that differ from themselves, by the rule that judges the versions."""
    return sum(
        int(np.sum((permutation_test.adjusted_p(values, flips) <= alpha) & (effect >= floor)))
        for values in (control, -control)
        for effect in [np.expm1(values.mean(axis=0))]
    )


def _minimum_detectable(
    control: np.ndarray, flips: np.ndarray, floor: np.ndarray, alpha: float
) -> np.ndarray:
    """The smallest slowdown that fails with a power of 90 %, by the noise of the control.

    A slowdown d moves the mean to d and the mean square up by d^2: the statistic reaches t where
    d = t * sqrt((s^2 + s0^2) / (1 - t^2)), s0 being the family's part of the scale. Added
    to d is how far the mean of n rounds may be off, and their spread, here and in the test.
    """
    spread = control.var(axis=0, ddof=1)
    squares = np.mean(control**2, axis=0) + permutation_test.common_square(control)
    t = min(permutation_test.critical(control, flips, alpha), 1 - 1e-9)
    reach = t * np.sqrt(squares / (1 - t * t))
    significant = reach + _POWER_Z * np.sqrt((spread + reach**2) / len(control))
    large = np.log1p(floor) + _POWER_Z * np.sqrt(spread / len(control))
    return np.expm1(np.maximum(significant, large))
