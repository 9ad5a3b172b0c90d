"""The study ``aa``: comparisons of a version with itself, which show the false alarms."""

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from ..._engine.compare import measure
from ..._engine.compare.pool import Pool
from ..._engine.verdict import rules
from ..._engine.verdict.rules import Answer
from ..._subjects.rope.grid import all_cells
from ..runner import Keep, Task
from .bench import AA_ROUNDS, ON_HOST, PROCESS_SECONDS, Bench, Document, header_of

RUNS = 10


class Repeats(Document):
    """An entry has the pool of a run."""

    name = "aa"

    def __init__(self, bench: Bench):
        self.bench, self.header = bench, header_of(bench, self.name, AA_ROUNDS)

    def tasks(self, entries: list[dict]) -> list[Task]:
        seconds = 2 * AA_ROUNDS * PROCESS_SECONDS
        return [
            Task(f"run {number} of {RUNS}", seconds, functools.partial(self._measure, number))
            for number in range(len(entries) + 1, RUNS + 1)
        ]

    def _measure(self, number: int, keep: Keep) -> None:
        versions = {"one": self.bench.base, "other": self.bench.base}
        job = measure.timing_job(all_cells("small"), ON_HOST)
        keep({"pool": self.bench.pool(f"aa-{number}", versions, AA_ROUNDS, job).as_json()})

    def document(self, header: dict, entries: list[dict], stored: dict) -> dict:
        return header | document(_joined(entries))

    def lines(self, header: dict, entries: list[dict]) -> list[str]:
        runs = document(_joined(entries))["comparisons"]
        failed, unsure = (
            sum(run["answer"] == str(answer) for run in runs)
            for answer in (Answer.FAIL, Answer.CANNOT_TELL)
        )
        return [
            f"of {len(runs)} independent comparisons of a version with itself {failed} failed and "
            f"{unsure} could not tell"
        ]


def document(pool: Pool) -> dict:
    """What the runs of a pool say, ``AA_ROUNDS`` of its rounds each."""
    return {
        "how": (
            f"runs of {AA_ROUNDS} rounds each, a round of two fresh processes of one commit, their "
            "order alternating; every run is compared by itself, as two commits are by their first "
            "look"
        ),
        "comparisons": [
            _comparison(pool, range(first, first + AA_ROUNDS))
            for first in range(0, len(pool.seconds["one"]), AA_ROUNDS)
        ],
        "pool": pool.as_json(),
    }


def _joined(entries: Sequence[Mapping]) -> Pool:
    """The rounds of all entries, with the subjects that every one has."""
    pools = [Pool.from_json(entry["pool"]) for entry in entries]
    subjects = sorted(set.intersection(*(set(pool.subjects) for pool in pools)))
    runs = [(pool.seconds, [pool.subjects.index(key) for key in subjects]) for pool in pools]
    seconds = {
        name: np.concatenate([of_run[name][:, columns] for of_run, columns in runs])
        for name in ("one", "other")
    }
    return Pool(subjects, seconds)


def _comparison(pool: Pool, rows: Sequence[int]) -> dict:
    families = pool.judged("one", "other", rows)
    timings = [timing for family in families.values() for timing in family.timings]
    return {
        "failed": sum(timing.answer is Answer.FAIL for timing in timings),
        "cannot_tell": sum(timing.answer is Answer.CANNOT_TELL for timing in timings),
        "faster": sum(timing.change == "faster" for timing in timings),
        "control_failed": sum(family.control.failed for family in families.values()),
        "floor": families["gpu"].control.floor,
        "answer": str(rules.overall(families.values(), ())),
    }
