"""An NVML of the tests' own, with two GPUs that are as a test sets them."""

import sys
import types

import pytest

UUIDS = [f"GPU-{digit * 8}-0000-0000-0000-000000000000" for digit in "ab"]
GPU = UUIDS[0]
IDLE, POWER_CAP, HW, SW_HEAT, HW_HEAT, BRAKE = 0x1, 0x4, 0x8, 0x20, 0x40, 0x80


class FakeNvml(types.ModuleType):
    """The part of pynvml that the watch uses, with the constants' values as NVML has them."""

    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
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
            gpu.used, gpu.mig = 4 << 20, 0
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

    def nvmlDeviceGetComputeRunningProcesses(self, gpu):
        return self._get(list(gpu.processes))

    def nvmlDeviceGetGraphicsRunningProcesses(self, gpu):
        return self._get(list(gpu.graphics))

    def nvmlDeviceGetMemoryInfo(self, gpu, version):
        assert version == self.nvmlMemory_v2  # whose "used" leaves the driver's reserve out
        return types.SimpleNamespace(used=self._get(gpu.used))

    def nvmlSystemGetProcessName(self, pid):
        return self._get(self.names.get(pid, self.NVMLError(6, "Not Found")))


def process(pid, memory=1 << 30):
    return types.SimpleNamespace(pid=pid, usedGpuMemory=memory)


@pytest.fixture
def nvml(monkeypatch):
    """In the place of pynvml; whoever opens it must close it."""
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    yield fake
    assert fake.open == 0, "NVML was left open"
