"""Versions of the package that are slower by a known share: a kernel that waits a while first."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from .._cells.grid import Cell, cell_of
from .._system import checkout
from .._system.files import write_atomically
from .._verdict.rules import Subject
from . import mutants
from .bench import Bench

PATCH = mutants.PATCHES / "planted" / "slowdown.patch"
CYCLES_PER_SECOND = 1.7e9  # about: the first version that waits shows by how much this is off
_CALIBRATION = 0.05


def versions(bench: Bench, doses: Mapping[str, float], job: dict) -> dict[str, checkout.Arm]:
    """``base``, which waits for nothing, and for each dose a version whose calls take longer by it.

    All run the same machine code: what a wait costs besides, 0.2 us on an H200, is in the base too.
    The cycles of each cell are found by two processes, whose answer is kept so that a killed run
    finds the same versions again.
    """
    none = plant("planted-base", bench, {})
    path = bench.path(f"waits-{none.digest[:8]}", "json")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(_cycles_of_a_percent(bench, none, job)).encode())
    cycles = json.loads(path.read_bytes())
    return {"base": none} | {
        name: plant(name, bench, _scaled(cycles, 100 * dose)) for name, dose in doses.items()
    }


def plant(name: str, bench: Bench, cycles: Mapping[str, int]) -> checkout.Arm:
    """The base with a kernel that waits for so many cycles, by the call's shape and dtype."""

    def fill(directory: Path) -> None:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(bench.base.root, directory, ignore=ignored, dirs_exist_ok=True)
        mutants.patch(PATCH, directory)
        (directory / "rope_triton" / "cycles.json").write_text(json.dumps(cycles, indent=1))

    return checkout.from_directory(name, bench.sources, fill)


def _cycles_of_a_percent(bench: Bench, none: checkout.Arm, job: dict) -> dict[str, float]:
    before = bench.once(none, job)
    aim = {
        key_of(subject): seconds * _CALIBRATION * CYCLES_PER_SECOND
        for subject, seconds in before.items()
    }
    after = bench.once(plant("trial", bench, _scaled(aim, 1)), job)
    found = {}
    for subject, seconds in before.items():
        reached = (after[subject] / seconds - 1) / _CALIBRATION
        correction = 1 / min(max(reached, 1 / 3), 3)  # noise is kept in bounds
        found[key_of(subject)] = aim[key_of(subject)] * correction / (100 * _CALIBRATION)
    return found


def _scaled(cycles: Mapping[str, float], factor: float) -> dict[str, int]:
    return {key: round(factor * value) for key, value in cycles.items()}


def key_of(subject: Subject) -> str:
    """The call as the patch names it."""
    cell = cell_of(*subject)
    assert isinstance(cell, Cell)
    transposed = subject.metric.startswith("rope.Backward")
    shape = f"{cell.seq_len} {cell.batch} {cell.hidden_size}"
    return f"{shape} {cell.dtype} {cell.format} {transposed}"
