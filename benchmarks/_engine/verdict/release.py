"""Judge HEAD against the last release, and find the commits that made it slower. Pure.

A change of +0.4 % passes the comparison of its pull request, and so do ten of them in a row. Here
the ten are one comparison, and a timing may be slower by no more than its family's margin in total.
If one is, the commits since the release are compared with it too, on the worst of what failed, and
the search bisects: a range of commits over which a timing rises is halved, then each half in which
it still rises, until a range is one commit or neither half rises clearly. One culprit takes log2 of
the number of commits, many small ones up to a comparison each. A commit that cannot be compared,
or whose timings are too noisy, is skipped as with ``git bisect skip``.
"""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..system.untrusted import Text, validated
from . import schema
from .rules import RULES, Answer, Key, Timing, answered
from .schema import Comparison

MOST_TARGETS = 8
"""Most timings and exact values that the commits since the release are compared on."""

MOST_STEPS = 64

_NOTABLE = 0.05  # share of the whole rise below which a range is not divided or named


class Step(NamedTuple):
    """The release compared with a commit; None if it could not be."""

    commit: str
    comparison: Comparison | None


@dataclasses.dataclass(frozen=True)
class SinceRelease:
    """The release compared with HEAD, and, if that fails, with commits between, on the targets."""

    comparison: Comparison
    steps: tuple[Step, ...] = ()


class Culprit(NamedTuple):
    """A commit that made HEAD slower, or a range of which one or more did.

    first, last: index of the first and the last commit of the range. key: the timing or exact value
    that got worse there by the largest share of its whole change. effect: by how much it is slower
    than before the range, None for an exact value.
    """

    first: int
    last: int
    key: Key
    effect: float | None


# --- the verdict ----------------------------------------------------------------------------------


def cumulative(comparison: Comparison) -> Comparison:
    """The comparison judged by the margins alone: for a reader, not to be stored.

    A timing fails if it is significantly slower, and by more than its family's margin. It passes if
    its upper bound is within the margin, and is inconclusive otherwise.
    """
    families = {
        name: dataclasses.replace(
            family, timings=tuple(_limited(timing, name) for timing in family.timings)
        )
        for name, family in comparison.families.items()
    }
    return dataclasses.replace(comparison, families=families)


def _limited(timing: Timing, family: str) -> Timing:
    rules = RULES[family]
    floor = max(timing.floor, rules.margin)
    # The noise above the floor is the same.
    mde = timing.mde + floor - timing.floor
    return answered(dataclasses.replace(timing, floor=floor, mde=mde), rules)


def targets(comparison: Comparison) -> tuple[Key, ...]:
    """What failed by the margins: the worst of each metric, then the next worst of each, and on."""
    failed = {
        timing.key: timing.effect
        for timing in cumulative(comparison).timings
        if timing.answer is Answer.FAIL and timing.key not in comparison.identical
    }
    failed |= {value.key: 1.0 for value in comparison.exact if value.answer is Answer.FAIL}
    ranks: dict[Key, tuple] = {}
    ranked: dict[str, int] = {}
    for key in sorted(failed, key=lambda key: (-failed[key], key)):
        ranked[key.metric] = ranked.get(key.metric, 0) + 1
        ranks[key] = ranked[key.metric], -failed[key], key
    return tuple(sorted(ranks, key=ranks.__getitem__)[:MOST_TARGETS])


def only_words(keys: Iterable[Key]) -> list[str]:
    """The words of ``compare`` that let it time no more than these."""
    return [word for key in keys for word in ("--only", key.words)]


# --- which commits --------------------------------------------------------------------------------


class Level(NamedTuple):
    """The log of head over base and its interval; 0 or 1, for sure, of a value that is exact."""

    low: float
    estimate: float
    high: float


_SAME, _LOST = Level(0.0, 0.0, 0.0), Level(1.0, 1.0, 1.0)


