"""Run one comparison, of machine code or on a GPU, and keep what it measures."""

import contextlib
import hashlib
import itertools
import os
import platform
import shutil
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ..machine_code import worker_pool
from ..report.notes import text, texts
from ..subject import Cell, Subject, files, keys_of, timings
from ..system import checkout, gpu_monitor, suite
from ..system.errors import CouldNotRunError
from ..system.journal import keep_newest
from ..system.progress import say
from ..verdict.metrics import FAMILIES, HOST_CALL
from ..verdict.note import Kind, Note
from ..verdict.rules import MIN_ROUNDS, Answer, Key, overall
from ..verdict.schema import Comparison
from . import compiled, exact, findings, measure, rounds, selection
from .findings import BASE, HEAD, SIDES, Checks, Look
from .rounds import Rounds

# What is inconclusive in the first look is measured in this many more rounds, or as time permits,
# and judged by these alone: the first rounds chose it, and must not count twice.
EXTENSION_ROUNDS = 24
_MOST_JOURNALS = 100  # of comparisons, half a megabyte each
_MOST_KERNELS = 20_000  # in Triton's cache, some 4 GB
_Machine = Mapping[str, str]

_MEASURING = (
    *("_engine/subject.py", "_engine/measure/*.py", "_engine/system/process.py"),
    *("_engine/compare/measure.py", "_engine/compare/rounds.py"),
)


class NothingToTimeError(CouldNotRunError):
    """No cell works in either version, or --only names none: that is no verdict."""


class Request(NamedTuple):
    """What the user asked for, and where.

    pair: base and head. arch: as ``machine.probe`` gives it. deadline: in ``time.monotonic``'s
    seconds. everything: also what is the same in both versions. only: the timings that are wanted,
    and what else their comparison finds; empty for all.
    """

    subject: Subject
    pair: Mapping[str, checkout.Version]
    arch: str
    rounds: int
    deadline: float
    exact_only: bool
    wait_seconds: float
    afresh: bool
    everything: bool
    only: frozenset[Key]

    @property
    def digests(self) -> dict[str, str]:
        """Of the sources of each version."""
        return {side: self.pair[side].digest for side in SIDES}

    @property
    def times_same(self) -> bool:
        """Whether a clock is asked of what is the same in both versions, too."""
        return self.everything or bool(self.only)

    @property
    def roots(self) -> dict[str, Path]:
        """The directory that holds the package of each version."""
        return {side: self.pair[side].root for side in SIDES}

    def cells(self) -> list[Cell]:
        """The cells to look at, in the order in which they are measured."""
        cells = [*self.subject.candidates()]
        wanted = {key for key in self.only if key.metric.startswith(sum(FAMILIES.values(), ()))}
        counted = {Key(HOST_CALL, params) for _, params in self.subject.host_calls()}
        for unknown in wanted.difference(self.on_host, counted, *map(keys_of, cells)):
            raise NothingToTimeError(f"no timing is called {unknown.words}")
        return [cell for cell in cells if not self.only or keys_of(cell) & wanted]

    def checked(self) -> list[Cell]:
        """The cells whose output is checked before any is timed."""
        if self.only:
            return self.cells()

        def changed(part: str) -> bool:
            return checkout.differs(part, self.pair[BASE], self.pair[HEAD], self.subject.PACKAGE)

        return [*self.subject.checked(changed)]

    @property
    def on_host(self) -> frozenset[Key]:
        """The timings of calls on the host, and of how a process starts."""
        keys = timings(self.subject)
        return frozenset(keys["host"] | keys["start"])

    @property
    def wanted_on_host(self) -> frozenset[Key]:
        """Those of them that are wanted."""
        return self.on_host & self.only if self.only else self.on_host


