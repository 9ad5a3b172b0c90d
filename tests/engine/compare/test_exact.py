"""What two versions compile to, compared exactly; the compiler's answers are made up."""

from pathlib import Path

import pytest

from benchmarks import codegen
from benchmarks._engine.compare import exact
from benchmarks._engine.machine_code import fingerprint
from benchmarks._engine.machine_code.facts import Facts
from benchmarks._engine.subject import DEFAULT, load
from benchmarks._engine.verdict.note import Note
from benchmarks._engine.verdict.rules import Answer, Key
from tests import toy

ROOT = Path("unused")
LARGE, TARGET = ("sm_90", "bfloat16", "forward"), "sm_90"


def facts(**changes):
    plain = dict.fromkeys(
        ("registers", "spilled_bytes", "stack_bytes", "shared_bytes", "instructions"), 8
    )
    plain |= {"global_accesses": 4, "narrow_accesses": 1, "saved_bytes": 0}
    return Facts(**plain | {"digest": "d", "code": "c"} | changes)


@pytest.fixture
def values(monkeypatch):
    """The exact values where the compiler gives the calls of one dtype an answer of their own."""
    load(toy.__name__)

    def compiled(answer, variants):
        def compile_all(subject, calls, counted, root, ledger, *, enumerations, host):
            answers = {
                call: answer if (call.cell.dtype, call.direction) == LARGE[1:] else facts()
                for call in calls
            }
            return fingerprint.Answers(answers, dict.fromkeys(counted, variants), {}, {})

        monkeypatch.setattr(fingerprint, "compile_all", compile_all)
        listed = toy.compilations(TARGET), toy.variants(TARGET)
        return exact.compiled(toy, ROOT, TARGET, toy.CELLS, *listed, enumerations=()).values

    return compiled


def test_values_are_named_as_asv_names_them(values):
    made = values(facts(registers=9, digest="e"), 3)
    assert {key.metric for key in made} == {
        name for name in toy.UNITS if name.startswith(("toy.Code.", "toy.Variants."))
    }
    assert made["toy.Code.track_registers", LARGE] == 9
    assert made["toy.Code.track_registers", (*LARGE[:2], "backward")] == 8
    assert made["toy.Code.track_narrow_share", LARGE] == 0.25
    assert made["toy.Variants.track_variants", (TARGET,)] == 3


@pytest.mark.parametrize("suite", [codegen.Codegen, codegen.Surface, codegen.Variants])
def test_what_asv_tracks_of_the_package_is_compared(suite):
    subject = load(DEFAULT)
    name = f"codegen.{suite.__name__}"
    ours = [
        one.params
        for target in subject.TARGETS
        for one in (*subject.compilations(target), *subject.variants(target))
        if one.suite == name
    ]
    assert len(set(ours)) == len(ours) > 0
    asv = zip(*ours, strict=True)
    assert [set(column) for column in asv] == [set(values) for values in suite.params]


def test_what_the_head_does_not_compile_fails_and_says_why(values):
    base = values(facts(), 2)
    head = values(RuntimeError("Traceback\n  File\nPTXASError: too narrow a world\n"), 2)
    lost = [verdict for verdict in exact.compare(base, head) if verdict.change == "missing"]
    assert {verdict.key.params for verdict in lost} == {LARGE}
    gating = {verdict.key.metric for verdict in lost if verdict.answer is Answer.FAIL}
    assert gating >= {m for m, unit in toy.UNITS.items() if m.startswith("toy.Code") and unit.gates}
    assert exact.problems({"base": base}) == []
    why = "PTXASError: too narrow a world"
    assert exact.problems({"head": head}) == [Note("no value", why, "head", count=len(lost))]


def test_what_neither_side_has_is_not_compared():
    values = {Key("toy.Variants.track_variants", (TARGET,)): NotImplementedError("not scaled")}
    assert exact.compare(values, dict(values)) == []
    assert exact.problems({"base": values}) == [Note("no value", "not scaled", "base", count=1)]