class Search:
    """Which commits made HEAD slower, by what was compared so far.

    ``commits`` changed the package since the release, oldest first; the last has HEAD's.
    """

    def __init__(self, results: SinceRelease, commits: Sequence[str]):
        self._commits, self._targets = commits, targets(results.comparison)
        self._total = _levels(results.comparison, self._targets)
        self._tried = {*commits[-1:], *(step.commit for step in results.steps)}
        # By the number of commits since the release.
        self._levels = {0: dict.fromkeys(self._targets, _SAME), len(commits): self._total}
        for step in results.steps:
            if not self.skipped(step) and step.comparison is not None:
                levels = _levels(step.comparison, self._targets)
                self._levels[commits.index(step.commit) + 1] = levels

    def skipped(self, step: Step) -> bool:
        """Whether a step says too little: not compared, or a target could be as at either end."""
        if step.comparison is None:
            return True
        families = step.comparison.families.values()
        levels = _levels(step.comparison, self._targets)
        return (
            any(family.control.failed for family in families)
            or levels.keys() != {*self._targets}
            or any(
                level.low <= 0 and level.high >= self._total[key].estimate
                for key, level in levels.items()
            )
        )

    def next_commit(self) -> str | None:
        """The commit to compare next: the middle of the largest rise that is not yet halved."""
        for before, after in self._ranges():
            inside = [i for i in range(before, after) if self._commits[i] not in self._tried]
            if inside and not self._measured(before, after):
                return self._commits[min(inside, key=lambda i: abs(2 * (i + 1) - before - after))]
        return None

    def culprits(self) -> list[Culprit]:
        """The commits, and the ranges that could not be halved, the largest rise first."""
        return [self._culprit(before, after) for before, after in self._ranges()]

    def _ranges(self) -> list[tuple[int, int]]:
        """The smallest ranges of commits over which a target clearly rises, the largest first."""
        ranges = list(self._halved(0, len(self._commits)))
        return sorted(ranges, key=lambda ends: -max(self._rises(*ends).values()))

    def _halved(self, before: int, after: int) -> Iterator[tuple[int, int]]:
        if self._rises(before, after):
            middle = self._measured(before, after)
            halves = [(before, middle[0]), (middle[0], after)] if middle else []
            parts = [part for half in halves for part in self._halved(*half)]
            yield from parts or [(before, after)]

    def _measured(self, before: int, after: int) -> list[int]:
        """The places between that have levels, the one nearest to the middle first."""
        inside = [place for place in self._levels if before < place < after]
        return sorted(inside, key=lambda place: abs(2 * place - before - after))

    def _rises(self, before: int, after: int) -> dict[Key, float]:
        """The targets whose intervals at both ends are apart, and their share of the whole rise.

        None of them unless the mean share of all targets is notable: one of them may be noise.
        """
        start, end = self._levels[before], self._levels[after]
        shares = {
            key: (end[key].estimate - start[key].estimate) / self._total[key].estimate
            for key in self._targets
        }
        if not shares or statistics.fmean(shares.values()) < _NOTABLE:
            return {}
        return {key: shares[key] for key in shares if end[key].low > start[key].high}

    def _culprit(self, before: int, after: int) -> Culprit:
        rises = self._rises(before, after)
        key = max(rises, key=rises.__getitem__)
        total = self._total[key]
        effect = None if total == _LOST else math.expm1(rises[key] * total.estimate)
        return Culprit(before, after - 1, key, effect)


def _levels(comparison: Comparison, keys: Sequence[Key]) -> Mapping[Key, Level]:
    """The levels of these keys that the comparison has."""
    if comparison.same_sources:
        return dict.fromkeys(keys, _SAME)
    levels = dict.fromkeys(comparison.identical, _SAME)
    for timing in comparison.timings:
        if timing.key not in comparison.identical:
            levels[timing.key] = Level(*map(math.log1p, (timing.low, timing.effect, timing.high)))
    for value in comparison.exact:
        levels[value.key] = _LOST if value.answer is Answer.FAIL else _SAME
    return {key: levels[key] for key in keys if key in levels}


# --- as JSON --------------------------------------------------------------------------------------


def trimmed(comparison: Comparison, keys: Sequence[Key]) -> Comparison:
    """A step's comparison without what says nothing of the targets."""
    exact = tuple(value for value in comparison.exact if value.key in keys)
    timed = {timing.key for timing in comparison.timings}
    identical = comparison.identical & {*keys, *timed}
    return dataclasses.replace(comparison, exact=exact, identical=identical, notes=(), discarded=())


def to_json(results: SinceRelease) -> dict:
    """As plain JSON: ``{"comparison": ..., "steps": [{"commit": SHA, "comparison": ...}, ...]}``.

    The comparisons are as ``schema`` has them, null where there is none.
    """
    steps = [
        {"commit": step.commit, "comparison": step.comparison and schema.to_json(step.comparison)}
        for step in results.steps
    ]
    return {"comparison": schema.to_json(results.comparison), "steps": steps}


def from_json(document: Any) -> SinceRelease:
    """What plain JSON says, wherever that comes from.

    Raises ValueError if it is anything else, or has more than ``MOST_STEPS`` steps.
    """
    fields = _object(document, "since release", {"comparison", "steps"})
    if not isinstance(fields["steps"], list) or len(fields["steps"]) > MOST_STEPS:
        raise ValueError(f"steps must be a list of up to {MOST_STEPS}")
    return SinceRelease(schema.from_json(fields["comparison"]), tuple(map(_step, fields["steps"])))


def _step(document: Any) -> Step:
    fields = _object(document, "a step", {"commit", "comparison"})
    commit = validated(str, fields["commit"], "commit", Text("[0-9a-f]{40}"))
    comparison = fields["comparison"]
    return Step(commit, None if comparison is None else schema.from_json(comparison))


def _object(value: Any, name: str, keys: set[str]) -> dict:
    if not isinstance(value, dict) or value.keys() != keys:
        raise ValueError(f"{name} must be an object of {sorted(keys)}")
    return value
