"""A comparison on a GPU: compile, check, choose, time, judge."""

import time
from collections.abc import Mapping, Set
from dataclasses import replace
from typing import NamedTuple

from ..machine_code import worker_pool
from ..report.notes import text, texts
from ..subject import Cell
from ..system import gpu_monitor
from ..system.progress import say
from ..verdict.metrics import FAMILIES
from ..verdict.note import Kind, Note
from ..verdict.rules import MIN_ROUNDS, Answer, Exact, Key, overall
from ..verdict.schema import Comparison
from . import exact, findings, measure, rounds, selection
from .findings import BASE, HEAD, SIDES, Checks, Look, keys_of
from .options import NothingToTimeError, Request
from .rounds import Rounds

# What is inconclusive in the first look is measured in this many more rounds, or as time permits,
# and judged by these alone: the first rounds chose it, and must not count twice.
EXTENSION_ROUNDS = 24


class _Compiled(NamedTuple):
    """What both versions compile to, which is unknown on an unknown architecture.

    facts: by side and timing. identical: timings that run the same machine code in both.
    """

    known: bool
    code: dict[str, exact.Code]
    facts: Mapping[str, selection.Compiled]
    identical: frozenset[Key]

    @property
    def values(self) -> dict[str, findings.Values]:
        return {side: one.values for side, one in self.code.items()}


class _Chosen(NamedTuple):
    """The cells to time, those of them that can be, and what differs and is not among them."""

    cells: list[Cell]
    right: list[Cell]
    left: selection.Left


