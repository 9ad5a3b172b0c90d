"""How several processes of tests share one GPU: its memory, and turns where a test needs them."""

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
"""What any test may take."""

LARGEST_BYTES = 30 << 30
"""What the largest of those marked ``large`` takes, and the contexts of eight processes."""

KEPT_BYTES = 1 << 30
"""What a process keeps between two tests, because asking for it again takes time."""

PEAK = "GiB of GPU memory"

LOCKS = Path(tempfile.gettempdir(), f"rope-triton-tests-{os.getuid()}")
"""Where the locks lie that all processes of tests share."""


def processes(gpu_bytes: int) -> int:
    """How many processes of tests a GPU with so much memory has room for."""
    return 1 + max(0, gpu_bytes - LARGEST_BYTES) // LARGE_BYTES


def turn(item: pytest.Item):
    """Held while a test runs: one that is marked ``alone`` waits until no other does."""
    return _lock("alone", shared=item.get_closest_marker("alone") is None)


@contextlib.contextmanager
def bounded(item: pytest.Item):
    """Give back what a test has taken. Of those marked ``large``, one in all processes at a time.

    Raises
    ------
    AssertionError
        If it took more than ``LARGE_BYTES`` and is not marked.
    """
    large = item.get_closest_marker("large") is not None
    with _lock("large") if large else contextlib.nullcontext():
        with _given_back(item):
            yield
        peak = dict(item.user_properties)[PEAK]
        assert large or peak * 2**30 <= LARGE_BYTES, (
            f"the test took {peak:.1f} GiB of GPU memory: mark it `large`"
        )


@contextlib.contextmanager
def _lock(name: str, shared: bool = False):
    LOCKS.mkdir(exist_ok=True)
    with (LOCKS / name).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)  # until it is closed
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
