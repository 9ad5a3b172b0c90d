"""Judge what became slower since a baseline, all in all, and which commits did it. Pure.

A change of +0.4 % passes the comparison of its pull request, and so do ten of them in a row. Here
the ten are one comparison of main with the baseline, and its timings may add up to no more than
``MARGINS``. Where they do, the commits since the baseline are compared with it too, on the worst of
what failed. The next is always the one that halves the range over which the timings rise most:

- If one commit did it, the range around it is halved until it is alone: log2 of the number of
  commits.
- If many did a little each, every part of the line rises, and each is divided in turn. That takes
  as many comparisons as there are commits less one, and the time that there is ends it.

A commit that cannot be compared, or whose timings are too noisy to tell where between the two ends
they lie, divides nothing: as with ``git bisect skip`` the answer is then a range.
"""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .._system.untrusted import Text, validated
from . import schema
from .rules import RULES, Answer, Key, Timing, answered
from .schema import Comparison

MARGINS = {name: rules.margin for name, rules in RULES.items()} | {"gpu": 0.01}
"""By how much a timing may be slower than at the baseline, as a share, by its family."""

MOST_TARGETS = 8
"""Most timings and exact values that the commits between are compared on."""

MOST_STEPS = 64

# Shares of the whole rise below which a range must rise clearly to be listed, and is not listed.
_NOTABLE, _LEAST = 0.1, 0.02

Point = Mapping[Key, "Level"]
"""How far a commit is from the baseline, for each target."""


class Level(NamedTuple):
    """The log of head over base and its interval; 0 or 1, for sure, of a value that is exact."""

    low: float
    at: float
    high: float


_SAME, _LOST = Level(0.0, 0.0, 0.0), Level(1.0, 1.0, 1.0)


class Rise(NamedTuple):
    """What the commits ``first`` to ``last`` did, one commit if these are the same index.

    share: of all that the targets rose by, the mean over the targets. target: the one that rose
    most, as a share of its whole. effect: by how much it is slower than before them, None if it is
    an exact value.
    """

    first: int
    last: int
    share: float
    target: Key
    effect: float | None


class Step(NamedTuple):
    """The baseline compared with a commit; None if it could not be."""

    commit: str
    comparison: Comparison | None


@dataclasses.dataclass(frozen=True)
class Creep:
    """The baseline compared with main, and, if that fails, with commits between, on the targets."""

    comparison: Comparison
    steps: tuple[Step, ...] = ()


# --- the verdict ----------------------------------------------------------------------------------


def cumulative(comparison: Comparison) -> Comparison:
    """The comparison with answers by ``MARGINS``: for a reader, not to be stored.

    A timing fails if it is significantly slower, and by more than the margin. It passes if its
    bound is within the margin, and is inconclusive otherwise.
    """
    families = {
        name: dataclasses.replace(
            family, timings=tuple(_limited(timing, name) for timing in family.timings)
        )
        for name, family in comparison.families.items()
    }
    return dataclasses.replace(comparison, families=families)


def _limited(timing: Timing, family: str) -> Timing:
    rules = dataclasses.replace(RULES[family], margin=MARGINS[family])
    floor = max(timing.floor, rules.margin)
    answer, change = answered(
        timing.effect, timing.upper, floor, timing.p_slower, timing.p_faster, rules
    )
    # The noise above the floor is the same.
    mde = timing.mde + floor - timing.floor
    return dataclasses.replace(timing, answer=answer, change=change, floor=floor, mde=mde)


def targets(comparison: Comparison) -> tuple[Key, ...]:
    """What failed by ``MARGINS``: the worst of each metric, then the next worst of each, and on."""
    failed = {
        timing.key: timing.effect
        for timing in cumulative(comparison).timings
        if timing.answer is Answer.FAIL
        if timing.key not in comparison.identical
    }
    failed |= {each.key: 1.0 for each in comparison.exact if each.answer is Answer.FAIL}
    ranks: dict[Key, int] = {}
    seen: dict[str, int] = {}
    for subject in sorted(failed, key=lambda subject: (-failed[subject], subject)):
        ranks[subject] = seen[subject.metric] = seen.get(subject.metric, -1) + 1
    return tuple(sorted(ranks, key=lambda each: (ranks[each], -failed[each], each))[:MOST_TARGETS])


def only_words(subjects: Iterable[Key]) -> list[str]:
    """The words of ``compare`` that let it time no more than these."""
    return [word for each in subjects for word in ("--only", each.words)]


# --- which commits --------------------------------------------------------------------------------


