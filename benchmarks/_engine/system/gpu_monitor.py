"""Lock the GPU that is measured, and watch it for whatever makes a round invalid.

NVML is asked through nvidia-ml-py, which opens no CUDA context: the process that watches must hold
no GPU memory, or it would count as one of the GPU's processes.

Processes are counted, not identified: in a container NVML reports the pids of the host, or other
containers' processes without a name. One process measures at a time, so a second one is not ours.
"""

import contextlib
import os
import stat
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from .errors import CouldNotRunError
from .files import locked_by

# Not tempfile.gettempdir(): TMPDIR differs between jobs, and a lock in two places is none.
LOCK_DIRECTORY = Path("/tmp")

CLOCK_DROP = 0.05
"""A round is invalid when a clock under load is lower than in others by more than this share."""

# What a CUDA context needs at least, and more than an idle driver does.
_HIDDEN_BYTES = 300 << 20

_INTERVAL_SECONDS = 0.1
_INSTALL = "pip install nvidia-ml-py, or this project with its [bench] extra"

# NVML's bits -> words. The last four mean that heat or the hardware holds the clocks down, and make
# a round invalid. The software power cap does not: the warm-up's matrix products reach it by
# design, and a kernel that only moves bytes never does.
_IDLE = "idle"
_EVENTS = {
    "nvmlClocksEventReasonGpuIdle": _IDLE,
    "nvmlClocksEventReasonApplicationsClocksSetting": "clocks set by the user",
    "nvmlClocksEventReasonSwPowerCap": "software power cap",
    "nvmlClocksEventReasonSyncBoost": "sync boost",
    "nvmlClocksEventReasonDisplayClockSetting": "display clock setting",
    "nvmlClocksEventReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksEventReasonSwThermalSlowdown": "software thermal slowdown",
    "nvmlClocksEventReasonHwThermalSlowdown": "hardware thermal slowdown",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "hardware power brake",
}
_DISTURBING = tuple(_EVENTS.values())[-4:]


class GpuBusyError(CouldNotRunError):
    """The GPU is another's at present; the message says whose."""


class WatchError(CouldNotRunError):
    """The GPU cannot be found or watched; the message says what is missing."""


def gpu_uuid() -> str:
    """UUID ("GPU-...") of CUDA's first GPU here, without starting CUDA.

    Raises WatchError if CUDA_VISIBLE_DEVICES leaves no GPU, names a MIG instance, or numbers GPUs
    of different models in an order that only CUDA knows; or NVML fails.
    """
    with _nvml() as nvml:
        devices = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        handles = {nvml.nvmlDeviceGetUUID(handle): handle for handle in devices}
        uuid = _first(nvml, handles)
        if uuid is None:
            raise WatchError(
                f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r} leaves none of "
                f"the {len(handles)} GPUs that NVML finds here: {', '.join(handles) or 'none'}"
            )
        _refuse_mig(nvml, uuid, handles[uuid])
        return uuid


@contextlib.contextmanager
def gpu_lock(uuid: str, wait_seconds: float) -> Iterator[None]:
    """Hold the lock of a GPU that all of this machine's measuring processes take.

    It is released when the block ends or the process does, however that happens. Raises
    GpuBusyError, with pid and command, if another holds it for longer than ``wait_seconds``, and
    WatchError if something other than a lock file lies in its place.
    """
    path = LOCK_DIRECTORY / f"rope-triton-gpu-{uuid}.lock"
    descriptor = _open_lock(path)
    try:
        end = time.monotonic() + wait_seconds
        while (holder := locked_by(descriptor)) is not None:
            if time.monotonic() >= end:
                raise GpuBusyError(
                    f"GPU {uuid} is being measured by {holder} (waited {wait_seconds:g} s); "
                    f"the lock is {path}"
                )
            time.sleep(0.1)
        try:
            yield
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def require_free(uuid: str, patience_seconds: float = 2.0) -> None:
    """Raise GpuBusyError, saying who, if a process is on the GPU or its memory is in use.

    Call it before every round. Memory in use reveals processes that NVML cannot list from inside a
    container. A process that is just ending has ``patience_seconds`` to go.
    """
    with _nvml() as nvml:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        end = time.monotonic() + patience_seconds
        while users := _users(nvml, handle):
            if time.monotonic() >= end:
                raise GpuBusyError(f"GPU {uuid} is in use by {users}; measure when it is free")
            time.sleep(_INTERVAL_SECONDS)


