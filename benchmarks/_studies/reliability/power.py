"""The study ``power``: which slowdowns of known size a comparison detects."""

import statistics
from collections.abc import Iterable, Mapping

import numpy as np

from ..._engine.compare import measure
from ..._engine.compare.pool import Pool
from ..._engine.verdict.rules import FAMILIES, Answer, Key, Timing
from ..._subjects import cell as cell_of
from ..runner import Keep, Task
from . import planted
from .bench import ON_HOST, PROCESS_SECONDS, ROUNDS, Bench, Document, header_of, small_grid
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
        job = measure.timing_job(small_grid(), ON_HOST)
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
        "doses": [dose(pool, verification, name, "gpu") for name in DOSES],
        "host": [dose(pool, verification, name, "host") for name in DOSES],
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


def dose(pool: Pool, verification: Pool, name: str, family: str) -> dict:
    """In how many timings of a family a dose was detected, and how large it was.

    ``verification`` has other rounds of the same versions: what is detected does not say how large
    a dose is.
    """
    timings = pool.judged("base", name)[family].timings
    base, head = (np.median(verification.seconds[side], axis=0) for side in ("base", name))
    effects = head / base - 1 if family == "gpu" else head - base
    effect_of = {
        subject: effect
        for subject, effect in zip(verification.subjects, effects.tolist(), strict=True)
        if subject.metric.startswith(FAMILIES[family])
    }
    if family == "gpu":
        key, claimed = "planted", DOSES[name].share
        suffix, some = "_above_4_mb", [one for one in timings if not _is_small(one.key)]
        groups = {
            "measured": list(effect_of.values()),
            "measured_up_to_4_mb": [
                effect_of[subject] for subject in effect_of if _is_small(subject)
            ],
            "measured_above_4_mb": [
                effect_of[subject] for subject in effect_of if not _is_small(subject)
            ],
        }
    else:
        key, claimed = "planted_seconds", DOSES[name].seconds
        suffix = "_from_5_percent"
        some = [one for one in timings if claimed >= _HOST_SHARE * one.base]
        groups = {"measured_seconds": list(effect_of.values())}
    measured = {group: statistics.median(sizes) for group, sizes in groups.items()}
    as_claimed = all(abs(size - claimed) <= TOLERANCE * claimed for size in measured.values())
    return {
        **{key: claimed, **_seen(timings), **_seen(some, suffix)},
        **{**measured, "as_claimed": as_claimed},
    }


def _seen(timings: Iterable[Timing], suffix: str = "") -> dict[str, int]:
    answers = [timing.answer for timing in timings]
    return {f"timings{suffix}": len(answers), f"seen{suffix}": answers.count(Answer.FAIL)}


def _is_small(subject: Key) -> bool:
    return cell_of(*subject).bytes_moved <= 2 * _SMALL_BYTES  # read and written
