"""Describe this machine to asv: its GPU, and the software that its figures depend on."""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable

from . import process
from .errors import CouldNotRunError


class MachineError(CouldNotRunError):
    """This machine cannot be described; the message says what is missing."""


def machine_record() -> dict[str, str]:
    """asv's fields of this machine, with the GPU, driver, CUDA, torch and triton added.

    asv keeps fields it does not know, files results under ``machine`` and draws a line a set of
    fields, so that two GPUs, or two drivers, never share a line: two H200s differ by up to 2 %.
    Raises MachineError if there is a GPU and no nvidia-smi, which names the driver.
    """
    import torch
    import triton
    from asv.machine import Machine

    record = Machine.get_defaults()
    # A new kernel, or another size of a virtual machine, is no new line.
    record["os"] = platform.system()
    record["ram"] = record["num_cpu"] = ""
    record["torch"], record["triton"] = torch.__version__, triton.__version__
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        record["gpu"] = properties.name
        record["gpu_ram"] = str(properties.total_memory)
        record["gpu_id"] = gpu_id(str(properties.uuid))
        record["cuda"] = torch.version.cuda
        record["driver"] = _driver_version()
        record["machine"] = slug(properties.name)
    else:
        record |= dict.fromkeys(("gpu", "gpu_ram", "gpu_id", "cuda", "driver"), "none")
        record["machine"] = f"no-gpu-{record['arch']}"
        record["cpu"] = ""  # what is exact is the same on any
    return record


def gpu_id(uuid: str) -> str:
    """A name of the GPU of this UUID, from which the UUID does not follow."""
    return hashlib.sha256(uuid.removeprefix("GPU-").encode()).hexdigest()[:8]


def probe() -> tuple[dict[str, str], str]:
    """:func:`machine_record` without ``gpu_id``, and :func:`gpu_arch`, from a process that ends.

    Which GPU of a kind measured says nothing of a comparison, which is on one. The errors are those
    of :func:`asv_record`.
    """
    record, arch = _asked()
    return {name: value for name, value in record.items() if name != "gpu_id"}, arch


def asv_record() -> dict[str, str]:
    """:func:`machine_record`, from a process that ends.

    The caller then holds no memory of the GPU, and can tell whether others do. Raises
    ModuleNotFoundError if a package that these need is not installed, and MachineError, with what
    was printed, if the process fails.
    """
    return _asked()[0]


def _asked() -> tuple[dict[str, str], str]:
    for name in ("torch", "triton", "asv"):
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    try:
        return process.call(_described)
    except RuntimeError as error:
        raise MachineError(f"this machine cannot be described: {error}") from None


def _described() -> tuple[dict[str, str], str]:
    return machine_record(), gpu_arch()


def gpu_arch() -> str:
    """The GPU's architecture as the compilers name it, e.g. "sm_90" or "gfx942"; "none" without."""
    import torch

    if not torch.cuda.is_available():
        return "none"
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    if torch.version.hip:
        return properties.gcnArchName.split(":")[0]
    return f"sm_{properties.major}{properties.minor}"


def why_another_gpu(uuid: str, name: str) -> str:
    """Why the first GPU of this process is not that of this UUID and name, "" if it is."""
    import torch

    here = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
    actual = here and (f"GPU-{here.uuid}", here.name)
    if actual == (uuid, name):
        return ""
    return f"a process was to see GPU {uuid}, a {name}, and found {actual}"


def versions(distributions: Iterable[str]) -> dict[str, str]:
    """The versions of those distributions that are installed."""
    installed = {}
    for name in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed


def save_record(record: dict[str, str]) -> None:
    """Store the record where asv looks machines up, ``~/.asv-machine.json``."""
    from asv.machine import MachineCollection

    MachineCollection.save(record["machine"], record)


def slug(name: str) -> str:
    """The name of a GPU as asv's name of its machine."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _driver_version() -> str:
    command = shutil.which("nvidia-smi")
    if command is None:
        raise MachineError("nvidia-smi, which names the driver, is not on the PATH")
    query = [command, "--query-gpu=driver_version", "--format=csv,noheader"]
    output = subprocess.run(query, check=True, capture_output=True, encoding="utf-8").stdout
    return output.split()[0]
