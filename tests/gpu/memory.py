"""What a test may take of the GPU's memory, so that several run side by side on one GPU."""

import contextlib
import fcntl
import gc
import os
import sys
import tempfile
from pathlib import Path

import pytest
import torch

LARGE_BYTES = 10 << 30
"""What any test may take; seven of these and the largest fit an H200 together."""

KEPT_BYTES = 1 << 30
"""What a process keeps between two tests, because asking for it again takes time."""

PEAK = "GiB of GPU memory"

LOCK = Path(tempfile.gettempdir(), f"rope-triton-large-test-{os.getuid()}.lock")
"""Held by the one that runs of the tests that may take more, whichever process it is in."""


@contextlib.contextmanager
def bounded(item: pytest.Item):
    """Give back what a test has taken. Of those marked ``large``, one in all processes at a time.

    Raises
    ------
    AssertionError
        If it took more than ``LARGE_BYTES`` and is not marked.
    """
    large = item.get_closest_marker("large") is not None
    with _lock() if large else contextlib.nullcontext():
        with _given_back(item):
            yield
        peak = dict(item.user_properties)[PEAK]
        assert large or peak * 2**30 <= LARGE_BYTES, (
            f"the test took {peak:.1f} GiB of GPU memory: mark it `large`"
        )


@contextlib.contextmanager
def _lock():
    with LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
        yield


@contextlib.contextmanager
def _given_back(item: pytest.Item):
    torch.cuda.init()
    torch.cuda.reset_peak_memory_stats()
    before, held = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    yield
    # What the process could not give back before, as something small lay in it, is no test's.
    item.user_properties.append((PEAK, (torch.cuda.max_memory_reserved() - held) / 2**30))
    for name in ("last_exc", "last_value", "last_traceback"):  # frames of the test that failed last
        vars(sys).pop(name, None)
    if torch.cuda.memory_allocated() > before:  # only then: it takes longer than most tests
        gc.collect()
    if torch.cuda.memory_reserved() > KEPT_BYTES:
        torch.cuda.empty_cache()


def largest(reports, count: int = 5) -> list[str]:
    """A line for each of the reported tests that took most, the largest first."""
    peaks = {
        (round(value, 1), report.nodeid)
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == PEAK
    }
    return [f"{value:5.1f} {PEAK}: {test}" for value, test in sorted(peaks, reverse=True)[:count]]
