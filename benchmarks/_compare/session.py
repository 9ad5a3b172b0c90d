"""One comparison: what is exact, then two looks at the clock, then the verdict on each family."""

import hashlib
import platform
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from .._cells.grid import AnyCell, all_cells
from .._cells.subjects import ARCHITECTURES
from .._machine_code import worker_pool
from .._system import checkout, gpu_monitor, suite
from .._verdict.rules import FAMILIES, MIN_ROUNDS, Subject
from . import compiled, exact, measure, rounds, store
from .findings import Found, clocks, file_code, inconclusive, judge_checks, judge_rounds, merged
from .state import ARMS, State, StateError


class NothingToTimeError(RuntimeError):
    """No cell works in either version: that is no verdict."""


# Cells that the first look cannot tell are measured so many rounds more, or as there is time for,
# and judged by these alone: they were chosen by the first ones, which must not count twice.
EXTENSION_ROUNDS = 24
# Where both versions run the very same code, so many cells are timed at least, or a quarter.
SAME_CODE_CELLS = 16

EXPECTED = (
    *(checkout.ArmError, measure.ProcessError, rounds.BudgetError, rounds.DisturbedError),
    *(StateError, store.StoreError, gpu_monitor.GpuBusyError, gpu_monitor.WatchError),
    *(NothingToTimeError, ModuleNotFoundError, worker_pool.PoolError),
)
"""Errors whose message says all that the user needs."""

_Pair = Mapping[str, checkout.Arm]  # base, head
_Machine = Mapping[str, str]
_Report = Callable[[str], None]

