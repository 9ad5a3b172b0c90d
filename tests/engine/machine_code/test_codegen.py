"""The asv benchmarks of the machine code: what they get, and what they make of it."""

import pickle

import pytest

from benchmarks import codegen

TRACKS = ("registers", "spilled_bytes", "stack_bytes", "shared_bytes", "instructions")


def answered(monkeypatch, suite, *call):
    """The benchmark and its answers, as asv keeps them, of one call alone."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(suite, "params", [[value] for value in call])
    cache = pickle.loads(pickle.dumps(suite().setup_cache()))
    suite().setup(cache, *call)
    return suite(), cache


def test_one_call_and_one_sweep(monkeypatch):
    sweep = "sm_80", "bfloat16", "bshd", "backward"
    suite, cache = answered(monkeypatch, codegen.Variants, *sweep)
    assert 1 <= suite.track_variants(cache, *sweep) <= 12 * 6
    call = (*sweep, 64, "large")
    suite, cache = answered(monkeypatch, codegen.Codegen, *call)
    for name in TRACKS:
        value = getattr(suite, f"track_{name}")(cache, *call)
        assert value == getattr(cache[call], name)
        assert type(value) is int
    assert 0 <= suite.track_narrow_share(cache, *call) <= 1
    assert suite.track_instructions(cache, *call) > 0


@pytest.mark.parametrize("suite", [codegen.Codegen, codegen.Variants])
@pytest.mark.parametrize("error", [NotImplementedError("no thd yet"), RuntimeError("ptxas died")])
def test_missing_answer_is_raised_by_setup(suite, error):
    call = tuple(values[0] for values in suite.params)
    cache = pickle.loads(pickle.dumps({call: error}))
    with pytest.raises(type(error), match=str(error)):
        suite().setup(cache, *call)
