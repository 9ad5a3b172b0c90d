"""Versions of the package that are slower by a known share: a kernel that waits a while first."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from .._system import checkout
from .._verdict.rules import Subject
from . import mutants

PATCH = mutants.PATCHES / "planted" / "slowdown.patch"
CYCLES_PER_SECOND = 1.7e9  # about: the first version that waits shows by how much this is off
_CALIBRATION = 0.05


class Bench(Protocol):
    """The version to slow down, the machine's record, and medians of a process of any version."""

    base: checkout.Arm
    machine: dict[str, str]

    def once(self, arm: checkout.Arm, job: dict) -> Mapping[Subject, float]: ...


def versions(
    bench: Bench, doses: Mapping[str, float], job: dict, scratch: Path
) -> dict[str, checkout.Arm]:
    """``base``, which waits for nothing, and for each dose a version whose calls take longer by it.

    All run the same machine code: what a wait costs besides, 0.2 us on an H200, is in the base too.
    The cycles of each cell are found by two processes, whose answer is kept so that a killed run
    finds the same versions again.
    """
    sources = scratch / "sources"
    none = plant("planted-base", bench.base, {}, sources)
    path = scratch / "evidence" / f"waits-{none.digest[:8]}-{bench.machine['machine']}.json"
    if path.exists():
        cycles = json.loads(path.read_text())
    else:
        cycles = _cycles_of_a_percent(bench, none, job, sources)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(cycles))
    return {"base": none} | {
        name: plant(name, bench.base, _scaled(cycles, 100 * dose), sources)
        for name, dose in doses.items()
    }


def plant(name: str, base: checkout.Arm, cycles: Mapping[str, int], sources: Path) -> checkout.Arm:
    """The base with a kernel that waits for so many cycles, by the call's shape and dtype."""

    def fill(directory: Path) -> None:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(base.root, directory, ignore=ignored, dirs_exist_ok=True)
        mutants.patch(PATCH, directory)
        (directory / "rope_triton" / "cycles.json").write_text(json.dumps(cycles, indent=1))

    return checkout.from_directory(name, sources, fill)


def _cycles_of_a_percent(
    bench: Bench, none: checkout.Arm, job: dict, sources: Path
) -> dict[str, float]:
    before = bench.once(none, job)
    first = {
        _key(subject): seconds * _CALIBRATION * CYCLES_PER_SECOND
        for subject, seconds in before.items()
    }
    trial = plant("trial", bench.base, _scaled(first, 1), sources)
    after = bench.once(trial, job)
    return {
        _key(subject): first[_key(subject)]
        * _correction((after[subject] / seconds - 1) / _CALIBRATION)
        / (100 * _CALIBRATION)
        for subject, seconds in before.items()
    }


def _correction(reached: float) -> float:
    """What to multiply a wait by that reached this share of its aim; noise is kept in bounds."""
    return 1 / min(max(reached, 1 / 3), 3)


def _scaled(cycles: Mapping[str, float], factor: float) -> dict[str, int]:
    return {key: round(factor * value) for key, value in cycles.items()}


def _key(subject: Subject) -> str:
    """The call as the patch names it."""
    seq_len, hidden_size, batch, dtype, fmt = subject.params
    transposed = subject.metric.startswith("rope.Backward")
    return f"{seq_len} {batch} {hidden_size} {dtype} {fmt} {transposed}"
