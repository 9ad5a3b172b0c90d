"""What tests on a GPU share."""

import pytest

from benchmarks._engine.measure import gpu_timer


@pytest.fixture
def progress(tmp_path, monkeypatch):
    """What is measured reports to a file of the test's own."""
    monkeypatch.setenv("ROPE_PROGRESS", str(tmp_path / "progress"))


@pytest.fixture
def unwarmed(monkeypatch):
    """Skip the warm-up, two seconds a process: a comparison in turns with a copy needs no settled
    clock if its bounds are wide.
    """
    monkeypatch.setattr(gpu_timer, "warm_up", lambda: None)
