"""``python -m benchmarks compare`` of the other paths and of forms, beside the grid."""

import pytest

from benchmarks._compare.findings import subjects_of
from benchmarks._verdict.rules import Answer, Subject
from tests.lab import CELLS, FAIL, FORMS, IN_PLACE, PASS, PATHS, QKV, ROUNDS, noisy


@pytest.fixture
def pathed(lab):
    """Compares other paths, too: fused QKV, and rotation in place, which is timed forward only."""
    lab.with_paths()
    return lab


PATH_SUBJECTS = [
    *(Subject(metric, tuple(QKV.split())) for metric in PATHS),
    Subject(PATHS[0], tuple(IN_PLACE.split())),
]


def test_paths_are_timed_with_the_grid(pathed):
    pathed.versions({}, {})
    assert pathed.compare() == PASS
    timed = {each.subject for each in pathed.found.families["gpu"].timings}
    assert timed == set().union(PATH_SUBJECTS, *map(subjects_of, CELLS))


def test_slower_path_fails(pathed, capsys):
    pathed.versions({}, {"slower": {IN_PLACE: 1.05}})
    assert pathed.compare() == FAIL
    assert [t.subject for t in pathed.found.timings if t.answer is Answer.FAIL] == PATH_SUBJECTS[2:]
    assert "Forward tables-inplace, 4 MiB, bfloat16" in capsys.readouterr().out


def test_path_that_cannot_be_told_is_looked_at_again(pathed):
    pathed.versions({}, {})
    noisy(pathed, QKV, 0.001)
    assert pathed.compare() == PASS
    assert pathed.gpu.jobs[-1][1]["cells"] == [["paths", ["qkv", "4", "bfloat16"]]]
    assert pathed.timing(PATH_SUBJECTS[0]).rounds > ROUNDS


# --- forms of the surface -------------------------------------------------------------------------

FORM_METRICS = ["surface.Forward.track_latency", "surface.Backward.track_latency"]
DECODE, SLOW = f"{FORMS[0]} 4", f"{FORMS[1]} 32"


@pytest.fixture
def formed(lab):
    """Compares forms, too."""
    lab.with_forms()
    return lab


def test_forms_are_compiled_checked_and_timed(formed):
    formed.versions({}, {})
    assert formed.compare() == PASS
    timed = {each.subject for each in formed.found.families["gpu"].timings}
    forms = timed - set().union(*map(subjects_of, CELLS))
    sizes = [*(f"{FORMS[1]} {mib}" for mib in (4, 32)), DECODE]
    expected = {Subject(FORM_METRICS[0], tuple(each.split())) for each in sizes}
    assert forms == expected | {Subject(FORM_METRICS[1], tuple(DECODE.split()))}
    exact = {each.subject for each in formed.found.exact}
    registers = "codegen.Surface.track_registers"
    assert {s.params for s in exact if s.metric == registers} == {
        ("sm_90", FORMS[0], "forward"),
        ("sm_90", FORMS[0], "backward"),
        ("sm_90", FORMS[1], "forward"),
    }
    # Each form is checked at one size.
    assert [each for each in formed.gpu.jobs[0][1]["cells"] if each[0] == "surface"] == [
        ["surface", [FORMS[1], "4"]],
        ["surface", [FORMS[0], "4"]],
    ]


def test_slower_form_fails(formed):
    formed.versions({}, {"slower": {SLOW: 1.05}})
    assert formed.compare() == FAIL
    slow = [each.subject for each in formed.found.timings if each.answer is Answer.FAIL]
    assert slow == [Subject(FORM_METRICS[0], tuple(SLOW.split()))]


def test_one_form_alone_is_compared(formed):
    formed.versions({}, {"slower": {DECODE: 1.05}})
    assert formed.compare("base", "head", "--only", f"{FORM_METRICS[0]} {SLOW}") == PASS
    timed = {each.subject for each in formed.found.timings}
    assert timed == {Subject(FORM_METRICS[0], tuple(SLOW.split()))}
