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

ROOT = record.ROOT
GPU_TESTS = {path.stem: path for path in sorted(record.gpu_tests())}
# Why a module is not public.
MEASURES = "tests the suite's measures, which a comparison runs on every version"
OWN = {
    **dict.fromkeys(("test_gpu_timer_gpu", "test_host_gpu", "test_paths_gpu"), MEASURES),
    **dict.fromkeys(("test_peers_gpu", "test_roofline_gpu", "test_training_gpu"), MEASURES),
    "test_passes_gpu": MEASURES,
    "test_wrong_package_gpu": "makes packages of its own",
    "test_planted_gpu": "makes packages of its own",
    "test_norm_gpu": "makes packages of its own",
    "test_operators": "tests the package's own operators",
    "test_launches_gpu": "a version may name and count its kernels in another way",
}


def violations(source: str) -> set[str]:
    """What a module of the tests has of the package besides its public names."""
    names = set[str]()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import():
                names |= {alias.name for alias in node.names}
            case ast.ImportFrom():
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
            case ast.Attribute(value=ast.Name(id="rope_triton"), attr=attribute):
                names.add(f"rope_triton.{attribute}")
            case ast.Constant(value=str(text)) if text.replace(".", "").isidentifier():
                names.add(text)  # as a patch names it
    parts = {"rope_triton": rope_triton.__all__, "rope_triton.transformer": transformer.__all__}
    public = {*parts, *(f"{part}.{name}" for part, names in parts.items() for name in names)}
    public |= {"rope_triton.__file__", "rope_triton.__version__"}
    return {name for name in names if name.partition(".")[0] == "rope_triton"} - public


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
        assert not violations(path.read_text()), path


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
    done = run(tmp_path, "-n", "1", "tests/package/test_angles.py", "-k", "one_sequence")
    assert "not the suite" not in done.stdout + done.stderr
    assert f"rope_triton: {copy}" in done.stdout
    assert "RuntimeError: of this package" in done.stdout
    assert done.returncode == pytest.ExitCode.TESTS_FAILED


def test_directory_without_a_package_is_refused(tmp_path):
    done = run(tmp_path, "tests/package/test_angles.py")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    expected = f"ROPE_TRITON_PACKAGE={tmp_path}: rope_triton should have come from there, it came"
    assert f"{expected} from {ROOT}" in done.stderr
