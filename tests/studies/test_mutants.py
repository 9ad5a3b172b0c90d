"""Known bad changes: each applies, stays correct, and what needs no GPU catches its own."""

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks._engine.compare import exact
from benchmarks._engine.system.repository import digest, files_on_disk
from benchmarks._engine.verdict.metrics import HOST_COST
from benchmarks._engine.verdict.rules import Answer
from benchmarks._studies.reliability import caught, mutants
from benchmarks._studies.reliability.bench import SUBJECT
from benchmarks._subjects.rope.cells import grid_cell
from tests.lab import ROOT

pytestmark = pytest.mark.mutants

MUTANTS = mutants.load()
WITHOUT_GPU = [name for name, mutant in MUTANTS.items() if not mutant.needs_gpu]
# Caught by a latency, which would be noise if the GPU were asked for the very same work.
OTHER_CODE = [
    name
    for name, mutant in MUTANTS.items()
    if mutant.needs_gpu
    and any(metric.startswith(("rope.", "paths.")) for metric in mutant.caught_by)
]
# Caught where the machine code says that a form of a call must be timed.
OF_FORMS = [
    name
    for name, mutant in MUTANTS.items()
    if any(metric.startswith(("surface.", "modules.")) for metric in mutant.caught_by)
]
TILES = [name for name in OF_FORMS if name.startswith("tile-")]
LAUNCHED_CELL = grid_cell(128, 128, 4, "float16", "sbhd")


@pytest.fixture(scope="module")
def mutated(tmp_path_factory):
    """Name -> root of the mutated package."""
    return functools.cache(
        lambda name: mutants.apply(name, ROOT, tmp_path_factory.mktemp("mutant"))
    )


# --- the index and the patches --------------------------------------------------------------------


def package_digest(root):
    return digest(files_on_disk(root / "rope_triton"))


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_what_its_index_and_header_say(name, mutated):
    mutant = MUTANTS[name]
    assert mutant.caught_by
    for metric in mutant.caught_by:
        assert SUBJECT.UNITS[metric].gates, metric
        exact_without = metric.startswith("codegen.") or metric in HOST_COST
        assert exact_without != mutant.needs_gpu
    header = " ".join(mutant.patch.read_text().partition("\n--- ")[0].split())
    assert header == f"{mutant.change} Must be caught by: {', '.join(mutant.caught_by)}"
    assert package_digest(ROOT) != package_digest(mutated(name))


def test_apply_inside_a_repository(tmp_path):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    mutant = mutants.apply("spill", ROOT, tmp_path / "a" / "b")
    assert package_digest(ROOT) != package_digest(mutant)


def test_a_patch_that_does_not_apply_is_refused(tmp_path, mutated):
    with pytest.raises(RuntimeError, match="(?s)spill.patch does not apply"):
        mutants.apply("spill", mutated("spill"), tmp_path)


def test_index_and_patches_agree():
    assert sorted(MUTANTS) == sorted(path.stem for path in mutants.PATCHES.glob("*.patch"))


# --- correct, as the tests of the package see it --------------------------------------------------

# One process for all, because importing torch takes seconds: each package in its turn, and in a
# fork if it calls the transformer, whose operators can be defined once.
IN_TURN = """
import json, multiprocessing, sys, traceback
import torch
from benchmarks._subjects.transformer import modules

def in_turn(function):
    found = {}
    for root, forms in json.loads(sys.argv[1]).items():
        if any(form.partition("-")[0] in modules.FUNCTIONS for form in forms):
            with multiprocessing.get_context("fork").Pool(1) as pool:
                found[root] = pool.apply(function, (root, forms))
        else:
            found[root] = function(root, forms)
    print(json.dumps(found))

def load(root):
    for name in [n for n in sys.modules if n.split(".")[0] in ("rope_triton", "tests")]:
        del sys.modules[name]
    sys.path.insert(0, root)
    import rope_triton
    assert rope_triton.__file__.startswith(root), rope_triton.__file__
"""
CHECK = """
from benchmarks._subjects.rope import angles
from benchmarks._subjects.calls import gradient
from tests import conftest  # for its quicker interpreter

def check(root, forms):
    load(root)
    from tests import oracle
    sys.path.remove(root)
    torch.manual_seed(0)
    for mode in oracle.MODES:
        freqs = oracle.random_angles(3, mode.width(24), "cpu")
        t = oracle.sliced(mode.shape(3, 2, 9, 24), mode.dtype, "cpu")
        oracle.check(t, freqs, mode, oracle.random_like(t))
    for form in forms:
        cell = modules.ModuleCell(form)
        call = cell.call("cpu")
        x, grad = (torch.randn(cell.shape) * cell.deviation for _ in range(2))
        leaf = call.leaf(x)
        output = call.forward(leaf)
        call.check(output, x, "forward")
        call.check(gradient(output, leaf, call.cotangent(grad)), grad, "backward")

def problem(root, forms):
    try:
        check(root, forms)
    except Exception:
        return traceback.format_exc()

in_turn(problem)
"""
# Of the mutants of the transformer: small calls of what they change.
SMALL = ["rotaryattention-fp32-1x40x48x4x2x16", "linear-fp32-37x48x64-relu"]
OF_TRANSFORMER = ("copied-heads", "rotation-by-pytorch", "saved-product")


