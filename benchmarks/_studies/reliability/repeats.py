"""The study ``aa``: comparisons of a version with itself, which show the false alarms."""

import functools
import random
from collections.abc import Mapping, Sequence

import numpy as np

from ..._engine.compare import findings, measure
from ..._engine.compare.pool import Pool
from ..._engine.subject import Cell
from ..._engine.verdict import rules
from ..._engine.verdict.rules import Answer
from ..._subjects.rope.grid import all_cells
from ..runner import Keep, Task
from .bench import AA_ROUNDS, ON_HOST, PROCESS_SECONDS, SUBJECT, Bench, Document, header_of

RUNS = 10
_SIDES = "one", "other"
_OF_SUITE = 12  # cells


class Repeats(Document):
    """An entry has the pools of a run: of its first look, and of its second if there was one."""

    name = "aa"

    def __init__(self, bench: Bench):
        self.bench, self.header = bench, header_of(bench, self.name, AA_ROUNDS)

    def tasks(self, entries: list[dict]) -> list[Task]:
        seconds = 3 * AA_ROUNDS * PROCESS_SECONDS
        return [
            Task(f"run {number} of {RUNS}", seconds, functools.partial(self._measure, number))
            for number in range(len(entries) + 1, RUNS + 1)
        ]

    def _measure(self, number: int, keep: Keep) -> None:
        versions, cells = dict.fromkeys(_SIDES, self.bench.base), timed_cells()
        job, name = measure.timing_job(cells, ON_HOST), f"aa-{number}"
        pool, again = self.bench.pool(name, versions, AA_ROUNDS, job), None
        if unclear := findings.inconclusive(_look(pool), frozenset()):
            again = self.bench.second_look(name, versions, cells, unclear).as_json()
        keep({"pool": pool.as_json(), "again": again})

    def document(self, header: dict, entries: list[dict], stored: dict) -> dict:
        return header | document(_joined(entries), [entry["again"] for entry in entries])

    def lines(self, header: dict, entries: list[dict]) -> list[str]:
        runs = self.document(header, entries, {})["comparisons"]
        failed, unsure = (
            sum(run["answer"] == str(answer) for run in runs)
            for answer in (Answer.FAIL, Answer.CANNOT_TELL)
        )
        return [
            f"of {len(runs)} independent comparisons of a version with itself {failed} failed and "
            f"{unsure} could not tell"
        ]


def timed_cells() -> list[Cell]:
    """The small grid, and a sample of each other kind of call, which is the same in every run."""
    cells: list[Cell] = [*all_cells("small")]
    candidates, drawn = [*SUBJECT.candidates()], random.Random(0)
    for suite in ("surface", "modules", "model_calls"):
        cells += drawn.sample([cell for cell in candidates if cell.suite == suite], _OF_SUITE)
    return cells


def document(pool: Pool, again: Sequence[dict | None]) -> dict:
    """What the runs of a pool say, ``AA_ROUNDS`` of its rounds each; ``again``: second looks."""
    return {
        "how": (
            f"runs of {AA_ROUNDS} rounds each, a round of fresh processes of one commit; every run "
            "is compared by itself, as two commits are; `again` has the second looks"
        ),
        "comparisons": [
            _comparison(pool, range(AA_ROUNDS * run, AA_ROUNDS * (run + 1)), second)
            for run, second in enumerate(again)
        ],
        "pool": pool.as_json(),
        "again": [*again],
    }


def _joined(entries: Sequence[Mapping]) -> Pool:
    """The rounds of all entries, with the subjects that every one has."""
    pools = [Pool.from_json(entry["pool"]) for entry in entries]
    subjects = sorted(set.intersection(*(set(pool.subjects) for pool in pools)))
    runs = [(pool.seconds, [pool.subjects.index(key) for key in subjects]) for pool in pools]
    seconds = {
        name: np.concatenate([of_run[name][:, columns] for of_run, columns in runs])
        for name in _SIDES
    }
    return Pool(subjects, seconds)


def _look(pool: Pool, rows: Sequence[int] | None = None) -> findings.Look:
    count = len(pool.seconds[_SIDES[0]] if rows is None else rows)
    return findings.Look(count, pool.judged(*_SIDES, rows), [], [])


def _comparison(pool: Pool, rows: Sequence[int], again: dict | None) -> dict:
    first = _look(pool, rows)
    second = _look(Pool.from_json(again)) if again else findings.no_look()
    both = findings.joined(first, second)
    families = both.families
    timings = [timing for family in families.values() for timing in family.timings]
    return {
        "failed": sum(timing.answer is Answer.FAIL for timing in timings),
        "inconclusive_first": len(findings.inconclusive(first, frozenset())),
        "inconclusive": len(findings.inconclusive(both, frozenset())),
        "faster": sum(timing.change == "faster" for timing in timings),
        "control_failed": sum(family.control.failed for family in families.values()),
        "floor": families["gpu"].control.floor,
        "first": str(rules.overall(first.families.values(), ())),
        "answer": str(rules.overall(families.values(), ())),
    }
