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
    """What is measured and where.

    ``version``: the package. ``machine``: asv's record of it. ``arch``: the GPU's, as
    ``machine.probe`` gives it. ``uuid``: the GPU's, "" for a study without one. ``scratch``: a
    directory for what is not published. ``deadline``: in ``time.monotonic``'s seconds.
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
    """What is measured in one go: ``run`` stores its entries. ``seconds``: an estimate."""

    label: str
    seconds: float
    run: Callable[[Keep], object]


class Part:
    """A part of a study.

    Attributes
    ----------
    name : str
        Of its files.
    header : dict
        All that must agree for entries to belong together; plain JSON.
    may_differ : tuple of str
        Keys of the header that need not agree.
    why_not_shipped : str
        Why its files are not evidence, however much of it is measured; "" if they are.
    """

    name: str
    header: dict
    may_differ: tuple[str, ...] = ("command",)
    why_not_shipped: str = ""

    def tasks(self, entries: list[dict]) -> list[Task]:
        """What is missing beside the entries of the journal, which grow while tasks run."""
        raise NotImplementedError

    def lines(self, header: dict, entries: list[dict]) -> Iterable[str]:
        """The results in short, to be printed."""
        raise NotImplementedError

    def failures(self, header: dict, entries: list[dict]) -> list[str]:
        """What is not well, a line each."""
        return []

    def page(self, header: dict, entries: list[dict], drawn: bool) -> str:
        """The results as Markdown; ``drawn``: whether the plots lie beside it."""
        raise NotImplementedError

    def draw(self, header: dict, entries: list[dict], directory: Path) -> None:
        """Write the plots.

        Raises
        ------
        ModuleNotFoundError
            If matplotlib is not installed.
        """

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
        page = self.page(header, entries, drawn)
        (directory / f"{self.name}.md").write_text(page, encoding="utf-8")

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
    """The header of a part.

    Parameters
    ----------
    format : str
        The study's.
    words : iterable of str
        Of the command, after ``study``.
    place : Place
        The version and the machine.
    measuring : iterable of str
        Globs of the suite's files: a change of these is another measurement.
    software : iterable of str
        Distributions whose versions are part of what is measured.
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

    ``about``: a line of help. ``description``: more of it. ``names``: what ``--only`` selects.
    ``parts``: from the options and the place. ``evidence``: where files ship, by the machine's
    name. ``format``: of the headers of its files; "" where these cannot be written again.
    ``stored``: the part of a header and entries. ``add_arguments``: options of its own. ``needs``:
    what it measures: a "commit" (HEAD or ``--commit``), the package as it "lies", or nothing, "".
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
    """Measure what is missing of the parts, publish it after each task, and print it at the end.

    Parameters
    ----------
    parts : sequence of Part
        In the order in which they are measured.
    place : Place
        The version, the GPU, and until when.
    directories : sequence of Path
        Where files go: first the output, then evidence, which gets complete parts only.
    afresh : bool
        Whether earlier journals are renamed and not continued.
    wait : float
        Seconds to wait for a GPU that another process measures.

    Returns
    -------
    int
        ``DONE``, or ``BAD`` if something failed or is missing.
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
    """Run the tasks that are missing and that there is time for."""
    tasks, took, estimated = part.tasks(journal.entries), 0.0, 0.0
    if journal.entries:
        say(f"{part.name}: {len(journal.entries)} entries are from an earlier run")
    if tasks:
        minutes = sum(task.seconds for task in tasks) / 60
        say(f"{part.name}: {len(tasks)} tasks, about {minutes:.0f} minutes by an estimate")
    for number, task in enumerate(tasks, 1):
        pace = took / estimated if estimated else 1.0
        start = time.monotonic()
        if start + pace * task.seconds > place.deadline:
            _no_time(part, task.label)
            return
        if place.uuid:
            gpu_monitor.require_free(place.uuid)
        try:
            task.run(journal.append)
        except BudgetError:
            _no_time(part, task.label)
            return
        seconds = time.monotonic() - start
        took, estimated = took + seconds, estimated + task.seconds
        left = sum(later.seconds for later in tasks[number:]) * took / estimated
        say(f"{part.name}: {task.label}, {seconds:.0f} s; about {left:.0f} s left")
        part.publish(header, journal.entries, output, final=False)


def _no_time(part: Part, label: str) -> None:
    say(f"{part.name}: no time for {label}; the same command goes on from there")


def publish(part: Part, header: dict, entries: list[dict], directories: Sequence[Path]) -> bool:
    """Write the files of a part and print it; whether it is complete and nothing failed."""
    if not entries:
        return False
    output, *evidence = directories
    missing = part.tasks(entries)
    part.publish(header, entries, output, final=True)
    for directory in evidence:
        if why := part.why_not_shipped or ("not all of it is measured" if missing else ""):
            say(f"{part.name}: does not ship: {why}")
        else:
            part.publish(header, entries, directory, final=True)
    failures = part.failures(header, entries)
    print(f"\n# {part.name}", *part.lines(header, entries), *failures, sep="\n")
    print(f"{part.name}: {directories[-1]}")
    return not failures and not missing


# --- processes ------------------------------------------------------------------------------------


class Notes:
    """What a process that measures leaves, line by line, for the process that started it."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def begin(self, index: int) -> None:
        """If the process ends from now on, this item is to blame."""
        self._write({"at": index})

    def row(self, content: Any) -> None:
        """The result of the next item, plain JSON."""
        self._write({"row": content})

    def _write(self, line: dict) -> None:
        self._stream.write(json.dumps(line, allow_nan=False) + "\n")
        self._stream.flush()


def in_processes(
    work: Callable[..., object],
    items: Sequence[Any],
    *arguments: Any,
    place: Place,
    keep: Callable[[list], object],
    failed: Callable[[Any, str], Any],
) -> None:
    """Measure items in a fresh process that sees one GPU; one that ends it costs itself alone.

    Parameters
    ----------
    work : callable
        ``work(items, alone, notes, *arguments)``, called in the process. It notes a row for each
        item, in their order. ``alone``: whether it has to say at which item it is, because the
        process before ended without saying.
    items : sequence
        What is measured.
    place : Place
        The GPU.
    keep : callable
        Gets the rows of each process when it ends, also where Ctrl-C ends it.
    failed : callable
        From an item to blame and what the process printed, a row.

    Raises
    ------
    StudyError
        If no process can be started, finds the GPU, or says which item is to blame.
    """
    left, alone = list(items), False
    environment = {"CUDA_VISIBLE_DEVICES": place.uuid, PROGRESS_VARIABLE: os.devnull}
    while left:
        error: RuntimeError | None = None
        rows: list = []
        at = None
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch, "notes.jsonl")
            job = work, left, alone, arguments, place.uuid, place.machine["gpu"], file
            try:
                process.call(_work, *job, env=environment)
            except RuntimeError as lost:
                error = lost
            finally:
                rows, at = _noted(file)
                keep(rows)
            started = file.exists()
        if error is None:
            return
        unclear = at is None and not rows and alone
        if not started or unclear:
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
    """In the fresh process."""
    if reason := machine.why_another_gpu(uuid, model):
        raise StudyError(reason)
    with file.open("w", encoding="utf-8") as stream:
        work(items, alone, Notes(stream), *arguments)
