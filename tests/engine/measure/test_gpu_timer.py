"""The GPU timer's arithmetic and its turns, on a GPU whose every call takes a known time."""

import contextlib
import itertools
import types
import weakref
from unittest import mock

import pytest
import torch

from benchmarks._engine.measure import gpu_timer
from benchmarks._subjects.rope import grid
from benchmarks._subjects.rope.cells import grid_cell

MIB = 2**20
OTHERS = "others"


class Gpu:
    """Runs one thing after the other, on a clock of its own; ``ran`` names them in order."""

    def __init__(self):
        self.seconds = 0.0
        self.ran = []
        self.reserved = []
        self.graph = None  # that is being captured

    def call(self, name: str, seconds: float):
        """A callable such as a recording takes, which returns its name as its output."""

        def launch():
            if self.graph is None:
                self.run([(name, seconds)])
            else:
                self.graph.work.append((name, seconds))
            return name

        return launch

    def run(self, work):
        for name, seconds in work:
            self.ran.append(name)
            self.seconds += seconds

    def reserve(self, bytes_needed: int):
        assert self.graph is not None, "not in the pool of the graph"
        self.reserved.append(bytes_needed)

    @contextlib.contextmanager
    def capture(self, graph, stream):
        assert stream.mock_calls, "the first call may still be running: synchronize"
        self.graph = graph
        yield
        self.graph = None


class Event:
    def __init__(self, gpu):
        self.gpu, self.synchronized = gpu, False

    def record(self):
        self.seconds = self.gpu.seconds

    def synchronize(self):
        self.synchronized = True

    def elapsed_time(self, end) -> float:
        assert end.synchronized, "the end may not have come yet"
        return (end.seconds - self.seconds) * 1e3


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(gpu_timer, "SAMPLES", 7)
    monkeypatch.setattr(gpu_timer, "SAMPLE_SECONDS", 3e-3)
    gpu = Gpu()

    def event(enable_timing):
        assert enable_timing
        return Event(gpu)

    def new_graph():
        work = []
        return types.SimpleNamespace(work=work, replay=lambda: gpu.run(work))

    monkeypatch.setattr(torch.cuda, "CUDAGraph", new_graph)
    monkeypatch.setattr(torch.cuda, "Event", event)
    monkeypatch.setattr(torch.cuda, "graph", gpu.capture)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(gpu_timer, "reserve", gpu.reserve)
    monkeypatch.setattr(gpu_timer, "fill_l2", lambda: gpu.run([(OTHERS, 5e-5)]))
    return gpu


def recording(gpu, name: str, seconds: float, sets: int):
    return gpu_timer.Recording([gpu.call(name, seconds) for _ in range(sets)], mock.Mock())


def test_recording_keeps_every_output_and_runs_one_call_to_compile_it(gpu):
    names = ["first", "second", "third"]
    made = gpu_timer.Recording([gpu.call(name, 1e-6) for name in names], mock.Mock(), 3 * MIB)
    assert made.outputs == names
    assert gpu.reserved == [3 * MIB]
    assert gpu.ran == ["first"]

    def fail():  # before the capture
        assert gpu.graph is None
        raise RuntimeError("does not compile")

    with pytest.raises(RuntimeError, match="does not compile"):
        gpu_timer.Recording([fail], mock.Mock())


def test_recording_keeps_what_its_calls_hold(gpu):
    """A backward reads what its forward saved, at every replay."""

    class Saved: ...

    saved = Saved()
    held = weakref.ref(saved)
    made = gpu_timer.Recording([lambda saved=saved: "output"], mock.Mock())
    del saved
    assert held() is not None
    del made
    assert held() is None


@pytest.mark.parametrize("replays", [1, 10])
def test_time_is_that_of_one_call(gpu, replays):
    five = recording(gpu, "call", 3e-6, sets=5)
    gpu.ran.clear()
    assert five.time(replays) == pytest.approx(3e-6)
    assert gpu.ran == [OTHERS, *["call"] * (5 * replays)], "and others before it, in no one's time"


@pytest.mark.parametrize(
    ("seconds", "sets", "replays"),
    # ceil(3 ms / what the graph takes), and never none.
    [(2.3e-6, 4, 327), (1.1e-4, 2, 14), (2e-3, 2, 1), (1.0, 2, 1)],
)
def test_replays_fill_the_time_of_a_sample(gpu, seconds, sets, replays):
    made = recording(gpu, "call", seconds, sets)
    gpu.ran.clear()
    ((samples),) = gpu_timer.paired_samples([made])
    assert samples == [pytest.approx(seconds)] * 7
    # Before the samples, one replay to wake it up and one to see how long it takes.
    assert gpu.ran.count("call") == sets * (2 + 7 * replays)


def test_recordings_take_turns(gpu):
    rope, copy = recording(gpu, "rope", 6.1e-5, sets=2), recording(gpu, "copy", 5.1e-5, sets=3)
    gpu.ran.clear()
    latency, reference = gpu_timer.paired_samples([rope, copy])
    assert latency == [pytest.approx(6.1e-5)] * 7
    assert reference == [pytest.approx(5.1e-5)] * 7
    sample = [(OTHERS, 1), ("rope", 2 * 25), (OTHERS, 1), ("copy", 3 * 20)]
    turns = [(name, len(list(run))) for name, run in itertools.groupby(gpu.ran)]
    assert turns == [
        *[(OTHERS, 1), ("rope", 2)] * 2,
        *[(OTHERS, 1), ("copy", 3)] * 2,
        *sample * 7,
    ]


def test_others_fill_the_cache(monkeypatch):
    monkeypatch.setattr(gpu_timer, "_l2_bytes", lambda: 60 * MIB)
    monkeypatch.setattr(torch, "zeros", lambda n, device: torch.ones(n))
    gpu_timer._others.cache_clear()
    assert gpu_timer._others().nbytes == 120 * MIB
    assert gpu_timer._others() is gpu_timer._others(), "made once"
    gpu_timer._others.cache_clear()


@pytest.mark.parametrize("l2_mib", [4, 50, 126])
def test_every_cell_finds_a_cold_cache(l2_mib, monkeypatch):
    properties = types.SimpleNamespace(L2_cache_size=l2_mib * MIB)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", {3: properties}.__getitem__)
    sizes = [cell.bytes_moved for cell in grid.cells_of(grid_cell, grid.GRIDS["full"])]
    for bytes_moved in (2**14, 2**18, *sizes):
        sets = gpu_timer.cold_sets(bytes_moved)
        assert sets >= 2
        assert sets * bytes_moved >= 4 * l2_mib * MIB
        assert sets >= min(1000, 16 * l2_mib * MIB / bytes_moved)
        enough = 4 if sets > 1000 else 16
        assert sets == 2 or (sets - 1) * bytes_moved < enough * l2_mib * MIB, "more than needed"


def test_warm_up_lasts_until_the_clocks_have_settled(monkeypatch):
    now, rounds = [100.0], []

    def synchronize():
        rounds.append(now[0])
        now[0] += 0.4

    monkeypatch.setattr(gpu_timer, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(torch, "randn", lambda *shape, device, dtype: torch.ones(2, 2, dtype=dtype))
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    gpu_timer.warm_up(1.5)
    assert rounds == pytest.approx([100.0, 100.4, 100.8, 101.2])
