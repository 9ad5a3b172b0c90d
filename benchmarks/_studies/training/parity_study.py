"""The study ``parity``: loss curves of the providers beside those of float32 eager PyTorch."""

import argparse
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

from .. import pages, runner
from ..runner import Keep, Notes, Part, Place, StudyError, Task
from . import parity_results
from .functions import PROVIDERS
from .parity import JOBS, STEPS, Job, Run, cost, runs, text_digest, trained, with_rope
from .sizes import PARITY
from .training_study import DISTRIBUTIONS, EVIDENCE

NAME = "parity"
_GOOD = (parity_results.PASS, parity_results.UNAVAILABLE)
# A change of these is another experiment.
_TRAINING = tuple(
    f"_studies/training/{name}.py" for name in ("network", "parity", "functions", "sizes")
)


def _parts(options: argparse.Namespace, place: Place) -> list[Part]:
    """The curves of the providers that were asked for, which all go into one journal.

    Raises
    ------
    StudyError
        If none of them has RoPE.
    """
    names = with_rope(options.only or PROVIDERS)
    if not names:
        raise StudyError(f"loss curves are of providers with RoPE, got {options.only}")
    words = [NAME, *(f"--only {name}" for name in options.only)]
    header = runner.header_of(parity_results.FORMAT, words, place, _TRAINING, DISTRIBUTIONS)
    header |= {"point": str(PARITY), "batch": PARITY.batch, "steps": STEPS, "text": text_digest()}
    return [_Curves(names, header, place)]


class _Curves(Part):
    name = NAME

    def __init__(self, names: Sequence[str], header: dict, place: Place | None = None):
        self._names, self.header, self._place = names, header, place
        complete = set(names) == set(with_rope(PROVIDERS))
        self.why_not_shipped = "" if complete else "it has not every provider with RoPE"

    def tasks(self, entries: list[dict]) -> list[Task]:
        there = parity_results.by_key(entries)
        tasks = []
        for run in runs(self._names):
            if jobs := [job for job in JOBS if (run, job) not in there]:
                train = functools.partial(self._train, run, jobs)
                tasks.append(Task(f"{len(jobs)} curves of {run}", cost(run, len(jobs)), train))
        return tasks

    def _train(self, run: Run, jobs: Sequence[Job], keep: Keep) -> None:
        """The curves, in a process of their own; if it ends early, that is the result of each."""

        def failed(item: tuple[Run, Sequence[Job]], why: str) -> list[dict]:
            return [{**job._asdict(), **run._asdict(), "error": why} for job in jobs]

        assert self._place
        runner.in_processes(
            *(train, [(run, jobs)]),
            place=self._place,
            keep=lambda rows: keep(*(curve for row in rows for curve in row)),
            failed=failed,
        )

    def page(self, header: dict, entries: list[dict], drawn: bool) -> str:
        return parity_results.as_markdown(header, parity_results.rows(self._names, entries), drawn)

    def draw(self, header: dict, entries: list[dict], directory: Path) -> None:
        about = f"{PARITY} on {header['machine']['gpu']}, {pages.package(header)}"
        parity_results.draw(self._names, entries, about, directory / f"{NAME}.png")

    def lines(self, header: dict, entries: list[dict]) -> Iterator[str]:
        return parity_results.table(parity_results.rows(self._names, entries))

    def failures(self, header: dict, entries: list[dict]) -> list[str]:
        return [
            f"{row.status.upper()}: {row.provider} in {row.dtype}, {row.task}: {row.why}"
            for row in parity_results.rows(self._names, entries)
            if row.status not in _GOOD
        ]


def train(items: Sequence[tuple[Run, Sequence[Job]]], alone: bool, notes: Notes) -> None:
    """In a fresh process: note the curves of each run."""
    for index, (run, jobs) in enumerate(items):
        notes.begin(index)
        notes.row(trained(run, PARITY, jobs, "cuda"))


def _stored(header: dict, entries: list[dict]) -> Part:
    providers = {entry["provider"] for entry in entries if entry["dtype"] != "float32"}
    return _Curves([name for name in PROVIDERS if name in providers], header)


STUDY = runner.Study(
    about="loss curves of the training providers beside float32's",
    description="""\
Train a small model by each provider with RoPE, and compare the loss curves with those of float32
eager PyTorch; nothing is timed. A library that is not installed is n/a.""",
    names=lambda: PROVIDERS,
    parts=_parts,
    evidence=lambda machine: EVIDENCE,
    format=parity_results.FORMAT,
    stored=_stored,
)
