"""``python -m benchmarks compare`` where it cannot run: status 3, which is never an answer."""

import os

import pytest

from benchmarks._engine.compare import measure
from benchmarks._engine.system import gpu_monitor
from tests.lab import COULD_NOT_RUN, PASS, UUID, status_of

BAD = ["", "base head other", "base head --nonsense"]
BAD += [f"base --rounds={text}" for text in ("7", "8", "11", "64", "-12", "ten", "12.0", "")]
BAD += [f"base --budget={text}" for text in ("0", "-1", "nan", "soon")]
BAD += [f"base --wait={text}" for text in ("-1", "nan", "long")]
BAD += [f"base --{option} missing/x" for option in ("json", "markdown")]
BAD += ["base --only="]


@pytest.mark.parametrize("words", BAD)
def test_bad_arguments(lab, capsys, words):
    lab.versions({}, {})
    assert status_of(["compare", *words.split()]) == COULD_NOT_RUN
    error = capsys.readouterr().err
    assert "error: " in error and "Traceback" not in error
    assert lab.gpu.begun == 0


@pytest.mark.parametrize(
    "name", ["nowhere", "--help", "-x", "", "main^{tree}", "a b", "--output=x"]
)
def test_unknown_version(lab, capsys, name):
    lab.versions({}, {})
    before = sorted(lab.root.rglob("*"))
    words = ["compare", "--", "base", name]
    assert status_of(words) == COULD_NOT_RUN
    assert f"{name!r} is no commit or branch" in capsys.readouterr().err
    new = {p.relative_to(lab.root).parts[:3] for p in set(lab.root.rglob("*")) - set(before)}
    assert new <= {(".asv",), (".asv", "compare"), (".asv", "compare", "sources")}


@pytest.mark.parametrize("key", ["toy.Forward.track_latency 7 float32", "toy.Call.track_forward x"])
def test_only_takes_what_the_subject_has(lab, capsys, key):
    lab.versions({}, {})
    assert lab.compare("base", "head", "--only", key) == COULD_NOT_RUN
    assert f"no timing is called {key}" in capsys.readouterr().err


def test_commit_without_the_package(lab, capsys):
    lab.versions({}, {})
    assert lab.compare("empty", "head") == COULD_NOT_RUN
    assert "could not run: commit 'empty' has no rope_triton/" in capsys.readouterr().err


def test_gpu_that_another_measures(lab, capsys):
    lab.versions({}, {})
    with gpu_monitor.gpu_lock(UUID, 0):
        assert lab.compare() == COULD_NOT_RUN
    assert f"is being measured by pid {os.getpid()}" in capsys.readouterr().err
    assert lab.compare() == PASS


def test_gpu_that_another_uses(lab, capsys):
    lab.versions({}, {})
    lab.gpu.busy = "GPU is in use by pid 12 (trainer)"
    assert lab.compare() == COULD_NOT_RUN
    assert "could not run: GPU is in use by pid 12 (trainer)" in capsys.readouterr().err
    assert lab.gpu.begun == 0


def test_process_that_dies(lab, capsys):
    lab.versions({}, {})

    def die(number):
        if number == 5:
            raise measure.ProcessError("a process ended with -11:\nlast words")

    lab.gpu.before = die
    assert lab.compare() == COULD_NOT_RUN
    assert "could not run: a process ended with -11:\nlast words" in capsys.readouterr().err
    assert not lab.report.exists()


def test_answer_of_another_gpu(lab, capsys):
    lab.versions({}, {})
    lab.gpu.answer = lambda root, job: {"gpu": "GPU-bbbbbbbb-0000-0000-0000-000000000000"}
    assert lab.compare() == COULD_NOT_RUN
    assert "measured was GPU GPU-bbbbbbbb" in capsys.readouterr().err
