"""One comparison: what is exact, then two looks at the clock, then the verdict on each family."""

import collections
import dataclasses
import hashlib
import itertools
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .. import _verdict
from .._grid import GRIDS, Cell, cells
from .._standin import ARCHITECTURES
from .._verdict import Exact, Family, Rules, Subject
from . import arms, exact, measure, rounds, store, watch
from .state import ARMS, Round, State, StateError


class NothingToTimeError(RuntimeError):
    """No cell works in either version: that is no verdict."""


# Cells that the first look cannot tell are measured so many rounds more and judged by these alone:
# they were chosen by the first ones, which must not count twice.
EXTENSION_ROUNDS = 24

FAMILIES = {"gpu": "rope.", "host": "host.Call.", "start": "host.FirstCall."}
# The host's time moves by percents from process to process, with what the interpreter does; that of
# a process's start, which is shown and fails nothing, by more.
RULES = {
    "gpu": Rules(),
    "host": Rules(min_effect=0.05, margin=0.1),
    "start": Rules(min_effect=0.1, margin=0.2),
}
EXPECTED = (
    *(arms.ArmError, measure.ProcessError, rounds.BudgetError, rounds.DisturbedError),
    *(StateError, store.StoreError, watch.GpuBusyError, watch.WatchError),
    *(NothingToTimeError, ModuleNotFoundError),
)
"""Errors whose message says all that the user needs."""

_BASE, _HEAD = ARMS
_COMPILE = "host.FirstCall.track_compile"
_SUITE = Path(__file__).resolve().parents[1]
_MEASURING = (
    *("_clock.py", "_grid.py", "_host.py", "_process.py", "_workload.py"),
    *("_compare/measure.py", "_compare/rounds.py"),
)


class Wishes(NamedTuple):
    """What the user asked for; deadline in ``time.monotonic``'s seconds."""

    grid: str
    rounds: int
    deadline: float
    exact_only: bool
    wait_seconds: float
    afresh: bool


@dataclass
class Found:
    """What a comparison found, in ``_comparison.Comparison``'s terms."""

    families: dict[str, Family] = field(default_factory=dict)
    exact: list[Exact] = field(default_factory=list)
    identical: set[Subject] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    disturbed: list[str] = field(default_factory=list)
    rounds: int = 0
    extension: int = 0
    pooled: dict[str, dict[Subject, list[float]]] = field(
        default_factory=lambda: {arm: {} for arm in ARMS}
    )
    facts: dict[str, dict[Subject, float]] = field(default_factory=dict)


def compare(
    pair: Mapping[str, arms.Arm],
    machine: Mapping[str, str],
    arch: str,
    wishes: Wishes,
    scratch: Path,
    report: Callable[[str], None],
) -> Found:
    """Compare two versions on this machine, keeping what is measured below ``scratch``.

    ``machine`` and ``arch`` as ``_machine.probe`` gives them.
    """
    found = Found()
    if machine["gpu"] == "none" or wishes.exact_only:
        why = "left alone as asked for" if wishes.exact_only else "there is no NVIDIA GPU here"
        found.notes.append(
            f"GPU: {why}; latency, host cost, memory, launches and error were not measured"
        )
        _file_code(_code(pair, ARCHITECTURES, report), found, clock_decides=False)
        return found
    uuid = watch.gpu_uuid()
    with watch.gpu_lock(uuid, wishes.wait_seconds), ThreadPoolExecutor() as pool:
        plan = _plan(pair, machine, wishes, scratch, uuid)
        directory = _state_directory(pair, machine, wishes, scratch)
        if wishes.afresh:
            shutil.rmtree(directory, ignore_errors=True)
        with State.open(directory, _manifest(plan, machine, wishes)) as state:
            watch.require_free(uuid)
            _empty_caches(plan, state)
            # The checks leave the CPU to the compiler; the timings will not.
            known = arch in ARCHITECTURES
            grid = cells(GRIDS[wishes.grid])
            code = pool.submit(_code_here, pair, arch, grid, report) if known else None
            timed = _check_on_gpu(plan, state, wishes, found, report)
            if code is None:
                found.notes.append(f"machine code: {arch} is none of {ARCHITECTURES}")
            else:
                _file_code(code.result(), found, clock_decides=True)
            _compare_on_gpu(plan, state, timed, wishes, found, report)
    return found


def _empty_caches(plan: rounds.Plan, state: State) -> None:
    """Let the first call of a version that was never checked compile it."""
    for arm, path in plan.caches.items():
        if state.load("check", 0, arm) is None:
            shutil.rmtree(path)
            path.mkdir()


class _Code(NamedTuple):
    """What both versions compile to, by arm, and the timings that run the very same."""

    values: dict[str, dict[Subject, float | Exception]]
    identical: set[Subject]


