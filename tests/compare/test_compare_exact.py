"""``python -m benchmarks compare`` of what is exact: without a GPU, and of the same sources."""

import shutil

import pytest

from benchmarks._compare import exact, session
from benchmarks._machine_code import worker_pool
from benchmarks._verdict.rules import Answer
from tests.lab import (
    ALL,
    CALL,
    COULD_NOT_RUN,
    FAIL,
    FORWARD,
    MACHINE,
    PASS,
    REGISTERS,
    ROOT,
    SMALL,
    SPILLS,
    VARIANTS,
    Lab,
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

    def facts(root, ledger, **subset):
        found = fake_code(root)
        if behaviour_of(root).get("is") == "head":
            found[SPILLS, CALL] = RuntimeError("Traceback\nptxas: no such luck")
        return found

    lab.versions({}, {})
    lab.machine["gpu"] = "none"
    monkeypatch.setattr(exact, "codegen_facts", facts)
    assert lab.compare() == FAIL
    assert [e.change for e in lab.found.exact if e.answer is Answer.FAIL] == ["missing"]
    assert "head: 1 exact value missing: ptxas: no such luck" in lab.notes


def test_two_versions_of_the_real_package(tmp_path, monkeypatch, capsys):
    """The compiler and its pool are the real ones, on a part of the calls."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    facts, compiled = exact.codegen_facts, exact.compiled_surface
    lab = Lab(tmp_path, monkeypatch).init()
    lab.machine = MACHINE | {"gpu": "none", "machine": "no-gpu"}
    part = {"dtype": ("float16",), "format": ("sbhd",), "hidden_size": (64,)}
    part |= {"direction": ("forward",)}
    monkeypatch.setattr(session, "ARCHITECTURES", ("sm_90",))
    monkeypatch.setattr(
        exact, "codegen_facts", lambda root, book, **target: facts(root, book, **part | target)
    )

    def compiled_but_not_enumerated(root, target, cells, ledger):
        found = compiled(root, target, cells, ledger, enumerations=())
        nothing = {"features": set(), "failures": {}}
        return found._replace(reach={"dense": nothing, "forms": nothing})

    monkeypatch.setattr(exact, "compiled_surface", compiled_but_not_enumerated)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "rope_triton", lab.root / "rope_triton", ignore=ignored)
    lab.git("add", "rope_triton")
    lab.git("commit", "-q", "-m", "base")
    kernels = lab.root / "rope_triton" / "kernel" / "kernels.py"
    kernels.write_text(kernels.read_text() + "\n# A remark changes no machine code.\n")
    assert lab.compare("main") == PASS
    assert not lab.found.same_sources and lab.found.head.sha == ""
    assert len(lab.found.exact) > 10
    assert {each.change for each in lab.found.exact} == {"none"}
    assert "values, none changed" in capsys.readouterr().out
    first = lab.found.exact

    def compiled_again(*_):
        raise AssertionError("all of it is kept")

    monkeypatch.setattr(worker_pool, "_server", compiled_again)
    assert lab.compare("main") == PASS
    assert lab.found.exact == first
