"""Which answer follows from which numbers: of a timing, an exact value, a job."""

import dataclasses

import pytest

from benchmarks import _subjects, codegen, host, host_cost, model_calls, paths, rope
from benchmarks._engine.verdict import rules
from benchmarks._engine.verdict.metrics import HOST_CALL
from benchmarks._engine.verdict.rules import (
    Answer,
    Control,
    Exact,
    Family,
    Key,
    Rules,
    Spread,
    judge_exact,
)
from tests.engine.verdict.test_judge import FORWARD, keys

P, F, C = Answer.PASS, Answer.FAIL, Answer.CANNOT_TELL


NARROW = Key("codegen.Codegen.track_narrow_share", ("sm_90",))
REGISTERS = Key("codegen.Codegen.track_registers", ("sm_90",))
SPILLED = Key("codegen.Surface.track_spilled_bytes", ("sm_90",))
VARIANTS = Key("codegen.Variants.track_variants", ("sm_90",))
LAUNCHES = Key("host.Launches.track_launches", ("forward", "sbhd"))
ERROR = Key("host.Error.track_error", ("forward", "bfloat16"))
FLOAT32_ERROR = Key("host.PathError.track_error", ("forward", "thd", "float32"))
TIMED = Key(FORWARD, ("128",))


@pytest.mark.parametrize(
    ("key", "base", "head", "answer", "change", "beside_timings"),
    [
        (NARROW, 0.0, 0.0, P, "none", P),
        (NARROW, 0.0, 0.5, F, "worse", P),  # the clock decides
        (NARROW, 0.5, 0.0, P, "better", P),
        (REGISTERS, 32, 40, P, "worse", P),  # shown only
        (SPILLED, 0, 16, F, "worse", P),
        (VARIANTS, 2, 3, F, "worse", F),  # each costs its user a compilation
        (LAUNCHES, 1, 2, F, "worse", F),
        (ERROR, 1.0, 1.00001, F, "worse", F),
        # Another product is rounded; both are.
        (FLOAT32_ERROR, 1.08673, 1.2132, P, "worse", P),
        (FLOAT32_ERROR, 1.2226, 1.4286, F, "worse", F),
        (NARROW, 0.0, None, F, "missing", F),
        (TIMED, 1e-5, None, F, "missing", F),
        (NARROW, None, 0.5, None, "new", None),
        (TIMED, None, 1e-5, None, "new", None),
    ],
)
def test_exact(key, base, head, answer, change, beside_timings):
    exact = judge_exact(key, base, head)
    assert (exact.answer, exact.change, exact.base, exact.head) == (answer, change, base, head)
    exact = judge_exact(key, base, head, clock_decides=True)
    assert (exact.answer, exact.change) == (beside_timings, change)


@pytest.mark.parametrize(
    ("key", "base", "head", "message"),
    [
        (NARROW, None, None, "neither side has a value"),
        (NARROW, float("nan"), 0.0, "base of .* must be None or share, it is nan"),
        (NARROW, 0.0, float("inf"), "head of .* must be None or share, it is inf"),
        (TIMED, 1e-5, 1e-5, "is measured, not exact: two values need judge"),
        (Key("rope.Forward.track_gbps", ()), 1.0, 1.0, "no unit for the metric"),
    ],
)
def test_bad_exact(key, base, head, message):
    with pytest.raises(ValueError, match=message):
        judge_exact(key, base, head)


def test_larger_is_better_for_some(monkeypatch):
    unit = rules.Unit("GB/s", "larger", exact=True, gates=True)
    monkeypatch.setitem(rules.UNITS, "rate", unit)
    assert judge_exact(Key("rate", ()), 2.0, 1.0).answer is Answer.FAIL
    assert judge_exact(Key("rate", ()), 1.0, 2.0).change == "better"


SUITES = (
    *(rope.Forward, rope.Backward, paths.Forward, paths.Backward),
    *(model_calls.Forward, model_calls.Backward),
    *(codegen.Codegen, codegen.Surface, codegen.Variants),
    *(host_cost.Call, host_cost.Import),
    *(host.Call, host.FirstCall, host.Memory, host.Launches, host.Error),
    *(host.PathCall, host.PathMemory, host.PathLaunches, host.PathError),
)


def test_units_are_those_of_the_benchmarks():
    tracks = {
        f"{suite.__module__.rpartition('.')[2]}.{suite.__name__}.{name}": getattr(suite, name).unit
        for suite in SUITES
        for name in dir(suite)
        if name.startswith("track_")
    }
    # Derived from the latency; a copy's own speed is in the ratio.
    derived = {name for name in tracks if name.endswith(("gbps", "_ratio"))}
    # These are timed where their machine code changed, and in no history.
    compared = ("surface.", "modules.", HOST_CALL)
    units = {n: u.name for n, u in _subjects.UNITS.items() if not n.startswith(compared)}
    assert units == {name: unit for name, unit in tracks.items() if name not in derived}


