"""The study ``parity``: loss curves of the providers beside those of float32 eager PyTorch."""

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path

from ..._engine.system import journal, suite
from .. import runner
from ..runner import Keep, Notes, Part, Place, StudyError, Task
from . import parity_results
from .functions import PROVIDERS
from .parity import JOBS, STEPS, Job, Run, cost, runs, text_digest, trained, with_rope
from .sizes import PARITY
from .training_study import EVIDENCE, of_place

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
    words = ["python -m benchmarks study parity", *(f"--only {name}" for name in options.only)]
    header = {
        **{"format": parity_results.FORMAT, "schema": parity_results.SCHEMA, "point": str(PARITY)},
        **{"batch": PARITY.batch, "steps": STEPS, "text": text_digest()},
        **{"suite": suite.digest(_TRAINING), "command": " ".join(words), **of_place(place)},
    }
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

    def publish(self, header: dict, entries: list[dict], directory: Path, final: bool) -> None:
        """Write the curves as JSON lines, what they say as Markdown and, if final, the plot."""
        runner.write_lines(directory / f"{NAME}.jsonl", (header, *entries))
        draw = functools.partial(self._draw, header, entries, directory)
        drawn = final and runner.drawn(draw, header["command"])
        rows = parity_results.rows(self._names, entries)
        page = parity_results.as_markdown(header, rows, drawn)
        (directory / f"{NAME}.md").write_text(page, encoding="utf-8")

    def _draw(self, header: dict, entries: list[dict], directory: Path) -> None:
        package = f"commit {header['commit'][:8]}" if header["commit"] else "a working tree"
        about = f"{PARITY} on {header['machine']['gpu']}, {package}"
        parity_results.draw(self._names, entries, about, directory / f"{NAME}.png")

    def report(self, header: dict, entries: list[dict]) -> bool:
        rows = parity_results.rows(self._names, entries)
        for line in parity_results.table(rows):
            print(line)
        bad = [row for row in rows if row.status not in _GOOD]
        for row in bad:
            print(f"{row.status.upper()}: {row.provider} in {row.dtype}, {row.task}: {row.why}")
        return not bad


def train(items: Sequence[tuple[Run, Sequence[Job]]], alone: bool, notes: Notes) -> None:
    """In a fresh process: note the curves of each run."""
    for index, (run, jobs) in enumerate(items):
        notes.begin(index)
        notes.row(trained(run, PARITY, jobs, "cuda"))


def _stored(directory: Path) -> list[tuple[Part, dict, list[dict]]]:
    if not (path := directory / f"{NAME}.jsonl").exists():
        return []
    header, *entries = journal.read(path)
    providers = {entry["provider"] for entry in entries if entry["dtype"] != "float32"}
    names = [name for name in PROVIDERS if name in providers]
    return [(_Curves(names, header), header, entries)]


STUDY = runner.Study(
    about="loss curves of the training providers beside float32's",
    description="""\
Train a small model by each provider with RoPE, and compare the loss curves with those of float32
eager PyTorch; nothing is timed. A library that is not installed is n/a.""",
    names=lambda: PROVIDERS,
    parts=_parts,
    evidence=lambda machine: EVIDENCE,
    stored=_stored,
)
