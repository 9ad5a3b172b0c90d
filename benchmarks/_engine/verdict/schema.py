"""The result of a comparison, and its JSON.

The JSON, ``to_json``, is one object: ``schema``, ``answer``, which must be the one that follows
from the rest, and the fields of ``Comparison``. Every key is there, no other is allowed, and every
number is finite. A key is ``{"metric": text, "params": [text, ...]}``, an answer one of "pass",
"fail", "cannot tell". All readers have these rules, whoever wrote the document.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from ..system.untrusted import Number, Size, Text, plain, validated
from .note import Note
from .rules import (
    FAMILIES,
    MAX_ROUNDS,
    MIN_ROUNDS,
    RULES,
    Answer,
    Exact,
    Family,
    Key,
    Rules,
    Timing,
    answered,
    changed,
    judge_exact,
    overall,
    unit_of,
)

SCHEMA = 6
MAX_TIMINGS = 4000  # the full grid and the surface have some 2,300
MAX_ITEMS = 20_000  # of machine code on all architectures there are 9,390, of the host 4,171
_ROUNDING = 1e-9  # of a computation that took another way to the same number


@dataclass(frozen=True)
class Side:
    """A version: what it was called, and its commit ("" if it has none)."""

    name: str
    sha: Annotated[str, Text("[0-9a-f]{0,64}")]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two versions compared; by default, without a measurement.

    machine: the asv record of machine and software. clocks: what ran at which clock under load,
    ``{"SM": "1980 MHz"}``. rounds: those judged, with the ``extension`` that was added because the
    first ones were inconclusive. minutes: wall time of all the runs that it was measured in.
    identical: what has the same machine code for this GPU on both sides, timed or not; of timings
    on the host, what executes the same there.
    represented: what differs and was not timed, because the same machine code was, at another size.
    same_sources: whether both sides have the same package, byte by byte. reproduce: the command
    that measures this again.

    unmeasured: what differs between the sides and was not measured (any forbids a pass). wrong:
    what failed its check on the head. notes: what was not measured and why, and what has no
    verdict. discarded: the rounds that were discarded and measured again, and why, a text each.
    """

    base: Side
    head: Side
    machine: Mapping[str, str]
    rounds: Annotated[int, Number(0, 2 * MAX_ROUNDS)] = 0
    extension: Annotated[int, Number(0, MAX_ROUNDS)] = 0
    minutes: Annotated[float, Number(0, 60 * 24 * 7)] = 0.0
    families: Mapping[str, Family] = dataclasses.field(default_factory=dict)
    exact: Annotated[tuple[Exact, ...], Size(0, MAX_ITEMS)] = ()
    identical: Annotated[frozenset[Key], Size(0, MAX_TIMINGS)] = frozenset()
    same_sources: bool
    unmeasured: tuple[Note, ...]
    wrong: tuple[Note, ...] = ()
    notes: tuple[Note, ...] = ()
    discarded: tuple[str, ...] = ()
    reproduce: str
    represented: Annotated[frozenset[Key], Size(0, MAX_TIMINGS)] = frozenset()
    clocks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    rules: Rules = dataclasses.field(default_factory=Rules)

    @property
    def answer(self) -> Answer:
        doubts = self.wrong, self.same_sources, self.unmeasured
        return overall(self.families.values(), self.exact, self.identical, *doubts)

    @property
    def timings(self) -> list[Timing]:
        return [timing for family in self.families.values() for timing in family.timings]

    @property
    def untimed(self) -> frozenset[Key]:
        """What has the same machine code on both sides and was not timed."""
        return self.identical - {timing.key for timing in self.timings}


def to_json(comparison: Comparison) -> dict:
    """The comparison as plain JSON.

    Raises ValueError if the comparison holds something that ``from_json`` would refuse.
    """
    document = {"schema": SCHEMA, "answer": comparison.answer.value, **plain(comparison)}
    from_json(document)
    return document


