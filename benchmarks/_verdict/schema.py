"""The result of a comparison, and its JSON.

The JSON, ``to_json``, is one object: ``schema``, ``answer``, which must be the one that follows
from the rest, and the fields of ``Comparison``. Every key is there, no other is allowed, and every
number is finite. A subject is ``{"metric": text, "params": [text, ...]}``, an answer one of "pass",
"fail", "cannot tell".

Schemas 3 and 4 are read too. They have no mean change and no spread, their effects are means over
the rounds, and in 3 two keys had other names. What was judged by former rules is judged again by
today's, from the numbers that are there.
"""

import dataclasses
import enum
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from .._system.untrusted import Number, Size, Text, validated
from .rules import (
    FAMILIES,
    MIN_ROUNDS,
    RULES,
    Answer,
    Exact,
    Family,
    Rules,
    Subject,
    Timing,
    answered,
    changed,
    judge_exact,
    overall,
    unit_of,
)

SCHEMA = 5
OLDER = (3, 4)
MAX_TIMINGS = 4000  # the full grid and the surface have some 2,300
MAX_ITEMS = 15_000  # of all architectures there are 3,552 exact values, of the surface 5,500
# Keys that were renamed after schema 3. Swapped, so schema 3 with a key of today is refused.
_RENAMED = {"visible": "mde", "disturbed": "discarded", "mde": "visible", "discarded": "disturbed"}
_ROUNDING = 1e-9  # of a computation that took another way to the same number


@dataclass(frozen=True)
class Side:
    """A version: what it was called, and its commit ("" if it has none)."""

    name: str
    sha: Annotated[str, Text("[0-9a-f]{0,64}")]


@dataclass(frozen=True)
class Comparison:
    """Two versions compared.

    machine: the asv record of machine and software. clocks: what ran at which clock under load,
    ``{"SM": "1980 MHz"}``. rounds: those judged, with the ``extension`` that was added because the
    first ones were inconclusive. minutes: wall time of all the runs that it was measured in.
    identical: what has the same machine code for this GPU on both sides, timed or not.
    represented: what differs and was not timed, because the same machine code was, at another size.
    same_sources: whether both sides have the same package, byte by byte. reproduce: the command
    that measures this again.

    Sentences: unmeasured, what differs between the sides and was not measured (any forbids a pass);
    wrong, what failed its check on the head; notes, what was not measured and why, and what has no
    verdict; discarded, rounds that were discarded and measured again, and why.
    """

    base: Side
    head: Side
    machine: Mapping[str, str]
    grid: str
    rounds: Annotated[int, Number(0, 1000)]
    extension: int
    minutes: Annotated[float, Number(0, 1e6)]
    families: Mapping[str, Family]
    exact: Annotated[tuple[Exact, ...], Size(0, MAX_ITEMS)]
    identical: Annotated[frozenset[Subject], Size(0, MAX_TIMINGS)]
    same_sources: bool
    unmeasured: tuple[str, ...]
    wrong: tuple[str, ...]
    notes: tuple[str, ...]
    discarded: tuple[str, ...]
    reproduce: str
    represented: Annotated[frozenset[Subject], Size(0, MAX_TIMINGS)] = frozenset()
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
    def untimed(self) -> frozenset[Subject]:
        """What has the same machine code on both sides and was not timed."""
        return self.identical - {timing.subject for timing in self.timings}


def to_json(comparison: Comparison) -> dict:
    """The comparison as plain JSON.

    Raises
    ------
    ValueError
        If the comparison holds something that ``from_json`` would refuse.
    """
    document = {"schema": SCHEMA, "answer": comparison.answer.value, **_plain(comparison)}
    from_json(document)
    return document


def from_json(document: dict) -> Comparison:
    """The comparison that plain JSON describes, wherever that comes from.

    Raises
    ------
    ValueError
        If anything is missing, unknown, of a wrong type, not finite, too long, or, in today's
        schema, if an answer is not the one that follows from the numbers beside it; the message
        says where.
    """
    if not isinstance(document, dict):
        raise ValueError(f"a comparison is an object, got {type(document).__name__}")
    fields = dict(document)
    schema, answer = fields.pop("schema", None), fields.pop("answer", None)
    if type(schema) is not int or schema not in (*OLDER, SCHEMA):
        known = f"{', '.join(map(str, OLDER))} and {SCHEMA}"
        raise ValueError(f"schema {schema!r:.80} is unknown, this version reads {known}")
    if schema in OLDER:
        comparison = _judged_again(validated(Comparison, _with_keys(fields, schema), "comparison"))
        _check(comparison)
        return comparison
    comparison = validated(Comparison, fields, "comparison")
    _check(comparison)
    for name, family in comparison.families.items():
        none = not changed(family.timings, comparison.identical)
        if (family.mean is None, family.spread is None) != (none, none):
            raise ValueError(f"{name} has a mean change and a spread if any of its timings differs")
    if answer != comparison.answer.value:
        raise ValueError(f"answer is {answer!r:.80}, the rest says {comparison.answer.value!r}")
    return comparison


