"""The watch on the GPU, with an NVML of the test's own: who is there, and what disturbs a round."""

import os
import signal
import stat
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from benchmarks._compare import watch
from benchmarks._compare.watch import GpuBusyError, Watch, WatchError, disturbance

ROOT = Path(__file__).resolve().parent.parent
UUIDS = [f"GPU-{digit * 8}-0000-0000-0000-000000000000" for digit in "ab"]
GPU = UUIDS[0]
IDLE, POWER_CAP, HW, SW_HEAT, HW_HEAT, BRAKE = 0x1, 0x4, 0x8, 0x20, 0x40, 0x80


class FakeNvml(types.ModuleType):
    """What of pynvml the watch uses, with the constants' values as NVML has them."""

    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    nvmlMemory_v2 = 0x02000028
    nvmlClocksEventReasonGpuIdle = IDLE
    nvmlClocksEventReasonApplicationsClocksSetting = 0x2
    nvmlClocksEventReasonSwPowerCap = POWER_CAP
    nvmlClocksEventReasonHwSlowdown = HW
    nvmlClocksEventReasonSyncBoost = 0x10
    nvmlClocksEventReasonSwThermalSlowdown = SW_HEAT
    nvmlClocksEventReasonHwThermalSlowdown = HW_HEAT
    nvmlClocksEventReasonHwPowerBrakeSlowdown = BRAKE
    nvmlClocksEventReasonDisplayClockSetting = 0x100

    class NVMLError(Exception):
        def __init__(self, value, text="Unknown Error"):
            super().__init__(text)
            self.value = value

    def __init__(self):
        super().__init__("pynvml")
        self.__file__ = "pynvml.py"
        self.gpus = {uuid: types.SimpleNamespace(uuid=uuid, name="NVIDIA H200") for uuid in UUIDS}
        for gpu in self.gpus.values():
            gpu.clocks, gpu.reasons, gpu.processes, gpu.graphics = [1980, 3201], 0, [], []
            gpu.used, gpu.mig, gpu.power = 4 << 20, 0, 350_000
        self.names, self.open, self.error = {}, 0, None

    def nvmlInit(self):
        if self.error:
            raise self.error
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def _get(self, value):
        assert self.open, "NVML is used outside nvmlInit and nvmlShutdown"
        if self.error:
            raise self.error
        if isinstance(value, Exception):
            raise value
        return value

    def nvmlDeviceGetCount(self):
        return self._get(len(self.gpus))

    def nvmlDeviceGetHandleByIndex(self, index):
        return self._get(list(self.gpus.values())[index])

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return self._get(self.gpus.get(uuid, self.NVMLError(6, "Not Found")))

    def nvmlDeviceGetUUID(self, gpu):
        return self._get(gpu.uuid)

    def nvmlDeviceGetName(self, gpu):
        return self._get(gpu.name)

    def nvmlDeviceGetMigMode(self, gpu):
        mode = self._get(gpu.mig)
        return [mode, mode]

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu):
        return self._get(gpu.reasons)

    def nvmlDeviceGetClockInfo(self, gpu, kind):
        return self._get(gpu.clocks[kind - 1])

    def nvmlDeviceGetTemperature(self, gpu, sensor):
        return self._get(41)

    def nvmlDeviceGetPowerUsage(self, gpu):
        return self._get(gpu.power)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu):
        return self._get(list(gpu.processes))

    def nvmlDeviceGetGraphicsRunningProcesses(self, gpu):
        return self._get(list(gpu.graphics))

    def nvmlDeviceGetMemoryInfo(self, gpu, version):
        assert version == self.nvmlMemory_v2  # whose "used" leaves the driver's reserve out
        return types.SimpleNamespace(used=self._get(gpu.used))

    def nvmlSystemGetProcessName(self, pid):
        return self._get(self.names.get(pid, self.NVMLError(6, "Not Found")))


@pytest.fixture
def nvml(monkeypatch):
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    yield fake
    assert fake.open == 0, "NVML was left open"


def process(pid, memory=1 << 30):
    return types.SimpleNamespace(pid=pid, usedGpuMemory=memory)


# Which GPU


