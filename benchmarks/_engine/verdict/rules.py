"""The rules of a verdict: which answer follows from which numbers. Pure Python, no packages.

``judge`` makes the numbers from samples. Whoever reads a verdict from a file derives its answers
here again, also where nothing is installed.
"""

import enum
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

from ..system.untrusted import Number, Size, Text
from .metrics import ERROR, FLOAT32_ERROR, UNITS, Unit
from .metrics import FAMILIES as FAMILIES

MIN_ROUNDS, MAX_ROUNDS = 10, 62
"""The fewest rounds that can be significant by the rules below, and the most that are tested."""

MAX_INCONCLUSIVE_SHARE, ONE_OF = 0.05, 10
"""Share of a family's changed timings that may be inconclusive in a pass; one of ten may be."""

SPREAD_ALPHA, SPREAD_RATIO, SPREAD_MORE = 0.001, 1.5, 0.002
"""The head varies more than the base if that is significant at this level, of one look at one
family, and if its spread is larger by this ratio and by this share of the time."""

MOST_NS = 2000
"""Of a call's cost on the host, counted, so much more fails whatever share it is."""

# Of the machine code of calls, what costs time: a clock shows how much.
_COSTS_TIME = ("track_spilled_bytes", "track_narrow_share")

# What a file may hold. Nobody measures more than an hour, or a factor of more than a million.
_Seconds = Annotated[float, Number(1e-12, 3600)]
_Effect = Annotated[float, Number(-0.999999, 1e6)]
_Size = Annotated[float, Number(0)]
_Probability = Annotated[float, Number(0, 1)]
_Parameter = Annotated[str, Text(r"(?a)[\w.+-]{1,80}")]

Change = Literal["slower", "faster", "none"]
"""What a timing did."""

ExactChange = Literal["worse", "better", "none", "missing", "new"]
"""What an exact value did; "missing" and "new": it is not there on the head, or on the base."""


class Key(NamedTuple):
    """What is compared: asv's name of the benchmark, and its parameters as asv's texts."""

    metric: str
    params: Annotated[tuple[_Parameter, ...], Size(0, 6)]

    @property
    def words(self) -> str:
        """As ``compare --only`` takes it."""
        return " ".join([self.metric, *self.params])


class Answer(enum.StrEnum):
    PASS = "pass"
    FAIL = "fail"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True)
class Rules:
    """What a verdict needs.

    alpha: the rate of false alarms, one-sided, of one look at one family of timings in which
    nothing changed. A job has two families and at most two looks at each: 1 % in all. The first
    calls are a third, whose ``min_effect`` noise seldom reaches.
    min_effect: no slowdown below this share of the base fails.
    margin: the non-inferiority margin. A timing passes if, with ``confidence``, it is slower by no
    more than this share.
    """

    alpha: float = 0.0025
    min_effect: float = 0.005
    margin: float = 0.01
    confidence: float = 0.95


RULES = {
    "gpu": Rules(),
    # The host's time moves by percents from process to process, with what the interpreter does;
    # that of a process's first call by tens of percents, with what the file system does.
    "host": Rules(min_effect=0.025, margin=0.05),
    "start": Rules(min_effect=0.5, margin=0.5),
}
"""The rules of each family."""


@dataclass(frozen=True)
class Timing:
    """The verdict on one timing. Effects are shares of the base: 0.02 is 2 % slower.

    base, head: median over the processes, seconds. effect: ``exp(E) - 1`` of the pseudomedian of
    the rounds' log ratios, the median of the average of two. low, high: its two-sided confidence
    interval; upper: its one-sided bound. p_slower, p_faster: adjusted for the family. floor: the
    smallest effect that may count, the largest of the rules' ``min_effect``, the floor of timings
    of about the same duration and its own control. mde: the minimum detectable effect,
    the smallest slowdown that fails with a power of 90 % at the noise of this run.
    """

    key: Key
    answer: Answer
    change: Change
    base: _Seconds
    head: _Seconds
    effect: _Effect
    low: _Effect
    high: _Effect
    upper: _Effect
    p_slower: _Probability
    p_faster: _Probability
    floor: _Size
    mde: _Size
    rounds: int