def compare(request: Request, unmeasured: Comparison, scratch: Path) -> Comparison:
    """Compare two versions on this machine, keeping what is measured below ``scratch``.

    ``unmeasured`` says who is compared, and on which machine. The minutes of the comparison that is
    returned are those of earlier runs.
    """
    machine, subject = unmeasured.machine, request.subject
    triton_cache = cache(scratch, machine)
    ledgers, again = {}, "the same command" + ", without --afresh," * request.afresh
    for side, digest in request.digests.items():
        store = compiled.Store(scratch, subject, digest, machine)
        if request.afresh:
            store.drop()
        ledgers[side] = compiled.Ledger(side, store, request.deadline, again, triton_cache)
    uuid = gpu_monitor.gpu_uuid() if _uses_gpu(request, machine) else ""
    lock = gpu_monitor.gpu_lock(uuid, request.wait_seconds) if uuid else contextlib.nullcontext()
    with lock:
        arch = "" if uuid else subject.TARGET
        pair = dict(request.pair)
        plan = rounds.Plan(subject.__name__, pair, triton_cache, uuid, request.deadline, arch)
        journal = scratch / "states" / f"{_name(request, machine)}.jsonl"
        if request.afresh:
            journal.unlink(missing_ok=True)
        if journal.exists():
            os.utime(journal)
        keep_newest(journal.parent, _MOST_JOURNALS)
        with Rounds(plan, journal, _header(request, plan, machine)) as measured:
            compared = _compare_on_gpu if uuid else _compare_code
            return compared(request, unmeasured, ledgers, measured)


def _compare_code(
    request: Request,
    unmeasured: Comparison,
    ledgers: Mapping[str, worker_pool.Ledger],
    measured: Rounds,
) -> Comparison:
    """Compare the machine code for all architectures, and clock calls that execute something else.

    They are clocked on the CPU under the stub driver.
    """
    subject, minutes = request.subject, measured.minutes
    listed = [*itertools.chain.from_iterable(subject.listed())]
    code = exact.compile_both(
        *(subject, request.roots, subject.TARGETS, subject.TARGET, listed, ledgers)
    )
    values = {side: one.values for side, one in code.items()}
    total, same = len(code[BASE].facts), len(selection.identical(selection.facts_of(code, {})))
    exact_values = tuple(exact.compare(values[BASE], values[HEAD]))
    notes, nothing = list[Note](), frozenset[Key]()
    first = second = findings.no_look()
    if on_host := selection.changed_on_host(code, request.on_host):
        with contextlib.suppress(rounds.BudgetError):  # the report says that no clock was used
            first = _first_look(request, measured, [], on_host, nothing, notes)
    first = findings.without_noise(first)
    fails = overall(first.families.values(), exact_values) is Answer.FAIL
    if open_ := findings.inconclusive(first, nothing):
        second = _second_look(measured, [], open_, nothing, fails, notes)
    look = findings.joined(first, second)
    return replace(
        unmeasured,
        rounds=look.rounds,
        extension=second.rounds,
        minutes=minutes,
        families=look.families,
        exact=exact_values,
        # What fails on the head alone has no exact value there, and fails by that.
        unmeasured=(*unmeasured.unmeasured, *look.wrong, *selection.unreached(code)),
        notes=(
            Note("no GPU", "--exact-only" if request.exact_only else "no NVIDIA GPU"),
            Note("code differs", subject.TARGET, count=total - same, total=total),
            *(*notes, *look.notes),
            *selection.host_changes(code, look.judged),
            *exact.problems(values),
        ),
    )


