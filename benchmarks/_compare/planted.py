"""Make versions of the package that are slower by a known dose: kernels and calls wait first.

A kernel's wait is counted in steps. What a step costs depends on how many programs wait beside each
other, so it is found for every cell, by a line through the times of fresh processes at several
waits. The base waits for a few steps as well: what waiting costs at all is in both.
"""

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .._subjects import cell as cell_of
from .._subjects.rope.cells import Cell
from .._system import checkout
from .._verdict.rules import FAMILIES, Answer, Subject, Timing
from . import measure, mutants
from .bench import Bench, EvidenceError, pooled, small_grid
from .pool import Pool, medians_of


class Dose(NamedTuple):
    """How much slower: ``share`` of a cell's time on the GPU, ``seconds`` of a call on the host."""

    share: float
    seconds: float


DOSES = {"slow-1": Dose(0.01, 1e-6), "slow-2": Dose(0.02, 3e-6), "slow-5": Dose(0.05, 1e-5)}
TOLERANCE = 0.25
"""A dose is as claimed if it is measured within this share of it."""

PATCH = mutants.PATCHES / "planted" / "slowdown.patch"
CALIBRATION_ROUNDS, VERIFICATION_ROUNDS = 4, 4
# Shares of a cell's time that it is to wait for while a step is calibrated, if a step takes about
# so many seconds. It may be off by a factor: the line through the times says by how much.
_LEVELS = {"level-0": 0.0, "level-1": 0.05, "level-2": 0.1, "level-3": 0.2}
_ABOUT_SECONDS = 2e-8
# The patch takes waits in 256ths of a step, so that a mean over calls can be any.
_STEP = 256
_BASE_WAIT = 4 * _STEP
_SMALL_BYTES = 4e6  # of a tensor
_HOST_SHARE = 0.05

Waits = Mapping[str, float]  # 256ths of a step by the call as the patch names it


def versions(bench: Bench) -> dict[str, checkout.Arm]:
    """``base``, and for each of :data:`DOSES` a version whose calls take longer by it.

    All run the same machine code. What the calibrating processes answer is kept, so that a killed
    run finds the same versions again.

    Raises
    ------
    EvidenceError
        If a cell does not take longer the longer it waits.
    """
    job = measure.timing_job(small_grid(), host=False)
    none = plant("base", bench, {})
    kept = bench.answers(f"planted-{none.digest[:8]}", {"base": none}, job | {"seed": 0})
    seconds = {key_of(subject): median for subject, median in medians_of(kept["base"]).items()}
    about = {key: median / _ABOUT_SECONDS * _STEP for key, median in seconds.items()}
    levels = {name: plant(name, bench, _scaled(about, share)) for name, share in _LEVELS.items()}
    name = f"calibration-{levels['level-3'].digest[:8]}"
    pool = pooled(bench, name, levels, CALIBRATION_ROUNDS, job)
    whole = waits_of_a_slowdown(pool, about)
    return {"base": none} | {
        name: plant(name, bench, _scaled(whole, dose.share), dose.seconds)
        for name, dose in DOSES.items()
    }


def waits_of_a_slowdown(pool: Pool, about: Waits) -> Waits:
    """The wait that doubles each cell's time, from the times at waits of ``_LEVELS`` of ``about``.

    ``pool`` has an arm for each level. The line is the one of least squares over all processes.
    """
    found = {}
    rounds = len(pool.seconds["level-0"])
    shares = np.repeat(list(_LEVELS.values()), rounds)
    for column, subject in enumerate(pool.subjects):
        times = np.concatenate([pool.seconds[level][:, column] for level in _LEVELS])
        slope, base = np.polyfit(shares, times, 1)
        if slope < base / 20:  # at the longest wait that is 1 %, too near to the noise
            raise EvidenceError(f"{key_of(subject)}: it takes hardly longer if its kernel waits")
        found[key_of(subject)] = about[key_of(subject)] * base / slope
    return found