def problems_of(forms: dict[Path, list[str]]) -> dict[str, str]:
    """Why packages are not correct in the interpreter, by root; ``forms`` are called besides."""
    asked = json.dumps({str(root): these for root, these in forms.items()})
    done = subprocess.run(
        [sys.executable, "-c", IN_TURN + CHECK, asked],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return {root: said for root, said in json.loads(done.stdout).items() if said}


def test_mutants_are_correct_and_a_wrong_one_is_not(mutated, tmp_path):
    wrong = mutants.apply("precision-loss", ROOT, tmp_path)
    changed = wrong / "rope_triton" / "kernel" / "trigonometry.py"
    changed.write_text(changed.read_text().replace("-1.36524e-3", "-1.3e-3"))
    # Of those that only take another tile, one stands for all.
    names = [name for name in MUTANTS if name not in TILES[1:]]
    forms = {mutated(name): SMALL * (name in OF_TRANSFORMER) for name in names}
    problems = problems_of(forms | {wrong: SMALL})
    assert problems.keys() == {str(wrong)}, problems
    assert "AssertionError" in problems[str(wrong)]


# --- caught without a GPU -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled():
    """Everything below compiles, also where pytest's own process interprets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRITON_INTERPRET", raising=False)
        yield


@pytest.fixture(scope="module")
def base(compiled):
    return caught.exact_values(ROOT, WITHOUT_GPU)


@pytest.mark.parametrize("name", WITHOUT_GPU)
def test_caught_without_a_gpu(name, base, mutated):
    facts = caught.exact_values(mutated(name), [name])
    failed = {
        verdict.key
        for verdict in exact.compare(base, facts)
        if verdict.answer is Answer.FAIL and verdict.change == "worse"
    }
    for metric in MUTANTS[name].caught_by:
        assert any(MUTANTS[name].concerns(s) and s.metric == metric for s in failed), failed


def test_unmutated_copy_shows_nothing(base, tmp_path):
    shutil.copytree(ROOT / "rope_triton", tmp_path / "rope_triton")
    facts = caught.exact_values(tmp_path, WITHOUT_GPU)
    assert {v.change for v in exact.compare(base, facts)} == {"none"}
    assert digest_of(tmp_path) == digest_of(ROOT)


@functools.cache
def digest_of(root: Path) -> str:
    facts = exact.compiled(SUBJECT, root, "sm_90", [LAUNCHED_CELL], (), enumerations=()).facts
    return "".join(each.digest for each in facts.values())


@pytest.mark.parametrize("name", OTHER_CODE)
def test_machine_code_differs(name, compiled, mutated):
    assert digest_of(mutated(name)) != digest_of(ROOT)


# What each package launches for each call, with nothing compiled.
LAUNCHED = """
from benchmarks._subjects import listed_cell
from benchmarks._subjects.rope import grid
from benchmarks._engine.machine_code import uncompiled
from benchmarks._engine.machine_code.stub_driver import StubDriver

uncompiled.compile_each_kernel_once()

def launched(root, forms):
    load(root)
    sys.path.remove(root)
    driver = StubDriver.activate("sm_90")
    found = {}
    for cell in [*grid.all_cells("small"), *map(listed_cell, forms)]:
        for direction, metric in cell.metrics.items():
            uncompiled.call(driver, cell, direction)
            subject = " ".join([metric, *cell.params])
            work = [str((each.grid, each.numbers)) for each in driver.launches]
            found[subject] = sorted(uncompiled.features(driver.launches)) + work
    return found

in_turn(launched)
"""


@pytest.fixture(scope="module")
def launched(mutated):
    """What this package and each of these mutants launch, by name and timing."""
    roots = {"": ROOT} | {name: mutated(name) for name in OF_FORMS}
    forms = {str(roots[name]): MUTANTS[name].where for name in OF_FORMS}
    forms[str(ROOT)] = tuple(dict.fromkeys(form for where in forms.values() for form in where))
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", IN_TURN + LAUNCHED, json.dumps(forms)],
        env=environment | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return {name: found[str(root)] for name, root in roots.items()}


@pytest.mark.parametrize("name", OF_FORMS)
def test_forms_are_selected_where_the_grid_lets_a_mutant_through(name, launched):
    """Another tile is other machine code: all of the small grid and its paths has the same."""
    base, head = launched[""], launched[name]
    differ = {timing for timing in head if base[timing] != head[timing]}
    suites = {timing.partition(".")[0] for timing in differ}
    assert suites == {metric.partition(".")[0] for metric in MUTANTS[name].caught_by}
    assert any(timing.split()[1] == MUTANTS[name].where[0] for timing in differ)
