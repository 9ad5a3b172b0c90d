"""A machine whose GPU is pretended, and a clock that is moved by hand."""

import types

import pytest
import torch

from benchmarks._measure import accuracy, first_call, host_time, inputs, memory_and_launches
from benchmarks._subject import BACKWARD, FORWARD
from tests.package import plain


@pytest.fixture(autouse=True)
def progress(tmp_path, monkeypatch):
    path = tmp_path / "progress"
    monkeypatch.setenv("ROPE_PROGRESS", str(path))
    return lambda: [line for line in path.read_text().splitlines() if line]


@pytest.fixture
def one_thread():
    """For tensors so small that more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def on_cpu(monkeypatch, one_thread):
    """Measures as on a GPU, but CPU tensors in plain PyTorch."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(inputs, "DEVICE", "cpu")
    monkeypatch.setattr(accuracy, "_SHAPE", (256, 1, 2, 128))
    for module in (accuracy, memory_and_launches):
        monkeypatch.setattr(module, "_PATH_MIB", 1 / 4)
    monkeypatch.setattr(memory_and_launches, "_SEQ_LEN", 8)
    monkeypatch.setattr(memory_and_launches, "_HIDDEN_SIZE", 16)
    plain.install(monkeypatch)


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless it is moved; few calls."""
    now = types.SimpleNamespace(seconds=0.0)
    fake = types.SimpleNamespace(perf_counter=lambda: now.seconds)
    for module in (host_time, first_call):
        monkeypatch.setattr(module, "time", fake)
    monkeypatch.setattr(host_time, "WARM_CALLS", 2)
    monkeypatch.setattr(host_time, "BLOCK_CALLS", {FORWARD: 3, BACKWARD: 2})
    monkeypatch.setattr(host_time, "BLOCKS", 2)
    return now