@pytest.mark.parametrize(
    ("variable", "device", "expected"),
    [
        (None, 0, 0),
        (None, 1, 1),
        ("1", 0, 1),
        ("1,0", 1, 0),
        (" 1 , 0", 0, 1),
        (UUIDS[1], 0, 1),
        ("GPU-bbbb", 0, 1),
        (f"{UUIDS[1]},{UUIDS[0]}", 1, 0),
        ("1,-1,0", 0, 1),
    ],
)
def test_the_gpu_that_cuda_would_take(nvml, monkeypatch, variable, device, expected):
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert watch.gpu_uuid(device) == UUIDS[expected]


@pytest.mark.parametrize(
    ("variable", "device"),
    [("", 0), ("-1", 0), ("2", 0), ("1", 1), ("1,-1,0", 1), ("GPU-", 0), ("GPU-cc", 0), ("x", 0)],
)
def test_no_such_device_says_what_is_there(nvml, monkeypatch, variable, device):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    with pytest.raises(WatchError, match=f"leaves no device {device} of the 2 GPUs.*{GPU}"):
        watch.gpu_uuid(device)


@pytest.mark.parametrize(
    ("variable", "expected"),
    [(None, UUIDS[:2]), ("1,0", UUIDS[1::-1]), ("1", UUIDS[1:2]), ("", []), ("0,9,1", UUIDS[:1])],
)
def test_all_gpus_that_cuda_would_see(nvml, monkeypatch, variable, expected):
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert watch.gpu_uuids() == list(expected)
    for uuid in expected:
        nvml.gpus[uuid].mig = 1
        with pytest.raises(WatchError, match="in MIG mode"):
            watch.gpu_uuids()
        nvml.gpus[uuid].mig = 0


def test_no_gpu_at_all(nvml):
    nvml.gpus.clear()
    assert watch.gpu_uuids() == []
    with pytest.raises(WatchError, match="of the 0 GPUs that NVML finds here: none"):
        watch.gpu_uuid()


