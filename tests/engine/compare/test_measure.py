"""The fresh process that measures, for real: started, waited for, asked, ended."""

import io
import json
import os
import sys
import types

import numpy as np
import pytest
import torch

from benchmarks._engine.compare import measure
from benchmarks._engine.compare.pool import Pool
from benchmarks._engine.compare.rounds import Round
from benchmarks._engine.measure import host_time, inputs
from benchmarks._engine.subject import BACKWARD, FORWARD
from benchmarks._engine.system import copies
from benchmarks._engine.verdict.rules import Key
from tests import toy
from tests.lab import IMPORT, LAUNCHES, UUID

# What the process asks of torch for a job without cells, on a machine that has a GPU but none for
# the host's metrics. The real one takes seconds to import.
FAKE_TORCH = f"""
set_num_threads = lambda count: None
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
    for keys in ([], [Key(IMPORT, ())]):
        job = json.dumps(measure.timing_job(toy.CELLS, keys)["alone"] | {"seed": 1})
        monkeypatch.setattr(sys, "stdin", io.StringIO(job + "\n"))
        measure.main(toy.__name__, str(answer))
        timings.append(json.loads(answer.read_text())["timings"])
    assert timings == [[], [[IMPORT, [], [0.25]]]]
    assert asked == [(toy.PACKAGE, "/version")] * 2
    assert capsys.readouterr().out == f"{measure.READY}\n" * 2


# --- versions side by side ------------------------------------------------------------------------

PLAIN = """
from benchmarks._engine.measure import host_time
def scale(x):
    host_time.time.seconds += {seconds} * host_time.time.pace
    return {factor} * x
"""


class Clock:
    """Stands still but for calls of the package, which take longer from block to block."""

    seconds, pace = 0.0, 1.0

    def perf_counter(self):
        self.pace *= 1.01
        return self.seconds


def clocked(tmp_path, monkeypatch, **versions):
    """What a process answers that clocks these versions; of each, (seconds, factor)."""
    for version, (seconds, factor) in versions.items():
        package = tmp_path / version / toy.PACKAGE
        package.mkdir(parents=True)
        source = PLAIN.format(seconds=seconds, factor=factor)
        (package / "__init__.py").write_text(source)
    roots = {version: tmp_path / version for version in versions}
    names = copies.write(toy.PACKAGE, roots, tmp_path / "copies")
    monkeypatch.syspath_prepend(tmp_path / "copies")
    monkeypatch.setattr(inputs, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(measure.gpu_timer, "warm_up", lambda seconds: None)
    monkeypatch.setattr(host_time, "time", Clock())
    monkeypatch.setattr(host_time, "BLOCKS_IN_TURNS", {FORWARD: 8, BACKWARD: 8})
    keys = [key for key, eager in toy.eager().items() if eager.kind == "seconds"]
    try:
        return measure._clock(toy, names, keys, arch="", seed=1)["versions"]
    finally:
        for name in names.values():
            sys.modules.pop(name, None)


def test_versions_in_one_process_differ_by_what_their_calls_take(tmp_path, monkeypatch):
    """The host slows down all the while, by 1 % from one reading of the clock to the next."""
    answers = clocked(tmp_path, monkeypatch, base=(1e-5, 3.0), head=(1.1e-5, 3.0))
    assert {len(row[2]) for rows in answers.values() for row in rows["timings"]} == {4}
    assert answers["base"]["beside"] != answers["head"]["beside"], "they are of other blocks"
    pool = Pool.of([Round("look1", 0, answers, {})], answers)
    assert len(pool.subjects) == 4
    ratios = pool.seconds["head"] / pool.seconds["base"]
    assert ratios == pytest.approx(np.full((1, 4), 1.1), rel=0.02)


def test_a_call_that_one_version_gets_wrong_is_clocked_of_none(tmp_path, monkeypatch):
    answers = clocked(tmp_path, monkeypatch, base=(1e-5, 3.0), head=(1e-5, 2.0))
    assert not answers["base"]["timings"] and not answers["base"]["errors"]
    assert len(answers["head"]["errors"]) == 4
    assert "the forward is wrong" in answers["head"]["errors"][0][2]
