"""Which GPU is measured: the one that CUDA would take, if no other process uses it."""

import sys
import types

import pytest

from benchmarks._engine.system import gpu_monitor
from benchmarks._engine.system.gpu_monitor import GpuBusyError, Watch, WatchError
from tests.engine.system import fake_nvml
from tests.engine.system.fake_nvml import GPU, UUIDS, FakeNvml, process

nvml = fake_nvml.nvml  # fixture


# --- which GPU ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        *((None, 0), ("1", 1), (" 1 , 0", 1), ("0,9,1", 0), ("1,-1,0", 1), (UUIDS[1], 1)),
        *(("GPU-bbbb", 1), (f"{UUIDS[1]},{UUIDS[0]}", 1), ("", None), ("-1", None), ("2", None)),
        *(("9,0", None), ("GPU-", None), ("GPU-cc", None), ("x", None)),
    ],
)
def test_the_gpu_that_cuda_would_take(nvml, monkeypatch, variable, expected):
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    if expected is None:
        with pytest.raises(WatchError, match=f"leaves none of the 2 GPUs.*{GPU}"):
            gpu_monitor.gpu_uuid()
    else:
        assert gpu_monitor.gpu_uuid() == UUIDS[expected]


def test_a_gpu_that_is_shared_or_missing_is_refused(nvml, monkeypatch):
    nvml.gpus[GPU].mig = 1
    with pytest.raises(WatchError, match=f"{GPU} is in MIG mode"):
        gpu_monitor.gpu_uuid()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-8932f937")
    with pytest.raises(WatchError, match="whole GPU"):
        gpu_monitor.gpu_uuid()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    nvml.gpus.clear()
    with pytest.raises(WatchError, match="of the 0 GPUs that NVML finds here: none"):
        gpu_monitor.gpu_uuid()


def test_a_gpu_that_knows_no_mig_is_taken(nvml):
    nvml.gpus[GPU].mig = nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
    assert gpu_monitor.gpu_uuid() == GPU


def test_numbers_of_different_models_are_not_guessed(nvml, monkeypatch):
    nvml.gpus[UUIDS[1]].name = "NVIDIA T4"
    with pytest.raises(WatchError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        gpu_monitor.gpu_uuid()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", UUIDS[1])
    assert gpu_monitor.gpu_uuid() == UUIDS[1]
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpu_monitor.gpu_uuid() == UUIDS[1]


# --- whose GPU ------------------------------------------------------------------------------------


def test_a_busy_gpu_says_who(nvml):
    nvml.gpus[GPU].processes = [process(42, 3 << 30), process(43, None)]
    nvml.names = {42: "/usr/bin/python3"}
    with pytest.raises(GpuBusyError) as caught:
        gpu_monitor.require_free(GPU, patience_seconds=0)
    assert "pid 42 (/usr/bin/python3, 3.0 GiB)" in str(caught.value)
    assert "pid 43 (name not readable from here: another container's" in str(caught.value)
    assert "memory unknown" in str(caught.value)
    gpu_monitor.require_free(UUIDS[1], patience_seconds=0)


def test_a_process_that_no_list_shows_is_seen_by_its_memory(nvml):
    nvml.gpus[GPU].used = 5 << 30
    with pytest.raises(GpuBusyError, match=r"cannot be seen.*another container.*5\.0 GiB"):
        gpu_monitor.require_free(GPU, patience_seconds=0)
    nvml.gpus[GPU].graphics = [process(7)]  # a desktop explains the memory
    gpu_monitor.require_free(GPU, patience_seconds=0)


def test_a_process_that_is_ending_is_waited_for(nvml):
    ending = iter([[process(42)], [process(42)], []])
    nvml.nvmlDeviceGetComputeRunningProcesses = lambda handle: next(ending)
    gpu_monitor.require_free(GPU, patience_seconds=5)
    assert next(ending, None) is None


# --- NVML itself ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (None, "pip install nvidia-ml-py"),
        (
            types.SimpleNamespace(__file__="elsewhere.py"),
            "elsewhere.py.*too old or another package",
        ),
    ],
)
def test_without_nvidia_ml_py_it_says_what_to_install(monkeypatch, module, message):
    monkeypatch.setitem(sys.modules, "pynvml", module)
    with pytest.raises(WatchError, match=message):
        gpu_monitor.gpu_uuid()


def test_a_missing_driver_is_said(nvml):
    nvml.error = nvml.NVMLError(12, "NVML Shared Library Not Found")
    for ask in (
        gpu_monitor.gpu_uuid,
        lambda: gpu_monitor.require_free(GPU),
        lambda: Watch(GPU).__enter__(),
    ):
        with pytest.raises(WatchError, match="Shared Library Not Found.*driver"):
            ask()


def test_the_fake_is_like_the_real_one():
    real = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    names = [name for name in vars(FakeNvml) if name.startswith(("nvml", "NVML_"))]
    assert [name for name in names if not hasattr(real, name)] == []
    for name in names:
        constant = getattr(FakeNvml, name)
        assert callable(constant) or getattr(real, name) == constant, name
