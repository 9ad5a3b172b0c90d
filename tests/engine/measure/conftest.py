"""A machine whose GPU is pretended, and a clock that is moved by hand."""

import types

import pytest
import torch

from benchmarks._engine.measure import first_call, host_time, inputs
from benchmarks._engine.subject import BACKWARD, FORWARD
from tests.engine.measure import samples
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
def on_cpu(monkeypatch, tmp_path, one_thread):
    """Measures cells as on a GPU, but with CPU tensors, plain PyTorch and made-up samples."""
    samples.install(monkeypatch, tmp_path / "progress", sets=3)
    plain.install(monkeypatch)
    monkeypatch.setattr(inputs, "DEVICE", "cpu")


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
