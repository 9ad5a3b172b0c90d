"""Put the medians of fresh processes into tables, and judge them."""

import collections
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np

from ..verdict import judge
from ..verdict.rules import FAMILIES, RULES, Family, Key
from .rounds import Round


class Pool(NamedTuple):
    """Medians of fresh processes, seconds: [rounds, subjects] for each version."""

    subjects: list[Key]
    seconds: dict[str, np.ndarray]

    @classmethod
    def of(cls, measured: Sequence[Round], versions: Iterable[str]) -> "Pool":
        """The medians of these rounds, for the subjects that every process has."""
        rows = {name: medians(measured, name) for name in versions}
        subjects = sorted(set.intersection(*(set(row) for all_ in rows.values() for row in all_)))
        return cls(
            subjects,
            {name: np.array([[r[s] for s in subjects] for r in rows[name]]) for name in rows},
        )

    @classmethod
    def from_json(cls, document: Mapping) -> "Pool":
        subjects = [Key(metric, tuple(params)) for metric, params in document["subjects"]]
        return cls(subjects, {name: np.array(rows) for name, rows in document["seconds"].items()})

    def as_json(self) -> dict:
        return {
            "subjects": [[subject.metric, list(subject.params)] for subject in self.subjects],
            "seconds": {name: rows.tolist() for name, rows in self.seconds.items()},
        }

    def judged(
        self,
        base: str,
        head: str,
        rounds: Sequence[int] | None = None,
        only: Set[Key] | None = None,
        identical: Set[Key] = frozenset(),
    ) -> dict[str, Family]:
        """The verdicts, by family: on all rounds and subjects, or on these.

        identical: what has the same machine code on both sides.
        """
        families, rows = {}, range(len(self.seconds[base])) if rounds is None else rounds
        for name, prefixes in FAMILIES.items():
            columns = [
                column
                for column, subject in enumerate(self.subjects)
                if subject.metric.startswith(prefixes) and (only is None or subject in only)
            ]
            if columns:
                index = np.ix_(list(rows), columns)
                families[name] = judge.judge(
                    [self.subjects[column] for column in columns],
                    self.seconds[base][index],
                    self.seconds[head][index],
                    RULES[name],
                    identical,
                )
        return families


def medians(measured: Sequence[Round], name: str) -> list[dict[Key, float]]:
    """The medians of a version's processes, by round: see :func:`medians_of`."""
    usual = _usual([answer for one in measured for answer in one.answers.values()])
    return [medians_of(one.answers[name], usual) for one in measured]


def medians_of(answer: dict, usual: Mapping[Key, float] | None = None) -> dict[Key, float]:
    """The median of each subject that a process timed, seconds.

    Where it was clocked in turns with other versions, it is the median share of their mean beside
    it, times what that usually takes, here or by ``usual``: the host of one process may be slower
    by a fifth than that of the next.
    """
    beside = _beside(answer)
    usual = _usual([answer]) if usual is None else usual
    return {
        key: _median(values, beside.get(key), usual.get(key))
        for key, values in _samples(answer["timings"])
    }


def _samples(rows: Iterable[Sequence]) -> Iterator[tuple[Key, list[float]]]:
    return ((Key(metric, tuple(params)), values) for metric, params, values in rows)


def _beside(answer: dict) -> dict[Key, list[float]]:
    return dict(_samples(answer.get("beside", ())))


def _usual(answers: Iterable[dict]) -> dict[Key, float]:
    """The median of what was clocked beside each subject, over processes, seconds."""
    samples = collections.defaultdict(list)
    for answer in answers:
        for key, values in _beside(answer).items():
            samples[key].append(statistics.median(values))
    return {key: statistics.median(values) for key, values in samples.items()}


def _median(values: list[float], beside: list[float] | None, usual: float | None) -> float:
    if beside is None or usual is None:
        return statistics.median(values)
    shares = (seconds / own for seconds, own in zip(values, beside, strict=True))
    return usual * statistics.median(shares)