@dataclass(frozen=True)
class Control:
    """The A/A control of a family: what its processes say of a version compared with itself.

    failed: timings on which the verdict's own test and threshold would see a change, one way
    or the other. floor: the 95 % quantile over the timings of their absolute A/A effect. noise:
    the median over the timings of the standard deviation of a paired round.
    """

    timings: int
    failed: int
    floor: _Size
    noise: _Size


@dataclass(frozen=True)
class MeanChange:
    """The geometric mean of the change over a family's timings that changed, a share of the base.

    timings: how many there are. effect: the pseudomedian over the rounds. low, high: its interval.
    """

    timings: int
    effect: _Effect
    low: _Effect
    high: _Effect


@dataclass(frozen=True)
class Spread:
    """How far a version's processes lie from the median of both versions' processes.

    base, head: the mean distance over the processes, and over the timings that changed; a share. p:
    of "the head's lie no further away than the base's".
    """

    base: _Size
    head: _Size
    p: _Probability


@dataclass(frozen=True)
class Family:
    """Timings that were tested together, and their control.

    mean, spread: None if the machine code of all is the same, and in reports of before there
    were any.
    """

    timings: tuple[Timing, ...]
    control: Control
    mean: MeanChange | None = None
    spread: Spread | None = None


@dataclass(frozen=True)
class Exact:
    """The verdict on an exact metric; None is a value that a side does not have.

    A timing that only one side has is one too: whether it is there is exact. answer: FAIL if a
    metric that gates got worse or if the head lost it, None if it is new, else PASS.
    """

    key: Key
    unit: Unit
    base: float | None
    head: float | None
    answer: Answer | None
    change: ExactChange


def answered(timing: Timing, rules: Rules) -> Timing:
    """The timing with the answer that follows from its numbers.

    FAIL if the adjusted p is at most ``alpha`` and the effect at least the floor. Else PASS if the
    upper bound is at most the margin. Else CANNOT TELL.
    """
    if timing.p_slower <= rules.alpha and timing.effect >= timing.floor:
        return replace(timing, answer=Answer.FAIL, change="slower")
    answer = Answer.PASS if timing.upper <= rules.margin else Answer.CANNOT_TELL
    faster = timing.p_faster <= rules.alpha and timing.effect <= -timing.floor
    return replace(timing, answer=answer, change="faster" if faster else "none")


def judge_exact(
    key: Key, base: float | None, head: float | None, clock_decides: bool = False
) -> Exact:
    """Judge an exact metric, or what only one side has.

    clock_decides: whether calls are timed on the very architecture that was compiled for. What got
    worse in their machine code then passes and is only shown: spills and narrow accesses matter
    through the time that they cost. What is missing fails all the same.

    Raises ValueError if no unit is known for the metric, a value is none of its unit, neither side
    has one, or both have a value of a metric that is measured and not exact.
    """
    unit = unit_of(key)
    for side, value in (("base", base), ("head", head)):
        if value is not None and not unit.gives(value):
            raise ValueError(f"{side} of {key} must be None or {unit.name}, it is {value}")
    if base is None and head is None:
        raise ValueError(f"neither side has a value of {key}")
    base, head = (None if value is None else float(value) for value in (base, head))
    if head is None:
        return Exact(key, unit, base, head, Answer.FAIL, "missing")
    if base is None:
        return Exact(key, unit, base, head, None, "new")
    if not unit.exact:
        raise ValueError(f"{key.metric} is measured, not exact: two values need judge()")
    loss = head - base if unit.better == "smaller" else base - head
    change: ExactChange = "none" if loss == 0 else "worse" if loss > 0 else "better"
    shown_only = clock_decides and key.metric.endswith(_COSTS_TIME)
    allowed = unit.tolerance * abs(base)
    if unit.name == "ns":
        allowed = min(allowed, MOST_NS)
    fails = unit.gates and not shown_only and loss > allowed
    return Exact(key, unit, base, head, Answer.FAIL if fails else Answer.PASS, change)


