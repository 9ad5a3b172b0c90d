"""Run one comparison: what is exact, then two looks at the clock, then the verdicts."""

import hashlib
import platform
import random
import shutil
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from .._cells.grid import AnyCell, all_cells
from .._cells.subjects import ARCHITECTURES
from .._machine_code import worker_pool
from .._system import checkout, gpu_monitor, suite
from .._system.journal import JournalError
from .._verdict.rules import FAMILIES, MIN_ROUNDS, Subject
from .._verdict.schema import Comparison
from . import compiled, exact, findings, measure, rounds
from .findings import ARMS, Look, subjects_of
from .rounds import Rounds


class NothingToTimeError(RuntimeError):
    """No cell works in either version: that is no verdict."""


# What is inconclusive in the first look is measured in this many more rounds, or as time permits,
# and judged by these alone: the first rounds chose it, and must not count twice.
EXTENSION_ROUNDS = 24
# Where both versions run the same machine code, at least this many cells are timed, or a quarter.
SAME_CODE_CELLS = 16

EXPECTED = (
    *(checkout.ArmError, measure.ProcessError, rounds.BudgetError, rounds.InvalidRoundError),
    *(JournalError, gpu_monitor.GpuBusyError, gpu_monitor.WatchError),
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


class CompareOptions(NamedTuple):
    """What the user asked for; deadline in ``time.monotonic``'s seconds."""

    grid: str
    rounds: int
    deadline: float
    exact_only: bool
    wait_seconds: float
    afresh: bool
    every_cell: bool


def compare(
    unmeasured: Comparison,
    pair: _Pair,
    arch: str,
    options: CompareOptions,
    scratch: Path,
    report: _Report,
) -> Comparison:
    """Compare two versions on this machine, keeping what is measured below ``scratch``.

    Parameters
    ----------
    unmeasured : Comparison
        Says who is compared, and on which machine.
    arch : str
        As ``machine.probe`` gives it.

    Returns
    -------
    The comparison, its minutes those of earlier runs.
    """
    machine = unmeasured.machine
    ledgers = _ledgers(pair, machine, options, scratch, report)
    if machine["gpu"] == "none" or options.exact_only:
        why = "left alone as asked for" if options.exact_only else "there is no NVIDIA GPU here"
        note = f"GPU: {why}; latency, host cost, memory, launches and error were not measured"
        code = _compile(pair, ARCHITECTURES, ledgers, report)
        verdicts, notes = findings.judge_code(code, clock_decides=False)
        return replace(unmeasured, exact=tuple(verdicts), notes=(note, *notes))
    uuid = gpu_monitor.gpu_uuid()
    with gpu_monitor.gpu_lock(uuid, options.wait_seconds):
        name = _name(pair, machine, options)
        caches = {arm: cache(scratch, machine, f"{name}-{arm}") for arm in ARMS}
        plan = rounds.Plan(_in_order(pair), caches, uuid, options.deadline)
        journal = scratch / "states" / f"{name}.jsonl"
        if options.afresh:
            journal.unlink(missing_ok=True)
        with Rounds(plan, journal, _header(plan, machine, options), report) as measured:
            return _compare_on_gpu(unmeasured, measured, pair, arch, options, ledgers, report)


def _compare_on_gpu(
    unmeasured: Comparison,
    measured: Rounds,
    pair: _Pair,
    arch: str,
    options: CompareOptions,
    ledgers: "_Ledgers",
    report: _Report,
) -> Comparison:
    before, grid, known = measured.minutes, all_cells(options.grid), arch in ARCHITECTURES
    gpu_monitor.require_free(measured.plan.uuid)
    _empty_caches(measured)
    with ThreadPoolExecutor() as pool:
        # The checks leave the CPU to the compiler; the timings will not.
        compiling = pool.submit(_compile_here, pair, arch, grid, ledgers, report) if known else None
        checks = findings.judge_checks(measured.check(measure.check_job(grid)), grid)
        code, identical = compiling.result() if compiling else ({arm: {} for arm in ARMS}, set())
    notes = checks.notes + [f"machine code: {arch} is none of {ARCHITECTURES}"] * (not known)
    cells = checks.right
    if not options.every_cell:
        cells, left_out = _worth_timing(cells, identical)
        notes += left_out
    if not cells and not checks.wrong:
        reasons = "; ".join(notes[:3] or ["no reason"])
        raise NothingToTimeError(f"no cell is right in both versions: {reasons}")
    first = findings.no_look()
    if cells:
        first = _first_look(measured, cells, identical, options, report)
    second = _second_look(measured, cells, first, identical, report)
    look = findings.joined(first, second)
    verdicts, problems = findings.judge_code(code, clock_decides="gpu" in look.families)
    return replace(
        unmeasured,
        clocks=findings.clocks(measured.rounds("look1")),
        rounds=look.rounds,
        extension=second.rounds,
        minutes=before,
        families=look.families,
        exact=(*checks.exact, *verdicts),
        identical=frozenset(identical),
        wrong=(*checks.wrong, *look.wrong),
        notes=(*notes, *look.notes, *problems),
        discarded=tuple(measured.discarded),
    )


def _worth_timing(cells: list[AnyCell], identical: Set[Subject]) -> tuple[list[AnyCell], list[str]]:
    """Every cell whose machine code differs, and of the others a sample, the same one each time.

    These cannot differ in the kernel: the sample looks for noise, and for what is besides it.
    """
    same = [cell for cell in cells if subjects_of(cell) <= identical]
    size = max(SAME_CODE_CELLS, len(same) // 4)
    if len(same) <= size:
        return cells, []
    left = set(same) - set(random.Random(0).sample(same, size))
    note = (
        f"{len(left)} of {len(same)} cells of the same machine code were not timed (--every-cell "
        "times them)"
    )
    return [cell for cell in cells if cell not in left], [note]


def _empty_caches(measured: Rounds) -> None:
    """Let the first call of a version that was never checked compile it."""
    for arm, path in measured.plan.caches.items():
        if arm not in measured.checked:
            shutil.rmtree(path)
            path.mkdir()


# --- what both versions compile to ----------------------------------------------------------------

_Code = dict[str, dict[Subject, float | Exception]]  # by arm
_Ledgers = Callable[[str], worker_pool.Ledger]  # a new one for each arm and map


def _ledgers(
    pair: _Pair, machine: _Machine, options: CompareOptions, scratch: Path, report: _Report
) -> _Ledgers:
    again = "the same command" + (", without --afresh," if options.afresh else "")
    progress = compiled.Progress(options.deadline, report, again)
    kept = {arm: compiled.Version(scratch, pair[arm].digest, machine) for arm in ARMS}
    if options.afresh:
        for version in kept.values():
            version.drop()
    return lambda arm: compiled.Ledger(arm, kept[arm], progress)


def _compile(
    pair: _Pair, architectures: Sequence[str], ledgers: _Ledgers, report: _Report
) -> _Code:
    report(f"compiling both versions for {', '.join(architectures)}")

    def values(arm: str) -> dict[Subject, float | Exception]:
        return exact.codegen_facts(pair[arm].root, ledgers(arm), arch=architectures)

    with ThreadPoolExecutor() as pool:
        return dict(zip(ARMS, pool.map(values, ARMS), strict=True))


def _compile_here(
    pair: _Pair, arch: str, grid: list[AnyCell], ledgers: _Ledgers, report: _Report
) -> tuple[_Code, set[Subject]]:
    """On the GPU's own architecture, and the timings for which both versions run the same code."""

    def digests(arm: str) -> dict[Subject, str | Exception]:
        return exact.cell_digests(pair[arm].root, arch, grid, ledgers(arm))

    with ThreadPoolExecutor() as pool:
        code = pool.submit(_compile, pair, (arch,), ledgers, report)
        base, head = pool.map(digests, ARMS)
        same = {s for s, d in base.items() if isinstance(d, str) and head.get(s) == d}
        report(f"same machine code in {len(same)} of {len(base)} timings")
        return code.result(), same


# --- where it is kept, and what must agree --------------------------------------------------------


def cache(scratch: Path, machine: _Machine, owner: str) -> Path:
    """Triton's cache directory of an owner on this machine; creates it."""
    path = scratch / "cache" / f"{machine['machine']}-triton{machine['triton']}" / owner
    path.mkdir(parents=True, exist_ok=True)
    return path


def _name(pair: _Pair, machine: _Machine, options: CompareOptions) -> str:
    versions = "-".join(pair[arm].sha[:8] or pair[arm].digest[:8] for arm in ARMS)
    asked = f"{options.grid}-{options.rounds}" + ("-every-cell" if options.every_cell else "")
    return f"{versions}-{asked}-{machine['machine']}"


def _in_order(pair: _Pair) -> dict[str, checkout.Arm]:
    """The versions, first the one that goes first in the first round."""
    seed = hashlib.sha256("".join(pair[arm].digest for arm in ARMS).encode()).digest()[0]
    return {arm: pair[arm] for arm in (ARMS if seed % 2 == 0 else ARMS[::-1])}


def _header(plan: rounds.Plan, machine: _Machine, options: CompareOptions) -> dict:
    return {
        "digests": {arm: plan.arms[arm].digest for arm in ARMS},
        "grid": options.grid,
        "rounds": options.rounds,
        "every_cell": options.every_cell,
        "extension_rounds": EXTENSION_ROUNDS,
        "first": plan.order(0)[0],
        "machine": dict(machine),
        "gpu": plan.uuid,
        "python": platform.python_version(),
        "suite": suite_digest(),
    }


def suite_digest() -> str:
    """Digest of the files that measure: what other files measured is not mixed in."""
    return suite.digest(_MEASURING)


# --- the two looks --------------------------------------------------------------------------------


def _first_look(
    measured: Rounds,
    cells: list[AnyCell],
    identical: Set[Subject],
    options: CompareOptions,
    report: _Report,
) -> Look:
    """The rounds that are asked for, or as many as there is time for.

    The number is settled by how long two rounds take, one in each order, and by nothing else about
    them. If the time is too short even for the fewest, measuring begins all the same, and another
    run goes on. That run keeps to the settled number: with more rounds it would judge twice.
    """
    job, most, notes = measure.timing_job(cells, host=True), options.rounds, []
    measured.run("look1", most, job, only=2)
    settled = measured.settled("look1")
    count = settled or measured.affordable("look1", most, like="look1")
    if count < MIN_ROUNDS:
        report(
            f"there is time for {count} of the {MIN_ROUNDS} rounds that a verdict needs: "
            "they are kept, and the same command goes on from there"
        )
        count = most
    elif count < most:
        notes = [f"{count} rounds, as the time was not enough for {most}"]
        report(notes[0])
    measured.run("look1", count, job)
    look = findings.judge_rounds(measured.rounds("look1"), identical)
    return look._replace(notes=notes + look.notes)


def _second_look(
    measured: Rounds,
    cells: list[AnyCell],
    first: Look,
    identical: Set[Subject],
    report: _Report,
) -> Look:
    """Measure anew what is inconclusive in the first look, and let that decide."""
    open_ = findings.inconclusive(first, identical)
    if not open_:
        return findings.no_look()
    host = any(not subject.metric.startswith(FAMILIES["gpu"]) for subject in open_)
    job = measure.timing_job([cell for cell in cells if subjects_of(cell) & open_], host)
    # Settled before any of them is seen, so that no result decides when to stop, and once.
    settled = measured.settled("look2")
    count = settled or measured.affordable("look2", EXTENSION_ROUNDS, like="look1")
    missed = f"no second look at {len(open_)} inconclusive timings"
    if count < MIN_ROUNDS:
        return findings.no_look(
            f"{missed}: the time that is left is not enough for {MIN_ROUNDS} rounds"
        )
    report(f"{len(open_)} timings are inconclusive: {count} more rounds of these")
    try:
        measured.run("look2", count, job)
    except rounds.BudgetError as error:
        return findings.no_look(f"{missed}: {error}")
    return findings.judge_rounds(measured.rounds("look2")[:count], identical, open_)
