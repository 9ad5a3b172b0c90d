"""Make versions of the package that are slower by a known dose: kernels and calls wait first.

A kernel's wait is counted in steps. What a step costs depends on how many programs wait beside each
other, so it is found for every cell, by a line through the times of fresh processes at several
waits. The base waits for a few steps as well: what waiting costs at all is in both.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..._engine.compare import measure
from ..._engine.compare.pool import Pool, medians_of
from ..._engine.system import checkout
from ..._engine.verdict.rules import Key
from ..runner import StudyError
from . import mutants
from .bench import Bench, small_grid


class Dose(NamedTuple):
    """How much slower: ``share`` of a cell's time on the GPU, ``seconds`` of a call on the host."""

    share: float
    seconds: float


DOSES = {"slow-1": Dose(0.01, 1e-6), "slow-2": Dose(0.02, 3e-6), "slow-5": Dose(0.05, 1e-5)}
PATCH = mutants.PATCHES / "planted" / "slowdown.patch"
CALIBRATION_ROUNDS = 4
# Shares of a cell's time that it is to wait for while a step is calibrated, if a step takes about
# so many seconds. It may be off by a factor: the line through the times says by how much.
_LEVELS = {"level-0": 0.0, "level-1": 0.05, "level-2": 0.1, "level-3": 0.2}
_ABOUT_SECONDS = 2e-8
# The patch takes waits in 256ths of a step, so that a mean over calls can be any.
_STEP = 256
_BASE_WAIT = 4 * _STEP

Waits = Mapping[str, float]  # 256ths of a step by the call as the patch names it


def versions(bench: Bench) -> dict[str, checkout.Version]:
    """``base``, and for each of :data:`DOSES` a version whose calls take longer by it.

    All run the same machine code. What the calibrating processes answer is kept, so that a killed
    run finds the same versions again. StudyError if a cell takes no longer the longer it waits.
    """
    job = measure.timing_job(small_grid())
    none = plant("base", bench, {})
    seeded = job["alone"] | {"seed": 0}
    answers = bench.answers(f"planted-{none.digest[:8]}", {"base": none}, seeded)
    seconds = {key_of(subject): median for subject, median in medians_of(answers["base"]).items()}
    about = {key: median / _ABOUT_SECONDS * _STEP for key, median in seconds.items()}
    levels = {name: plant(name, bench, _scaled(about, share)) for name, share in _LEVELS.items()}
    name = f"calibration-{levels['level-3'].digest[:8]}"
    pool = bench.pool(name, levels, CALIBRATION_ROUNDS, job)
    doubling = waits_of_a_slowdown(pool, about)
    return {"base": none} | {
        name: plant(name, bench, _scaled(doubling, dose.share), dose.seconds)
        for name, dose in DOSES.items()
    }


def waits_of_a_slowdown(pool: Pool, about: Waits) -> Waits:
    """The wait that doubles each cell's time, from the times at waits of ``_LEVELS`` of ``about``.

    ``pool`` has a version for each level.
    """
    waits = {}
    shares = np.repeat(list(_LEVELS.values()), len(pool.seconds["level-0"]))
    for column, subject in enumerate(pool.subjects):
        times = np.concatenate([pool.seconds[level][:, column] for level in _LEVELS])
        slope, base = np.polyfit(shares, times, 1)
        if slope < base / 20:  # at the longest wait that is 1 %, too near to the noise
            raise StudyError(f"{key_of(subject)}: it takes hardly longer if its kernel waits")
        waits[key_of(subject)] = about[key_of(subject)] * base / slope
    return waits


def plant(
    name: str, bench: Bench, waits: Mapping[str, int], seconds: float = 0.0
) -> checkout.Version:
    """The base with kernels that wait, by the call's shape and dtype, and calls that do."""

    def fill(directory: Path) -> None:
        mutants.patched_copy(PATCH, bench.base.root, directory)
        planted = {"gpu": {"": _BASE_WAIT, **waits}, "host": seconds}
        text = json.dumps(planted, indent=1)
        (directory / "rope_triton" / "waits.json").write_text(text, encoding="utf-8")

    return checkout.from_directory(name, bench.sources, fill)


def _scaled(waits: Waits, factor: float) -> dict[str, int]:
    return {key: round(factor * value) for key, value in waits.items()}


def key_of(subject: Key) -> str:
    """The call as the patch names it."""
    seq_len, hidden_size, batch, dtype, format = subject.params
    transposed = subject.metric.startswith("rope.Backward")
    return f"{seq_len} {batch} {hidden_size} {dtype} {format} {transposed}"