def _compare_on_gpu(
    request: Request,
    unmeasured: Comparison,
    ledgers: Mapping[str, worker_pool.Ledger],
    measured: Rounds,
) -> Comparison:
    """Compile, check, choose, time, judge; ``measured`` has an earlier run's rounds and choices."""
    minutes = measured.minutes  # of earlier runs
    checked = request.checked()
    known = request.arch in request.subject.TARGETS
    cells = request.cells() if known else checked
    notes = [] if known else [Note("architecture", request.arch)]
    notes += [Note("only")] if request.only else []

    code, answers = _compile_and_check(request, ledgers, measured, cells, checked)
    facts = selection.facts_of(code, findings.changed_nodes(answers))
    identical = frozenset(selection.identical(facts))
    if known:
        count, total = len(identical), len(facts[BASE])
        say(f"{request.arch}: same machine code in {count} of {total} timings")
    checks = findings.judge_checks(answers, checked)
    same_code = known and len(identical) == len(facts[BASE])
    identical |= selection.alike_on_host(code, same_code)
    on_host = {*request.wanted_on_host} - (set() if request.times_same else identical)
    on_host |= {key for key in selection.to_clock(code) if not request.only or key in request.only}
    # A clock has nothing to say of the GPU where all that it runs is the same.
    unchanged = same_code and not request.times_same
    chosen = [] if unchanged else _choose(request, measured, cells, facts, len(on_host))
    left = selection.left(cells, facts, chosen)
    same = [cell for cell in cells if keys_of(cell) <= identical]
    if untimed := len(set(same) - set(chosen)):
        notes.append(Note("same code", count=untimed, total=len(same)))
    right = [cell for cell in chosen if cell in checks.right or cell not in checked]
    if not right and not checks.wrong and not request.only and not unchanged:
        reasons = "; ".join(texts([*checks.notes, *notes][:3]) or ["no reason"])
        raise NothingToTimeError(f"no cell is right in both versions: {reasons}")

    first = second = findings.no_look()
    if right or (on_host and (unchanged or request.only)):
        first = _first_look(request, measured, right, on_host, identical, notes)
    values = {side: one.values for side, one in code.items()}
    clock_decides = "gpu" in first.families
    exact_values = (
        *checks.exact,
        *exact.compare(values[BASE], values[HEAD], clock_decides=clock_decides),
    )
    wrong = (*checks.wrong, *first.wrong)
    fails = overall(first.families.values(), exact_values, identical, wrong) is Answer.FAIL
    if open_ := findings.inconclusive(first, identical):
        second = _second_look(measured, right, open_, identical, fails, notes)

    look = findings.joined(first, second)
    wrong = (*checks.wrong, *look.wrong)
    return replace(
        unmeasured,
        clocks=findings.clocks(measured.rounds("look1")),
        rounds=look.rounds,
        extension=second.rounds,
        minutes=minutes,
        families=look.families,
        exact=exact_values,
        identical=identical,
        represented=left.represented,
        unmeasured=(
            *unmeasured.unmeasured,
            *_untimed(left.untimed, "no time"),
            *(() if wrong else _lost(request, facts, checks, chosen, look)),
            *selection.unreached(code),
        ),
        wrong=wrong,
        notes=(
            *(*checks.notes, *notes, *look.notes),
            *selection.host_changes(code, look.judged & on_host),
            *exact.problems(values),
        ),
        discarded=tuple(measured.discarded),
    )


def _compile_and_check(
    request: Request,
    ledgers: Mapping[str, worker_pool.Ledger],
    measured: Rounds,
    cells: Sequence[Cell],
    checked: Sequence[Cell],
) -> tuple[dict[str, exact.Code], dict[str, dict]]:
    """Each version is checked as soon as it is compiled, while the next one is compiled.

    Nothing is compiled for an unknown architecture.
    """
    subject, arch = request.subject, request.arch
    gpu_monitor.require_free(measured.plan.uuid)
    code = dict.fromkeys(SIDES, exact.NOT_COMPILED)
    job = measure.check_job(checked)
    measured.get_ready([side for side in SIDES if side not in measured.checked])
    if arch in subject.TARGETS:
        code = exact.compile_both(
            *(subject, request.roots, (arch,), arch, cells, ledgers),
            # Its process finds everything compiled, and leaves cores to the compilers.
            done=lambda side: measured.begin_check(side, job),
        )
    return code, measured.check(job, then=measured.plan.order(0))


def _choose(
    request: Request,
    measured: Rounds,
    cells: Sequence[Cell],
    facts: Mapping[str, selection.Compiled],
    calls: int,
) -> list[Cell]:
    """The cells that there is time for beside so many calls; another run keeps to them."""
    seconds_left = max(0.0, request.deadline - time.monotonic())
    second_look = selection.minutes(0, EXTENSION_ROUNDS, 0)
    fewest = selection.minutes(1, MIN_ROUNDS, calls)
    if measured.settled("cells") is None and seconds_left < 60 * fewest:
        raise rounds.BudgetError(
            f"{seconds_left / 60:.1f} minutes are left, and {MIN_ROUNDS} rounds take {fewest:.1f} "
            "at least: what was compiled and checked is kept, give a longer --budget"
        )
    chosen = selection.choose(
        cells,
        facts,
        selection.affordable(seconds_left, MIN_ROUNDS, calls),
        seed="".join(request.digests.values()),
        ends=selection.affordable(seconds_left - 60 * second_look, request.rounds, calls),
        everything=request.everything,
    )
    settled = measured.settle("cells", measure.rows_of(chosen))
    timed = [request.subject.cell(suite, params) for suite, params in settled]
    minutes = selection.minutes(len(timed), request.rounds, calls)
    say(
        f"{len(timed)} cells are timed: about {minutes:.0f} minutes for {request.rounds} "
        f"rounds, and up to {second_look:.0f} more if a timing is inconclusive"
    )
    return timed