def from_json(document: dict) -> Comparison:
    """The comparison that plain JSON describes, wherever that comes from.

    Raises ValueError if anything is missing, unknown, of a wrong type, not finite, too long, or
    contradicts the rest, as an answer does that does not follow from it; the message says where.
    """
    if not isinstance(document, dict):
        raise ValueError(f"a comparison is an object, got {type(document).__name__}")
    fields = dict(document)
    schema, answer = fields.pop("schema", None), fields.pop("answer", None)
    if type(schema) is not int or schema != SCHEMA:
        raise ValueError(f"schema {schema!r:.80} is unknown, this version reads {SCHEMA}")
    comparison = validated(Comparison, fields, "comparison")
    _check(comparison)
    if answer != comparison.answer.value:
        raise ValueError(f"answer is {answer!r:.80}, the rest says {comparison.answer.value!r}")
    return comparison


def _check(comparison: Comparison) -> None:
    """Check what types cannot say."""
    keys = [timing.key for timing in comparison.timings]
    exact = [value.key for value in comparison.exact]
    if len(keys) > MAX_TIMINGS:
        raise ValueError(f"at most {MAX_TIMINGS} timings are read, got {len(keys)}")
    if len(set(keys)) < len(keys) or len(set(exact)) < len(exact):
        raise ValueError("a key comes twice")
    if comparison.rules != RULES["gpu"]:
        raise ValueError("it was judged by other rules")
    first = comparison.rounds - comparison.extension
    if comparison.rounds and not MIN_ROUNDS <= first <= MAX_ROUNDS:
        raise ValueError(f"{comparison.rounds} rounds, {comparison.extension} of them added")
    if twice := comparison.represented & (comparison.identical | {*keys}):
        raise ValueError(f"{min(twice).words} is represented, and timed or the same")
    for key in comparison.identical | comparison.represented:
        if not key.metric.startswith(sum(FAMILIES.values(), ())):
            raise ValueError(f"{key.metric!r:.80} is no timing")
        unit_of(key)
    for name, family in comparison.families.items():
        _check_family(name, family, comparison)
    for value in comparison.exact:
        if value != judge_exact(value.key, value.base, value.head, "gpu" in comparison.families):
            raise ValueError(f"{value.key.words} has another unit or answer by its values")


def _check_family(name: str, family: Family, comparison: Comparison) -> None:
    if name not in FAMILIES:
        raise ValueError(f"a family is one of {list(FAMILIES)}, got {name!r:.80}")
    control, size = family.control, len(family.timings)
    if not size or control.timings != size or control.failed > 2 * size:
        raise ValueError(
            f"the control of {name} counts {control.timings} timings and {control.failed} "
            f"failures, the family has {size} timings"
        )
    for timing in family.timings:
        unit_of(timing.key)
        if not timing.key.metric.startswith(FAMILIES[name]):
            raise ValueError(f"{timing.key.metric} does not belong to {name}")
        for wrong in _contradictions(timing, RULES[name], comparison.rounds):
            raise ValueError(f"{timing.key.words}: {wrong}")
    differing, mean = changed(family.timings, comparison.identical), family.mean
    count = len(differing)
    if (mean is None) != (family.spread is None) or (mean and mean.timings != (count or None)):
        raise ValueError(f"{name} has no mean and spread of the {count} timings that differ")
    if mean and not _rises(mean.low, mean.effect, mean.high):
        raise ValueError(f"the interval of the mean of {name} does not hold its effect")


def _contradictions(timing: Timing, rules: Rules, rounds: int) -> Iterator[str]:
    """Numbers that no judgement gives, and an answer that does not follow from them."""
    if not MIN_ROUNDS <= timing.rounds <= rounds or timing.rounds % 2:
        yield f"an even number of {MIN_ROUNDS} to {rounds} rounds was judged, not {timing.rounds}"
    if not _rises(timing.low, timing.effect, timing.upper, timing.high):
        yield "the interval does not hold its effect and its bound"
    if not _rises(rules.min_effect, timing.floor, timing.mde):
        yield "the floor is below the least effect, or above the minimum detectable effect"
    right = answered(timing, rules)
    if timing != right:
        stated = f"{timing.answer.value!r} and {timing.change!r}"
        yield f"the answer is {stated}, its numbers say {right.answer.value!r} and {right.change!r}"


def _rises(*numbers: float) -> bool:
    return all(low <= high + _ROUNDING * abs(high) for low, high in itertools.pairwise(numbers))
