"""The first call of a process, and fresh processes; without a GPU."""

import math
import time
from pathlib import Path

import pytest
import triton

from benchmarks._measure import first_call, host
from benchmarks._subjects import metrics
from benchmarks._subjects.rope import grid
from benchmarks._system import process
from tests.measure.common import NO_GPU, ROOT, implement
from tests.package import plain


def test_first_call_is_clocked_and_checked(on_cpu, clock, tmp_path, monkeypatch):
    costs = [2.0, 0.1]

    def apply(t, *args, **options):
        clock.seconds += costs.pop(0)
        return plain.apply_rotary_pos_emb(t, *args, **options)

    implement(monkeypatch, apply)
    assert first_call._clocked(str(ROOT), False) == 2.0
    assert costs == [0.1]
    implement(monkeypatch, lambda t, freqs, **options: t)
    with pytest.raises(AssertionError, match="not close"):
        first_call._clocked(None, False)
    with pytest.raises(RuntimeError, match="should have come from .*, it came from"):
        first_call._clocked(str(tmp_path), False)


def test_first_call_asks_a_process_with_the_roots_package_and_cache(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        process, "call", lambda *args, **options: asked.append((args, options)) or 1.5
    )
    assert first_call.seconds(tmp_path, tmp_path / "cache") == 1.5
    assert first_call.seconds(None, tmp_path / "cache", after_another=True) == 1.5
    env, root = {"TRITON_CACHE_DIR": str(tmp_path / "cache")}, str(tmp_path)
    assert asked == [
        ((first_call.answer, root, False), {"path": (root,), "env": env}),
        ((first_call.answer, None, True), {"path": (), "env": env}),
    ]


def test_first_call_without_a_gpu_says_so(tmp_path, monkeypatch):
    """A real process: it imports the suite, and torch, and its answer comes back."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(NotImplementedError) as raised:
        first_call.seconds(ROOT, tmp_path)
    assert str(raised.value) == NO_GPU


def test_fresh_process_has_the_path_and_the_environment_and_no_other_directory(
    tmp_path, monkeypatch
):
    (tmp_path / "root").mkdir()
    (tmp_path / "here").mkdir()
    for name in ("root", "here"):
        (tmp_path / name / "package_of_this_test.py").write_text(f"NAME = {name!r}")
    monkeypatch.chdir(tmp_path / "here")
    names = process.call(
        eval,
        "__import__('package_of_this_test').NAME, __import__('os').environ['OF_THIS_TEST']",
        path=(str(tmp_path / "root"),),
        env={"OF_THIS_TEST": "set"},
    )
    assert names == ("root", "set")


def test_fresh_process_that_fails_or_hangs_is_an_error():
    with pytest.raises(RuntimeError, match="ended with 1:(?s:.*)ValueError"):
        process.call(math.sqrt, -1)
    with pytest.raises(RuntimeError, match="ended with -9"):
        process.call(exec, "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(RuntimeError, match="not done after 0.5 s"):
        process.call(time.sleep, 60, seconds=0.5)


def test_first_calls_share_a_cache_by_threes(on_cpu, monkeypatch):
    caches = []

    def seconds(root, cache_dir, after_another):
        assert root is None
        warm = (cache_dir / "kernel").exists()
        (cache_dir / "kernel").touch()
        caches.append(cache_dir)
        return (0.02 if after_another else 0.1) if warm else 1.0 + len(caches)

    monkeypatch.setattr(first_call, "seconds", seconds)
    monkeypatch.setattr(process, "call", {first_call.import_package: 0.2}.get)
    assert host.first_call_samples() == {
        (metrics.IMPORT, ()): [0.2] * 3,
        (metrics.COMPILE, ()): [2.0, 5.0, 8.0],
        (metrics.WARM_START, ()): [0.1] * 3,
        (metrics.OWN_START, ()): [0.02] * 3,
    }
    assert len(set(caches)) == 3
    assert not any(cache.exists() for cache in caches)


def test_import_is_the_packages_own_and_not_torchs(tmp_path):
    """In a real process: a package that takes a tenth of a second, and a torch that takes more."""
    for name, seconds in (("torch", 0.4), ("rope_triton", 0.1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"import time; time.sleep({seconds})")
    path = (str(tmp_path),)
    taken = process.call(first_call.import_package, str(tmp_path), path=path)
    assert 0.1 <= taken < 0.4
    with pytest.raises(RuntimeError, match="should have come from /nowhere, it came from"):
        process.call(first_call.import_package, "/nowhere", path=path)


@pytest.fixture
def compiling(on_cpu, clock, monkeypatch):
    """A package whose call compiles into Triton's cache directory, unless it did so before."""
    known, directories = set(), []

    def apply(t, *args, **options):
        directory = Path(triton.knobs.cache.dir)
        directories.append(directory)
        if t.shape not in known:
            clock.seconds += 0.7
            (directory / "kernel").touch()
        known.add(t.shape)
        return plain.apply_rotary_pos_emb(t, *args, **options)

    implement(monkeypatch, apply)
    return directories


def test_a_compilation_is_clocked_with_a_cache_of_its_own(compiling):
    before = triton.knobs.cache.dir
    assert host.compile_here() == {(metrics.COMPILE, ()): [pytest.approx(0.7)]}
    (directory,) = compiling
    assert str(directory) != before == triton.knobs.cache.dir
    assert not directory.exists()


def test_a_kernel_that_was_there_already_is_no_compilation(compiling):
    host.compile_here()
    (again,) = host.compile_here().values()
    assert isinstance(again, RuntimeError) and "nothing was compiled" in str(again)


def test_a_wrong_result_has_no_seconds_of_compilation(compiling, monkeypatch):
    implement(monkeypatch, lambda t, freqs, **options: t)
    (answer,) = host.compile_here().values()
    assert isinstance(answer, RuntimeError) and "not close" in str(answer)


def test_no_other_cell_compiles_the_kernel_that_is_clocked():
    cells = [*grid.all_cells("full"), *map(metrics.call_cell, metrics.FORMATS)]
    assert metrics.COMPILED_HIDDEN_SIZE not in {cell.hidden_size for cell in cells}


def test_another_kernel_goes_before_the_clock_starts(on_cpu, clock, monkeypatch):
    launched = []

    def launch(x):
        clock.seconds += 0.5
        launched.append(x.device.type)

    monkeypatch.setattr(first_call, "_launch_another", launch)
    assert first_call._clocked(None, True) == 0.0
    assert launched == ["cpu"]
