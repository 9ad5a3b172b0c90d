"""What processes answered -> what a comparison found. Nothing here touches a clock or a GPU."""

import collections
import dataclasses
import itertools
import statistics
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from .._cells.grid import AnyCell
from .._verdict import judge, rules
from .._verdict.rules import FAMILIES, RULES, Exact, Family, Subject
from . import exact, measure, rounds
from .state import ARMS, Round

_BASE, _HEAD = ARMS
_COMPILE = "host.FirstCall.track_compile"


@dataclass
class Found:
    """What a comparison found, in ``schema.Comparison``'s terms."""

    families: dict[str, Family] = field(default_factory=dict)
    exact: list[Exact] = field(default_factory=list)
    identical: set[Subject] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    disturbed: list[str] = field(default_factory=list)
    clocks: dict[str, str] = field(default_factory=dict)
    rounds: int = 0
    extension: int = 0
    minutes_before: float = 0.0  # of measuring, in earlier runs of the same comparison
    pooled: dict[str, dict[Subject, list[float]]] = field(
        default_factory=lambda: {arm: {} for arm in ARMS}
    )
    facts: dict[str, dict[Subject, float]] = field(default_factory=dict)


def judge_checks(answers: Mapping[str, dict], grid: list[AnyCell], found: Found) -> list[AnyCell]:
    """File what is wrong, missing or exact; the cells that both versions have and get right."""
    facts = {arm: facts_of(answers[arm]) for arm in ARMS}
    found.facts = {arm: _numbers(facts[arm]) for arm in ARMS}
    found.exact += exact.compare(facts[_BASE], facts[_HEAD])
    for arm in ARMS:
        found.notes += [f"{arm}: {line}" for line in exact.problems(facts[arm])]
    bad = {arm: _reasons(answers[arm], FAMILIES["gpu"]) for arm in ARMS}
    for subject, reason in bad[_HEAD].items():
        if subject not in bad[_BASE]:
            found.wrong.append(f"{_words(subject)}: {reason}")
    missing = {
        **{s: f"in neither version: {why}" for s, why in bad[_HEAD].items() if s in bad[_BASE]},
        **{s: f"not in the base: {why}" for s, why in bad[_BASE].items() if s not in bad[_HEAD]},
    }
    found.notes += _together(missing)
    first = {arm: seconds for arm in ARMS for seconds in _compile_seconds(answers[arm])}
    if first:
        said = ", ".join(f"{arm} {seconds:.2f} s" for arm, seconds in first.items())
        found.notes.append(f"first call with an empty cache, one process each: {said}")
    params = {subject.params for reasons in bad.values() for subject in reasons}
    return [cell for cell in grid if tuple(measure.as_params(cell)) not in params]


def _together(said: Mapping[Subject, str]) -> list[str]:
    """A line for each thing that is said: its first subject, and of how many more it is said."""
    alike: dict[str, list[Subject]] = {}
    for subject, what in said.items():
        alike.setdefault(what, []).append(subject)
    return [
        f"{_words(first)}{f' and {len(more)} more' if more else ''}: {what}"
        for what, (first, *more) in alike.items()
    ]


def _compile_seconds(answer: dict) -> list[float]:
    return [samples[0] for metric, _, samples in answer["timings"] if metric == _COMPILE]


def facts_of(answer: dict) -> dict[Subject, float | Exception]:
    """The exact metrics that a process found, and why others are missing."""
    rows = [(metric, params, value) for metric, params, value in answer["facts"]]
    rows += [
        (metric, params, RuntimeError(reason))
        for metric, params, reason in answer["errors"] + answer["unavailable"]
        if not metric.startswith(FAMILIES["gpu"])
    ]
    return {Subject(metric, tuple(params)): value for metric, params, value in rows}


def _numbers(facts: Mapping[Subject, float | Exception]) -> dict[Subject, float]:
    return {key: value for key, value in facts.items() if not isinstance(value, Exception)}


