"""The study ``power``: which slowdowns of known size a comparison detects."""

from collections.abc import Iterable, Mapping

import numpy as np

from ..._engine.compare import measure
from ..._engine.compare.pool import Pool
from ..._engine.verdict.rules import FAMILIES, Answer, Key, Timing
from ..._subjects import cell as cell_of
from ..runner import Keep, Task
from . import planted
from .bench import PROCESS_SECONDS, ROUNDS, Bench, Document, header_of, small_grid
from .planted import DOSES

TOLERANCE = 0.25
"""A dose is as claimed if it is measured within this share of it."""

VERIFICATION_ROUNDS = 4
_SMALL_BYTES = 4e6  # of a tensor
_HOST_SHARE = 0.05
_PROCESSES = (ROUNDS + VERIFICATION_ROUNDS + planted.CALIBRATION_ROUNDS) * (len(DOSES) + 1)


class Power(Document):
    """Versions that are slower by :data:`planted.DOSES`; one entry has all of it."""

    name = "power"

    def __init__(self, bench: Bench):
        self.bench, self.header = bench, header_of(bench, self.name, ROUNDS)

    def tasks(self, entries: list[dict]) -> list[Task]:
        label = f"{len(DOSES)} planted slowdowns"
        return [] if entries else [Task(label, _PROCESSES * PROCESS_SECONDS, self._measure)]

    def _measure(self, keep: Keep) -> None:
        versions = planted.versions(self.bench)
        job = measure.timing_job(small_grid(), host=True)
        pool = self.bench.pool("power", versions, ROUNDS, job)
        verification = self.bench.pool("verification", versions, VERIFICATION_ROUNDS, job)
        keep(_document(pool, verification))

    def document(self, header: dict, entries: list[dict], stored: dict) -> dict:
        return header | entries[0]

    def lines(self, header: dict, entries: list[dict]) -> list[str]:
        (entry,) = entries
        return [*map(_gpu_line, entry["doses"]), *map(_host_line, entry["host"])]


def _document(pool: Pool, verification: Pool) -> dict:
    return {
        "how": (
            "the programs that the GPU starts a kernel with wait, and so does each call on the "
            "host, in Python; how long a step of waiting takes is found for each cell by a line "
            f"through the times at four waits, {planted.CALIBRATION_ROUNDS} processes each; every "
            "version is compared as two commits are with a base that waits for a few steps, and "
            f"{VERIFICATION_ROUNDS} more processes of each measure how large its dose is"
        ),
        "doses": [gpu_dose(pool, verification, name) for name in DOSES],
        "host": [host_dose(pool, verification, name) for name in DOSES],
        "pool": pool.as_json(),
        "verification": verification.as_json(),
    }


def _gpu_line(dose: Mapping) -> str:
    return (
        f"{dose['planted']:.0%}: detected in {dose['seen']} of {dose['timings']} timings, in "
        f"{dose['seen_above_4_mb']} of {dose['timings_above_4_mb']} above 4 MB; measured "
        f"{dose['measured']:+.2%}, {dose['measured_up_to_4_mb']:+.2%} up to 4 MB and "
        f"{dose['measured_above_4_mb']:+.2%} above{_claim(dose)}"
    )


def _host_line(dose: Mapping) -> str:
    return (
        f"{1e6 * dose['planted_seconds']:g} us of Python: detected in {dose['seen']} of "
        f"{dose['timings']} calls, in {dose['seen_from_5_percent']} of "
        f"{dose['timings_from_5_percent']} that take 20 times as long or less; measured "
        f"{1e6 * dose['measured_seconds']:.2f} us{_claim(dose)}"
    )


def _claim(dose: Mapping) -> str:
    return "" if dose["as_claimed"] else f": NOT AS CLAIMED within {TOLERANCE:.0%}"


# --- how large a dose is --------------------------------------------------------------------------


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
        **_seen([timing for timing in timings if not _is_small(timing.key)], "_above_4_mb"),
        **measured,
        "as_claimed": all(_is_as_claimed(effect, share) for effect in measured.values()),
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
            [timing for timing in timings if seconds >= _HOST_SHARE * timing.base],
            "_from_5_percent",
        ),
        "measured_seconds": measured,
        "as_claimed": _is_as_claimed(measured, seconds),
    }


def _medians(pool: Pool, name: str, family: str) -> dict[Key, tuple[float, float]]:
    """Seconds of the base and of a version, medians over the processes."""
    base, head = (np.median(pool.seconds[side], axis=0) for side in ("base", name))
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


def _is_small(subject: Key) -> bool:
    return cell_of(*subject).bytes_moved <= 2 * _SMALL_BYTES  # read and written


def _is_as_claimed(measured: float, claimed: float) -> bool:
    return abs(measured - claimed) <= TOLERANCE * claimed
