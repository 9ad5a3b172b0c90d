"""The asv machine record of a GPU: its name, and the software that its figures depend on."""

import platform
import re
import shutil
import subprocess


def machine_record() -> dict[str, str]:
    """asv's fields of this machine, with the GPU, driver, CUDA, torch and triton added.

    asv keeps fields it does not know, files results under ``machine`` and draws a line a set of
    fields, so that two GPUs, or two drivers, never share a line.
    """
    import torch
    import triton
    from asv.machine import Machine

    record = Machine.get_defaults()
    record["os"] = platform.system()  # a new kernel, or a virtual machine's size, is no new line
    record["ram"] = ""
    record["torch"], record["triton"] = torch.__version__, triton.__version__
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        record["gpu"] = properties.name
        record["gpu_ram"] = str(properties.total_memory)
        record["cuda"] = torch.version.cuda
        record["driver"] = _driver_version()
        record["machine"] = _slug(properties.name)
    else:
        record["gpu"] = record["gpu_ram"] = record["cuda"] = record["driver"] = "none"
        record["machine"] = f"no-gpu-{record['arch']}"
    return record


def save_record(record: dict[str, str]) -> None:
    """Store the record where asv looks machines up, ``~/.asv-machine.json``."""
    from asv.machine import MachineCollection

    MachineCollection.save(record["machine"], record)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _driver_version() -> str:
    command = shutil.which("nvidia-smi")
    if command is None:
        raise RuntimeError("nvidia-smi, which names the driver, is not on the PATH")
    query = [command, "--query-gpu=driver_version", "--format=csv,noheader"]
    output = subprocess.run(query, check=True, capture_output=True, text=True).stdout
    return output.split()[0]