def _code(pair, architectures, report) -> _Code:
    report(f"compiling both versions for {', '.join(architectures)}")

    def compiled(arm: str) -> dict[Subject, float | Exception]:
        return exact.codegen_facts(pair[arm].root, arch=architectures).values

    with ThreadPoolExecutor() as pool:
        return _Code(dict(zip(ARMS, pool.map(compiled, ARMS), strict=True)), set())


def _code_here(pair, arch: str, grid: list[Cell], report) -> _Code:
    """On the GPU's own architecture, and for every cell whether the GPU runs the same code."""
    with ThreadPoolExecutor() as pool:
        code = pool.submit(_code, pair, (arch,), report)
        base, head = pool.map(lambda arm: exact.cell_digests(pair[arm].root, arch, grid), ARMS)
        same = {s for s, d in base.items() if isinstance(d, str) and head.get(s) == d}
        report(f"same machine code in {len(same)} of {len(base)} timings")
        return code.result()._replace(identical=same)


def _file_code(code: _Code, found: Found, clock_decides: bool) -> None:
    base, head = (code.values[arm] for arm in ARMS)
    found.exact += exact.compare(base, head, clock_decides=clock_decides)
    found.identical |= code.identical
    for arm in ARMS:
        found.notes += [f"{arm}: {line}" for line in exact.problems(code.values[arm])]


def _plan(pair, machine, wishes: Wishes, scratch: Path, uuid: str) -> rounds.Plan:
    name = _state_directory(pair, machine, wishes, scratch).name
    caches = {arm: cache(scratch, machine, f"{name}-{arm}") for arm in ARMS}
    seed = hashlib.sha256("".join(pair[arm].digest for arm in ARMS).encode()).digest()[0]
    order = ARMS if seed % 2 == 0 else ARMS[::-1]
    return rounds.Plan({arm: pair[arm] for arm in order}, caches, uuid, wishes.deadline)


def cache(scratch: Path, machine: Mapping[str, str], owner: str) -> Path:
    """Triton's cache directory of an owner on this machine; it is made."""
    path = scratch / "cache" / f"{machine['machine']}-triton{machine['triton']}" / owner
    path.mkdir(parents=True, exist_ok=True)
    return path


def _state_directory(pair, machine, wishes: Wishes, scratch: Path) -> Path:
    versions = "-".join(pair[arm].sha[:8] or pair[arm].digest[:8] for arm in ARMS)
    return scratch / "states" / f"{versions}-{wishes.grid}-{wishes.rounds}-{machine['machine']}"


def _manifest(plan: rounds.Plan, machine, wishes: Wishes) -> dict:
    return {
        "digests": {arm: plan.arms[arm].digest for arm in ARMS},
        "grid": wishes.grid,
        "rounds": wishes.rounds,
        "extension_rounds": EXTENSION_ROUNDS,
        "first": plan.order(0)[0],
        "machine": dict(machine),
        "gpu": plan.uuid,
        "python": platform.python_version(),
        "suite": suite_digest(),
    }


def suite_digest() -> str:
    """Of the files that measure: results of another way of measuring are none of ours."""
    found = hashlib.sha256()
    for name in _MEASURING:
        found.update(hashlib.sha256((_SUITE / name).read_bytes()).digest())
    return found.hexdigest()


def _check_on_gpu(plan, state: State, wishes: Wishes, found: Found, report) -> list[Cell]:
    """File what is wrong or exact; the cells that both versions get right."""
    grid = cells(GRIDS[wishes.grid])
    job = {"task": "check", "cells": [dataclasses.astuple(cell) for cell in grid]}
    return _judge_checks(rounds.check(plan, state, job, report), grid, found)


def _compare_on_gpu(
    plan, state: State, timed: list[Cell], wishes: Wishes, found: Found, report
) -> None:
    halves = state.discard_incomplete_rounds("look1", "look2")
    if halves:
        report(f"{halves} rounds that an earlier run left half are measured again")
    if not timed and not found.wrong:
        raise NothingToTimeError(
            "no cell is right in both versions: " + "; ".join(found.notes[:3] or ["no reason"])
        )
    if not timed:
        return
    job = {"task": "measure", "cells": [dataclasses.astuple(cell) for cell in timed], "host": True}
    rounds.run(plan, state, "look1", wishes.rounds, job, report)
    first = state.rounds("look1")
    found.rounds = len(first)
    found.families = _judged(first, found)
    _look_again(plan, state, found, report)
    found.disturbed += [f"{a.phase}, round {a.number + 1}: {a.reason}" for a in state.aside()]


