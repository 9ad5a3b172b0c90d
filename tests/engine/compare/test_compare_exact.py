"""``python -m benchmarks compare`` of what is exact: without a GPU, and of the same sources."""

import pytest

from benchmarks._engine.compare import exact
from benchmarks._engine.verdict.rules import Answer
from tests.lab import (
    ALL,
    CALL,
    COULD_NOT_RUN,
    FAIL,
    FORWARD,
    PASS,
    REGISTERS,
    SMALL,
    SPILLS,
    VARIANTS,
    behaviour_of,
    fake_code,
)

# --- the same sources -----------------------------------------------------------------------------


def test_same_sources_are_not_measured(lab, capsys):
    lab.commit("base")
    lab.commit("head")
    assert lab.compare() == PASS
    assert lab.gpu.begun == 0
    assert lab.found.same_sources and not lab.found.timings
    assert "both versions have the same sources" in capsys.readouterr().out


def test_same_sources_are_measured_where_asked(lab):
    lab.commit("base")
    assert lab.compare("base", "base", "--even-if-same") == PASS
    assert lab.gpu.answered == ALL
    assert len(lab.found.timings) == 12 and len(lab.found.identical) == 8
    assert "--even-if-same" in lab.found.reproduce


# --- without a GPU --------------------------------------------------------------------------------


@pytest.mark.parametrize("option", [None, "--exact-only"])
@pytest.mark.parametrize("worse", [{}, {"spills": 8}, {"variants": 7}])
def test_only_what_is_exact(lab, option, worse):
    lab.versions({}, {"slower": {SMALL: 2.0}} | worse)
    if option is None:
        lab.machine["gpu"] = "none"
    assert lab.compare("base", "head", *filter(None, [option])) == (FAIL if worse else PASS)
    assert lab.gpu.begun == 0
    assert {each.key.metric for each in lab.found.exact} == {REGISTERS, SPILLS, VARIANTS}
    (note,) = (note for note in lab.notes if "not measured" in note)
    assert note.startswith(option or "no NVIDIA GPU: ")


@pytest.mark.parametrize(
    "words",
    [["--only", f"{FORWARD} {SMALL}"], ["--every-cell"], ["--grid", "full"], ["--wait", "3"]],
    ids=lambda words: words[0],
)
def test_what_means_nothing_without_a_clock_is_refused(lab, words, capsys):
    lab.versions({}, {})
    assert lab.compare("base", "head", *words, "--exact-only") == COULD_NOT_RUN
    assert f"--exact-only times nothing: leave out {words[0]}" in capsys.readouterr().err


def test_package_that_does_not_compile(lab, monkeypatch):
    """An exception stands where the head has no value: it is missing, and said why."""

    def code(subject, root, *rest):
        made = fake_code(subject, root, *rest)
        if behaviour_of(root).get("is") == "head":
            made.values[SPILLS, CALL] = RuntimeError("Traceback\nptxas: no such luck")
        return made

    lab.versions({}, {})
    lab.machine["gpu"] = "none"
    monkeypatch.setattr(exact, "compiled", code)
    assert lab.compare() == FAIL
    assert [e.change for e in lab.found.exact if e.answer is Answer.FAIL] == ["missing"]
    assert "head: 1 exact value missing: ptxas: no such luck" in lab.notes
