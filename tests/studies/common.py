"""A machine with a GPU, on which nothing else runs, for studies in tests."""

import contextlib
import types
from pathlib import Path

import pytest

from benchmarks import __main__ as entry
from benchmarks._engine.compare import exact, measure
from benchmarks._engine.system import copies, gpu_monitor, process
from benchmarks._studies import study_command
from benchmarks._studies.peers import peers_study
from benchmarks._studies.reliability import reliability_studies
from benchmarks._studies.runner import Notes
from benchmarks._studies.training import parity, training_study
from tests.lab import MACHINE, SHA, UUID, free_gpu

WATCHED = {
    **{"samples": 9, "under_load": 9, "processes": 1, "events": {}},
    **{"sm_mhz": [1900, 1900, 1900], "memory_mhz": [3200, 3200, 3200]},
}


class Processes:
    """In place of the processes that measure.

    ``works``: by the function that a process would call, what is called in its place, with the same
    arguments. ``others``: the same of functions that note nothing. Processes that are neither are
    real.
    """

    def __init__(self, root: Path):
        self.scratch, self.evidence = root / "studies", root / "evidence"
        self.works, self.others = {}, {}
        self._real = process.call

    def call(self, function, *arguments, env=None, **options):
        if function in self.others:
            return self.others[function](*arguments)
        work, items, alone, more, _, _, file = arguments
        if work not in self.works:
            return self._real(function, *arguments, env=env, **options)
        with file.open("w", encoding="utf-8") as stream:
            return self.works[work](items, alone, Notes(stream), *more)

    @property
    def directory(self) -> Path:
        """Of the journals."""
        return self.scratch / MACHINE["machine"] / SHA[:8]

    @property
    def output(self) -> Path:
        return self.directory / "output"


@pytest.fixture
def processes(monkeypatch, tmp_path):
    """A machine with a GPU and a clean checkout."""
    processes = Processes(tmp_path)
    monkeypatch.setattr(study_command, "SCRATCH", processes.scratch)
    for module in (peers_study, training_study, parity, reliability_studies):
        monkeypatch.setattr(module, "EVIDENCE", processes.evidence)
    free_gpu(monkeypatch, processes, tmp_path)
    watching = types.SimpleNamespace(summary=lambda: WATCHED)
    monkeypatch.setattr(gpu_monitor, "Watch", lambda uuid: contextlib.nullcontext(watching))
    return processes


def answered_by(patch, answer) -> None:
    """Let ``answer(root, job)`` answer for each process that measures a version below ``root``.

    For a process of all versions it answers once for each.
    """

    class Process:
        def __init__(self, subject, root, cache, copies=None, on_gpu=True):
            self.root, self.copies = root, copies

        def wait_until_ready(self):
            pass

        def answer(self, job):
            if self.copies:
                versions = {name: answer(Path(root), job) for name, root in self.copies.items()}
                for rows in versions.values():
                    rows["beside"] = [[*row[:2], [1e-5] * len(row[2])] for row in rows["timings"]]
                return {"gpu": UUID, "versions": versions}
            return {"gpu": UUID, "launches": []} | answer(self.root, job)

        def stop(self):
            pass

    patch.setattr(measure, "Process", Process)
    patch.setattr(copies, "write", lambda _, roots, __: {name: str(roots[name]) for name in roots})
    patch.setattr(exact, "compiled", lambda *_, **__: exact.NOT_COMPILED)


def study(*words) -> int:
    """The exit status of ``python -m benchmarks study``."""
    return entry.main(["study", *words])
