"""Before, after and unit -> verdict. Pure: numbers in, verdicts out.

The unit of evidence is a fresh process, which gives one median latency for each subject. Processes
of the two versions alternate, A B | B A | A B | ..., and a round is one process of each. Of a
subject, round r gives E[r] = log(head / base). If the versions are equally fast, the two processes
of a round could be swapped, for all subjects at once, without changing how likely the outcome was:
all that is said here rests on that and on nothing about the distribution (``_randomization``).
"""

import enum
import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from . import _randomization
from ._units import FLOAT32_UNITS, UNITS, Unit

MIN_ROUNDS = 8
# A job with more than this share of untold timings has not answered its question.
MAX_UNTOLD_SHARE = 0.05
# Power of the test at the size that is called visible: 90 %, the normal's 0.9 quantile.
_POWER_Z = 1.2816


Change = Literal["slower", "faster", "none"]
"""What a timing did."""

ExactChange = Literal["worse", "better", "none", "missing", "new"]
"""What an exact value did; "missing" and "new": it is not there on the head, or on the base."""


class Subject(NamedTuple):
    """What is compared: asv's name of the benchmark, and its parameters as asv's texts."""

    metric: str
    params: tuple[str, ...]


class Answer(enum.StrEnum):
    PASS = "pass"
    FAIL = "fail"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True)
class Rules:
    """What a verdict needs.

    alpha: the rate of false alarms, one-sided, of one look at one family of timings in which
    nothing changed. A job has two families and at most two looks at each: 1 % in all.
    min_effect: no slowdown below this share of the base fails.
    margin: "no slower" means: with ``confidence``, by no more than this share.
    """

    alpha: float = 0.0025
    min_effect: float = 0.005
    margin: float = 0.01
    confidence: float = 0.95

    def __post_init__(self):
        for name, value in vars(self).items():
            if not 0 < value < 1:
                raise ValueError(f"{name} must lie between 0 and 1, it is {value}")


@dataclass(frozen=True)
class Timing:
    """The verdict on one subject. Effects are shares of the base: 0.02 is 2 % slower.

    base, head: median over the processes, seconds. effect: ``exp(mean E) - 1``. low, high: its
    two-sided confidence interval; upper: its one-sided bound, "no slower than". p_slower, p_faster:
    adjusted for the family. floor: the smallest effect that may count, the largest of the rules'
    ``min_effect``, the family's floor and the subject's own control. visible: the smallest slowdown
    that would have failed with a power of 90 % at the noise of this run.
    """

    subject: Subject
    answer: Answer
    change: Change
    base: float
    head: float
    effect: float
    low: float
    high: float
    upper: float
    p_slower: float
    p_faster: float
    floor: float
    visible: float
    rounds: int


@dataclass(frozen=True)
class Control:
    """The A/A control of a family: what its processes say of a version compared with itself.

    failed: subjects on which the very test and threshold of the verdict would see a change, one way
    or the other. floor: the 95 % quantile over the subjects of their absolute A/A effect. noise:
    the median over the subjects of the standard deviation of a paired round.
    """

    subjects: int
    failed: int
    floor: float
    noise: float


@dataclass(frozen=True)
class Family:
    """Timings that were tested together, and their control."""

    timings: tuple[Timing, ...]
    control: Control


@dataclass(frozen=True)
class Exact:
    """The verdict on an exact metric; None is a value that a side does not have.

    A timing that only one side has is one too: whether it is there is exact. answer: FAIL if a
    metric that gates got worse or if the head lost it, None if it is new, else PASS.
    """

    subject: Subject
    unit: Unit
    base: float | None
    head: float | None
    answer: Answer | None
    change: ExactChange


