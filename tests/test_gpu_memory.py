"""GPU tests give their memory back, and one that takes much says so; on an allocator of its own."""

import contextlib
import fcntl
import gc
import itertools
import sys
import types

import pytest
import torch

from tests.gpu import memory

GIB = 1 << 30


class Allocator:
    """Stands for torch's: bytes that are in use, and those that it has of the GPU."""

    def __init__(self, monkeypatch):
        self.allocated = self.reserved = self.peak = 0
        self.collected = 0
        for name, function in {
            "init": lambda: None,
            "reset_peak_memory_stats": self.reset,
            "memory_allocated": lambda: self.allocated,
            "memory_reserved": lambda: self.reserved,
            "max_memory_reserved": lambda: self.peak,
            "empty_cache": self.empty,
        }.items():
            monkeypatch.setattr(torch.cuda, name, function)
        monkeypatch.setattr(gc, "collect", self.collect)

    def reset(self):
        self.peak = self.reserved

    def take(self, size):
        self.allocated += size
        self.reserved = max(self.reserved, self.allocated)
        self.peak = max(self.peak, self.reserved)

    def empty(self):
        self.reserved = self.allocated

    def collect(self):
        self.collected += 1
        self.allocated = 0


@pytest.fixture
def allocator(monkeypatch):
    return Allocator(monkeypatch)


def item(*marks):
    """As much of a test as is looked at."""
    named = {mark: object() for mark in marks}
    return types.SimpleNamespace(user_properties=[], get_closest_marker=named.get)


def test_memory_is_given_back_after_each_test(allocator):
    with memory.bounded(item()):
        allocator.take(3 * GIB)
        allocator.allocated = 0
    assert allocator.reserved == 0 and not allocator.collected


def test_a_little_is_kept(allocator):
    with memory.bounded(item()):
        allocator.take(GIB)
        allocator.allocated = 0
    assert allocator.reserved == GIB


def test_cycles_are_collected_where_memory_is_left(allocator):
    with memory.bounded(item()):
        allocator.take(3 * GIB)
    assert allocator.collected == 1 and allocator.reserved == 0


def test_what_an_earlier_test_keeps_is_not_counted(allocator, monkeypatch):
    monkeypatch.setattr(gc, "collect", lambda: None)
    with memory.bounded(item()):
        allocator.take(9 * GIB)
    second = item()
    with memory.bounded(second):
        allocator.take(2 * GIB)
    assert allocator.reserved == 11 * GIB and second.user_properties == [(memory.PEAK, 2.0)]


def test_frames_of_a_failed_test_are_let_go(allocator):
    sys.last_exc = sys.last_value = sys.last_traceback = object()
    with memory.bounded(item()):
        pass
    assert not vars(sys).keys() & {"last_exc", "last_value", "last_traceback"}


def test_what_takes_much_is_marked(allocator):
    def run(size, *marks):
        with memory.bounded(item(*marks)):
            allocator.take(size)
            allocator.allocated = 0

    run(10 * GIB)
    run(11 * GIB, "large")
    with pytest.raises(AssertionError, match="took 11.0 GiB of GPU memory: mark it `large`"):
        run(11 * GIB)
    with pytest.raises(AssertionError, match="mark it `large`"):
        run(11 * GIB, "alone")
    run(GIB)  # the peak is that of the test alone


@pytest.fixture
def can_be_had(monkeypatch, tmp_path):
    """Whether another process would get a lock now."""
    monkeypatch.setattr(memory, "LOCKS", tmp_path)

    def ask(name, kind=fcntl.LOCK_EX):
        with (tmp_path / name).open("w") as file:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, kind | fcntl.LOCK_NB)
                return True
            return False

    return ask


def test_one_large_test_runs_at_a_time(allocator, monkeypatch, can_be_had):
    """Until it has given its memory back; others do not wait."""
    with memory.bounded(item("large")):
        assert not can_be_had("large")
        with memory.bounded(item()):
            allocator.take(3 * GIB)
        allocator.take(12 * GIB)
        emptied = []

        def empty():
            emptied.append(can_be_had("large"))
            allocator.empty()

        monkeypatch.setattr(torch.cuda, "empty_cache", empty)
    assert emptied == [False] and can_be_had("large")


def test_nothing_runs_beside_a_test_that_is_alone(can_be_had):
    with memory.turn(item("alone")):
        assert not can_be_had("alone", fcntl.LOCK_SH)
    with memory.turn(item("large")):
        assert can_be_had("alone", fcntl.LOCK_SH) and not can_be_had("alone")


def test_as_many_processes_as_fit_the_gpu():
    assert [memory.processes(size * GIB) for size in (16, 39, 79, 100, 139)] == [1, 1, 5, 8, 11]


def test_the_largest_are_named():
    numbers = itertools.count(1)
    reports = [
        types.SimpleNamespace(nodeid=f"test_{n}", user_properties=[(memory.PEAK, float(n))])
        for n in itertools.islice(numbers, 7)
    ]
    others = [object(), types.SimpleNamespace(nodeid="other", user_properties=[("seconds", 9.0)])]
    found = memory.largest([*reports, *reports[-1:], *others])
    assert found[0] == "  7.0 GiB of GPU memory: test_7"
    assert [line.split()[0] for line in found] == ["7.0", "6.0", "5.0", "4.0", "3.0"]
    assert memory.largest(others) == []