def unit_of(key: Key) -> Unit:
    """The unit of a metric, at the dtype among its parameters.

    Raises ValueError if the metric is not in ``UNITS``.
    """
    if key.metric not in UNITS:
        raise ValueError(f"no unit for the metric {key.metric!r}; the subject's UNITS lack it")
    unit = UNITS[key.metric]
    return FLOAT32_ERROR if unit == ERROR and "float32" in key.params else unit


def overall(
    families: Iterable[Family],
    exact: Iterable[Exact],
    identical: Set[Key] = frozenset(),
    wrong: Sequence = (),
    same_sources: bool = False,
    unmeasured: Sequence = (),
) -> Answer:
    """The answer of the whole job.

    FAIL if anything that gates failed: an output that is wrong on the head, an exact metric, a
    timing. Else CANNOT TELL if

    - something differs between the sides and was not measured,
    - the A/A control saw a change,
    - the head's processes vary more than the base's (``varies_more``),
    - a family has too many inconclusive timings, or one that looks slower (``too_inconclusive``),
    - nothing was judged.

    Else PASS.

    A timing whose machine code is the same on both sides cannot be slower. If it fails all the
    same, the measurement is not to be trusted: CANNOT TELL. If it is inconclusive, the machine code
    is conclusive. Of the same sources nothing needs to be judged. ``schema.Comparison`` says what
    the arguments are.
    """
    families, exact = list(families), list(exact)
    timings = [timing for family in families for timing in family.timings]
    slower = {timing.key for timing in timings if timing.answer is Answer.FAIL}
    if wrong or slower - identical or any(value.answer is Answer.FAIL for value in exact):
        return Answer.FAIL
    judged = same_sources or timings or any(value.answer for value in exact)
    noisy = any(family.control.failed for family in families)
    doubtful = any(too_inconclusive(family.timings, identical) for family in families)
    uneven = any(varies_more(family.spread) for family in families)
    if unmeasured or not judged or noisy or slower or doubtful or uneven:
        return Answer.CANNOT_TELL
    return Answer.PASS


def inconclusive(timings: Iterable[Timing], identical: Set[Key]) -> list[Timing]:
    """The timings on which neither the clock nor the machine code is conclusive."""
    differing = changed(timings, identical)
    return [timing for timing in differing if timing.answer is Answer.CANNOT_TELL]


def suspicious(timing: Timing) -> bool:
    """Whether an inconclusive timing looks slower: its effect exceeds its floor, or its interval
    lies above zero."""
    return timing.effect > timing.floor or timing.low > 0


def too_inconclusive(timings: Iterable[Timing], identical: Set[Key]) -> bool:
    """Whether the inconclusive timings of a family forbid a pass.

    They do if one of them looks slower, or if they are more than 5 % of what changed, and more than
    one of ten or more. Identical machine code is not counted: it says nothing about what changed.
    """
    differing = changed(timings, identical)
    unclear = inconclusive(differing, identical)
    allowed = max(MAX_INCONCLUSIVE_SHARE * len(differing), len(differing) >= ONE_OF)
    return len(unclear) > allowed or any(map(suspicious, unclear))


def varies_more(spread: Spread | None) -> bool:
    """Whether the head's processes vary more than the base's, by chance and size.

    The pseudomedian does not see a head that is slower in a minority of its processes.
    """
    return (
        spread is not None
        and spread.p <= SPREAD_ALPHA
        and spread.head >= SPREAD_RATIO * spread.base
        and spread.head - spread.base >= SPREAD_MORE
    )


def changed(timings: Iterable[Timing], identical: Set[Key]) -> list[Timing]:
    """The timings whose machine code is not the same on both sides."""
    return [timing for timing in timings if timing.key not in identical]