def judge(
    subjects: Sequence[Subject], base: np.ndarray, head: np.ndarray, rules: Rules | None = None
) -> Family:
    """Judge the timings of one family.

    Test: sign flips of E by round, jointly over the subjects, step-down max-T, once for slower and
    once for faster (``_randomization``). The alternating order turns an effect of who comes first
    into noise of alternating sign. A subject FAILS if its adjusted p is at most ``alpha`` and its
    effect at least its floor; else it PASSES if its upper bound is at most the margin; else the run
    CANNOT TELL.

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
    flips = _randomization.patterns(len(ratios))
    own = np.expm1(np.abs(control.mean(axis=0)))
    floor = float(np.quantile(own, 0.95))
    least = np.maximum(max(rules.min_effect, floor), own)
    tail = 1 - rules.confidence
    low, high = _randomization.typical_bounds(ratios, flips, tail / 2)
    _, upper = _randomization.typical_bounds(ratios, flips, tail)
    columns = {
        "base": np.median(base, axis=0),
        "head": np.median(head, axis=0),
        "effect": np.expm1(ratios.mean(axis=0)),
        "low": np.expm1(low),
        "high": np.expm1(high),
        "upper": np.expm1(upper),
        "p_slower": _randomization.adjusted_p(ratios, flips),
        "p_faster": _randomization.adjusted_p(-ratios, flips),
        "floor": least,
        "visible": _visible(control, flips, least, rules.alpha),
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
    change: Change = "none"
    if row["p_slower"] <= rules.alpha and row["effect"] >= row["floor"]:
        answer, change = Answer.FAIL, "slower"
    else:
        answer = Answer.PASS if row["upper"] <= rules.margin else Answer.CANNOT_TELL
        if row["p_faster"] <= rules.alpha and row["effect"] <= -row["floor"]:
            change = "faster"
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
    if rounds < MIN_ROUNDS or rounds % 2:
        raise ValueError(f"an even number of rounds, {MIN_ROUNDS} or more, is needed, got {rounds}")
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
        int(np.sum((_randomization.adjusted_p(values, flips) <= alpha) & (effect >= floor)))
        for values in (control, -control)
        for effect in [np.expm1(values.mean(axis=0))]
    )


def _visible(control: np.ndarray, flips: np.ndarray, floor: np.ndarray, alpha: float) -> np.ndarray:
    """The smallest slowdown that fails with a power of 90 %, by the noise of the control.

    A slowdown d moves the mean to d and the mean square up by d^2: the statistic reaches t where
    d = t * sqrt((s^2 + s0^2) / (1 - t^2)), s0 being the family's part of the scale. To that comes
    how far the mean of n rounds and, here and in the test, their spread may be off.
    """
    spread = control.var(axis=0, ddof=1)
    squares = np.mean(control**2, axis=0) + _randomization.common_square(control)
    t = min(_randomization.critical(control, flips, alpha), 1 - 1e-9)
    reach = t * np.sqrt(squares / (1 - t * t))
    significant = reach + _POWER_Z * np.sqrt((spread + reach**2) / len(control))
    large = np.log1p(floor) + _POWER_Z * np.sqrt(spread / len(control))
    return np.expm1(np.maximum(significant, large))


def judge_exact(subject: Subject, base: float | None, head: float | None) -> Exact:
    """Judge an exact metric, or what only one side has.

    Raises
    ------
    ValueError
        If no unit is known for the metric, a value is not finite, neither side has one, or both
        have a value of a metric that is measured and not exact.
    """
    unit = unit_of(subject)
    for side, value in (("base", base), ("head", head)):
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{side} of {subject} must be finite or None, it is {value}")
    if base is None and head is None:
        raise ValueError(f"neither side has a value of {subject}")
    base, head = (None if value is None else float(value) for value in (base, head))
    if head is None:
        return Exact(subject, unit, base, head, Answer.FAIL, "missing")
    if base is None:
        return Exact(subject, unit, base, head, None, "new")
    if not unit.exact:
        raise ValueError(f"{subject.metric} is measured, not exact: two values need judge()")
    loss = head - base if unit.better == "smaller" else base - head
    change: ExactChange = "none" if loss == 0 else "worse" if loss > 0 else "better"
    fails = unit.gates and loss > unit.tolerance * abs(base)
    return Exact(subject, unit, base, head, Answer.FAIL if fails else Answer.PASS, change)


def unit_of(subject: Subject) -> Unit:
    """The unit of a subject's metric, at the subject's dtype.

    Raises
    ------
    ValueError
        If the metric is not in ``UNITS``.
    """
    if subject.metric not in UNITS:
        raise ValueError(f"no unit for the metric {subject.metric!r}; add it to UNITS")
    own = FLOAT32_UNITS if "float32" in subject.params else {}
    return own.get(subject.metric, UNITS[subject.metric])


def gates(timing: Timing) -> bool:
    """Whether a slowdown of this timing fails the job, rather than only being shown."""
    return unit_of(timing.subject).gates


def overall(
    families: Iterable[Family],
    exact: Iterable[Exact],
    identical: Set[Subject] = frozenset(),
    wrong: Sequence[str] = (),
    same_sources: bool = False,
) -> Answer:
    """The answer of the whole job.

    FAIL if anything that gates failed: an output that is wrong on the head, an exact metric, a
    timing. Else CANNOT TELL if the A/A control of such timings saw a change, if more than 5 % of
    them cannot be told, or if nothing was judged. Else PASS.

    A timing whose machine code is the same on both sides cannot be slower. If it fails all the
    same, the measurement is not to be trusted: CANNOT TELL. If it cannot be told, the machine code
    tells.

    Parameters
    ----------
    identical : set of Subject
        What has the same machine code on both sides, timed or not.
    wrong : sequence of str
        What is wrong on the head, a sentence each: any fails.
    same_sources : bool
        Whether both sides have the same package, byte by byte: then nothing needs to be judged.
    """
    families, exact = list(families), list(exact)
    timings = [timing for family in families for timing in family.timings if gates(timing)]
    slower = {timing.subject for timing in timings if timing.answer is Answer.FAIL}
    if wrong or slower - identical or any(each.answer is Answer.FAIL for each in exact):
        return Answer.FAIL
    judged = same_sources or timings or any(each.answer for each in exact)
    noisy = any(f.control.failed for f in families if any(map(gates, f.timings)))
    if not judged or noisy or slower or too_many_untold(timings, identical):
        return Answer.CANNOT_TELL
    return Answer.PASS


def untold(timings: Iterable[Timing], identical: Set[Subject]) -> list[Timing]:
    """The gating timings of which neither the clock nor the machine code tells."""
    return [
        timing
        for timing in timings
        if gates(timing) and timing.answer is Answer.CANNOT_TELL and timing.subject not in identical
    ]


def too_many_untold(timings: Iterable[Timing], identical: Set[Subject]) -> bool:
    """Whether more than 5 % cannot be told, of what gates or has the same machine code."""
    gating = [timing for timing in timings if gates(timing)]
    judged = len(gating) + len(identical - {timing.subject for timing in gating})
    return len(untold(gating, identical)) > MAX_UNTOLD_SHARE * judged