class Run:
    """A comparison on a GPU; an earlier run's rounds and choices are taken from the journal."""

    def __init__(
        self, request: Request, ledgers: Mapping[str, worker_pool.Ledger], measured: Rounds
    ):
        self._request, self._ledgers, self._measured = request, ledgers, measured
        self._cells, self._checked = request.cells(), request.checked()
        self._notes: list[Note] = []

    def compare(self, unmeasured: Comparison) -> Comparison:
        """Compile, check, choose, time, judge: each step needs what the ones before it found."""
        minutes = self._measured.minutes  # of earlier runs
        compiled, checks = self._compile_and_check()
        chosen = self._choose(compiled, checks)
        first, second, exact_values = self._time(compiled, checks, chosen)
        look = findings.joined(first, second)
        wrong = (*checks.wrong, *look.wrong)
        lost = () if wrong else self._lost(compiled, checks, chosen, look)
        return replace(
            unmeasured,
            clocks=findings.clocks(self._measured.rounds("look1")),
            rounds=look.rounds,
            extension=second.rounds,
            minutes=minutes,
            families=look.families,
            exact=exact_values,
            identical=compiled.identical,
            represented=chosen.left.represented,
            unmeasured=(
                *unmeasured.unmeasured,
                *_untimed(chosen.left.untimed, "no time"),
                *lost,
                *selection.unreached(compiled.code),
            ),
            wrong=wrong,
            notes=(*checks.notes, *self._notes, *look.notes, *findings.problems(compiled.values)),
            discarded=tuple(self._measured.discarded),
        )

    def _compile_and_check(self) -> tuple[_Compiled, Checks]:
        """Each version is checked as soon as it is compiled, while the next one is compiled."""
        measured, arch = self._measured, self._request.arch
        known = arch in self._request.subject.TARGETS
        gpu_monitor.require_free(measured.plan.uuid)
        code = dict.fromkeys(SIDES, exact.NOT_COMPILED)
        job = measure.check_job(self._checked)
        measured.get_ready([side for side in SIDES if side not in measured.checked])
        if known:
            request = self._request
            code = exact.compile_both(
                *(request.subject, request.roots, (arch,), arch, self._cells, self._ledgers),
                # Its process finds everything compiled, and leaves cores to the compilers.
                done=lambda side: measured.begin_check(side, job),
            )
        else:
            self._notes.append(Note("architecture", arch))
        answers = measured.check(job, then=measured.plan.order(0))
        facts = selection.facts_of(code, findings.changed_nodes(answers))
        identical = frozenset(selection.identical(facts))
        if known:
            say(f"{arch}: same machine code in {len(identical)} of {len(facts[BASE])} timings")
        checks = findings.judge_checks(answers, self._checked)
        return _Compiled(known, code, facts, identical), checks

    def _choose(self, compiled: _Compiled, checks: Checks) -> _Chosen:
        """What is timed: where the machine code is unknown, what was checked."""
        only = self._request.only
        cells = self._cells if compiled.known else self._checked
        if only:
            self._notes.append(Note("only"))
        chosen = self._affordable(cells, compiled)
        same = [cell for cell in cells if keys_of(cell) <= compiled.identical]
        if untimed := len(set(same) - set(chosen)):
            self._notes.append(Note("same code", count=untimed, total=len(same)))
        right = [cell for cell in chosen if cell in checks.right or cell not in self._checked]
        if not right and not checks.wrong and not only:
            reasons = "; ".join(texts([*checks.notes, *self._notes][:3]) or ["no reason"])
            raise NothingToTimeError(f"no cell is right in both versions: {reasons}")
        return _Chosen(chosen, right, selection.left(cells, compiled.facts, chosen))

    def _affordable(self, cells: list[Cell], compiled: _Compiled) -> list[Cell]:
        """The cells that there is time for; another run keeps to them."""
        request = self._request
        seconds_left = max(0.0, request.deadline - time.monotonic())
        everything = request.grid == "full"
        second_look = selection.minutes(0, EXTENSION_ROUNDS)
        chosen = selection.choose(
            cells,
            compiled.facts,
            len(cells) if everything else selection.affordable(seconds_left, MIN_ROUNDS),
            seed="".join(request.digests.values()),
            ends=selection.affordable(seconds_left - 60 * second_look, request.rounds),
            few=len(cells) if everything else selection.FEW_CELLS,
            every_cell=request.every_cell,
        )
        settled = self._measured.settle("cells", measure.rows_of(chosen))
        timed = [request.subject.cell(suite, params) for suite, params in settled]
        minutes = selection.minutes(len(timed), request.rounds)
        say(
            f"{len(timed)} cells are timed: about {minutes:.0f} minutes for {request.rounds} "
            f"rounds, and up to {second_look:.0f} more if a timing is inconclusive"
        )
        return timed

    def _time(
        self, compiled: _Compiled, checks: Checks, chosen: _Chosen
    ) -> tuple[Look, Look, tuple[Exact, ...]]:
        """Both looks at the clock, and the exact values, which a clock decides on."""
        first = findings.no_look()
        if chosen.right or (self._request.only and self._request.host):
            first = self._first_look(chosen.right, compiled.identical)
        values, clock_decides = compiled.values, "gpu" in first.families
        verdicts = exact.compare(values[BASE], values[HEAD], clock_decides=clock_decides)
        exact_values, wrong = (*checks.exact, *verdicts), (*checks.wrong, *first.wrong)
        answer = overall(first.families.values(), exact_values, compiled.identical, wrong)
        fails = answer is Answer.FAIL
        second = self._second_look(chosen.right, first, compiled.identical, fails)
        return first, second, exact_values

    def _first_look(self, cells: list[Cell], identical: Set[Key]) -> Look:
        """The rounds that are asked for, or as many as there is time for.

        The number is settled by how long two rounds take, one in each order, and by nothing else
        about them. If the time is too short even for the fewest, measuring begins all the same, and
        another run goes on. That run keeps to the number: with more rounds it would judge twice.
        """
        measured, most = self._measured, self._request.rounds
        job = measure.timing_job(cells, host=self._request.host)
        measured.run("look1", most, job, only=2)
        count = measured.settled("look1") or measured.affordable("look1", most, like="look1")
        if count < MIN_ROUNDS:
            say(
                f"there is time for {count} of the {MIN_ROUNDS} rounds that a verdict needs: "
                "they are kept, and the same command goes on from there"
            )
            count = most
        elif count < most:
            self._notes.append(Note("fewer rounds", count=count, total=most))
            say(text(self._notes[-1]))
        measured.run("look1", measured.settle("look1", count), job)
        return findings.judge_rounds(measured.rounds("look1"), identical)

    def _second_look(
        self, cells: list[Cell], first: Look, identical: Set[Key], fails: bool
    ) -> Look:
        """Measure anew what is inconclusive in the first look, and let that decide.

        ``fails``: whether the comparison fails already, which no second look would change.
        """
        open_ = findings.inconclusive(first, identical)
        if not open_:
            return findings.no_look()
        measured = self._measured
        # Settled before any of them is seen, so that no result decides when to stop, and once.
        count = measured.settled("look2") or measured.affordable(
            "look2", EXTENSION_ROUNDS, like="look1"
        )
        reason = f"the time that is left is not enough for {MIN_ROUNDS} rounds"
        if fails:
            reason = "the comparison fails without it"
        elif count >= MIN_ROUNDS:
            say(f"{len(open_)} timings are inconclusive: {count} more rounds of these")
            host = any(not key.metric.startswith(FAMILIES["gpu"]) for key in open_)
            job = measure.timing_job([cell for cell in cells if keys_of(cell) & open_], host)
            try:
                measured.run("look2", measured.settle("look2", count), job)
                again = measured.rounds("look2")[:count]
                return findings.judge_rounds(again, identical, open_)
            except rounds.BudgetError as error:
                reason = str(error)
        self._notes.append(Note("no second look", reason, count=len(open_)))
        return findings.no_look()

    def _lost(self, compiled: _Compiled, checks: Checks, chosen: _Chosen, look: Look) -> list[Note]:
        """What was chosen and has no verdict, where nothing is wrong on the head.

        What the head alone cannot do is wrong; what the base cannot has nothing to be compared
        with.
        """
        of_both = [cell for cell in chosen.cells if cell not in checks.new]
        judged = [cell for cell in of_both if keys_of(cell) <= look.judged]
        untimed = selection.left(of_both, compiled.facts, judged).untimed
        lost = _untimed(untimed - look.mended, "not timed")
        # No machine code says what the host does: where the sources differ, all of it may.
        if len(set(self._request.digests.values())) > 1:
            lost += _untimed(look.lost_on_host, "no host time")
        return lost


def _untimed(keys: Set[Key], kind: Kind) -> list[Note]:
    """A note on what differs and is not timed, if there is any."""
    return [Note(kind, keys=tuple(sorted(keys)))] if keys else []