_MEASURING = (
    *("_cells/*.py", "_measure/*.py", "_system/process.py"),
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
    every_cell: bool


def compare(
    pair: _Pair,
    machine: _Machine,
    arch: str,
    wishes: Wishes,
    scratch: Path,
    report: _Report,
) -> Found:
    """Compare two versions on this machine, keeping what is measured below ``scratch``.

    ``machine`` and ``arch`` as ``machine.probe`` gives them.
    """
    found = Found()
    ledgers = _ledgers(pair, machine, wishes, scratch, report)
    if machine["gpu"] == "none" or wishes.exact_only:
        why = "left alone as asked for" if wishes.exact_only else "there is no NVIDIA GPU here"
        found.notes.append(
            f"GPU: {why}; latency, host cost, memory, launches and error were not measured"
        )
        file_code(_code(pair, ARCHITECTURES, ledgers, report).values, found, clock_decides=False)
        return found
    uuid = gpu_monitor.gpu_uuid()
    with gpu_monitor.gpu_lock(uuid, wishes.wait_seconds), ThreadPoolExecutor() as pool:
        plan = _plan(pair, machine, wishes, scratch, uuid)
        directory = _state_directory(pair, machine, wishes, scratch)
        if wishes.afresh:
            shutil.rmtree(directory, ignore_errors=True)
        with State.open(directory, _manifest(plan, machine, wishes)) as state:
            found.minutes_before = rounds.minutes(state)
            gpu_monitor.require_free(uuid)
            _empty_caches(plan, state)
            # The checks leave the CPU to the compiler; the timings will not.
            known = arch in ARCHITECTURES
            grid = all_cells(wishes.grid)
            code = pool.submit(_code_here, pair, arch, grid, ledgers, report) if known else None
            timed = _check_on_gpu(plan, state, wishes, found, report)
            if code is None:
                found.notes.append(f"machine code: {arch} is none of {ARCHITECTURES}")
            else:
                found.identical |= code.result().identical
            if not wishes.every_cell:
                timed = _worth_timing(timed, found)
            _compare_on_gpu(plan, state, timed, wishes, found, report)
            if code is not None:
                file_code(code.result().values, found, clock_decides="gpu" in found.families)
    return found


def _worth_timing(cells: Sequence[AnyCell], found: Found) -> list[AnyCell]:
    """Every cell whose machine code differs, and of the others a sample, the same one each time.

    These cannot differ in the kernel: the sample looks for noise, and for what is besides it.
    """
    same = [cell for cell in cells if _subjects(cell) <= found.identical]
    size = max(SAME_CODE_CELLS, len(same) // 4)
    if len(same) <= size:
        return list(cells)
    left = set(same) - set(random.Random(0).sample(same, size))
    found.notes.append(
        f"{len(left)} of {len(same)} cells of the same machine code were not timed (--every-cell "
        "times them)"
    )
    return [cell for cell in cells if cell not in left]


def _subjects(cell: AnyCell) -> set[Subject]:
    params = tuple(measure.as_params(cell))
    return {Subject(metric, params) for metric in cell.metrics.values()}


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


_Ledgers = Callable[[str], worker_pool.Ledger]  # of an arm, a new one for each survey


def _ledgers(
    pair: _Pair, machine: _Machine, wishes: Wishes, scratch: Path, report: _Report
) -> _Ledgers:
    progress = compiled.Progress(wishes.deadline, report, wishes.afresh)
    kept = {arm: compiled.directory(scratch, pair[arm].digest, machine) for arm in ARMS}
    if wishes.afresh:
        for directory in kept.values():
            compiled.drop(directory)
    return lambda arm: compiled.Ledger(arm, kept[arm], progress)


def _code(pair: _Pair, architectures: Sequence[str], ledgers: _Ledgers, report: _Report) -> _Code:
    report(f"compiling both versions for {', '.join(architectures)}")

    def values(arm: str) -> dict[Subject, float | Exception]:
        return exact.codegen_facts(pair[arm].root, ledgers(arm), arch=architectures).values

    with ThreadPoolExecutor() as pool:
        return _Code(dict(zip(ARMS, pool.map(values, ARMS), strict=True)), set())


def _code_here(
    pair: _Pair, arch: str, grid: list[AnyCell], ledgers: _Ledgers, report: _Report
) -> _Code:
    """On the GPU's own architecture, and for every cell whether the GPU runs the same code."""

    def digests(arm: str) -> dict[Subject, str | Exception]:
        return exact.cell_digests(pair[arm].root, arch, grid, ledgers(arm))

    with ThreadPoolExecutor() as pool:
        code = pool.submit(_code, pair, (arch,), ledgers, report)
        base, head = pool.map(digests, ARMS)
        same = {s for s, d in base.items() if isinstance(d, str) and head.get(s) == d}
        report(f"same machine code in {len(same)} of {len(base)} timings")
        return code.result()._replace(identical=same)


def _plan(pair: _Pair, machine: _Machine, wishes: Wishes, scratch: Path, uuid: str) -> rounds.Plan:
    name = _state_directory(pair, machine, wishes, scratch).name
    caches = {arm: cache(scratch, machine, f"{name}-{arm}") for arm in ARMS}
    seed = hashlib.sha256("".join(pair[arm].digest for arm in ARMS).encode()).digest()[0]
    order = ARMS if seed % 2 == 0 else ARMS[::-1]
    return rounds.Plan({arm: pair[arm] for arm in order}, caches, uuid, wishes.deadline)


def cache(scratch: Path, machine: _Machine, owner: str) -> Path:
    """Triton's cache directory of an owner on this machine; it is made."""
    path = scratch / "cache" / f"{machine['machine']}-triton{machine['triton']}" / owner
    path.mkdir(parents=True, exist_ok=True)
    return path


def _state_directory(pair: _Pair, machine: _Machine, wishes: Wishes, scratch: Path) -> Path:
    versions = "-".join(pair[arm].sha[:8] or pair[arm].digest[:8] for arm in ARMS)
    asked = f"{wishes.grid}-{wishes.rounds}" + ("-every-cell" if wishes.every_cell else "")
    return scratch / "states" / f"{versions}-{asked}-{machine['machine']}"


def _manifest(plan: rounds.Plan, machine: _Machine, wishes: Wishes) -> dict:
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
    return suite.digest(_MEASURING)


def _check_on_gpu(
    plan: rounds.Plan, state: State, wishes: Wishes, found: Found, report: _Report
) -> list[AnyCell]:
    """File what is wrong or exact; the cells that both versions get right."""
    grid = all_cells(wishes.grid)
    answers = rounds.check(plan, state, measure.check_job(grid), report)
    return judge_checks(answers, grid, found)


def _compare_on_gpu(
    plan: rounds.Plan,
    state: State,
    timed: list[AnyCell],
    wishes: Wishes,
    found: Found,
    report: _Report,
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
    rounds.report_kept(state, "look1", report)
    _look(plan, state, wishes.rounds, measure.timing_job(timed, host=True), found, report)
    first = state.rounds("look1")
    found.rounds, found.clocks = len(first), clocks(first)
    found.families = judge_rounds(first, found)
    _look_again(plan, state, found, report)
    found.disturbed += [f"{a.phase}, round {a.number + 1}: {a.reason}" for a in state.aside()]


def _look(
    plan: rounds.Plan, state: State, most: int, job: dict, found: Found, report: _Report
) -> None:
    """The first look: the rounds that are wished for, or as many as there is time for.

    Settled by how long two take, one in each order, and by nothing else of them. Where the time is
    not enough for the fewest, all are begun, and another run goes on. A run that goes on keeps to
    what was settled: with more rounds it would judge what was judged before once more.
    """
    rounds.run(plan, state, "look1", most, job, report, only=2)
    settled = rounds.settled(state, "look1")
    count = settled or rounds.affordable(plan, state, "look1", most, like="look1")
    if count < MIN_ROUNDS:
        report(
            f"there is time for {count} of the {MIN_ROUNDS} rounds that a verdict needs: "
            "they are kept, and the same command goes on from there"
        )
        count = most
    elif count < most:
        found.notes.append(f"{count} rounds, as the time was not enough for {most}")
        report(found.notes[-1])
    rounds.run(plan, state, "look1", count, job, report)


def _look_again(plan: rounds.Plan, state: State, found: Found, report: _Report) -> None:
    """Measure afresh what the first look could not tell, and let that decide."""
    open_ = inconclusive(found)
    if not open_:
        return
    chosen = {s.params for s in open_ if s.metric.startswith(FAMILIES["gpu"])}
    grid = [cell for cell in all_cells("full") if tuple(measure.as_params(cell)) in chosen]
    host = any(subject.metric.startswith(FAMILIES["host"]) for subject in open_)
    job = measure.timing_job(grid, host)
    # Settled before any of them is seen, so that no result decides when to stop, and once.
    settled = rounds.settled(state, "look2")
    count = settled or rounds.affordable(plan, state, "look2", EXTENSION_ROUNDS, like="look1")
    if count < MIN_ROUNDS:
        found.notes.append(
            f"no second look at {len(open_)} timings that cannot be told: the time that is left is "
            f"not enough for {MIN_ROUNDS} rounds"
        )
        return
    report(f"{len(open_)} timings cannot be told: {count} rounds more of these")
    rounds.report_kept(state, "look2", report)
    try:
        rounds.run(plan, state, "look2", count, job, report)
    except rounds.BudgetError as error:
        found.notes.append(f"no second look at {len(open_)} timings that cannot be told: {error}")
        return
    second = state.rounds("look2")[:count]
    found.extension = len(second)
    found.rounds += len(second)
    for name, family in judge_rounds(second, found, open_).items():
        found.families[name] = merged(found.families[name], family)


def store_all(
    found: Found,
    pair: _Pair,
    machine: _Machine,
    repository: Path,
    results: Path,
    report: _Report,
) -> None:
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
