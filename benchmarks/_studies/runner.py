"""The one loop of all studies: tasks in fresh processes on one locked GPU, stored as they end.

A study has parts (an experiment, a model, a set of loss curves), each with a journal and files of
its own. A run that was stopped, or whose time was up, goes on from the journal.
"""

import argparse
import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from .._engine.compare.rounds import BudgetError
from .._engine.system import checkout, gpu_monitor, machine, process, suite
from .._engine.system.errors import CouldNotRunError
from .._engine.system.files import write_atomically
from .._engine.system.journal import Journal
from .._engine.system.progress import PROGRESS_VARIABLE, missing, say

DONE, BAD = 0, 1

Keep = Callable[..., None]
"""Stores entries, plain JSON, in the journal of a part."""


class StudyError(CouldNotRunError):
    """A study that cannot go on; the message says why."""


class Place(NamedTuple):
    """The version that is measured, where, and until when.

    ``machine``: asv's record. ``uuid``: of the GPU, "" for a study without one. ``scratch``: for
    what is not published. ``deadline``: in ``time.monotonic``'s seconds.
    """

    version: checkout.Version
    machine: dict
    arch: str
    uuid: str
    scratch: Path
    deadline: float

    @property
    def directory(self) -> Path:
        """Of the journals."""
        version = self.version.sha or self.version.digest
        return self.scratch / self.machine["machine"] / version[:8]


class Task(NamedTuple):
    """What is measured in one go; ``seconds`` is an estimate."""

    label: str
    seconds: float
    run: Callable[[Keep], object]


class Part:
    """A part of a study; ``name`` is that of its files.

    ``header``: plain JSON that must agree for entries to belong together, but for the keys
    ``may_differ``. ``why_not_shipped``: why its files are no evidence, however much is measured.
    """

    name: str
    header: dict
    may_differ: tuple[str, ...] = ("command",)
    why_not_shipped: str = ""

    def tasks(self, entries: list[dict]) -> list[Task]:
        """What is missing beside the entries of the journal, which grow while tasks run."""
        raise NotImplementedError

    def lines(self, header: dict, entries: list[dict]) -> Iterable[str]:
        """The results in short."""
        raise NotImplementedError

    def failures(self, header: dict, entries: list[dict]) -> list[str]:
        return []

    def page(self, header: dict, entries: list[dict], drawn: bool) -> Iterable[str]:
        """The results as lines of Markdown; ``drawn``: whether the plots lie beside it."""
        raise NotImplementedError

    def draw(self, header: dict, entries: list[dict], directory: Path) -> None:
        """Write the plots; ModuleNotFoundError without matplotlib."""

    def in_order(self, entries: list[dict]) -> list[dict]:
        """The entries as they are written."""
        return entries

    def publish(self, header: dict, entries: list[dict], directory: Path, final: bool) -> None:
        """Write the entries as JSON lines, the page and, if final, the plots."""
        directory.mkdir(parents=True, exist_ok=True)
        contents = (header, *self.in_order(entries))
        lines = (json.dumps(content, separators=(",", ":")) + "\n" for content in contents)
        write_atomically(directory / f"{self.name}.jsonl", "".join(lines).encode())
        drawn = final and self._drawn(header, entries, directory)
        text = "".join(f"{line}\n" for line in self.page(header, entries, drawn))
        (directory / f"{self.name}.md").write_text(text, encoding="utf-8")

    def _drawn(self, header: dict, entries: list[dict], directory: Path) -> bool:
        try:
            self.draw(header, entries, directory)
        except ModuleNotFoundError as error:
            if (how := missing(error)) is None:
                raise
            say(f"no plots: {how}; then the same command again")
            return False
        return True


def header_of(
    format: str,
    words: Iterable[str],
    place: Place,
    measuring: Iterable[str],
    software: Iterable[str],
) -> dict:
    """The header of a part that the words after ``study`` measure.

    ``measuring``: globs of the suite's files, a change of which is another measurement, as is one
    of the versions of ``software``.
    """
    return {
        **{"format": format, "schema": 1},
        "command": " ".join(("python -m benchmarks study", *words)),
        **{"commit": place.version.sha, "package": place.version.digest},
        **{"machine": place.machine, "software": machine.versions(software)},
        "suite": suite.digest(measuring),
    }


class Study(NamedTuple):
    """What ``python -m benchmarks study NAME`` measures.

    ``names``: what ``--only`` selects. ``evidence``: where files ship, by the machine's name.
    ``format``, ``stored``: of files that ``--redraw`` writes again, their header's format, and the
    part of a header and entries. ``needs``: what is measured: a "commit" (HEAD or ``--commit``),
    the package as it "lies", or nothing, "".
    """

    about: str
    description: str
    names: Callable[[], Iterable[str]]
    parts: Callable[[argparse.Namespace, Place], Sequence[Part]]
    evidence: Callable[[str], Path]
    format: str = ""
    stored: Callable[[dict, list[dict]], Part] | None = None
    add_arguments: Callable[[argparse.ArgumentParser], object] = lambda parser: None
    needs: str = "lies"


# --- the loop -------------------------------------------------------------------------------------