class Search:
    """Which commits made main slower, by what was compared so far.

    Parameters
    ----------
    creep : Creep
        Its steps are of some of these commits.
    commits : sequence of str
        Those that changed the package since the baseline, oldest first; the last has main's.
    """

    def __init__(self, creep: Creep, commits: Sequence[str]):
        self._commits, self._targets = commits, targets(creep.comparison)
        self._tried = {*commits[-1:], *(each.commit for each in creep.steps)}
        self._whole = _levels(creep.comparison, self._targets)
        self._points: dict[int, Point] = {0: dict.fromkeys(self._targets, _SAME)}
        for step in creep.steps:
            if (point := self._point(step)) is not None:
                self._points[commits.index(step.commit) + 1] = point
        self._points[len(commits)] = self._whole

    def next_commit(self) -> str | None:
        """The commit to compare next, None if there is none or no range of many commits rises."""
        best, found = 0.0, None
        for before, after in itertools.pairwise(sorted(self._points)):
            inside = [i for i in range(before, after) if self._commits[i] not in self._tried]
            shares = self._shares(before, after)
            rise = max((shares[each] for each in self._clear(before, after)), default=0.0)
            if inside and rise > best:
                middle = min(inside, key=lambda index: abs(2 * (index + 1) - before - after))
                best, found = rise, self._commits[middle]
        return found

    def rises(self) -> list[Rise]:
        """Commits, and ranges that are not divided, the largest share first."""
        found = []
        for before, after in itertools.pairwise(sorted(self._points)):
            if shares := self._shares(before, after):
                share, worst = statistics.mean(shares.values()), max(shares, key=shares.__getitem__)
                likely = share >= _NOTABLE and self._likely(before, after)
                if likely or (share >= _LEAST and self._clear(before, after)):
                    rise = shares[worst] * self._whole[worst].at
                    effect = None if self._whole[worst] == _LOST else math.expm1(rise)
                    found.append(Rise(before, after - 1, share, worst, effect))
        return sorted(found, key=lambda each: -each.share)

    def skipped(self, step: Step) -> bool:
        """Whether the step divides nothing: not compared, or its timings tell too little."""
        return self._point(step) is None

    def _point(self, step: Step) -> Point | None:
        """The levels of a step, None if one is missing or could be those of either end."""
        if step.comparison is None or any(
            family.control.failed for family in step.comparison.families.values()
        ):
            return None
        levels = _levels(step.comparison, self._targets)
        for subject in self._targets:
            level = levels.get(subject)
            if level is None or (level.low <= 0 and level.high >= self._whole[subject].at):
                return None
        return levels

    def _shares(self, before: int, after: int) -> dict[Key, float]:
        """Of each target's whole rise, what it rose by between two points."""
        start, end = self._points[before], self._points[after]
        return {each: (end[each].at - start[each].at) / self._whole[each].at for each in start}

    def _clear(self, before: int, after: int) -> list[Key]:
        """The targets that rise for sure: their intervals have nothing in common."""
        start, end = self._points[before], self._points[after]
        return [each for each in start if end[each].low > start[each].high]

    def _likely(self, before: int, after: int) -> bool:
        """Whether most targets end above the interval that they start with."""
        start, end = self._points[before], self._points[after]
        return 2 * sum(end[each].at > start[each].high for each in start) >= len(start)


def _levels(comparison: Comparison, wanted: Sequence[Key]) -> dict[Key, Level]:
    """The levels of the wanted subjects that the comparison has."""
    if comparison.same_sources:
        return dict.fromkeys(wanted, _SAME)
    timings = {timing.key: timing for timing in comparison.timings}
    exact = {each.key: each.answer for each in comparison.exact}
    found = {}
    for subject in wanted:
        if subject in exact:
            found[subject] = _LOST if exact[subject] is Answer.FAIL else _SAME
        elif subject in comparison.identical:
            found[subject] = _SAME
        elif subject in timings:
            timing = timings[subject]
            found[subject] = Level(*map(math.log1p, (timing.low, timing.effect, timing.high)))
    return found


# --- as JSON --------------------------------------------------------------------------------------


def trimmed(comparison: Comparison, wanted: Sequence[Key]) -> Comparison:
    """A step's comparison without what says nothing of the targets."""
    exact = tuple(each for each in comparison.exact if each.key in wanted)
    timed = {timing.key for timing in comparison.timings}
    identical = comparison.identical & {*wanted, *timed}
    return dataclasses.replace(comparison, exact=exact, identical=identical, notes=(), discarded=())


def to_json(creep: Creep) -> dict:
    """As plain JSON: ``{"comparison": ..., "steps": [{"commit": SHA, "comparison": ...}, ...]}``.

    The comparisons are as ``schema`` has them, null where there is none.
    """
    steps = [
        {
            "commit": each.commit,
            "comparison": None if each.comparison is None else schema.to_json(each.comparison),
        }
        for each in creep.steps
    ]
    return {"comparison": schema.to_json(creep.comparison), "steps": steps}


def from_json(document: Any) -> Creep:
    """What plain JSON says, wherever that comes from.

    Raises
    ------
    ValueError
        If it is anything else, or has more than ``MOST_STEPS`` steps.
    """
    whole = _keys(document, "creep", {"comparison", "steps"})
    if not isinstance(whole["steps"], list) or len(whole["steps"]) > MOST_STEPS:
        raise ValueError(f"steps must be a list of up to {MOST_STEPS}")
    steps = [_keys(each, "a step", {"commit", "comparison"}) for each in whole["steps"]]
    return Creep(schema.from_json(whole["comparison"]), tuple(map(_step, steps)))


def _step(given: dict) -> Step:
    commit = validated(str, given["commit"], "commit", Text("[0-9a-f]{40}"))
    comparison = given["comparison"]
    return Step(commit, None if comparison is None else schema.from_json(comparison))


def _keys(value: Any, name: str, keys: set[str]) -> dict:
    if not isinstance(value, dict) or value.keys() != keys:
        raise ValueError(f"{name} must be an object of {sorted(keys)}")
    return value
