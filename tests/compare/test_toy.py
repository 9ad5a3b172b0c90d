"""A subject of its own goes the whole way: compiled, compared, judged and reported, for real."""

import pytest

from benchmarks._compare import exact
from benchmarks._machine_code import worker_pool
from tests import toy
from tests.lab import MACHINE, PASS, REGISTERS, VARIANTS, Lab

COMPILED = exact.compiled


@pytest.fixture
def toys(tmp_path, monkeypatch):
    """A repository of the toy's package, on a machine without a GPU; nothing else is made up."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    lab = Lab(tmp_path, monkeypatch, package="toy_kernel").init()
    monkeypatch.setattr(exact, "compiled", COMPILED)
    lab.machine = MACHINE | {"gpu": "none", "machine": "no-gpu"}
    (tmp_path / toy.PACKAGE).mkdir()
    return lab


def commit(lab: Lab, tag: str, text: str) -> None:
    (lab.root / toy.PACKAGE / "__init__.py").write_text(text)
    lab.git("add", toy.PACKAGE)
    lab.git("commit", "-q", "-m", tag)
    lab.git("tag", tag)


def test_two_versions_are_compiled_compared_judged_and_reported(toys, capsys, monkeypatch):
    commit(toys, "base", toy.source())
    commit(toys, "remark", toy.source() + "# A remark changes no machine code.\n")
    commit(toys, "head", toy.source(block=64).replace("BLOCK=64)", "BLOCK=64, num_warps=1)"))
    assert toys.compare("base", "remark") == PASS
    same = toys.found
    assert not same.same_sources and {each.change for each in same.exact} == {"none"}
    assert {each.key.params[0] for each in same.exact} == set(toy.TARGETS)
    assert {REGISTERS, VARIANTS} < {each.key.metric for each in same.exact} <= toy.UNITS.keys()
    assert "0 of 4 timings of the listed differ" in " ".join(same.notes)
    monkeypatch.setattr(worker_pool, "_server", None)  # all of it is kept
    assert toys.compare("base", "remark") == PASS and toys.found.exact == same.exact
    monkeypatch.undo()
