"""Make versions of the package that are slower by a known share: their kernels wait first."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from .._cells.grid import Cell, cell_of
from .._system import checkout
from .._verdict.rules import Subject
from . import mutants
from .bench import Bench
from .pool import medians_of

PATCH = mutants.PATCHES / "planted" / "slowdown.patch"
CYCLES_PER_SECOND = 1.7e9  # about: the first version that waits shows by how much this is off
_CALIBRATION = 0.05


def versions(bench: Bench, doses: Mapping[str, float], job: dict) -> dict[str, checkout.Arm]:
    """``base``, which waits for nothing, and for each dose a version whose calls take longer by it.

    All run the same machine code: what a wait costs besides, 0.2 us on an H200, is in the base too.
    The cycles of each cell are found by two processes, whose answers are kept, so that a killed run
    finds the same versions again.
    """
    none = plant("planted-base", bench, {})
    before = _seconds(bench, "planted-base", none, job)
    aim = {key: seconds * _CALIBRATION * CYCLES_PER_SECOND for key, seconds in before.items()}
    after = _seconds(bench, "trial", plant("trial", bench, _scaled(aim, 1)), job)
    cycles = {}  # of a slowdown by 1, as the first version that waits shows
    for key, seconds in before.items():
        reached = (after[key] / seconds - 1) / _CALIBRATION
        cycles[key] = aim[key] / _CALIBRATION / min(max(reached, 1 / 3), 3)  # noise is bounded
    return {"base": none} | {
        name: plant(name, bench, _scaled(cycles, dose)) for name, dose in doses.items()
    }


def plant(name: str, bench: Bench, cycles: Mapping[str, int]) -> checkout.Arm:
    """The base with a kernel that waits for ``cycles``, by the call's shape and dtype."""

    def fill(directory: Path) -> None:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(bench.base.root, directory, ignore=ignored, dirs_exist_ok=True)
        mutants.patch(PATCH, directory)
        (directory / "rope_triton" / "cycles.json").write_text(json.dumps(cycles, indent=1))

    return checkout.from_directory(name, bench.sources, fill)


def _seconds(bench: Bench, name: str, version: checkout.Arm, job: dict) -> dict[str, float]:
    """The medians of a process, by the call as the patch names it."""
    answers = bench.answers(f"{name}-{version.digest[:8]}", {name: version}, job | {"seed": 0})
    return {key_of(subject): median for subject, median in medians_of(answers[name]).items()}


def _scaled(cycles: Mapping[str, float], factor: float) -> dict[str, int]:
    return {key: round(factor * value) for key, value in cycles.items()}


def key_of(subject: Subject) -> str:
    """The call as the patch names it."""
    cell = cell_of(*subject)
    assert isinstance(cell, Cell)
    transposed = subject.metric.startswith("rope.Backward")
    shape = f"{cell.seq_len} {cell.batch} {cell.hidden_size}"
    return f"{shape} {cell.dtype} {cell.format} {transposed}"
