"""Run one comparison: what is exact, then two looks at the clock, then the verdicts."""

import hashlib
import itertools
import os
import platform
import shutil
import time
from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from .._cells import grid, modules, surface
from .._cells.forms import BaseCell
from .._cells.grid import cell_of
from .._cells.subjects import ARCHITECTURES, CALLS, FIRST_CALL, SURFACE_PARAMS, host_keys
from .._report.notes import text, texts
from .._system import checkout, gpu_monitor, suite
from .._system.errors import CouldNotRunError
from .._system.journal import keep_newest
from .._system.progress import say
from .._verdict.notes import Kind, Note
from .._verdict.rules import FAMILIES, MIN_ROUNDS, Answer, Key, overall
from .._verdict.schema import Comparison
from . import compile_both, findings, measure, rounds, selection
from .compile_both import Pair
from .findings import ARMS, BASE, HEAD, Look, subjects_of
from .rounds import Rounds


class NothingToTimeError(CouldNotRunError):
    """No cell works in either version, or --only names none: that is no verdict."""


# What is inconclusive in the first look is measured in this many more rounds, or as time permits,
# and judged by these alone: the first rounds chose it, and must not count twice.
EXTENSION_ROUNDS = 24
_MOST_JOURNALS = 100  # of comparisons, half a megabyte each
_MOST_KERNELS = 20_000  # in Triton's cache, some 4 GB
_TARGET = SURFACE_PARAMS["target"][0]  # whose surface is compared without a GPU
# All that the transformer's calls run of the package.
_OF_TRANSFORMER = (
    *("transformer", "kernel/launch.py", "kernel/rotation.py"),
    *("ops/dispatch.py", "ops/operators.py"),
)

_Machine = Mapping[str, str]

_MEASURING = (
    *("_cells/*.py", "_measure/*.py", "_system/process.py"),
    *("_compare/measure.py", "_compare/rounds.py"),
)


class CompareOptions(NamedTuple):
    """What the user asked for; deadline in ``time.monotonic``'s seconds.

    only: the timings that are wanted, and what else their comparison finds; empty for all.
    """

    grid: str
    rounds: int
    deadline: float
    exact_only: bool
    wait_seconds: float
    afresh: bool
    every_cell: bool
    only: frozenset[Key]

    def cells(self) -> list[BaseCell]:
        """The cells to look at, in the order in which they are measured."""
        found: list[BaseCell] = [*grid.candidates()]
        timings = {each for each in self.only if each.metric.startswith(sum(FAMILIES.values(), ()))}
        on_host = itertools.starmap(Key, host_keys(*CALLS, FIRST_CALL))
        for unknown in timings.difference(on_host, *map(subjects_of, found)):
            raise NothingToTimeError(f"no timing is called {unknown.words}")
        return [cell for cell in found if not self.only or subjects_of(cell) & timings]

    @property
    def host(self) -> bool:
        """Whether to time calls on the host."""
        hosts = FAMILIES["host"] + FAMILIES["start"]
        return not self.only or any(each.metric.startswith(hosts) for each in self.only)


