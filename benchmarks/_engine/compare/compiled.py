"""Keep what was compiled of a version, so that no later comparison compiles it again.

Each version has a journal, named by the digest of all that its machine code depends on. It is open
for milliseconds at a time, so several processes may add to it.
"""

import hashlib
import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..machine_code import fingerprint, host_cost, worker_pool
from ..subject import Subject, files
from ..system import suite
from ..system.journal import Journal, JournalError, keep_newest
from ..system.progress import say
from .rounds import BudgetError

KEEP = 300
"""How many versions keep their machine code: those used last."""

_SAY_SECONDS = 15.0
_KEEP_SECONDS = 5.0  # of work are lost at most when the run is killed
# The files that make the facts and store them, besides the subject's.
_MEASURING = (
    *("_engine/subject.py", "_engine/machine_code/*.py"),
    *("_engine/system/process.py", "_engine/system/journal.py", "_engine/compare/compiled.py"),
)
# Prefixes of the environment variables that Triton and its compilers read; besides, the package's.
_VARIABLES = (
    *("TRITON_", "LLVM_", "MLIR_", "PTXAS", "NVPTX_", "AMDGCN_", "DISABLE_", "USE_IR_LOC"),
)
_NO_MATTER = ("TRITON_CACHE_DIR",)  # each pool has its own


class Store:
    """The stored facts of a version's machine code, below ``scratch``.

    ``digest`` is that of the package's sources, ``machine`` the record of ``machine``.
    """

    def __init__(self, scratch: Path, subject: Subject, digest: str, machine: Mapping[str, str]):
        read = (*_VARIABLES, f"{subject.PACKAGE.upper()}_")
        self._depends = {
            "package": digest,
            "suite": suite.digest(_MEASURING, files(subject)),
            "python": platform.python_version(),
            **{name: machine[name] for name in ("torch", "triton")},
            "environment": {
                name: value
                for name, value in os.environ.items()
                if name.startswith(read) and name not in _NO_MATTER
            },
        }
        text = json.dumps(self._depends, sort_keys=True)
        name = hashlib.sha256(text.encode()).hexdigest()[:32]
        self.path = scratch / "code" / f"{name}.jsonl"

    def read(self) -> dict[tuple, object]:
        """The answers that are kept; a journal that is damaged is deleted, and the user told."""
        try:
            with Journal(self.path, self._depends, wait=True) as journal:
                os.utime(self.path)
                return {tuple(row["job"]): _from_json(row["answer"]) for row in journal.entries}
        except JournalError as error:
            say(f"{error}; it is deleted: what it held is compiled again")
            self.drop()
            return {}

    def add(self, answers: Mapping[tuple, object]) -> None:
        """Keep more answers, and of all versions the :data:`KEEP` that were used last."""
        with Journal(self.path, self._depends, wait=True) as journal:
            journal.append(*({"job": job, "answer": _as_json(a)} for job, a in answers.items()))
        keep_newest(self.path.parent, KEEP)

    def drop(self) -> None:
        """Forget what is kept."""
        self.path.unlink(missing_ok=True)


class Ledger(worker_pool.Ledger):
    """What is kept of a version is not compiled again, and what is compiled is kept.

    A failure is not, since it may be the machine's: it is tried again. name: of the version.
    deadline: in ``time.monotonic``'s seconds; then ``require_time`` raises BudgetError. again: the
    command that goes on from what is kept. cache: Triton's cache directory.
    """

    def __init__(
        self, name: str, store: Store, deadline: float, again: str, cache: Path | None = None
    ):
        super().__init__(name)
        self.cache, self._deadline, self._again = cache, deadline, again
        self._name, self._store = name, store
        self._new: dict[tuple, object] = {}
        self._compiled = 0  # in this run
        self._stored = self._first = self._reported = time.monotonic()

    def begin(self, jobs: Sequence[tuple]) -> dict[tuple, object]:
        stored = self._store.read()
        answers = {job: stored[job] for job in jobs if job in stored}
        self._total, self._done = len(jobs), len(answers)
        if answers:
            say(f"{self._name}: {len(answers)} of {len(jobs)} were compiled by an earlier run")
        return answers

    def require_time(self) -> None:
        if time.monotonic() >= self._deadline:
            raise BudgetError(
                f"the time is up: compiled {self._done} of {self._total}, which are kept: "
                f"{self._again} goes on from there"
            )

    def add(self, job: tuple, answer: object) -> None:
        if not isinstance(answer, Exception) or isinstance(answer, NotImplementedError):
            self._new[job] = answer
        self._done += 1
        self._compiled += 1
        self._report(time.monotonic())
        if time.monotonic() - self._stored >= _KEEP_SECONDS:
            self.end()

    def end(self) -> None:
        """Keep what is new."""
        if self._new:
            self._store.add(self._new)
        self._new, self._stored = {}, time.monotonic()

    def _report(self, now: float) -> None:
        """Say from time to time how far it is, and how long it may take."""
        if self._compiled == 1:
            self._first = self._reported = now  # what came before was no compiling
        if self._done < self._total and now - self._reported < _SAY_SECONDS:
            return
        self._reported = now
        left = (now - self._first) / max(1, self._compiled - 1) * (self._total - self._done)
        to_go = f", about {left / 60:.0f} minutes to go" if left >= 30 else ""
        say(f"compiled {self._done} of {self._total}{to_go}")


def _as_json(answer: object) -> object:
    if isinstance(answer, NotImplementedError):
        return {"unavailable": str(answer)}
    if isinstance(answer, host_cost.HostCost):
        return answer._asdict()
    return vars(answer) if isinstance(answer, fingerprint.Facts) else answer


def _from_json(value) -> object:
    if not isinstance(value, dict) or "features" in value:  # what calls launch
        return value
    if "unavailable" in value:
        return NotImplementedError(value["unavailable"])
    if "bytecodes" in value:
        return host_cost.HostCost(**value)
    return fingerprint.Facts(**value)
