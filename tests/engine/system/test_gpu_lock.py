"""The lock by which one run at a time measures on a GPU, whoever started it."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks._engine.system import gpu_monitor
from benchmarks._engine.system.gpu_monitor import GpuBusyError, WatchError
from tests.engine.system.fake_nvml import GPU, UUIDS

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def locks(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_monitor, "LOCK_DIRECTORY", tmp_path)
    return tmp_path


HOLDER = """
import pathlib, time
from benchmarks._engine.system import gpu_monitor
gpu_monitor.LOCK_DIRECTORY = pathlib.Path({directory!r})
with gpu_monitor.gpu_lock({uuid!r}, wait_seconds=0):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(locks):
    code = HOLDER.format(directory=str(locks), uuid=GPU)
    line, pipe = [sys.executable, "-c", code], subprocess.PIPE
    with subprocess.Popen(line, cwd=ROOT, stdout=pipe, text=True) as running:
        assert running.stdout.readline() == "held\n"
        yield running
        running.kill()


def test_a_second_run_is_told_who_measures_until_that_process_ends(holder):
    start = time.monotonic()
    with (
        pytest.raises(GpuBusyError, match=rf"measured by pid {holder.pid} \(.*python.* -c"),
        gpu_monitor.gpu_lock(GPU, wait_seconds=0.3),
    ):
        pass
    assert time.monotonic() - start >= 0.3
    with gpu_monitor.gpu_lock(UUIDS[1], wait_seconds=0):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with gpu_monitor.gpu_lock(GPU, wait_seconds=0):
        pass


def test_the_lock_ends_with_the_block_and_names_no_process_then(locks):
    with pytest.raises(KeyError), gpu_monitor.gpu_lock(GPU, wait_seconds=0):
        (path,) = locks.iterdir()
        assert f"pid {os.getpid()} " in path.read_text()
        raise KeyError
    assert path.read_bytes() == b""
    with gpu_monitor.gpu_lock(GPU, wait_seconds=0):
        pass


def test_the_lock_is_every_users(locks):
    mask = os.umask(0o077)
    try:
        with gpu_monitor.gpu_lock(GPU, wait_seconds=0):
            (path,) = locks.iterdir()
            assert stat.S_IMODE(path.stat().st_mode) == 0o666
    finally:
        os.umask(mask)


@pytest.mark.parametrize("place", ["symlink_to", "hardlink_to", "fifo", "directory"])
def test_what_lies_in_the_locks_place_is_not_written_to(locks, tmp_path_factory, place):
    victim = tmp_path_factory.mktemp("home") / "victim"
    victim.write_text("precious")
    path = locks / f"rope-triton-gpu-{GPU}.lock"
    if place == "fifo":
        os.mkfifo(path)
    elif place == "directory":
        path.mkdir()
    else:
        getattr(path, place)(victim)
    with pytest.raises(WatchError, match="the lock of the GPU"), gpu_monitor.gpu_lock(GPU, 0):
        pass
    assert victim.read_text() == "precious"


def test_what_another_user_wrote_reaches_the_terminal_without_its_controls(holder, locks):
    (path,) = locks.iterdir()
    path.write_bytes(b"pid 1 (\x1b[2J\xff)" + b"x" * 10_000)
    with pytest.raises(GpuBusyError) as caught, gpu_monitor.gpu_lock(GPU, wait_seconds=0):
        pass
    assert "\x1b" not in str(caught.value) and len(str(caught.value)) < 600