def timing(key, answer, effect=0.0, low=-0.02):
    return rules.Timing(
        *(key, answer, "slower" if answer is Answer.FAIL else "none", 1e-5, 1e-5),
        *(effect, low, 0.02, 0.02, 1.0, 1.0, 0.01, 0.02, 12),
    )


def family(answers, metric=FORWARD, failed=0, spread=None, **numbers):
    """``numbers``: those of the inconclusive timings."""
    timings = tuple(
        timing(key, answer, **(numbers if answer is Answer.CANNOT_TELL else {}))
        for key, answer in zip(keys(len(answers), metric), answers, strict=True)
    )
    return Family(timings, Control(len(answers), failed, 0.0, 0.0), spread=spread)


@pytest.mark.parametrize(
    ("numbers", "answer", "change"),
    [
        ({}, P, "none"),
        ({"effect": 0.02, "upper": 0.03, "p_slower": 0.0025}, F, "slower"),
        ({"effect": 0.02, "upper": 0.03, "p_slower": 0.0026}, C, "none"),
        ({"effect": 0.02, "upper": 0.03, "p_slower": 0.0, "floor": 0.021}, C, "none"),
        ({"upper": 0.011}, C, "none"),
        ({"effect": -0.02, "p_faster": 0.001}, P, "faster"),
        ({"effect": -0.02, "p_faster": 0.003}, P, "none"),
        ({"effect": -0.004, "p_faster": 0.001}, P, "none"),
    ],
)
def test_answer_of_a_timing(numbers, answer, change):
    usual = dataclasses.replace(timing(TIMED, C), upper=0.01, floor=0.005)
    judged = rules.answered(dataclasses.replace(usual, **numbers), Rules())
    assert (judged.answer, judged.change) == (answer, change)


CALL, COMPILE = "host.Call.track_forward", "host.FirstCall.track_compile"


def exact(answer, change="none") -> Exact:
    return Exact(NARROW, rules.unit_of(NARROW), 0.0, 0.0, answer, change)


@pytest.mark.parametrize(
    ("families", "exacts", "options", "answer"),
    [
        ([family([P] * 20)], [], {}, P),
        ([family([P] * 19 + [C])], [], {}, P),
        ([family([P] * 18 + [C] * 2)], [], {}, C),
        # One of ten may be.
        ([family([P] * 9 + [C])], [], {}, P),
        ([family([P] * 8 + [C])], [], {}, C),
        ([family([P] * 17 + [C] * 2)], [], {}, C),
        ([family([P] * 9 + [C], effect=0.011)], [], {}, C),
        # Each family has an allowance of its own.
        ([family([P] * 8 + [C]), family([P] * 9)], [], {}, C),
        # An inconclusive timing that looks slower.
        ([family([P] * 99 + [C], effect=0.011)], [], {}, C),
        ([family([P] * 99 + [C], effect=0.01)], [], {}, P),
        ([family([P] * 99 + [C], effect=0.002, low=0.001)], [], {}, C),
        ([family([P] * 99 + [C], effect=-0.03)], [], {}, P),
        ([family([P] * 19 + [F])], [], {}, F),
        ([family([P] * 20), family([F], COMPILE)], [], {}, F),
        ([family([P] * 20, failed=1)], [], {}, C),
        # The head varies more: by chance and by size.
        ([family([P] * 20, spread=Spread(0.002, 0.006, 0.001))], [], {}, C),
        ([family([P] * 20, spread=Spread(0.002, 0.006, 0.0011))], [], {}, P),
        ([family([P] * 20, spread=Spread(0.0005, 0.0024, 0.0))], [], {}, P),
        ([family([P] * 20, spread=Spread(0.02, 0.029, 0.0))], [], {}, P),
        ([family([P] * 19 + [F], spread=Spread(0.002, 0.006, 0.0))], [], {}, F),
        ([family([P] * 20)], [exact(F)], {}, F),
        ([family([P] * 20)], [exact(None, "new")], {}, P),
        ([family([P] * 20)], [], {"wrong": ["128 x 64: the output is off"]}, F),
        ([], [exact(P)], {}, P),
        ([], [exact(None, "new")], {}, C),
        ([], [], {}, C),
        ([], [], {"same_sources": True}, P),
        ([family([P] * 20, failed=1)], [], {"same_sources": True}, C),
        # The same machine code.
        ([family([F, P])], [], {"identical": set(keys(1))}, C),
        ([family([F, F])], [], {"identical": set(keys(1))}, F),
        ([family([C, C])], [], {"identical": set(keys(2))}, P),
        ([family([C, C])], [], {"identical": set(keys(1))}, C),
        ([family([C], effect=0.02)], [], {"identical": set(keys(1))}, P),
        # It says nothing about what changed, however much of it there is.
        ([family([C] + [P] * 8)], [], {"identical": set(keys(2000)[9:])}, C),
        # What differs and was not measured.
        ([family([P] * 20)], [], {"unmeasured": ["triton: ..."]}, C),
        ([family([P] * 19 + [F])], [], {"unmeasured": ["triton: ..."]}, F),
    ],
)
def test_overall(families, exacts, options, answer):
    assert rules.overall(families, exacts, **options) is answer