def test_a_mig_instance_is_refused(nvml, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-8932f937")
    with pytest.raises(WatchError, match="whole GPU"):
        watch.gpu_uuid()


def test_a_gpu_in_mig_mode_is_refused(nvml):
    nvml.gpus[GPU].mig = 1
    with pytest.raises(WatchError, match="in MIG mode"):
        watch.gpu_uuid()


def test_a_gpu_that_knows_no_mig_is_taken(nvml):
    nvml.gpus[GPU].mig = nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
    assert watch.gpu_uuid() == GPU


def test_numbers_of_different_models_are_not_guessed(nvml, monkeypatch):
    nvml.gpus[UUIDS[1]].name = "NVIDIA T4"
    with pytest.raises(WatchError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        watch.gpu_uuid()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", UUIDS[1])
    assert watch.gpu_uuid() == UUIDS[1]
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert watch.gpu_uuid() == UUIDS[1]


def test_a_handle_is_found_by_the_uuid_that_torch_gives(nvml):
    nvml.open = 1
    assert watch.handle_of(nvml, GPU.removeprefix("GPU-")) is nvml.gpus[GPU]
    with pytest.raises(WatchError, match="UUID is needed"):
        watch.handle_of(nvml, "0")
    nvml.open = 0


def test_without_nvidia_ml_py_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(WatchError, match="pip install nvidia-ml-py"):
        watch.gpu_uuid()


def test_another_package_of_that_name_is_refused(monkeypatch):
    stranger = types.ModuleType("pynvml")
    stranger.__file__ = "elsewhere.py"
    monkeypatch.setitem(sys.modules, "pynvml", stranger)
    with pytest.raises(WatchError, match="elsewhere.py.*too old or another package"):
        watch.gpu_uuid()


def test_a_missing_driver_is_said(nvml):
    nvml.error = nvml.NVMLError(12, "NVML Shared Library Not Found")
    for ask in (watch.gpu_uuid, lambda: watch.require_free(GPU), lambda: Watch(GPU).__enter__()):
        with pytest.raises(WatchError, match="Shared Library Not Found.*driver"):
            ask()


def test_the_fake_is_like_the_real_one():
    real = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    names = [name for name in vars(FakeNvml) if name.startswith(("nvml", "NVML_"))]
    assert [name for name in names if not hasattr(real, name)] == []
    for name in names:
        constant = getattr(FakeNvml, name)
        assert callable(constant) or getattr(real, name) == constant, name


# Whose GPU


def test_a_free_gpu_is_free(nvml):
    watch.require_free(GPU, patience_seconds=0)


def test_a_busy_gpu_says_who(nvml):
    nvml.gpus[GPU].processes = [process(42, 3 << 30), process(43, None)]
    nvml.names = {42: "/usr/bin/python3"}
    with pytest.raises(GpuBusyError) as caught:
        watch.require_free(GPU, patience_seconds=0)
    assert "pid 42 (/usr/bin/python3, 3.0 GiB)" in str(caught.value)
    assert "pid 43 (name not readable from here: another container's" in str(caught.value)
    assert "memory unknown" in str(caught.value)
    watch.require_free(UUIDS[1], patience_seconds=0)


def test_a_process_that_no_list_shows_is_seen_by_its_memory(nvml):
    nvml.gpus[GPU].used = 5 << 30
    with pytest.raises(GpuBusyError, match=r"cannot be seen.*another container.*5\.0 GiB"):
        watch.require_free(GPU, patience_seconds=0)
    nvml.gpus[GPU].graphics = [process(7)]  # a desktop explains the memory
    watch.require_free(GPU, patience_seconds=0)


def test_a_process_that_is_ending_is_waited_for(nvml):
    ending = iter([[process(42)], [process(42)], []])
    nvml.nvmlDeviceGetComputeRunningProcesses = lambda handle: next(ending)
    watch.require_free(GPU, patience_seconds=5)
    assert next(ending, None) is None


# While it is measured


def watched(nvml, script):
    """The summary over states of the GPU, each held for two samples at least."""
    gpu = nvml.gpus[GPU]
    vars(gpu).update(script[0])
    with Watch(GPU, interval_seconds=0.001) as running:
        for state in script:
            vars(gpu).update(state)
            _until(running, running.summary()["samples"] + 3)
    return running.summary()


def _until(running, samples):
    end = time.monotonic() + 5
    while running.summary()["samples"] < samples:
        assert time.monotonic() < end, "the watch takes no samples"
        time.sleep(0.001)


def load(**changes):
    return {"processes": [process(1)], "reasons": 0, "clocks": [1980, 3201]} | changes


ABSENT = {"processes": [], "reasons": IDLE, "clocks": [345, 1593]}


def test_a_quiet_round(nvml):
    summary = watched(nvml, [ABSENT, load(reasons=POWER_CAP), load(), ABSENT])
    assert summary["sm_mhz"] == [1980, 1980, 1980]  # not those of an idle GPU
    assert summary["memory_mhz"] == [3201] * 3
    assert summary["temperature_c"] == [41] * 3 and summary["power_w"] == [350.0] * 3
    assert summary["processes"] == 1
    assert 4 <= summary["under_load"] < summary["samples"]
    assert set(summary["events"]) == {"software power cap"}
    assert disturbance(summary) == ""
    assert disturbance(summary, [summary]) == ""


@pytest.mark.parametrize(
    ("bit", "words"),
    [
        (HW, "hardware slowdown"),
        (SW_HEAT, "software thermal slowdown"),
        (HW_HEAT, "hardware thermal slowdown"),
        (BRAKE, "hardware power brake"),
    ],
)
def test_heat_and_hardware_disturb(nvml, bit, words):
    summary = watched(nvml, [load(), load(reasons=bit | POWER_CAP), load()])
    reason = disturbance(summary)
    assert reason.startswith(f"{words} in ") and "power cap" not in reason
    assert reason.endswith(f"of {summary['under_load']} samples")


def test_a_second_process_disturbs_however_short(nvml):
    summary = watched(nvml, [load(), load(processes=[process(1), process(2)]), load()])
    assert "2 processes on the GPU at once" in disturbance(summary)


def test_processes_that_cannot_be_seen_are_no_reason_to_see_no_load(nvml):
    summary = watched(nvml, [ABSENT, load(processes=[])])
    assert summary["processes"] == 0 and summary["sm_mhz"] == [1980] * 3
    assert disturbance(summary) == ""


@pytest.mark.parametrize(("index", "words"), [(0, "SM clock"), (1, "memory clock")])
def test_a_clock_below_the_earlier_rounds_disturbs(nvml, index, words):
    usual = watched(nvml, [load()])

    def at(factor):
        clocks = list(load()["clocks"])
        clocks[index] = int(clocks[index] * factor)
        return watched(nvml, [load(clocks=clocks)])

    low, near = at(0.94), at(0.96)
    assert disturbance(near, [usual] * 3) == ""
    assert disturbance(low) == ""
    reason = disturbance(low, [usual, low, usual])
    before = usual[watch._Sample._fields[index]][1]
    assert reason.startswith(f"{words} at ") and f"{before:g} in earlier rounds" in reason


def test_several_reasons_are_all_given(nvml):
    summary = watched(nvml, [load(processes=[process(1), process(2)], reasons=HW_HEAT)])
    assert "thermal" in disturbance(summary) and "2 processes" in disturbance(summary)


def test_a_round_in_which_the_gpu_did_nothing_is_no_round(nvml):
    assert "never seen under load" in disturbance(watched(nvml, [ABSENT]))


def test_a_gpu_without_a_power_meter_is_watched(nvml):
    nvml.gpus[GPU].power = nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
    summary = watched(nvml, [load()])
    assert summary["power_w"] is None and summary["sm_mhz"]


def test_what_judges_a_round_must_be_readable(nvml):
    nvml.gpus[GPU].reasons = nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED, "Not Supported")
    with pytest.raises(WatchError, match="Not Supported"), Watch(GPU):
        pass


def test_a_watch_that_went_blind_says_so(nvml):
    with Watch(GPU, interval_seconds=0.001) as running:
        nvml.gpus[GPU].reasons = nvml.NVMLError(15, "GPU is lost")
        with pytest.raises(WatchError, match="stopped answering: GPU is lost"):
            _until(running, 1_000_000)
    with pytest.raises(WatchError, match="GPU is lost"):
        running.summary()


def test_an_error_in_the_block_ends_the_watch_and_comes_through(nvml):
    before = set(threading.enumerate())
    with pytest.raises(KeyError), Watch(GPU) as running:
        assert len(set(threading.enumerate()) - before) == 1
        raise KeyError
    assert not set(threading.enumerate()) - before
    assert running.summary()["samples"] == 0


# The lock


@pytest.fixture
def locks(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "LOCK_DIRECTORY", tmp_path)
    return tmp_path


HOLDER = """
import pathlib, time
from benchmarks._compare import watch
watch.LOCK_DIRECTORY = pathlib.Path({directory!r})
with watch.gpu_lock({uuid!r}, wait_seconds=0):
    print("held", flush=True)
    input()
print("free", flush=True)
input()
"""


@pytest.fixture
def holder(locks):
    code = HOLDER.format(directory=str(locks), uuid=GPU)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, **pipes) as running:
        assert running.stdout.readline() == "held\n"
        yield running
        running.kill()


