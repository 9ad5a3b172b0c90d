"""What a comparison found, and its JSON.

The JSON, ``to_json``, is one object; every key is there, no other is allowed, and every number is
finite. A subject is ``{"metric": text, "params": [text, ...]}``, an answer one of "pass", "fail",
"cannot tell".

=============== ================================================================================
schema          3; raised when the meaning of anything below changes
answer          of the job; must be the one that follows from the rest
base, head      ``{"name": text, "sha": text}``; sha "" is a working tree that is not committed
machine         ``{text: text}``, the asv record of machine and software
clocks          ``{text: text}``, what ran at which clock under load, e.g. ``{"SM": "1980 MHz"}``
grid            name of the grid
rounds          rounds judged, the extension's included
extension       rounds that were added because the first ones could not tell
minutes         wall time, of all the runs that it was measured in
families        ``{name: {"timings": [...], "control": {...}}}``: ``rules.Timing``, ``Control``
exact           list of ``rules.Exact``; base, head and answer may be null
identical       subjects whose machine code for this GPU is the same on both sides, timed or not
same_sources    whether both sides have the same package, byte by byte
unmeasured      texts: what differs between the sides and was not measured; any forbids a pass
wrong           texts: what failed its check on the head
notes           texts: what was not measured and why, and what has no verdict
disturbed       texts: rounds that were repeated, and why
reproduce       the command that measures this again
rules           ``rules.Rules``
=============== ================================================================================
"""

import dataclasses
import enum
import functools
import itertools
import math
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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
    judge_exact,
    overall,
    unit_of,
)

SCHEMA = 3
MAX_TEXT = 2000
MAX_TIMINGS = 2000  # the full grid has 1,128
MAX_ITEMS = 4000  # of all architectures there are 3,552 exact values, and of a GPU 124 more
MAX_PARAMETERS = 6
_ROUNDING = 1e-9  # of a computation that took another way to the same number
_PARAMETER = re.compile(r"[\w.+-]{1,40}", re.ASCII)
_SHA = re.compile(r"[0-9a-f]{0,64}")


@dataclass(frozen=True)
class Side:
    """A version: what it was called, and its commit ("" if it has none)."""

    name: str
    sha: str


