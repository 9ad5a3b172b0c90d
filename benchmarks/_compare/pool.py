"""Rounds of several versions, as the tables of medians that verdicts are drawn from."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from .._cells.grid import GRIDS, Cell, cells
from .._verdict import judge
from .._verdict.rules import FAMILIES, RULES, Family, Subject
from . import rounds

ROUNDS = 12


def small_grid() -> list[Cell]:
    """The cells that a comparison times first."""
    return cells(GRIDS["small"])


@dataclasses.dataclass(frozen=True)
class Pool:
    """Medians of fresh processes, seconds: [rounds, subjects] for each arm."""

    subjects: list[Subject]
    seconds: dict[str, np.ndarray]

    @classmethod
    def of(cls, measured: Sequence, names: Sequence[str]) -> "Pool":
        rows = {name: rounds.medians(measured, name) for name in names}
        subjects = sorted(set.intersection(*(set(row) for all_ in rows.values() for row in all_)))
        return cls(
            subjects,
            {name: np.array([[r[s] for s in subjects] for r in rows[name]]) for name in names},
        )

    @classmethod
    def from_json(cls, document: Mapping) -> "Pool":
        subjects = [Subject(metric, tuple(params)) for metric, params in document["subjects"]]
        return cls(subjects, {arm: np.array(rows) for arm, rows in document["seconds"].items()})

    def as_json(self) -> dict:
        return {
            "subjects": [[subject.metric, list(subject.params)] for subject in self.subjects],
            "seconds": {arm: rows.tolist() for arm, rows in self.seconds.items()},
        }

    def judged(self, base: str, head: str, chosen: Sequence[int]) -> dict[str, Family]:
        """The verdicts, by family, on these rounds."""
        families = {}
        for name, prefixes in FAMILIES.items():
            columns = [i for i, s in enumerate(self.subjects) if s.metric.startswith(prefixes)]
            if columns:
                index = np.ix_(list(chosen), columns)
                families[name] = judge.judge(
                    [self.subjects[i] for i in columns],
                    self.seconds[base][index],
                    self.seconds[head][index],
                    RULES[name],
                )
        return families