def test_a_second_run_is_told_who_measures(holder):
    start = time.monotonic()
    with (
        pytest.raises(GpuBusyError, match=rf"measured by pid {holder.pid} \(.*python.* -c"),
        watch.gpu_lock(GPU, wait_seconds=0.3),
    ):
        pass
    assert time.monotonic() - start >= 0.3
    with watch.gpu_lock(UUIDS[1], wait_seconds=0):
        pass


def test_the_lock_ends_with_the_block(holder, locks):
    holder.stdin.write("\n")
    holder.stdin.flush()
    assert holder.stdout.readline() == "free\n"
    (path,) = locks.iterdir()
    assert path.read_bytes() == b""  # and names nobody
    with watch.gpu_lock(GPU, wait_seconds=0):
        assert f"pid {os.getpid()} " in path.read_text()


def test_the_lock_ends_with_the_process(holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with watch.gpu_lock(GPU, wait_seconds=0):
        pass


def test_the_lock_is_every_users(locks):
    mask = os.umask(0o077)
    try:
        with watch.gpu_lock(GPU, wait_seconds=0):
            (path,) = locks.iterdir()
            assert stat.S_IMODE(path.stat().st_mode) == 0o666
    finally:
        os.umask(mask)


def test_an_error_in_the_block_frees_the_lock(locks):
    with pytest.raises(KeyError), watch.gpu_lock(GPU, wait_seconds=0):
        raise KeyError
    with watch.gpu_lock(GPU, wait_seconds=0):
        pass


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
    with pytest.raises(WatchError, match="the lock of the GPU"), watch.gpu_lock(GPU, 0):
        pass
    assert victim.read_text() == "precious"


def test_what_another_user_wrote_reaches_the_terminal_without_its_controls(holder, locks):
    (path,) = locks.iterdir()
    path.write_bytes(b"pid 1 (\x1b[2J\xff)" + b"x" * 10_000)
    with pytest.raises(GpuBusyError) as caught, watch.gpu_lock(GPU, wait_seconds=0):
        pass
    assert "\x1b" not in str(caught.value) and len(str(caught.value)) < 600