@dataclass(frozen=True)
class Comparison:
    """Two versions compared; the fields are described in the module's docstring."""

    base: Side
    head: Side
    machine: Mapping[str, str]
    grid: str
    rounds: int
    extension: int
    minutes: float
    families: Mapping[str, Family]
    exact: tuple[Exact, ...]
    identical: frozenset[Subject]
    same_sources: bool
    unmeasured: tuple[str, ...]
    wrong: tuple[str, ...]
    notes: tuple[str, ...]
    disturbed: tuple[str, ...]
    reproduce: str
    clocks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    rules: Rules = dataclasses.field(default_factory=Rules)

    @property
    def answer(self) -> Answer:
        return overall(
            self.families.values(),
            self.exact,
            self.identical,
            self.wrong,
            self.same_sources,
            self.unmeasured,
        )

    @property
    def timings(self) -> list[Timing]:
        return [timing for family in self.families.values() for timing in family.timings]

    @property
    def untimed(self) -> frozenset[Subject]:
        """What the machine code alone has told."""
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
        If anything is missing, unknown, of a wrong type, not finite, too long, or if an answer is
        not the one that follows from the numbers beside it; the message says where.
    """
    if not isinstance(document, dict):
        raise ValueError(f"a comparison is an object, got {type(document).__name__}")
    fields = dict(document)
    schema, answer = fields.pop("schema", None), fields.pop("answer", None)
    if type(schema) is not int or schema != SCHEMA:
        raise ValueError(f"schema {schema!r:.80} is unknown, this version reads {SCHEMA}")
    comparison = _parsed(Comparison, fields, "comparison")
    _check(comparison)
    if answer != comparison.answer.value:
        raise ValueError(f"answer is {answer!r:.80}, the rest says {comparison.answer.value!r}")
    return comparison


def _check(comparison: Comparison) -> None:
    """What types do not say."""
    subjects = [timing.subject for timing in comparison.timings]
    exact = [each.subject for each in comparison.exact]
    for what, number in (("timings", len(subjects)), ("identical", len(comparison.identical))):
        if number > MAX_TIMINGS:
            raise ValueError(f"{what}: at most {MAX_TIMINGS} are read, got {number}")
    for subject in [*subjects, *exact, *comparison.identical]:
        _check_subject(subject)
    for names in (subjects, exact):
        if len(set(names)) < len(names):
            raise ValueError("a subject comes twice")
    if comparison.rules != RULES["gpu"]:
        raise ValueError("it was judged by other rules")
    for name, family in comparison.families.items():
        _check_family(name, family, comparison.rounds)
    for subject in comparison.identical:
        if not subject.metric.startswith(FAMILIES["gpu"]):
            raise ValueError(f"{subject.metric} has no machine code of its own")
    for each in comparison.exact:
        if each.unit != unit_of(each.subject):
            raise ValueError(f"{each.subject.metric} has another unit here: {each.unit}")
        if each != judge_exact(each.subject, each.base, each.head, "gpu" in comparison.families):
            raise ValueError(f"{_name(each.subject)} has another answer by its values")
    for side in (comparison.base, comparison.head):
        if not _SHA.fullmatch(side.sha):
            raise ValueError(f"a sha is hexadecimal or empty, got {side.sha!r:.80}")


def _check_subject(subject: Subject) -> None:
    unit_of(subject)
    if len(subject.params) > MAX_PARAMETERS:
        raise ValueError(f"{subject.metric} has at most {MAX_PARAMETERS} parameters")
    for param in subject.params:
        if not _PARAMETER.fullmatch(param):
            raise ValueError(f"a parameter must match {_PARAMETER.pattern}, got {param!r:.80}")


def _check_family(name: str, family: Family, rounds: int) -> None:
    if name not in FAMILIES:
        raise ValueError(f"a family is one of {list(FAMILIES)}, got {name!r:.80}")
    control, size = family.control, len(family.timings)
    if not size or control.subjects != size or control.failed > 2 * size:
        raise ValueError(
            f"the control of {name} is of {control.subjects} timings, {control.failed} of which "
            f"failed, and there are {size}"
        )
    if min(control.floor, control.noise) < 0:
        raise ValueError(f"the control of {name} has a negative floor or noise")
    for timing in family.timings:
        if not timing.subject.metric.startswith(FAMILIES[name]):
            raise ValueError(f"{timing.subject.metric} does not belong to {name}")
        for wrong in _contradictions(timing, RULES[name], rounds):
            raise ValueError(f"{_name(timing.subject)}: {wrong}")


def _contradictions(timing: Timing, rules: Rules, rounds: int) -> Iterator[str]:
    """What no judge of samples says, and an answer that is not the one of the numbers."""
    if min(timing.base, timing.head) <= 0:
        yield "seconds must be positive"
    if not MIN_ROUNDS <= timing.rounds <= rounds or timing.rounds % 2:
        yield f"an even number of {MIN_ROUNDS} to {rounds} rounds was judged, not {timing.rounds}"
    if timing.low <= -1 or not _rises(timing.low, timing.effect, timing.upper, timing.high):
        yield "the interval does not hold its effect and its bound"
    if not (0 <= timing.p_slower <= 1 and 0 <= timing.p_faster <= 1):
        yield "a probability is not between 0 and 1"
    if not _rises(rules.min_effect, timing.floor, timing.visible):
        yield "the floor is below the least effect, or what could be seen below the floor"
    numbers = timing.effect, timing.upper, timing.floor, timing.p_slower, timing.p_faster
    answer, change = answered(*numbers, rules)
    if (timing.answer, timing.change) != (answer, change):
        given = f"{timing.answer.value!r} and {timing.change!r}"
        yield f"the answer is {given}, its numbers say {answer.value!r} and {change!r}"


def _rises(*numbers: float) -> bool:
    return all(low <= high + _ROUNDING * abs(high) for low, high in itertools.pairwise(numbers))


def _name(subject: Subject) -> str:
    return " ".join([subject.metric, *subject.params])


def _plain(value):
    if isinstance(value, Subject):
        return {"metric": value.metric, "params": list(value.params)}
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        return [_plain(item) for item in sorted(value)]
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, enum.Enum) else value


def _parsed(kind, value, path: str):
    """``value`` as an instance of the annotated type ``kind``."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        inner = next(argument for argument in arguments if argument is not type(None))
        return None if value is None else _parsed(inner, value, path)
    if origin is typing.Literal:
        return _chosen(arguments, value, path)
    if origin in (tuple, frozenset):
        items = _list(value, path)
        return origin(_parsed(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(items))
    if origin is Mapping:
        given = _object(value, path)
        return {_text(key, path): _parsed(arguments[1], given[key], path) for key in given}
    if issubclass(kind, enum.Enum):
        return kind(_chosen([each.value for each in kind], value, path))
    if dataclasses.is_dataclass(kind) or issubclass(kind, tuple):
        return _record(kind, value, path)
    return {str: _text, int: _integer, float: _number, bool: _truth}[kind](value, path)


def _record(kind, value, path: str):
    hints = _hints(kind)
    given = _object(value, path)
    for difference, what in (
        (hints.keys() - given, "lacks"),
        (given.keys() - hints, "has unknown"),
    ):
        if difference:
            raise ValueError(f"{path} {what} {sorted(map(str, difference))!s:.200}")
    fields = {name: _parsed(hint, given[name], f"{path}.{name}") for name, hint in hints.items()}
    return kind(**fields)


_hints = functools.cache(typing.get_type_hints)


def _chosen(choices, value, path: str):
    if not isinstance(value, str) or value not in choices:
        raise _wrong(path, f"one of {list(choices)}", value)
    return value


def _object(value, path: str) -> dict:
    if not isinstance(value, dict) or len(value) > MAX_ITEMS:
        raise _wrong(path, f"an object of up to {MAX_ITEMS} keys", value)
    return value


def _list(value, path: str) -> list:
    if not isinstance(value, list) or len(value) > MAX_ITEMS:
        raise _wrong(path, f"a list of up to {MAX_ITEMS} items", value)
    return value


def _text(value, path: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise _wrong(path, f"a text of up to {MAX_TEXT} characters", value)
    return value


def _truth(value, path: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(path, "true or false", value)
    return value


def _integer(value, path: str) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        raise _wrong(path, "a whole number, not negative", value)
    return value


def _number(value, path: str) -> float:
    if type(value) not in (int, float) or abs(value) > 1e300 or not math.isfinite(value):
        raise _wrong(path, "a finite number", value)
    return float(value)


def _wrong(path: str, expected: str, value) -> ValueError:
    return ValueError(f"{path} must be {expected}, got {repr(value)[:80]}")
