"""GPU tests that any version of the package can be put to, and how that is done."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rope_triton
from rope_triton import transformer
from tests.test_architecture import files, imports, parent, private_attributes

ROOT = Path(__file__).resolve().parents[2]
TESTS = files("tests")
GPU_TESTS = {name: path for name, path in TESTS.items() if name.startswith("gpu.test_")}
# Why a module is not public.
OWN = {
    "gpu.test_gpu_timer_gpu": "the suite's GPU timer; the comparison runs it on every version",
    "gpu.test_host_gpu": "the suite's measures, likewise",
    "gpu.test_paths_gpu": "the suite's measures, likewise",
    "gpu.test_peers_gpu": "the suite's measures, likewise",
    "gpu.test_roofline_gpu": "the suite's measures, likewise",
    "gpu.test_training_gpu": "the suite's measures, likewise",
    "gpu.test_wrong_package_gpu": "makes packages of its own",
    "gpu.test_passes_gpu": "the suite's measures, likewise",
    "gpu.test_planted_gpu": "makes packages of its own",
    "gpu.test_launches_gpu": "a version may name and count its kernels in another way",
}


def is_public(source: str) -> bool:
    """Whether all tests of a module are marked."""
    marks = [
        node.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    return any("pytest.mark.public" in ast.unparse(value) for value in marks)


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


def reach(module: str) -> set[str]:
    """A module of the tests, and all those that it imports."""
    names = imports(ast.walk(ast.parse(TESTS[module].read_text())), parent(module, "tests"))
    below = {name.removeprefix("tests.") for name in names if name.startswith("tests.")}
    modules = {each for name in below for each in (name, name.rpartition(".")[0]) if each in TESTS}
    return {module}.union(*map(reach, modules - {module}))


PUBLIC = [name for name, path in GPU_TESTS.items() if is_public(path.read_text())]


def test_every_module_of_gpu_tests_is_public_or_says_why_not():
    assert PUBLIC
    assert {*PUBLIC, *OWN} == set(GPU_TESTS) and not {*PUBLIC} & {*OWN}


def test_modules_are_marked_as_a_whole():
    """What the test below reads is the module: a mark on one of its tests would be a promise."""
    for name in OWN:
        assert "mark.public" not in TESTS[name].read_text()


@pytest.mark.parametrize("module", PUBLIC)
def test_public_tests_use_public_names_alone(module):
    for each in {*reach(module), "conftest", "gpu.conftest"}:
        assert not violations(TESTS[each].read_text(), each), each


@pytest.mark.parametrize(
    "source",
    [
        "import rope_triton.ops",
        "from rope_triton import ops",
        "from rope_triton.ops import rotate",
        "import rope_triton\nrope_triton.ops.rotate()",
        "import rope_triton as r\nr._private",
        "def f(monkeypatch):\n    monkeypatch.setattr('rope_triton.ops.launch', None)",
        "import importlib\nimportlib.import_module('rope_triton.plans')",
    ],
)
def test_other_names_are_seen(source):
    assert violations(source, "gpu.test_x")


def test_public_names_are_allowed():
    source = "import rope_triton\nfrom rope_triton import scalings\nrope_triton.scalings.yarn(1)"
    assert not violations(source, "gpu.test_x")
    assert is_public("import pytest\npytestmark = [pytest.mark.gpu, pytest.mark.public]")
    assert not is_public("import pytest\npytestmark = pytest.mark.gpu")


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


@pytest.mark.parametrize("workers", ["0", "1"])
def test_another_package_is_tested(tmp_path, workers):
    """In processes of their own, which import torch: some seconds."""
    copy = tmp_path / "rope_triton"
    shutil.copytree(Path(rope_triton.__file__).parent, copy)
    with (copy / "__init__.py").open("a") as file:
        file.write("\ndef rotary_angles(*_, **__):\n    raise RuntimeError('of this package')\n")
    for name in ("benchmarks", "tests"):  # of a checkout, which are not those of this suite
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('not the suite')")
    files = "tests/package/test_angles.py", "tests/cells/test_grid.py"
    done = run(tmp_path, "-n", workers, *files, "-k", "one_sequence or small_grid")
    assert "not the suite" not in done.stdout + done.stderr
    assert f"rope_triton: {copy}" in done.stdout
    assert "RuntimeError: of this package" in done.stdout
    assert done.returncode == pytest.ExitCode.TESTS_FAILED


def test_directory_without_a_package_is_refused(tmp_path):
    done = run(tmp_path, "tests/package/test_angles.py")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    expected = f"ROPE_TRITON_PACKAGE={tmp_path}: rope_triton should have come from there, it came"
    assert f"{expected} from {ROOT}" in done.stderr