def _reasons(answer: dict, prefixes: tuple[str, ...]) -> dict[Subject, str]:
    """Why timings are missing: the last line says it, what is above is a traceback."""
    return {
        Subject(metric, tuple(params)): (reason.strip().splitlines() or ["no reason"])[-1][:300]
        for metric, params, reason in answer["errors"] + answer["unavailable"]
        if metric.startswith(prefixes)
    }


def judge_rounds(
    measured: Sequence[Round], found: Found, only: Set[Subject] | None = None
) -> dict[str, Family]:
    """The verdict on each family from these rounds, on the subjects that every process has."""
    by_arm = {arm: rounds.medians(measured, arm) for arm in ARMS}
    for arm in ARMS:
        for row in by_arm[arm]:
            for subject, seconds in row.items():
                found.pooled[arm].setdefault(subject, []).append(seconds)
    everywhere = set.intersection(*(set(row) for arm in ARMS for row in by_arm[arm]))
    _file_lost(measured, found)
    families = {}
    for name, prefixes in FAMILIES.items():
        subjects = sorted(s for s in everywhere if s.metric.startswith(prefixes))
        subjects = [s for s in subjects if only is None or s in only]
        if subjects:
            base, head = (
                np.array([[row[s] for s in subjects] for row in by_arm[arm]]) for arm in ARMS
            )
            families[name] = judge.judge(subjects, base, head, RULES[name])
    return families


def _file_lost(measured: Sequence[Round], found: Found) -> None:
    """File timings that failed in some process: where only the head's do, that is its fault."""
    lost: dict[str, dict[Subject, list[str]]]
    lost = {arm: collections.defaultdict(list) for arm in ARMS}
    for arm, each in itertools.product(ARMS, measured):
        for subject, reason in _reasons(each.payloads[arm], sum(FAMILIES.values(), ())).items():
            lost[arm][subject].append(reason)
    for arm in ARMS:
        said = {
            subject: f"{_how_often(len(reasons), len(measured))} of the {arm}: {reasons[0]}"
            for subject, reasons in sorted(lost[arm].items())
        }
        faults = {s: why for s, why in said.items() if arm == _HEAD and s not in lost[_BASE]}
        found.wrong += [f"{_words(subject)}: {why}" for subject, why in faults.items()]
        found.notes += _together({s: why for s, why in said.items() if s not in faults})


def _how_often(lost: int, processes: int) -> str:
    return "in no process" if lost == processes else f"failed in {lost} of {processes} processes"


def file_code(
    values: Mapping[str, Mapping[Subject, float | Exception]], found: Found, clock_decides: bool
) -> None:
    """File what both versions compile to, by arm."""
    base, head = (values[arm] for arm in ARMS)
    found.exact += exact.compare(base, head, clock_decides=clock_decides)
    for arm in ARMS:
        found.notes += [f"{arm}: {line}" for line in exact.problems(values[arm])]


def merged(first: Family, second: Family) -> Family:
    """The first look's verdicts, with the second's in place of those that it judged anew."""
    newer = {timing.subject: timing for timing in second.timings}
    timings = tuple(newer.get(timing.subject, timing) for timing in first.timings)
    failed = first.control.failed + second.control.failed
    return Family(timings, dataclasses.replace(first.control, failed=failed))


def clocks(measured: Sequence[Round]) -> dict[str, str]:
    """Median clocks of the GPU under load, over the rounds."""
    names = {"SM": "sm_mhz", "memory": "memory_mhz"}
    seen = {
        words: [payload["watch"][key] for each in measured for payload in each.payloads.values()]
        for words, key in names.items()
    }
    medians = {
        words: [median for spread in spreads if spread for median in spread[1:2]]
        for words, spreads in seen.items()
    }
    return {words: f"{statistics.median(m):g} MHz" for words, m in medians.items() if m}


def inconclusive(found: Found) -> set[Subject]:
    """The timings on which neither the clock nor the machine code is conclusive."""
    return {
        timing.subject
        for family in found.families.values()
        for timing in rules.inconclusive(family.timings, found.identical)
    }


def _words(subject: Subject) -> str:
    return " ".join([subject.metric, *subject.params])