def run(
    parts: Sequence[Part], place: Place, directories: Sequence[Path], afresh: bool, wait: float
) -> int:
    """Measure what is missing of the parts, publish it after each task; the exit status.

    ``directories``: the output, then evidence, which gets complete parts only. ``afresh``: rename
    earlier journals. ``wait``: seconds to wait for a GPU that another process measures.
    """
    lock = gpu_monitor.gpu_lock(place.uuid, wait) if place.uuid else contextlib.nullcontext()
    good = []
    with lock:
        for part in parts:
            path = place.directory / f"{part.name}.jsonl"
            if afresh and path.exists():
                say(f"renamed to {path.rename(path.with_suffix(f'.{time.time_ns()}.jsonl'))}")
            with Journal(path, part.header, part.may_differ) as journal:
                header = journal.header | {key: part.header[key] for key in part.may_differ}
                _measure(part, header, journal, place, directories[0])
                good.append(publish(part, header, journal.entries, directories))
    return DONE if all(good) else BAD


def _measure(part: Part, header: dict, journal: Journal, place: Place, output: Path) -> None:
    tasks, took, estimated = part.tasks(journal.entries), 0.0, 0.0
    if journal.entries:
        say(f"{part.name}: {len(journal.entries)} entries are from an earlier run")
    if tasks:
        minutes = sum(task.seconds for task in tasks) / 60
        say(f"{part.name}: {len(tasks)} tasks, about {minutes:.0f} minutes by an estimate")
    for number, task in enumerate(tasks, 1):
        pace = took / estimated if estimated else 1.0
        start = time.monotonic()
        try:
            if start + pace * task.seconds > place.deadline:
                raise BudgetError
            if place.uuid:
                gpu_monitor.require_free(place.uuid)
            task.run(journal.append)
        except BudgetError:
            say(f"{part.name}: no time for {task.label}; the same command goes on from there")
            return
        seconds = time.monotonic() - start
        took, estimated = took + seconds, estimated + task.seconds
        left = sum(later.seconds for later in tasks[number:]) * took / estimated
        say(f"{part.name}: {task.label}, {seconds:.0f} s; about {left:.0f} s left")
        part.publish(header, journal.entries, output, final=False)


def publish(part: Part, header: dict, entries: list[dict], directories: Sequence[Path]) -> bool:
    """Write the files of a part and print it; whether it is complete and nothing failed."""
    if not entries:
        return False
    complete = not part.tasks(entries)
    for directory in directories if complete else directories[:1]:
        part.publish(header, entries, directory, final=True)
    if directories[1:] and not complete:
        say(f"{part.name}: does not ship: not all of it is measured")
    failures = part.failures(header, entries)
    print(f"\n# {part.name}", *part.lines(header, entries), *failures, sep="\n")
    print(f"{part.name}: {directories[-1]}")
    return complete and not failures


# --- processes ------------------------------------------------------------------------------------


class Notes:
    """What a process that measures leaves, line by line, for the process that started it."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def begin(self, index: int) -> None:
        """If the process ends from now on, this item is to blame."""
        print(json.dumps({"at": index}), file=self._stream, flush=True)

    def row(self, content: Any) -> None:
        """The result of the next item, plain JSON."""
        print(json.dumps({"row": content}, allow_nan=False), file=self._stream, flush=True)


def in_processes(
    work: Callable[..., object],
    items: Sequence[Any],
    *arguments: Any,
    place: Place,
    keep: Callable[[list], object],
    failed: Callable[[Any, str], Any],
) -> None:
    """Measure items in a fresh process that sees one GPU; one that ends it costs itself alone.

    ``work(items, alone, notes, *arguments)``, called in the process, notes a row for each item, in
    their order; if ``alone``, because the process before ended without saying where, it also says
    at which item it is. ``keep`` gets the rows of each process, also where Ctrl-C ends it.
    ``failed`` makes a row of an item to blame and what the process printed. StudyError if no
    process can be started, finds the GPU, or says which item is to blame.
    """
    left, alone = list(items), False
    environment = {"CUDA_VISIBLE_DEVICES": place.uuid, PROGRESS_VARIABLE: os.devnull}
    while left:
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch, "notes.jsonl")
            job = work, left, alone, arguments, place.uuid, place.machine["gpu"], file
            try:
                process.call(_work, *job, env=environment)
                return
            except RuntimeError as lost:
                error = lost
            finally:
                rows, at = _noted(file)
                keep(rows)
            started = file.exists()
        if not started or (alone and at is None and not rows):
            raise StudyError(f"no process can measure on {place.uuid}: {error}") from error
        blamed = None if at is None or at < len(rows) else left[at]
        left = left[len(rows) :]
        if blamed is not None:
            status, _, output = str(error).partition("\n")
            keep([failed(blamed, f"{status}\n{output[-2000:]}")])
            left.remove(blamed)
        alone = True


def _noted(file: Path) -> tuple[list, int | None]:
    """The rows that a process left, and the item that it began last."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    rows = [line["row"] for line in lines if "row" in line]
    return rows, next((line["at"] for line in reversed(lines) if "at" in line), None)


def _work(work, items, alone, arguments, uuid: str, model: str, file: Path) -> None:
    if reason := machine.why_another_gpu(uuid, model):
        raise StudyError(reason)
    with file.open("w", encoding="utf-8") as stream:
        work(items, alone, Notes(stream), *arguments)
