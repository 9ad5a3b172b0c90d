"""Do GPUs that measure at once leave each other's figures alone? A few cells tell.

Each GPU measures them alone, then all GPUs at once, then each alone again. What the two times alone
differ by is the noise; what "together" differs from their mean is judged by it.
"""

import statistics
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from typing import NamedTuple

from .._grid import FORWARD
from .._peers.cells import PeerCell
from .experiments import FORMAT, HALF, HEADS, HIDDEN_SIZE, OURS, Timing
from .gpus import Worker
from .state import SweepError, from_json

# 8 MiB to 1 GiB moved: what is bound by launches, by L2 and by memory.
SEQ_LENS = (256, 1024, 4096, 16384, 32768)
LEAST_LIMIT = 0.01
"""A difference up to this share is no harm: it is what `compare` lets pass."""
LEAST_OVERLAP = 0.5
_REPEATS = 3  # long enough that the GPUs are busy together


class Finding(NamedTuple):
    """Seconds a call of a cell on a GPU: alone, together with the others, alone again."""

    uuid: str
    timing: Timing
    alone: float
    together: float
    again: float

    @property
    def noise(self) -> float:
        """What the two times alone differ by, as a share."""
        return abs(self.again / self.alone - 1)

    @property
    def change(self) -> float:
        """What "together" is slower by than the mean of the times alone, as a share."""
        return 2 * self.together / (self.alone + self.again) - 1


class Verdict(NamedTuple):
    """What was found, the largest change that counts as noise, and how long all were busy at once.

    ``overlap`` is the share of the time of the common measurement in which every GPU measured.
    """

    findings: tuple[Finding, ...]
    limit: float
    overlap: float

    @property
    def alone(self) -> bool:
        """Whether the GPUs leave each other's figures alone."""
        return all(abs(each.change) <= self.limit for each in self.findings)


def timings() -> list[Timing]:
    return [
        Timing(FORWARD, PeerCell(OURS, seq_len, HIDDEN_SIZE, HEADS, 1, HALF, FORMAT))
        for seq_len in SEQ_LENS
    ]


def check(uuids: Sequence[str]) -> Verdict:
    """Measure alone, together and alone again.

    Raises
    ------
    SweepError
        If there is one GPU only, a cell has no speed, or the GPUs were not busy at once.
    """
    if len(uuids) < 2:
        raise SweepError(f"two GPUs or more are needed to disturb each other, got {len(uuids)}")
    alone = {uuid: _together([uuid])[0][uuid] for uuid in uuids}
    together, overlap = _together(uuids)
    again = {uuid: _together([uuid])[0][uuid] for uuid in uuids}
    if overlap < LEAST_OVERLAP:
        raise SweepError(
            f"the GPUs measured at once for {overlap:.0%} of the time only: that tells nothing"
        )
    findings = tuple(
        Finding(uuid, timing, *(times[uuid][timing] for times in (alone, together, again)))
        for uuid in uuids
        for timing in timings()
    )
    limit = max(LEAST_LIMIT, *(each.noise for each in findings))
    return Verdict(findings, limit, overlap)


def markdown(verdict: Verdict) -> list[str]:
    """The findings as a table, and what follows from them."""
    lines = ["| GPU | tensor | alone | together | change | alone again: noise |", "|---" * 6 + "|"]
    for each in verdict.findings:
        size = f"{each.timing.cell.bytes_moved / 2 / 2**20:g} MiB"
        lines.append(
            f"| `{each.uuid[:12]}` | {size} | {each.alone * 1e6:.2f} µs "
            f"| {each.together * 1e6:.2f} µs | {each.change:+.2%} | {each.noise:.2%} |"
        )
    worst = max(verdict.findings, key=lambda each: abs(each.change))
    answer = "leave each other's figures alone" if verdict.alone else "DISTURB each other"
    lines += [
        "",
        f"The GPUs {answer}: the largest change is {worst.change:+.2%}, and up to "
        f"{verdict.limit:.2%} is noise (the largest difference between the two times alone, at "
        f"least {LEAST_LIMIT:.0%}). They measured at once for {verdict.overlap:.0%} of the time.",
    ]
    return lines


def _together(uuids: Sequence[str]) -> tuple[dict[str, dict[Timing, float]], float]:
    """Seconds a call by GPU and timing, all GPUs at once; the share of the time that was common."""
    start = threading.Barrier(len(uuids))

    def measure(uuid: str) -> tuple[dict[Timing, float], list[float]]:
        try:
            with Worker(uuid) as worker:
                start.wait()  # until every process has imported torch
                return _measured(worker)
        except BaseException:
            start.abort()
            raise

    with ThreadPoolExecutor(len(uuids)) as pool:
        futures = [pool.submit(measure, uuid) for uuid in uuids]
    errors = [error for future in futures if (error := future.exception())]
    for error in sorted(errors, key=lambda each: isinstance(each, threading.BrokenBarrierError)):
        raise error
    found = dict(zip(uuids, (future.result() for future in futures), strict=True))
    begins, ends = zip(*(times for _, times in found.values()), strict=True)
    overlap = max(0.0, min(ends) - max(begins)) / (max(ends) - min(begins))
    return {uuid: seconds for uuid, (seconds, _) in found.items()}, overlap


def _measured(worker: Worker) -> tuple[dict[Timing, float], list[float]]:
    seconds: dict[Timing, list[float]] = {}
    cells = [astuple(timing.cell) for timing in timings()] * _REPEATS
    times: list[float] = []
    for answer in worker.answers({"direction": FORWARD, "cells": cells}):
        if "done" in answer:
            times = answer["done"]
            continue
        row = from_json(answer)
        if row.status != "measured":
            raise SweepError(f"{row.timing.cell} has no speed on {worker.uuid}: {row.reason}")
        seconds.setdefault(row.timing, []).append(row.seconds)
    return {timing: statistics.median(each) for timing, each in seconds.items()}, times