def plant(name: str, bench: Bench, waits: Mapping[str, int], seconds: float = 0.0) -> checkout.Arm:
    """The base with kernels that wait, by the call's shape and dtype, and calls that do."""

    def fill(directory: Path) -> None:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(bench.base.root, directory, ignore=ignored, dirs_exist_ok=True)
        mutants.patch(PATCH, directory)
        planted = {"gpu": {"": _BASE_WAIT, **waits}, "host": seconds}
        (directory / "rope_triton" / "waits.json").write_text(
            json.dumps(planted, indent=1), encoding="utf-8"
        )

    return checkout.from_directory(name, bench.sources, fill)


def _scaled(waits: Waits, factor: float) -> dict[str, int]:
    return {key: round(factor * value) for key, value in waits.items()}


def key_of(subject: Subject) -> str:
    """The call as the patch names it."""
    cell = cell_of(*subject)
    assert isinstance(cell, Cell)
    transposed = subject.metric.startswith("rope.Backward")
    shape = f"{cell.seq_len} {cell.batch} {cell.hidden_size}"
    return f"{shape} {cell.dtype} {cell.format} {transposed}"


# --- what was seen of a dose, and how large it was ------------------------------------------------


def gpu_dose(pool: Pool, verification: Pool, name: str) -> dict:
    """In how many timings of the GPU a dose was detected, and how large it was.

    ``verification`` has other rounds of the same versions: what is detected does not say how large
    a dose is.
    """
    share = DOSES[name].share
    timings = pool.judged("base", name)["gpu"].timings
    sides = _medians(verification, name, "gpu")
    effects = {subject: head / base - 1 for subject, (base, head) in sides.items()}
    measured = {
        "measured": _median(effects.values()),
        "measured_up_to_4_mb": _median(e for s, e in effects.items() if _is_small(s)),
        "measured_above_4_mb": _median(e for s, e in effects.items() if not _is_small(s)),
    }
    return {
        "planted": share,
        **_seen(timings),
        **_seen([timing for timing in timings if not _is_small(timing.subject)], "_above_4_mb"),
        **measured,
        "as_claimed": all(_is_as_claimed(each, share) for each in measured.values()),
    }


def host_dose(pool: Pool, verification: Pool, name: str) -> dict:
    """The same of the host's times; detected also among the calls of which it is 5 % or more."""
    seconds = DOSES[name].seconds
    timings = pool.judged("base", name)["host"].timings
    sides = _medians(verification, name, "host")
    measured = _median(head - base for base, head in sides.values())
    return {
        "planted_seconds": seconds,
        **_seen(timings),
        **_seen(
            [each for each in timings if seconds >= _HOST_SHARE * each.base], "_from_5_percent"
        ),
        "measured_seconds": measured,
        "as_claimed": _is_as_claimed(measured, seconds),
    }


def _medians(pool: Pool, name: str, family: str) -> dict[Subject, tuple[float, float]]:
    """Seconds of the base and of a version, medians over the processes."""
    base, head = (np.median(pool.seconds[arm], axis=0) for arm in ("base", name))
    return {
        subject: (float(base[column]), float(head[column]))
        for column, subject in enumerate(pool.subjects)
        if subject.metric.startswith(FAMILIES[family])
    }


def _seen(timings: Iterable[Timing], suffix: str = "") -> dict[str, int]:
    answers = [timing.answer for timing in timings]
    return {f"timings{suffix}": len(answers), f"seen{suffix}": answers.count(Answer.FAIL)}


def _median(values: Iterable[float]) -> float:
    return float(np.median(list(values)))


def _is_small(subject: Subject) -> bool:
    return cell_of(*subject).bytes_moved <= 2 * _SMALL_BYTES  # read and written


def _is_as_claimed(measured: float, claimed: float) -> bool:
    return abs(measured - claimed) <= TOLERANCE * claimed
