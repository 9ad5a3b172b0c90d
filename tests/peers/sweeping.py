"""``python -m benchmarks sweep`` on a made-up GPU with made-up answers, for tests."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchmarks import __main__ as entry
from benchmarks._measure.cell_outcomes import Outcome
from benchmarks._peers.cells import AnyCell
from benchmarks._peers.sweep import command, plots
from benchmarks._peers.sweep.experiments import EXPERIMENTS, Timing, planned
from benchmarks._peers.sweep.state import Row, as_json
from tests.lab import MACHINE, SHA, free_gpu

FULL, SMALL = (
    {name: planned(name, grid, SHA) for name in EXPERIMENTS} for grid in ("full", "small")
)
SPEEDS = {
    **{"rope-triton": 1.0, "rope-triton-tables": 0.99, "copy": 1.01, "pytorch": 0.08},
    **{"compile": 0.45, "compile-angles": 0.5, "seed": 0.2, "liger": 0.93},
    **{"flash-attention": 0.97, "fla": 0.9, "quack": 0.98, "vllm": 0.7, "flashinfer": 0.8},
}
MISSING = "transformer_engine is not installed: pip install transformer-engine[pytorch]"
WRONG = (
    "Traceback (most recent call last):\n  somewhere\nAssertionError: Tensor-likes are not close!"
)


def outcome(timing: Timing) -> Outcome:
    """TransformerEngine is not installed; the seed is wrong for eight sequences; else a speed."""
    cell = timing.cell
    if cell.provider == "transformer-engine":
        return Outcome(unavailable=MISSING)
    if cell.provider == "seed" and cell.batch == 8:
        return Outcome(error=WRONG)
    noise = random.Random(repr(timing))
    copy = cell.bytes_moved / 4.2e12 + 1.6e-6
    latency = copy / SPEEDS[cell.provider]
    return Outcome(
        tuple(latency * noise.uniform(0.995, 1.005) for _ in range(3)),
        tuple(copy * noise.uniform(0.998, 1.002) for _ in range(3)),
    )


@dataclass
class Bench:
    """What is measured; ``before`` is called before each answer with how many there were."""

    scratch: Path
    evidence: Path
    answer: Callable[[Timing], Outcome] = outcome
    before: Callable[[int], object] = lambda count: None
    measured: list[Timing] = field(default_factory=list)
    compiled: list[tuple[AnyCell, str]] = field(default_factory=list)

    def path(self, experiment: str) -> Path:
        return self.scratch / MACHINE["machine"] / SHA[:8] / f"{experiment}.jsonl"

    @property
    def output(self) -> Path:
        return self.path("any").parent / "output"

    def call(self, work, *job, env):
        """In place of a process."""
        if work is command._call_each:
            self.compiled += job[0]
        else:
            self._measure(*job)

    def _measure(self, timings, uuid, model, file, together):
        with file.open("w") as rows:
            for timing in timings:
                self.before(len(self.measured))
                self.measured.append(timing)
                rows.write(json.dumps(as_json(Row(timing, self.answer(timing), uuid))) + "\n")


def sweep(*words) -> int:
    """The exit status of a sweep of the small grid."""
    return entry.main(["sweep", "--grid", "small", *words])


# --- fixtures, for a test file to name: ``bench = sweeping.bench`` --------------------------------


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """A machine with a GPU, on which nothing else runs, and a clean checkout."""
    bench = Bench(tmp_path / "state", tmp_path / "evidence")
    monkeypatch.setattr(command, "SCRATCH", bench.scratch)
    monkeypatch.setattr(command, "EVIDENCE", bench.evidence)
    free_gpu(monkeypatch, bench, tmp_path)
    return bench


@pytest.fixture
def undrawn(monkeypatch):
    """No plot is drawn, which takes longest; the names of those that would be."""
    names = []
    monkeypatch.setattr(plots, "draw", lambda figure, *_: names.append(figure.name))
    return names
