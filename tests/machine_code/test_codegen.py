"""The asv benchmarks of the machine code: what they get, and what they make of it."""

import pickle

import pytest

from benchmarks import codegen
from benchmarks._cells import subjects

TRACKS = ("registers", "spilled_bytes", "stack_bytes", "shared_bytes", "instructions")


def one_call(monkeypatch, suite, shape=()):
    call = ("sm_80", "bfloat16", "bshd", "backward", *shape)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(suite, "params", [[value] for value in call])
    return call


def test_codegen_of_one_call(monkeypatch):
    call, suite = one_call(monkeypatch, codegen.Codegen, (64, "large")), codegen.Codegen()
    cache = pickle.loads(pickle.dumps(suite.setup_cache()))
    suite.setup(cache, *call)
    for name in TRACKS:
        value = getattr(suite, f"track_{name}")(cache, *call)
        assert value == getattr(cache[call], name)
        assert type(value) is int
    assert 0 <= suite.track_narrow_share(cache, *call) <= 1
    assert suite.track_instructions(cache, *call) > 0


def test_variants_of_one_sweep(monkeypatch):
    call, suite = one_call(monkeypatch, codegen.Variants), codegen.Variants()
    cache = pickle.loads(pickle.dumps(suite.setup_cache()))
    suite.setup(cache, *call)
    assert 1 <= suite.track_variants(cache, *call) <= 12 * 6


@pytest.mark.parametrize("suite", [codegen.Codegen, codegen.Variants])
@pytest.mark.parametrize("error", [NotImplementedError("no thd yet"), RuntimeError("ptxas died")])
def test_missing_answer_is_raised_by_setup(suite, error):
    call = tuple(values[0] for values in suite.params)
    cache = pickle.loads(pickle.dumps({call: error}))
    with pytest.raises(type(error), match=str(error)):
        suite().setup(cache, *call)


def test_every_architecture_has_every_call():
    assert codegen.Codegen.params[0] == subjects.ARCHITECTURES
    assert [len(values) for values in codegen.Codegen.params] == [8, 3, 2, 2, 3, 2]
    assert [len(values) for values in codegen.Variants.params] == [8, 3, 2, 2]
