"""The record of the GPU tests is of the files that ran, and says when others are here."""

import json
import shutil

import pytest

from tests.gpu import record

MACHINE = {"machine": "nvidia-h100", "gpu": "NVIDIA H100"}
MACHINE |= {"driver": "580.1", "torch": "2.11.0", "triton": "3.6.0"}


@pytest.fixture
def tree(tmp_path):
    """A copy of what the record has digests of."""
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in record.TESTED:
        shutil.copytree(record.ROOT / folder, tmp_path / folder, ignore=ignored)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("rope_triton/ops/single.py", "rope_triton"),
        ("rope_triton/new.py", "rope_triton"),
        ("tests/gpu/test_bits_gpu.py", "tests"),  # a GPU test
        ("tests/package/test_other_libraries.py", "tests"),  # a test that also runs without one
        ("tests/oracle.py", "tests"),  # imported by some
        ("tests/conftest.py", "tests"),
        ("tests/README.md", None),
        ("tests/site/test_site.py", None),
    ],
)
def test_a_change_of_the_package_or_of_gpu_tests_makes_it_stale(path, part, tree):
    stored = tree / "gpu-tests.json"
    record.write(MACHINE, {"passed": 9, "skipped": 1, "warnings": 3}, stored, tree)
    assert record.why_stale(stored, tree) == ""
    with (tree / path).open("a") as file:
        file.write("\n")
    expected = f"{part} changed since they ran on NVIDIA H100" if part else ""
    assert record.why_stale(stored, tree) == expected
    record.write(MACHINE | {"machine": "nvidia-h200"}, {"passed": 9}, stored, tree)
    assert record.why_stale(stored, tree) == ""
    assert ("nvidia-h100" in json.loads(stored.read_text())) == (part is None), "stale ones go"


@pytest.mark.parametrize("counts", [{"passed": 9, "failed": 1}, {"error": 1}, {}])
def test_a_run_that_did_not_pass_is_none(counts, tree):
    stored = tree / "gpu-tests.json"
    record.write(MACHINE, counts, stored, tree)
    assert "failed on NVIDIA H100" in record.why_stale(stored, tree)
    record.write(MACHINE | {"machine": "nvidia-h200"}, {"passed": 10}, stored, tree)
    assert record.why_stale(stored, tree) == "", "one GPU on which all passed suffices"
    assert len(json.loads(stored.read_text())) == 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("-m gpu -n 8 --dist worksteal", True),
        ("", False),
        *((f"-m gpu {more}", False) for more in ("-k kernel", "tests/gpu/test_kernel_gpu.py")),
        *((f"-m gpu {more}", False) for more in ("--deselect tests/gpu", "--lf")),
    ],
)
def test_only_a_run_of_all_is_recorded(arguments, expected, pytestconfig, monkeypatch):
    monkeypatch.chdir(record.ROOT)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    assert record.runs_all(type(pytestconfig).fromdictargs({}, arguments.split())) == expected


def test_a_process_of_a_run_records_nothing(pytestconfig, monkeypatch):
    monkeypatch.chdir(record.ROOT)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    config = type(pytestconfig).fromdictargs({}, ["-m", "gpu"])
    assert record.runs_all(config)
    config.workerinput = {"workerid": "gw5"}  # as pytest-xdist's processes have
    assert not record.runs_all(config)