def compare(
    unmeasured: Comparison, pair: Pair, arch: str, options: CompareOptions, scratch: Path
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
    triton_cache = cache(scratch, machine)
    ledgers = compile_both.ledgers_of(
        *(pair, machine, scratch, triton_cache), deadline=options.deadline, afresh=options.afresh
    )
    if machine["gpu"] == "none" or options.exact_only:
        why = "--exact-only" if options.exact_only else "no NVIDIA GPU"
        code, surfaces = compile_both.compile_both(
            pair, ARCHITECTURES, _TARGET, [*surface.cells(), *modules.cells()], ledgers
        )
        verdicts, notes = findings.judge_code(code, False)
        same = len(selection.identical(compile_both.facts_of(surfaces)))
        total = len(surfaces[BASE].facts)
        differs = Note("code differs", _TARGET, count=total - same, total=total)
        return replace(
            unmeasured,
            exact=tuple(verdicts),
            unmeasured=(*unmeasured.unmeasured, *compile_both.unreached(surfaces)),
            notes=(Note("no GPU", why), differs, *notes),
        )
    uuid = gpu_monitor.gpu_uuid()
    with gpu_monitor.gpu_lock(uuid, options.wait_seconds):
        name = _name(pair, machine, options)
        plan = rounds.Plan(_in_order(pair), triton_cache, uuid, options.deadline)
        journal = scratch / "states" / f"{name}.jsonl"
        if options.afresh:
            journal.unlink(missing_ok=True)
        if journal.exists():
            os.utime(journal)
        keep_newest(journal.parent, _MOST_JOURNALS)
        with Rounds(plan, journal, _header(plan, machine, options)) as measured:
            return _compare_on_gpu(unmeasured, measured, pair, arch, options, ledgers)


def _compare_on_gpu(
    unmeasured: Comparison,
    measured: Rounds,
    pair: Pair,
    arch: str,
    options: CompareOptions,
    ledgers: compile_both.Ledgers,
) -> Comparison:
    before, known = measured.minutes, arch in ARCHITECTURES
    cells = options.cells()
    checked = cells if options.only else _checked(pair)
    gpu_monitor.require_free(measured.plan.uuid)
    code: compile_both.Code = {arm: {} for arm in ARMS}
    surfaces: compile_both.Surfaces = {}
    check = measure.check_job(checked)
    measured.get_ready([arm for arm in ARMS if arm not in measured.checked])
    if known:
        code, surfaces = compile_both.compile_both(
            *(pair, (arch,), arch, cells, ledgers),
            # Its process finds everything compiled, and leaves cores to the compilers.
            compiled=lambda arm: measured.begin_check(arm, check),
        )
    answers = measured.check(check, then=measured.plan.order(0))
    checks = findings.judge_checks(answers, checked)
    notes = checks.notes + [Note("architecture", arch)] * (not known)
    facts = selection.with_nodes(compile_both.facts_of(surfaces), findings.changed_nodes(answers))
    identical = selection.identical(facts)
    if not known:  # what differs is not known either
        cells = checked
    if options.only:
        notes.append(Note("only"))
    chosen, left = _chosen(measured, cells, facts, options, pair)
    same = [cell for cell in cells if subjects_of(cell) <= identical]
    if untimed := len(set(same) - set(chosen)):
        notes.append(Note("same code", count=untimed, total=len(same)))
    timed = [cell for cell in chosen if cell in checks.right or cell not in checked]
    if not timed and not checks.wrong and not options.only:
        reasons = "; ".join(texts(notes[:3]) or ["no reason"])
        raise NothingToTimeError(f"no cell is right in both versions: {reasons}")
    some = timed or (options.only and options.host)
    first = findings.no_look()
    if some:
        first = _first_look(measured, timed, identical, options)
    verdicts, problems = findings.judge_code(code, clock_decides="gpu" in first.families)
    exact, faults = (*checks.exact, *verdicts), (*checks.wrong, *first.wrong)
    fails = overall(first.families.values(), exact, identical, faults) is Answer.FAIL
    second = _second_look(measured, timed, first, identical, fails)
    look = findings.joined(first, second)
    wrong = (*checks.wrong, *look.wrong)
    first_rounds, lost = measured.rounds("look1"), []
    # What the head alone cannot do is wrong; what the base cannot has nothing to be compared with.
    if not wrong:
        mended = findings.mended(first_rounds)
        of_both = [cell for cell in chosen if cell not in checks.new]
        lost = _untimed(_lost(of_both, facts, look) - mended, "not timed")
        # No machine code says what the host does: where the sources differ, all of it may.
        if not unmeasured.same_sources:
            on_host = findings.lost_on_host(first_rounds, look) - mended
            lost += _untimed(on_host, "no host time")
    return replace(
        unmeasured,
        clocks=findings.clocks(first_rounds),
        rounds=look.rounds,
        extension=second.rounds,
        minutes=before,
        families=look.families,
        exact=exact,
        identical=frozenset(identical),
        represented=left.represented,
        unmeasured=(
            *unmeasured.unmeasured,
            *_untimed(left.untimed, "no time"),
            *lost,
            *compile_both.unreached(surfaces),
        ),
        wrong=wrong,
        notes=(*notes, *look.notes, *problems),
        discarded=tuple(measured.discarded),
    )


def _checked(pair: Pair) -> list[BaseCell]:
    """The cells whose outputs are checked before anything is timed.

    Those of the transformer only where they may have changed: they take longer than all others.
    """
    cells: list[BaseCell] = [*grid.checked_cells()]
    if any(checkout.differs(part, pair[BASE], pair[HEAD]) for part in _OF_TRANSFORMER):
        return cells
    costly = {cell for cell in modules.cells() if cell.module == "transformer"}
    return [cell for cell in cells if cell not in costly]


def _chosen(
    measured: Rounds,
    cells: list[BaseCell],
    facts: Mapping[str, selection.Compiled],
    options: CompareOptions,
    pair: Pair,
) -> tuple[list[BaseCell], selection.Left]:
    """The cells to time, which another run keeps to, and what differs and is not among them."""
    left = max(0.0, options.deadline - time.monotonic())
    everything = options.grid == "full"
    second_look = selection.minutes(0, EXTENSION_ROUNDS)
    chosen = selection.choose(
        cells,
        facts,
        len(cells) if everything else selection.affordable(left, MIN_ROUNDS),
        seed="".join(pair[arm].digest for arm in ARMS),
        ends=selection.affordable(left - 60 * second_look, options.rounds),
        few=len(cells) if everything else selection.FEW_CELLS,
        every_cell=options.every_cell,
    )
    settled = measured.settle("cells", measure.rows_of(chosen))
    timed: list[BaseCell] = [cell_of(suite, params) for suite, params in settled]
    minutes = selection.minutes(len(timed), options.rounds)
    say(
        f"{len(timed)} cells are timed: about {minutes:.0f} minutes for {options.rounds} rounds, "
        f"and up to {second_look:.0f} more if a timing is inconclusive"
    )
    return timed, selection.left(cells, facts, timed)


def _lost(
    cells: list[BaseCell], facts: Mapping[str, selection.Compiled], look: Look
) -> frozenset[Key]:
    """What differs of these cells and has no verdict."""
    timed = [cell for cell in cells if subjects_of(cell) <= look.judged]
    return selection.left(cells, facts, timed).untimed


def _untimed(keys: Set[Key], kind: Kind) -> list[Note]:
    """A note on what differs and is not timed, if there is any."""
    return [Note(kind, keys=tuple(sorted(keys)))] if keys else []


# --- where it is kept, and what must agree --------------------------------------------------------


def cache(scratch: Path, machine: _Machine) -> Path:
    """Triton's cache directory on this machine, of all versions; creates it.

    Triton names a kernel by all that it depends on. Of a full directory the newer half is kept,
    which another comparison may just have compiled.
    """
    path = scratch / "cache" / f"{machine['machine']}-triton{machine['triton']}"
    path.mkdir(parents=True, exist_ok=True)
    kernels = list(path.iterdir())
    if len(kernels) > _MOST_KERNELS:
        newest_first = sorted(kernels, key=lambda each: -each.stat().st_mtime)
        for each in newest_first[_MOST_KERNELS // 2 :]:
            shutil.rmtree(each, ignore_errors=True)  # another comparison may delete it too
    return path


def _name(pair: Pair, machine: _Machine, options: CompareOptions) -> str:
    versions = "-".join(pair[arm].sha[:8] or pair[arm].digest[:8] for arm in ARMS)
    asked = f"{options.grid}-{options.rounds}" + ("-every-cell" if options.every_cell else "")
    if options.only:
        only = repr(sorted(options.only)).encode()
        asked += f"-only-{hashlib.sha256(only).hexdigest()[:8]}"
    return f"{versions}-{asked}-{machine['machine']}"


def _in_order(pair: Pair) -> dict[str, checkout.Arm]:
    """The versions, first the one that goes first in the first round."""
    seed = hashlib.sha256("".join(pair[arm].digest for arm in ARMS).encode()).digest()[0]
    return {arm: pair[arm] for arm in (ARMS if seed % 2 == 0 else ARMS[::-1])}


def _header(plan: rounds.Plan, machine: _Machine, options: CompareOptions) -> dict:
    return {
        "digests": {arm: plan.arms[arm].digest for arm in ARMS},
        "grid": options.grid,
        "rounds": options.rounds,
        "every_cell": options.every_cell,
        "only": sorted(options.only),
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
    measured: Rounds, cells: list[BaseCell], identical: Set[Key], options: CompareOptions
) -> Look:
    """The rounds that are asked for, or as many as there is time for.

    The number is settled by how long two rounds take, one in each order, and by nothing else about
    them. If the time is too short even for the fewest, measuring begins all the same, and another
    run goes on. That run keeps to the settled number: with more rounds it would judge twice.
    """
    job, most = measure.timing_job(cells, host=options.host), options.rounds
    notes: list[Note] = []
    measured.run("look1", most, job, only=2)
    settled = measured.settled("look1")
    count = settled or measured.affordable("look1", most, like="look1")
    if count < MIN_ROUNDS:
        say(
            f"there is time for {count} of the {MIN_ROUNDS} rounds that a verdict needs: "
            "they are kept, and the same command goes on from there"
        )
        count = most
    elif count < most:
        notes = [Note("fewer rounds", count=count, total=most)]
        say(text(notes[0]))
    measured.run("look1", count, job)
    look = findings.judge_rounds(measured.rounds("look1"), identical)
    return look._replace(notes=notes + look.notes)


def _second_look(
    measured: Rounds, cells: list[BaseCell], first: Look, identical: Set[Key], fails: bool
) -> Look:
    """Measure anew what is inconclusive in the first look, and let that decide.

    ``fails``: whether the comparison fails already, which no second look would change.
    """
    open_ = findings.inconclusive(first, identical)
    if not open_:
        return findings.no_look()
    missed = Note("no second look", count=len(open_))
    if fails:
        return findings.no_look(replace(missed, reason="the comparison fails without it"))
    host = any(not subject.metric.startswith(FAMILIES["gpu"]) for subject in open_)
    job = measure.timing_job([cell for cell in cells if subjects_of(cell) & open_], host)
    # Settled before any of them is seen, so that no result decides when to stop, and once.
    settled = measured.settled("look2")
    count = settled or measured.affordable("look2", EXTENSION_ROUNDS, like="look1")
    if count < MIN_ROUNDS:
        reason = f"the time that is left is not enough for {MIN_ROUNDS} rounds"
        return findings.no_look(replace(missed, reason=reason))
    say(f"{len(open_)} timings are inconclusive: {count} more rounds of these")
    try:
        measured.run("look2", count, job)
    except rounds.BudgetError as error:
        return findings.no_look(replace(missed, reason=str(error)))
    return findings.judge_rounds(measured.rounds("look2")[:count], identical, open_)
