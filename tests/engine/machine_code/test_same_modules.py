"""What two versions' kernels have in common is compiled once, and nothing else is."""

import shutil

import pytest

from benchmarks._engine.machine_code import fingerprint, worker_pool
from tests import toy
from tests.engine.machine_code.test_fingerprint import (
    COPY,
    SOURCE,
    STRIDED,
    STRIDES,
    call,
    write_package,
)

CALLS = [call(COPY), call(STRIDED), call(STRIDES), call(COPY, target="gfx942")]
MOVED = "# moved\n\n\n" + SOURCE.replace("def wide_copy(", "def wide_copy(  # and commented\n    ")
CHANGED = MOVED.replace("at = 3 * (tl.program_id(0) * BLOCK", "at = 5 * (tl.program_id(0) * BLOCK")


@pytest.fixture
def facts_of(tmp_path, monkeypatch):
    """The facts of a package, and its kernels that are new in a cache which all have in common."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    cache = tmp_path / "cache"
    cache.mkdir()

    def facts_of(name, source):
        before = set(cache.iterdir())
        ledger = worker_pool.Ledger("compiled")
        ledger.cache = cache
        root = write_package(tmp_path / name, source)
        facts = fingerprint.compile_all(toy, CALLS, root=root, ledger=ledger).facts
        made = [path for folder in set(cache.iterdir()) - before for path in folder.iterdir()]
        kernels = [path for path in made if path.suffix in (".cubin", ".hsaco")]
        return [facts[call] for call in CALLS], {path: path.read_bytes() for path in kernels}

    return facts_of


def test_only_a_kernel_that_changed_or_was_removed_is_compiled_again(facts_of):
    first, kernels = facts_of("first", SOURCE)
    assert len(set(map(repr, first))) == len(CALLS)
    assert not [fact for fact in first if isinstance(fact, Exception)]
    moved, copies = facts_of("moved", MOVED)
    assert moved == first
    # Compiled again they would differ: lines are in them.
    assert len(copies) == len(kernels) == len(set(kernels.values()))
    assert set(copies.values()) == set(kernels.values())
    changed, others = facts_of("changed", CHANGED)
    assert [a == b for a, b in zip(first, changed, strict=True)] == [True, False, True, True]
    assert len(set(others.values()) - set(kernels.values())) == 1
    for path in (*kernels, *copies, *others):
        shutil.rmtree(path.parent)
    again, made = facts_of("again", MOVED)
    assert again == first and len(made) == len(kernels)
