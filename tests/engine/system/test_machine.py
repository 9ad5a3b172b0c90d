"""The asv machine record: a GPU's name and software keep its results apart from another's."""

import json
import types

import pytest
import torch

from benchmarks import __main__ as entry
from benchmarks._engine.system import machine, process
from benchmarks._engine.system.arguments import COULD_NOT_RUN
from benchmarks._site import run


@pytest.fixture
def fake_gpu(monkeypatch):
    """Pretend that the machine has a GPU of a name, and a driver."""

    def pretend(name, uuid="0123"):
        properties = types.SimpleNamespace(name=name, total_memory=1 << 30, uuid=uuid)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(machine.shutil, "which", lambda name: name)
        answer = types.SimpleNamespace(stdout="580.159.04\n580.159.04\n")
        monkeypatch.setattr(machine.subprocess, "run", lambda *args, **kwargs: answer)

    return pretend


def test_the_record_names_gpu_driver_and_software(fake_gpu):
    fake_gpu("NVIDIA H100 80GB HBM3")
    record = machine.machine_record()
    assert record["machine"] == "nvidia-h100-80gb-hbm3"
    expected = {"gpu": "NVIDIA H100 80GB HBM3", "driver": "580.159.04", "cuda": "13.0"}
    assert record.items() >= (expected | {"torch": torch.__version__}).items()
    assert {"arch", "cpu", "num_cpu", "os", "ram", "triton"} <= set(record)
    assert all(isinstance(value, str) for value in record.values())


def test_two_gpus_of_a_kind_have_a_line_each_in_the_history_alone(fake_gpu, monkeypatch):
    records = []
    for uuid in ("0123", "4567"):
        fake_gpu("NVIDIA H200", uuid)
        records.append(machine.machine_record())
        assert records[-1]["gpu_id"] == machine.gpu_id(f"GPU-{uuid}") != uuid
        monkeypatch.setattr(process, "call", lambda function: (records[-1], "sm_90"))
        assert machine.asv_record() == records[-1]
        assert machine.probe()[0] == {k: v for k, v in records[-1].items() if k != "gpu_id"}
    (one, other) = records
    assert one | {"gpu_id": other["gpu_id"]} == other != one


def test_the_size_of_a_virtual_machine_is_no_new_line(fake_gpu, monkeypatch):
    fake_gpu("NVIDIA H200")
    record = machine.machine_record()
    monkeypatch.setattr("asv.machine.mp.cpu_count", lambda: 1000)
    monkeypatch.setattr("asv.machine.util.get_memsize", lambda: 1)
    assert machine.machine_record() == record


def test_the_processor_is_a_line_of_its_own_where_time_is_measured(fake_gpu, monkeypatch):
    def on_another_processor(of_gpu):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: of_gpu)
        here = machine.machine_record()
        monkeypatch.setattr("asv.machine.util.get_cpu_info", lambda: "another")
        there = machine.machine_record()
        monkeypatch.undo()
        return here, there

    here, there = on_another_processor(False)
    assert here == there
    fake_gpu("NVIDIA H200")
    here, there = on_another_processor(True)
    assert here | {"cpu": "another"} == there != here


@pytest.mark.parametrize("command", ["machine", "run"])
def test_a_gpu_without_nvidia_smi_cannot_be_described(fake_gpu, monkeypatch, capsys, command):
    fake_gpu("NVIDIA H200")
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    for name in ("git", "_require_main", "_append_only"):
        monkeypatch.setattr(run, name, lambda *arguments: "")
    assert entry.main([command]) == COULD_NOT_RUN
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("could not run: nvidia-smi")


def test_a_process_that_fails_describes_no_machine(monkeypatch):
    monkeypatch.setattr(process, "_CALL", "sys.exit(3)")
    with pytest.raises(machine.MachineError, match="cannot be described: .* ended with 3"):
        machine.probe()


def test_asv_finds_the_saved_record(monkeypatch, tmp_path):
    from asv.machine import Machine

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    record = machine.machine_record()
    assert record["gpu"] == record["driver"] == record["cuda"] == "none"
    assert record["machine"] == f"no-gpu-{record['arch']}"
    machine.save_record(record)
    assert record["machine"] in json.loads((tmp_path / ".asv-machine.json").read_text())
    loaded = Machine.load(machine_name=record["machine"])
    assert loaded.triton == record["triton"]  # a field that asv does not know