def _judge_checks(answers: Mapping[str, dict], grid: list[Cell], found: Found) -> list[Cell]:
    """File what is wrong, missing or exact; the cells that both versions have and get right."""
    facts = {arm: facts_of(answers[arm]) for arm in ARMS}
    found.facts = {arm: _numbers(facts[arm]) for arm in ARMS}
    found.exact += exact.compare(facts[_BASE], facts[_HEAD])
    for arm in ARMS:
        found.notes += [f"{arm}: {line}" for line in exact.problems(facts[arm])]
    bad = {arm: _reasons(answers[arm], (FAMILIES["gpu"],)) for arm in ARMS}
    for subject, reason in bad[_HEAD].items():
        if subject in bad[_BASE]:
            found.notes.append(f"{_words(subject)}: in neither version: {reason}")
        else:
            found.wrong.append(f"{_words(subject)}: {reason}")
    found.notes += [
        f"{_words(subject)}: not in the base: {reason}"
        for subject, reason in bad[_BASE].items()
        if subject not in bad[_HEAD]
    ]
    first = {arm: seconds for arm in ARMS for seconds in _compile_seconds(answers[arm])}
    if first:
        said = ", ".join(f"{arm} {seconds:.2f} s" for arm, seconds in first.items())
        found.notes.append(f"first call with an empty cache, one process each: {said}")
    params = {subject.params for reasons in bad.values() for subject in reasons}
    return [cell for cell in grid if tuple(measure.as_params(cell)) not in params]


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


def _judged(
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
    for name, prefix in FAMILIES.items():
        subjects = sorted(s for s in everywhere if s.metric.startswith(prefix))
        subjects = [s for s in subjects if only is None or s in only]
        if subjects:
            base, head = (
                np.array([[row[s] for s in subjects] for row in by_arm[arm]]) for arm in ARMS
            )
            families[name] = _verdict.judge(subjects, base, head, RULES[name])
    return families


def _file_lost(measured: Sequence[Round], found: Found) -> None:
    """File timings that failed in some process: where only the head's do, that is its fault."""
    lost = {arm: collections.defaultdict(list) for arm in ARMS}
    for arm, each in itertools.product(ARMS, measured):
        for subject, reason in _reasons(each.payloads[arm], tuple(FAMILIES.values())).items():
            lost[arm][subject].append(reason)
    for arm, subject in itertools.product(ARMS, sorted({*lost[_BASE], *lost[_HEAD]})):
        reasons = lost[arm][subject]
        if reasons:
            fault = arm == _HEAD and not lost[_BASE][subject]
            (found.wrong if fault else found.notes).append(
                f"{_words(subject)}: failed in {len(reasons)} of {len(measured)} processes of the "
                f"{arm}: {reasons[0]}"
            )


def _look_again(plan, state: State, found: Found, report) -> None:
    """Measure afresh what the first look could not tell, and let that decide."""
    untold = {
        timing.subject
        for family in found.families.values()
        for timing in _verdict.untold(family.timings, found.identical)
    }
    if not untold:
        return
    chosen = {s.params for s in untold if s.metric.startswith(FAMILIES["gpu"])}
    grid = [cell for cell in cells(GRIDS["full"]) if tuple(measure.as_params(cell)) in chosen]
    host = any(subject.metric.startswith(FAMILIES["host"]) for subject in untold)
    job = {
        "task": "measure",
        "cells": [dataclasses.astuple(cell) for cell in grid],
        "host": host,
    }
    report(f"{len(untold)} timings cannot be told: {EXTENSION_ROUNDS} rounds more of these")
    try:
        rounds.run(plan, state, "look2", EXTENSION_ROUNDS, job, report)
    except rounds.BudgetError as error:
        found.notes.append(f"no second look at {len(untold)} timings that cannot be told: {error}")
        return
    second = state.rounds("look2")
    found.extension = len(second)
    found.rounds += len(second)
    for name, family in _judged(second, found, untold).items():
        found.families[name] = _merged(found.families[name], family)


def _merged(first: Family, second: Family) -> Family:
    newer = {timing.subject: timing for timing in second.timings}
    timings = tuple(newer.get(timing.subject, timing) for timing in first.timings)
    failed = first.control.failed + second.control.failed
    return Family(timings, dataclasses.replace(first.control, failed=failed))


def _words(subject: Subject) -> str:
    return " ".join([subject.metric, *subject.params])


def store_all(found: Found, pair, machine, repository: Path, results: Path, report) -> None:
    """Add each commit's samples, a median a process, to asv's results; what is no commit is not."""
    for arm in ARMS:
        if found.pooled[arm] and pair[arm].sha:
            facts = found.facts[arm]
            path = store.store(
                results, repository, machine, pair[arm].sha, found.pooled[arm], facts
            )
            report(f"asv's results of the {arm}: {path}")
        elif found.pooled[arm]:
            report(f"the {arm} is not in asv's results, which are filed under commits")