def _first_look(
    request: Request,
    measured: Rounds,
    cells: Sequence[Cell],
    on_host: Set[Key],
    identical: Set[Key],
    notes: list[Note],
) -> Look:
    """The rounds that are asked for, or as many as there is time for; ``notes`` gets how many.

    The number is settled by how long two rounds take, one in each order, and by nothing else
    about them. If the time is too short even for the fewest, measuring begins all the same, and
    another run goes on. That run keeps to the number: with more rounds it would judge twice.
    """
    most, job = request.rounds, measure.timing_job(cells, on_host)
    measured.run("look1", most, job, only=2)
    count = measured.settled("look1") or measured.affordable("look1", most, like="look1")
    if count < MIN_ROUNDS:
        say(
            f"there is time for {count} of the {MIN_ROUNDS} rounds that a verdict needs: "
            "they are kept, and the same command goes on from there"
        )
        count = most
    elif count < most:
        notes.append(Note("fewer rounds", count=count, total=most))
        say(text(notes[-1]))
    measured.run("look1", measured.settle("look1", count), job)
    return findings.judge_rounds(measured.rounds("look1"), identical)


def _second_look(
    measured: Rounds,
    cells: Sequence[Cell],
    open_: Set[Key],
    identical: Set[Key],
    fails: bool,
    notes: list[Note],
) -> Look:
    """Measure anew what is inconclusive in the first look, and let that decide.

    ``fails``: whether the comparison fails already, which no second look would change. ``notes``
    gets why there is none.
    """
    # Settled before any of them is seen, so that no result decides when to stop, and once.
    count = measured.settled("look2") or measured.affordable(
        "look2", EXTENSION_ROUNDS, like="look1"
    )
    reason = f"the time that is left is not enough for {MIN_ROUNDS} rounds"
    if fails:
        reason = "the comparison fails without it"
    elif count >= MIN_ROUNDS:
        say(f"{len(open_)} timings are inconclusive: {count} more rounds of these")
        job = measure.timing_job([cell for cell in cells if keys_of(cell) & open_], open_)
        try:
            measured.run("look2", measured.settle("look2", count), job)
            again = measured.rounds("look2")[:count]
            return findings.judge_rounds(again, identical, open_)
        except rounds.BudgetError as error:
            reason = str(error)
    notes.append(Note("no second look", reason, count=len(open_)))
    return findings.no_look()


def _lost(
    request: Request,
    facts: Mapping[str, selection.Compiled],
    checks: Checks,
    chosen: Sequence[Cell],
    look: Look,
) -> list[Note]:
    """What was chosen and has no verdict, where nothing is wrong on the head.

    What the head alone cannot do is wrong; what the base cannot has nothing to be compared with.
    """
    of_both = [cell for cell in chosen if cell not in checks.new]
    judged = [cell for cell in of_both if keys_of(cell) <= look.judged]
    lost = _untimed(selection.left(of_both, facts, judged).untimed - look.mended, "not timed")
    # No machine code says what the host does: where the sources differ, all of it may.
    if len(set(request.digests.values())) > 1:
        lost += _untimed(look.lost_on_host, "no host time")
    return lost


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
        newest_first = sorted(kernels, key=lambda kernel: -kernel.stat().st_mtime)
        for kernel in newest_first[_MOST_KERNELS // 2 :]:
            shutil.rmtree(kernel, ignore_errors=True)  # another comparison may delete it too
    return path


def _uses_gpu(request: Request, machine: _Machine) -> bool:
    return machine["gpu"] != "none" and not request.exact_only


def _name(request: Request, machine: _Machine) -> str:
    versions = "-".join(version.sha[:8] or version.digest[:8] for version in request.pair.values())
    asked = f"{request.rounds}" + "-all" * request.everything
    asked += "" if _uses_gpu(request, machine) else "-no-gpu"
    if request.only:
        only = repr(sorted(request.only)).encode()
        asked += f"-only-{hashlib.sha256(only).hexdigest()[:8]}"
    return f"{versions}-{asked}-{machine['machine']}"


def _header(request: Request, plan: rounds.Plan, machine: _Machine) -> dict:
    return {
        "subject": plan.subject,
        "digests": request.digests,
        "rounds": request.rounds,
        "everything": request.everything,
        "only": sorted(request.only),
        "extension_rounds": EXTENSION_ROUNDS,
        "machine": dict(machine),
        "gpu": plan.uuid,
        "python": platform.python_version(),
        "suite": suite_digest(request.subject),
    }


def suite_digest(subject: Subject) -> str:
    """Digest of the files that measure: what other files measured is not mixed in."""
    return suite.digest(_MEASURING, files(subject))