def _with_keys(fields: dict, schema: int) -> dict:
    """The keys of today for those of an older schema, whatever the values are."""
    fields = _renamed(fields) if schema == 3 else dict(fields)
    fields.setdefault("represented", [])
    if isinstance(families := fields.get("families"), dict):
        fields["families"] = {
            name: family | dict.fromkeys(("mean", "spread")) if isinstance(family, dict) else family
            for name, family in families.items()
        }
    return fields


def _renamed(value: Any, depth: int = 5) -> Any:
    """Today's names for the keys of schema 3, down to those of a timing."""
    if depth and isinstance(value, list):
        return [_renamed(each, depth - 1) for each in value]
    if depth and isinstance(value, dict):
        return {_RENAMED.get(key, key): _renamed(each, depth - 1) for key, each in value.items()}
    return value


def _judged_again(comparison: Comparison) -> Comparison:
    """The comparison with the answers of its timings by the rules of today."""
    families = {
        name: dataclasses.replace(
            family, timings=tuple(_answered_again(each, RULES[name]) for each in family.timings)
        )
        if name in RULES
        else family
        for name, family in comparison.families.items()
    }
    return dataclasses.replace(comparison, families=families)


def _answered_again(timing: Timing, rules: Rules) -> Timing:
    floor = max(timing.floor, rules.min_effect)
    probabilities = timing.p_slower, timing.p_faster
    answer, change = answered(timing.effect, timing.upper, floor, *probabilities, rules)
    mde = max(timing.mde, floor)
    return dataclasses.replace(timing, floor=floor, mde=mde, answer=answer, change=change)


def _check(comparison: Comparison) -> None:
    """Check what types cannot say."""
    subjects = [timing.subject for timing in comparison.timings]
    exact = [each.subject for each in comparison.exact]
    if len(subjects) > MAX_TIMINGS:
        raise ValueError(f"at most {MAX_TIMINGS} timings are read, got {len(subjects)}")
    if len(set(subjects)) < len(subjects) or len(set(exact)) < len(exact):
        raise ValueError("a subject comes twice")
    if comparison.rules != RULES["gpu"]:
        raise ValueError("it was judged by other rules")
    if comparison.extension > comparison.rounds:
        raise ValueError(f"{comparison.rounds} rounds, {comparison.extension} of them added")
    for subject in comparison.identical | comparison.represented:
        if not subject.metric.startswith(FAMILIES["gpu"]):
            raise ValueError(f"{subject.metric!r:.80} has no machine code of its own")
        unit_of(subject)
    for name, family in comparison.families.items():
        _check_family(name, family, comparison)
    for each in comparison.exact:
        if each != judge_exact(each.subject, each.base, each.head, "gpu" in comparison.families):
            raise ValueError(f"{each.subject.words} has another unit or answer by its values")


def _check_family(name: str, family: Family, comparison: Comparison) -> None:
    if name not in FAMILIES:
        raise ValueError(f"a family is one of {list(FAMILIES)}, got {name!r:.80}")
    control, size = family.control, len(family.timings)
    if not size or control.subjects != size or control.failed > 2 * size:
        raise ValueError(
            f"the control of {name} counts {control.subjects} timings and {control.failed} "
            f"failures, the family has {size} timings"
        )
    for timing in family.timings:
        unit_of(timing.subject)
        if not timing.subject.metric.startswith(FAMILIES[name]):
            raise ValueError(f"{timing.subject.metric} does not belong to {name}")
        for wrong in _contradictions(timing, RULES[name], comparison.rounds):
            raise ValueError(f"{timing.subject.words}: {wrong}")
    if mean := family.mean:
        differing = len(changed(family.timings, comparison.identical))
        if mean.timings != differing:
            raise ValueError(f"the mean of {name} is of {mean.timings} timings, {differing} differ")
        if not _rises(mean.low, mean.effect, mean.high):
            raise ValueError(f"the interval of the mean of {name} does not hold its effect")


def _contradictions(timing: Timing, rules: Rules, rounds: int) -> Iterator[str]:
    """Numbers that no judgement gives, and an answer that does not follow from them."""
    if not MIN_ROUNDS <= timing.rounds <= rounds or timing.rounds % 2:
        yield f"an even number of {MIN_ROUNDS} to {rounds} rounds was judged, not {timing.rounds}"
    if not _rises(timing.low, timing.effect, timing.upper, timing.high):
        yield "the interval does not hold its effect and its bound"
    if not _rises(rules.min_effect, timing.floor, timing.mde):
        yield "the floor is below the least effect, or above the minimum detectable effect"
    numbers = timing.effect, timing.upper, timing.floor, timing.p_slower, timing.p_faster
    answer, change = answered(*numbers, rules)
    if (timing.answer, timing.change) != (answer, change):
        given = f"{timing.answer.value!r} and {timing.change!r}"
        yield f"the answer is {given}, its numbers say {answer.value!r} and {change!r}"


def _rises(*numbers: float) -> bool:
    return all(low <= high + _ROUNDING * abs(high) for low, high in itertools.pairwise(numbers))


def _plain(value: Any) -> Any:
    if isinstance(value, Subject):
        return {"metric": value.metric, "params": list(value.params)}
    if dataclasses.is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | frozenset):
        return [_plain(item) for item in (sorted(value) if isinstance(value, frozenset) else value)]
    return value.value if isinstance(value, enum.Enum) else value
