"""``python -m benchmarks study peers`` on a made-up GPU with made-up answers, for tests."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks._engine.measure.cell_outcomes import Outcome
from benchmarks._studies.peers import peers_study, plots
from benchmarks._studies.peers.experiments import EXPERIMENTS, Timing, planned
from benchmarks._studies.peers.peer_cells import PeerCell
from benchmarks._studies.peers.state import Row, as_json
from tests.lab import SHA
from tests.studies import common
from tests.studies.common import study

processes = common.processes  # a fixture

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
    if cell.provider == "seed" and len(cell.lengths) == 8:
        return Outcome(error=WRONG)
    noise = random.Random(repr(timing))
    copy = cell.bytes_moved / 4.2e12 + 1.6e-6
    latency = copy / SPEEDS[cell.provider]
    return Outcome(
        tuple(latency * noise.uniform(0.995, 1.005) for _ in range(3)),
        tuple(copy * noise.uniform(0.998, 1.002) for _ in range(3)),
    )


class Timer:
    """What is measured; ``before`` is called before each answer with how many there were."""

    def __init__(self, processes):
        self.answer: Callable[[Timing], Outcome] = outcome
        self.before: Callable[[int], object] = lambda count: None
        self.measured: list[Timing] = []
        self.compiled: list[tuple[PeerCell, str]] = []
        self.directory, self.output = processes.directory, processes.output
        self.evidence = processes.evidence
        processes.works[peers_study.measure] = self._measure
        processes.others[peers_study.call_once] = self.compiled.extend

    def path(self, experiment: str) -> Path:
        return self.directory / f"{experiment}.jsonl"

    def _measure(self, timings, alone, notes, uuid):
        for timing in timings:
            self.before(len(self.measured))
            self.measured.append(timing)
            notes.row(as_json(Row(timing, self.answer(timing), uuid)))


def peers(*words, grid: str = "small") -> int:
    """The exit status of ``python -m benchmarks study peers``, of the small grid."""
    return study("peers", "--grid", grid, *words)


@pytest.fixture
def timer(processes):
    return Timer(processes)


@pytest.fixture
def undrawn(monkeypatch):
    """No plot is drawn, which takes longest; the names of those that would be."""
    names = []
    monkeypatch.setattr(plots, "draw", lambda figure, *_: names.append(figure.name))
    return names
