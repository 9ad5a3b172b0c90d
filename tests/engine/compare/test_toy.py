"""A subject of its own goes the whole way: compiled, compared, judged and reported, for real."""

import pytest

from benchmarks._engine.compare import exact
from benchmarks._engine.machine_code import worker_pool
from benchmarks._engine.verdict.rules import Answer
from tests import toy
from tests.lab import FAIL, MACHINE, PASS, REGISTERS, VARIANTS, Lab

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
    narrow = toy.source(block=64).replace("BLOCK=64)", "BLOCK=64, num_warps=1)")
    commit(toys, "narrow", narrow)
    assert toys.compare("base", "remark") == PASS
    same = toys.found
    assert not same.same_sources and {value.change for value in same.exact} == {"none"}
    assert {value.key.params[0] for value in same.exact} == set(toy.TARGETS)
    assert {REGISTERS, VARIANTS} < {value.key.metric for value in same.exact} <= toy.UNITS.keys()
    assert "values, none changed" in capsys.readouterr().out
    with monkeypatch.context() as patch:
        patch.setattr(worker_pool, "_server", None)  # all of it is kept
        assert toys.compare("base", "remark") == PASS and toys.found.exact == same.exact
    assert toys.compare("base", "narrow") == FAIL
    worse = {value.key for value in toys.found.exact if value.answer is Answer.FAIL}
    assert {key.metric for key in worse} == {"toy.Code.track_narrow_share"}
    assert "FAIL: " in capsys.readouterr().out
