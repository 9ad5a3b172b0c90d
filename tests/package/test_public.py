"""GPU tests that can run on any version of the package, and how that is done."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rope_triton
from rope_triton import transformer
from tests.gpu import record
from tests.test_architecture import imports, parent, private_attributes

ROOT = record.ROOT
GPU_TESTS = {path.stem: path for path in record.gpu_tests()}
# Why a module is not public.
MEASURES = "tests the suite's measures, which a comparison runs on every version"
OWN = {
    **dict.fromkeys(("test_gpu_timer_gpu", "test_host_gpu", "test_paths_gpu"), MEASURES),
    **dict.fromkeys(("test_peers_gpu", "test_roofline_gpu", "test_training_gpu"), MEASURES),
    "test_passes_gpu": MEASURES,
    "test_wrong_package_gpu": "makes packages of its own",
    "test_planted_gpu": "makes packages of its own",
    "test_operators": "tests the package's own operators",
    "test_launches_gpu": "a version may name and count its kernels in another way",
}


def violations(source: str, module: str) -> set[str]:
    """What a module of the tests has of the package besides its public names."""
    tree, public = ast.parse(source), rope_triton.__all__
    names = imports(ast.walk(tree), parent(module, "tests"))
    names |= {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.startswith("rope_triton.")
        and node.value.replace(".", "").isidentifier()
    }
    parts = {"rope_triton": public, "rope_triton.transformer": transformer.__all__}
    allowed = {*parts, *(f"{part}.{name}" for part, names in parts.items() for name in names)}
    ours = {name for name in names if name.partition(".")[0] == "rope_triton"}
    return (ours - allowed) | private_attributes(tree, public)


def is_public(path: Path) -> bool:
    (marks,) = [line for line in path.read_text().splitlines() if line.startswith("pytestmark")]
    return "mark.public" in marks


PUBLIC = [name for name, path in GPU_TESTS.items() if is_public(path)]


def test_every_module_of_gpu_tests_is_public_or_says_why_not():
    assert PUBLIC
    assert {*PUBLIC, *OWN} == set(GPU_TESTS) and not {*PUBLIC} & {*OWN}
    for name in OWN:  # not a single test either: the test below reads modules
        assert "mark.public" not in GPU_TESTS[name].read_text()


# Of private names it patches some in the interpreter, where another version does not run.
INTERPRETED = ROOT / "tests" / "transformer" / "conftest.py"


@pytest.mark.parametrize("module", PUBLIC)
def test_public_tests_use_public_names_alone(module):
    for path in record.with_imports([GPU_TESTS[module]]) - {INTERPRETED}:
        name = ".".join(path.relative_to(ROOT / "tests").with_suffix("").parts)
        assert not violations(path.read_text(), name), path


# --- tests of another package ---------------------------------------------------------------------


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess:
    """pytest, started as the workflow starts it, on the package in a directory."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env=os.environ | {"ROPE_TRITON_PACKAGE": str(directory)},
        capture_output=True,
        text=True,
    )


def test_another_package_is_tested(tmp_path):
    """In processes of their own, which import torch: some seconds."""
    copy = tmp_path / "rope_triton"
    shutil.copytree(Path(rope_triton.__file__).parent, copy)
    with (copy / "__init__.py").open("a") as file:
        file.write("\ndef rotary_angles(*_, **__):\n    raise RuntimeError('of this package')\n")
    for name in ("benchmarks", "tests"):  # of a checkout, which are not those of this suite
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('not the suite')")
    files = "tests/package/test_angles.py", "tests/cells/test_grid.py"
    done = run(tmp_path, "-n", "1", *files, "-k", "one_sequence or small_grid")
    assert "not the suite" not in done.stdout + done.stderr
    assert f"rope_triton: {copy}" in done.stdout
    assert "RuntimeError: of this package" in done.stdout
    assert done.returncode == pytest.ExitCode.TESTS_FAILED


def test_directory_without_a_package_is_refused(tmp_path):
    done = run(tmp_path, "tests/package/test_angles.py")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    expected = f"ROPE_TRITON_PACKAGE={tmp_path}: rope_triton should have come from there, it came"
    assert f"{expected} from {ROOT}" in done.stderr
