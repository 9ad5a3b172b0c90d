"""The record of the GPU tests is of the files that ran, and says when others are here."""

import json
import shutil

import pytest

from tests.gpu import record

MACHINE = {"machine": "nvidia-h100", "gpu": "NVIDIA H100"}
MACHINE |= {"driver": "580.1", "torch": "2.11.0", "triton": "3.6.0"}


@pytest.fixture
def tree(tmp_path):
    """A copy of the folders that the record names."""
    for folder in record.TESTED:
        shutil.copytree(record.ROOT / folder, tmp_path / folder)
    return tmp_path


@pytest.mark.parametrize("folder", record.TESTED)
def test_a_change_of_the_package_or_the_tests_is_seen(folder, tree):
    stored = tree / "gpu-tests.json"
    record.write(MACHINE, {"passed": 9, "skipped": 1, "warnings": 3}, stored)
    assert record.why_stale(stored, tree) == ""
    (tree / folder / "README.md").write_text("No test reads this.")
    assert record.why_stale(stored, tree) == ""
    (tree / folder / "new.py").write_text("")
    assert record.why_stale(stored, tree) == f"{folder} changed since they ran on NVIDIA H100"


@pytest.mark.parametrize("counts", [{"passed": 9, "failed": 1}, {"passed": 9, "error": 1}, {}])
def test_a_run_that_did_not_pass_is_none(counts, tree):
    stored = tree / "gpu-tests.json"
    record.write(MACHINE, counts, stored)
    assert "failed on NVIDIA H100" in record.why_stale(stored, tree)
    record.write(MACHINE | {"machine": "nvidia-h200"}, {"passed": 10}, stored)
    assert record.why_stale(stored, tree) == "", "one GPU on which all passed suffices"
    assert len(json.loads(stored.read_text())) == 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-m", "gpu"], True),
        (["-m", "gpu", "-n", "8", "--dist", "worksteal"], True),
        ([], False),
        (["-m", "gpu and not alone"], False),
        (["-m", "gpu", "-k", "kernel"], False),
        (["-m", "gpu", "tests/gpu/test_kernel_gpu.py"], False),
        (["-m", "gpu", "--deselect", "tests/gpu/test_kernel_gpu.py"], False),
        (["-m", "gpu", "--lf"], False),
    ],
)
def test_only_a_run_of_all_is_recorded(arguments, expected, pytestconfig, monkeypatch):
    monkeypatch.chdir(record.ROOT)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    assert record.runs_all(type(pytestconfig).fromdictargs({}, arguments)) == expected