class _Sample(NamedTuple):
    sm_mhz: int
    memory_mhz: int
    processes: int
    events: tuple[str, ...]


class Watch:
    """Samples the GPU in a thread while its one ``with`` block runs, for :meth:`summary`.

    Measure in other processes inside the block, one at a time. Start them by exec, not by fork
    alone: this process has a second thread.
    """

    def __init__(self, uuid: str, interval_seconds: float = _INTERVAL_SECONDS):
        self._uuid, self._interval = uuid, interval_seconds
        self._samples: list[_Sample] = []
        self._error: Exception | None = None
        self._ended = threading.Event()
        self._resources = contextlib.ExitStack()

    def __enter__(self) -> "Watch":
        with contextlib.ExitStack() as stack:
            nvml = stack.enter_context(_nvml())
            handle = nvml.nvmlDeviceGetHandleByUUID(self._uuid)
            _sample(nvml, handle)  # what cannot be read is an error here and now
            thread = threading.Thread(target=self._watch, args=(nvml, handle), daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(self._ended.set)
            self._resources = stack.pop_all()
        return self

    def __exit__(self, *exception) -> None:
        self._resources.close()

    def _watch(self, nvml, handle) -> None:
        try:
            while not self._ended.wait(self._interval):
                self._samples.append(_sample(nvml, handle))
        except Exception as error:
            self._error = error

    def summary(self) -> dict:
        """What was seen up to now; plain JSON.

        ``sm_mhz`` and ``memory_mhz`` are [min, median, max] under load, None without any. Under
        load: not idle, and with a process on it, if processes can be seen. ``events`` counts
        samples under load by what held the clocks. ``processes`` is the most that were on the GPU
        at once; 0 means that they cannot be seen from here. Raises WatchError if NVML stopped
        answering while it was watching.
        """
        if self._error is not None:
            raise WatchError(f"NVML stopped answering: {self._error}") from self._error
        samples = list(self._samples)
        most = max((sample.processes for sample in samples), default=0)
        load = [s for s in samples if _IDLE not in s.events and (s.processes or not most)]
        return {
            "samples": len(samples),
            "under_load": len(load),
            "processes": most,
            "events": dict(Counter(event for sample in load for event in sample.events)),
            **{name: _spread([getattr(s, name) for s in load]) for name in _Sample._fields[:2]},
        }


def why_invalid(summary: dict, earlier: Sequence[dict] = ()) -> str:
    """Why a round is invalid by what :meth:`Watch.summary` gave of it; empty if it is valid.

    ``earlier``: summaries of the valid rounds before it; with none, clocks are not judged.
    """
    if not summary["under_load"]:
        return f"the GPU was never seen under load ({summary['samples']} samples)"
    reasons = [
        f"{event} in {summary['events'][event]} of {summary['under_load']} samples"
        for event in _DISTURBING
        if event in summary["events"]
    ]
    if summary["processes"] > 1:
        reasons.append(f"{summary['processes']} processes on the GPU at once, where one measures")
    for name, words in (("sm_mhz", "SM clock"), ("memory_mhz", "memory clock")):
        others = [other[name][1] for other in earlier if other[name]]
        if not others:
            continue
        usual, now = statistics.median(others), summary[name][1]
        if now < usual * (1 - CLOCK_DROP):
            reasons.append(f"{words} at {now:g} MHz under load, {usual:g} in earlier rounds")
    return "; ".join(reasons)


@contextlib.contextmanager
def _nvml():
    """The started NVML; whatever it raises becomes a WatchError."""
    try:
        import pynvml
    except ModuleNotFoundError as error:
        raise WatchError(f"watching the GPU needs nvidia-ml-py: {_INSTALL}") from error
    if not hasattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons"):
        raise WatchError(
            f"the installed pynvml ({pynvml.__file__}) is too old or another package: {_INSTALL}"
        )
    try:
        pynvml.nvmlInit()
        try:
            yield pynvml
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise WatchError(
            f"NVML failed: {error}; it needs the NVIDIA driver, with libnvidia-ml.so.1 in reach, "
            "and in a container the driver's 'utility' capability"
        ) from error


def _first(nvml, handles: dict) -> str | None:
    """UUID of CUDA's first GPU; as in CUDA, a first entry that names nothing leaves none."""
    uuids, variable = list(handles), os.environ.get("CUDA_VISIBLE_DEVICES")
    entry = "0" if variable is None else variable.partition(",")[0].strip()
    if entry.startswith("MIG-"):
        raise WatchError(
            f"CUDA_VISIBLE_DEVICES={variable!r} names a MIG instance, whose clocks and heat "
            "are shared with its neighbours: measure on a whole GPU"
        )
    if entry.isdecimal():
        if len(set(map(nvml.nvmlDeviceGetName, handles.values()))) > 1 and (
            os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
        ):
            raise WatchError(
                "the GPUs here are of different models, which CUDA numbers by speed: set "
                "CUDA_DEVICE_ORDER=PCI_BUS_ID, or CUDA_VISIBLE_DEVICES to a GPU's UUID"
            )
        matching = uuids[int(entry) :][:1]
    else:
        is_prefix = entry.startswith("GPU-") and len(entry) > len("GPU-")
        matching = [uuid for uuid in uuids if is_prefix and uuid.startswith(entry)]
    return matching[0] if len(matching) == 1 else None


def _refuse_mig(nvml, uuid: str, handle) -> None:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError as error:
        if error.value != nvml.NVML_ERROR_NOT_SUPPORTED:
            raise
        return
    if current:
        raise WatchError(
            f"GPU {uuid} is in MIG mode, where neighbours share its clocks and heat: measure on a "
            "GPU without MIG"
        )


def _users(nvml, handle) -> str:
    """Who is on the GPU, in words; empty if it is free."""
    processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    if processes:
        return ", ".join(_describe(nvml, process) for process in processes)
    if nvml.nvmlDeviceGetGraphicsRunningProcesses(handle):
        return ""  # a desktop: its memory is no sign of a computation
    used = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used
    if used < _HIDDEN_BYTES:
        return ""
    return f"processes that cannot be seen from here (another container?), {_gib(used)} of memory"


def _describe(nvml, process) -> str:
    try:
        name = nvml.nvmlSystemGetProcessName(process.pid) or "name not readable from here"
    except nvml.NVMLError:
        name = "name not readable from here: another container's, or another user's"
    memory = "memory unknown" if process.usedGpuMemory is None else _gib(process.usedGpuMemory)
    return f"pid {process.pid} ({name}, {memory})"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _sample(nvml, handle) -> _Sample:
    reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    return _Sample(
        sm_mhz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        memory_mhz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        processes=len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
        events=tuple(word for name, word in _EVENTS.items() if reasons & getattr(nvml, name)),
    )


def _spread(values: list) -> list | None:
    return [min(values), statistics.median(values), max(values)] if values else None


def _open_lock(path: Path) -> int:
    """Open a lock file that every user may take, refusing whatever else lies in its place."""
    # Without O_CREAT first: the kernel refuses it on others' files in a sticky directory. With
    # O_EXCL then, so that no link that is put there meanwhile is followed.
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        try:
            descriptor = os.open(path, flags)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                made = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
                os.fchmod(made, 0o666)  # despite the umask
                return made
            descriptor = os.open(path, flags)
    except OSError as error:
        raise WatchError(f"{path}, the lock of the GPU, cannot be opened: {error}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(descriptor)
        raise WatchError(f"{path}, the lock of the GPU, is no plain file of its own: remove it")
    return descriptor
