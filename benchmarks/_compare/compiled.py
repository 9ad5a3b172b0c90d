"""What was compiled of a version is kept: the next comparison, or a killed one, finds it there.

Each version has a journal, named by the digest of all that its machine code depends on. It is open
for milliseconds at a time, so several processes may add to it.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .._machine_code import fingerprint, worker_pool
from .._system import suite
from .._system.journal import Journal, JournalError
from .rounds import BudgetError

KEEP = 300
"""Versions whose machine code is kept, those that were last used."""

_SAY_SECONDS = 15.0
_KEEP_SECONDS = 5.0  # of work are lost at most when the run is killed
# What finds the facts out, and what writes them.
_MEASURING = (
    *("_cells/grid.py", "_cells/package_calls.py", "_cells/subjects.py"),
    *("_machine_code/*.py", "_system/process.py", "_system/journal.py", "_compare/compiled.py"),
)
# Of environment variables that Triton, its compilers and the package look at.
_VARIABLES = (
    *("TRITON_", "LLVM_", "MLIR_", "PTXAS", "NVPTX_", "AMDGCN_", "DISABLE_", "USE_IR_LOC"),
    "ROPE_TRITON_",
)
_NO_MATTER = ("TRITON_CACHE_DIR",)  # each survey has one of its own


class Version:
    """What is kept of a version's machine code.

    Parameters
    ----------
    scratch : Path
        It is kept below this directory.
    digest : str
        Of the package's sources.
    machine : mapping
        The record of ``machine``.
    """

    def __init__(self, scratch: Path, digest: str, machine: Mapping[str, str]):
        self._depends = {
            "package": digest,
            "suite": suite.digest(_MEASURING),
            "python": platform.python_version(),
            **{name: machine[name] for name in ("torch", "triton")},
            "environment": {
                name: value
                for name, value in os.environ.items()
                if name.startswith(_VARIABLES) and name not in _NO_MATTER
            },
        }
        text = json.dumps(self._depends, sort_keys=True)
        name = hashlib.sha256(text.encode()).hexdigest()[:32]
        self.path = scratch / "code" / f"{name}.jsonl"

    def read(self, say: Callable[[str], None]) -> dict[tuple, object]:
        """The answers that are kept; a journal that is damaged is deleted, and ``say`` says so."""
        try:
            with Journal(self.path, self._depends, wait=True) as kept:
                os.utime(self.path)
                return {tuple(e["job"]): _from_json(e["answer"]) for e in kept.entries}
        except JournalError as error:
            say(f"{error}; it is deleted: what it held is compiled again")
            self.drop()
            return {}

    def add(self, answers: Sequence[tuple[tuple, object]]) -> None:
        """Keep more answers, (job, answer) each, and no more versions than :data:`KEEP`."""
        with Journal(self.path, self._depends, wait=True) as kept:
            kept.append(*({"job": job, "answer": _as_json(answer)} for job, answer in answers))
        with contextlib.suppress(FileNotFoundError):  # another process deletes them
            _keep_newest(self.path.parent)

    def drop(self) -> None:
        """Forget what is kept."""
        self.path.unlink(missing_ok=True)


def _keep_newest(directory: Path) -> None:
    versions = [(path.stat().st_mtime, path) for path in directory.glob("*.jsonl")]
    for _, path in sorted(versions, reverse=True)[KEEP:]:
        path.unlink()
        path.with_name(f"{path.name}.lock").unlink()


class TimeUp(BudgetError):
    """The time is up before everything is compiled; what is compiled is kept.

    The text says how much that is when it is asked for, so after all surveys have ended.
    """

    def __init__(self, progress: "Progress", afresh: bool):
        super().__init__()
        self._progress, self._again = progress, ", without --afresh," if afresh else ""

    def __str__(self) -> str:
        return (
            f"the time is up: compiled {self._progress.done} of {self._progress.total}, which are "
            f"kept: the same command{self._again} goes on from there"
        )


class Progress:
    """How far the surveys of a comparison are together, and for how long they may go on.

    Parameters
    ----------
    deadline : float
        In ``time.monotonic``'s seconds.
    say : function of a text
        Tells the user.
    afresh : bool
        Whether the command, given again, drops what is kept.
    """

    def __init__(self, deadline: float, say: Callable[[str], None], afresh: bool = False):
        self.done = self.total = 0
        self.say = say
        self._deadline, self._afresh, self._new = deadline, afresh, 0
        self._first = self._said = 0.0
        self._lock = threading.Lock()

    def begin(self, total: int, known: int) -> None:
        with self._lock:
            self.total += total
            self.done += known

    def add(self) -> None:
        with self._lock:
            self.done += 1
            self._new += 1
            now = time.monotonic()
            if self._new == 1:
                self._first = self._said = now  # what came before was no compiling
            if self.done < self.total and now - self._said < _SAY_SECONDS:
                return
            self._said = now
            left = (now - self._first) / max(1, self._new - 1) * (self.total - self.done)
            to_go = f", {_duration(left)} to go" if left else ""
            self.say(f"compiled {self.done} of {self.total}{to_go}")

    def require_time(self) -> None:
        """Raise TimeUp if the deadline has passed."""
        if time.monotonic() >= self._deadline:
            raise TimeUp(self, self._afresh)


def _duration(seconds: float) -> str:
    return f"about {seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} s"


class Ledger(worker_pool.Ledger):
    """The survey of a version: what is kept of it is not compiled again.

    A failure is not kept, since it may be the machine's: it is tried again.
    """

    def __init__(self, arm: str, version: Version, progress: Progress):
        super().__init__(arm)
        self._arm, self._version, self._progress = arm, version, progress
        self._new: list[tuple[tuple, object]] = []
        self._kept = time.monotonic()

    def begin(self, jobs: Sequence[tuple]) -> dict[tuple, object]:
        kept = self._version.read(self._progress.say)
        known = {job: kept[job] for job in jobs if job in kept}
        self._progress.begin(len(jobs), len(known))
        if known:
            self._progress.say(
                f"{self._arm}: {len(known)} of {len(jobs)} were compiled by an earlier run"
            )
        return known

    def require_time(self) -> None:
        self._progress.require_time()

    def add(self, job: tuple, answer: object) -> None:
        if not isinstance(answer, Exception) or isinstance(answer, NotImplementedError):
            self._new.append((job, answer))
        self._progress.add()
        if time.monotonic() - self._kept >= _KEEP_SECONDS:
            self.end()

    def end(self) -> None:
        """Keep what is new."""
        if self._new:
            self._version.add(self._new)
        self._new, self._kept = [], time.monotonic()


def _as_json(answer: object) -> object:
    if isinstance(answer, NotImplementedError):
        return {"unavailable": str(answer)}
    return answer if isinstance(answer, int) else dataclasses.asdict(answer)  # type: ignore[call-overload]


def _from_json(value) -> object:
    if isinstance(value, int):
        return value
    if "unavailable" in value:
        return NotImplementedError(value["unavailable"])
    return fingerprint.Facts(**value)
