"""The fresh process that measures, for real: started, waited for, asked, ended."""

import io
import json
import os
import sys
import types

import pytest
import torch

from benchmarks._engine.compare import measure
from tests import toy
from tests.lab import IMPORT, LAUNCHES, UUID

# What the process asks of torch for a job without cells, on a machine that has a GPU but none for
# the host's metrics. The real one takes seconds to import.
FAKE_TORCH = f"""
get_num_threads, set_num_threads = lambda: 16, lambda count: None
class cuda:
    is_available = staticmethod(lambda: False)
    current_device = staticmethod(lambda: 0)
    class get_device_properties:
        uuid = "{UUID}"
        def __init__(self, device): pass
"""
JOB = {"task": "check", "cells": [], "exact": True}


@pytest.fixture
def process(tmp_path):
    """Starts a real process on a package that is given as a text; ends it after the test."""
    begun = []

    def start(source: str, torch: str = FAKE_TORCH) -> measure.Process:
        root = tmp_path / "version"
        (root / toy.PACKAGE).mkdir(parents=True)
        (root / toy.PACKAGE / "__init__.py").write_text(source)
        (root / "torch.py").write_text(torch)
        begun.append(measure.Process(toy.__name__, root, tmp_path / "cache"))
        return begun[-1]

    yield start
    for started in begun:
        started.stop()


def test_process_takes_the_package_from_its_root(process, tmp_path, monkeypatch):
    """Neither from the current directory nor from where the suite is; and its own cache."""
    (tmp_path / "here" / toy.PACKAGE).mkdir(parents=True)
    (tmp_path / "here" / toy.PACKAGE / "__init__.py").write_text("raise SystemExit('not me')")
    monkeypatch.chdir(tmp_path / "here")
    note = tmp_path / "note"
    started = process(
        "import os, pathlib\n"
        f"pathlib.Path({str(note)!r}).write_text(__file__ + '\\n' + os.environ['TRITON_CACHE_DIR'])"
    )
    started.wait_until_ready()
    answer = started.answer(JOB)
    assert note.read_text().split("\n") == [
        str(tmp_path / "version" / toy.PACKAGE / "__init__.py"),
        str(tmp_path / "cache"),
    ]
    assert answer["gpu"] == UUID
    assert answer["timings"] == answer["facts"] == answer["errors"] == []
    reasons = {(metric, reason) for metric, _, reason in answer["unavailable"]}
    assert (LAUNCHES.metric, "no NVIDIA GPU: torch.cuda.is_available() is False") in reasons


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (f"__file__ = '/elsewhere/{toy.PACKAGE}/__init__.py'", "it came from /elsewhere"),
        ("raise RuntimeError('no such kernel')", "(?s)before it was ready.*no such kernel"),
    ],
)
def test_process_that_dies_before_it_is_ready(process, source, message):
    with pytest.raises(measure.ProcessError, match=message):
        process(source).wait_until_ready()


@pytest.mark.parametrize(
    ("work", "message"),
    [
        ("import os; os.write(2, b'last words'); os._exit(5)", "(?s)ended with 5.*last words"),
        ("import time; time.sleep(60)", "longer than 1 s"),
    ],
)
def test_process_that_dies_or_hangs_at_work(process, work, message):
    started = process("", torch=FAKE_TORCH.replace("pass", work))
    started.wait_until_ready()
    with pytest.raises(measure.ProcessError, match=message):
        started.answer(JOB, timeout=1.0 if "sleep" in work else 60.0)


@pytest.mark.parametrize(
    "source",
    [
        # As torch's threads make some do when the interpreter is taken down; its work is done.
        "import atexit, os\natexit.register(os.abort)",
        "print('hello')",
    ],
)
def test_process_that_would_die_at_its_end_or_prints_is_sound(process, source):
    started = process(source)
    started.wait_until_ready()
    assert started.answer(JOB)["gpu"] == UUID


def test_process_is_ended(process):
    started = process("import time; time.sleep(60)")
    started.stop()
    assert started._popen.poll() is not None
    started.stop()


def test_a_process_says_how_long_the_import_took_where_it_times_the_host(
    tmp_path, monkeypatch, capsys
):
    """The job itself is faked: what is timed on a GPU is tested elsewhere."""
    asked = []

    def imported(*package):
        asked.append(package)
        return 0.25

    monkeypatch.setattr(measure.first_call, "import_package", imported)
    monkeypatch.setattr(measure, "_measure", lambda *cells, **job: {"timings": [], "seconds": {}})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    properties = types.SimpleNamespace(uuid=UUID)
    monkeypatch.setattr(torch.cuda, "get_device_properties", {0: properties}.get)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/version", "/others"]))
    answer = tmp_path / "answer.json"
    timings = []
    for on_host in (True, False):
        job = json.dumps(measure.timing_job([], on_host) | {"seed": 1})
        monkeypatch.setattr(sys, "stdin", io.StringIO(job + "\n"))
        measure.main(toy.__name__, str(answer))
        timings.append(json.loads(answer.read_text())["timings"])
    assert timings == [[[IMPORT, [], [0.25]]], []]
    assert asked == [(toy.PACKAGE, "/version")] * 2
    assert capsys.readouterr().out == f"{measure.READY}\n" * 2
