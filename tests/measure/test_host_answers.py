"""Every answer and every failure, and asv's view of them; without a GPU."""

import itertools
import json
import pickle
import subprocess
import sys

import pytest
import torch

from benchmarks import host
from benchmarks._cells import subjects
from benchmarks._measure import host as _host
from benchmarks._system import process
from tests.measure.common import NO_GPU, ROOT

UNITS = {
    _host.CALL_FORWARD: "seconds",
    _host.CALL_FORWARD_BACKWARD: "seconds",
    _host.COMPILE: "seconds",
    _host.WARM_START: "seconds",
    _host.OWN_START: "seconds",
    _host.PEAK_BYTES: "bytes",
    _host.LAUNCHES: "launches",
    _host.ERROR: "x rounding",
    _host.PATH_FORWARD: "seconds",
    _host.PATH_FORWARD_BACKWARD: "seconds",
    _host.PATH_PEAK_BYTES: "bytes",
    _host.PATH_LAUNCHES: "launches",
    _host.PATH_ERROR: "x rounding",
}
COUNTS = dict(zip(UNITS, (2, 2, 1, 1, 1, 24, 24, 24, 7, 6, 13, 13, 26), strict=True))
EXACT = (_host.PEAK_BYTES, _host.LAUNCHES, _host.ERROR)
PATH_EXACT = (_host.PATH_PEAK_BYTES, _host.PATH_LAUNCHES, _host.PATH_ERROR)
IN_PLACE = NotImplementedError("a rotation in place has no backward pass of its own")


def raise_(error):
    raise error


def import_name():
    from rope_triton import a_name_that_no_commit_has  # noqa: F401


def import_package():
    import rope_triton_that_nobody_has  # noqa: F401


FAILURES = {
    "no backward yet": (lambda: raise_(NotImplementedError("no backward yet")), True),
    "cannot import name": (import_name, True),
    "12 GB": (lambda: raise_(torch.cuda.OutOfMemoryError("12 GB")), True),
    "No module named": (import_package, False),
    "AssertionError: not close": (lambda: raise_(AssertionError("not close")), False),
}


@pytest.mark.parametrize("message", FAILURES)
def test_failure_is_its_own_cells_only(on_cpu, message, monkeypatch):
    fail, unavailable = FAILURES[message]
    bad = ("training", "sbhd", "float16", "transposed")

    def measure(*params):
        return fail() if params == bad else 1.0

    for metric in (*EXACT, *PATH_EXACT):
        monkeypatch.setitem(_host._MEASURES, metric, measure)
    found = _host.exact_facts()
    failed = [found.pop((metric, bad)) for metric in (_host.PEAK_BYTES, _host.LAUNCHES)]
    assert set(found.values()) == {1.0}
    for error in failed:
        assert message in str(error)
        assert isinstance(error, NotImplementedError) == unavailable
        assert ("Traceback" in str(error)) != unavailable


def test_a_fault_that_ends_the_process_leaves_the_rest_to_a_fresh_one(on_cpu, monkeypatch):
    def lost(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def measure(*params):
        if params == keys[1][1]:
            monkeypatch.setattr(torch.cuda, "synchronize", lost)
            lost()
        return 1.0

    keys = _host._keys(_host.PEAK_BYTES, subjects.STEP_PARAMS)
    monkeypatch.setitem(_host._MEASURES, _host.PEAK_BYTES, measure)
    monkeypatch.setattr(
        process, "call", lambda function, rest: {key: (function, 2.0) for key in rest}
    )
    found = _host.memory_facts()
    assert list(found) == keys
    assert found.pop(keys[0]) == 1.0
    assert "illegal memory access" in str(found.pop(keys[1]))
    assert set(found.values()) == {(_host._answers, 2.0)}


def test_the_fresh_process_failing_is_an_error_of_its_keys(on_cpu, monkeypatch):
    monkeypatch.setattr(process, "_CALL", "sys.exit(3)")
    found = _host._answers_of_fresh_process([("a", ()), ("b", ())])
    assert list(found) == [("a", ()), ("b", ())]
    assert all("ended with 3" in str(error) for error in found.values())
    assert _host._answers_of_fresh_process([]) == {}


def test_without_a_gpu_everything_is_unavailable_for_one_reason(progress, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = _host.call_samples() | _host.exact_facts() | _host.first_call_samples()
    found |= _host.path_call_samples()
    metrics = [metric for metric, _ in found]
    assert {metric: metrics.count(metric) for metric in UNITS} == COUNTS
    assert all(isinstance(answer, NotImplementedError) for answer in found.values())
    assert {str(answer) for answer in found.values()} == {NO_GPU}
    assert progress() == [
        f"{title}: n/a, {NO_GPU}"
        for title in ("host.Call", "host", "host.FirstCall", "host.PathCall")
    ]


# --- as asv sees it -------------------------------------------------------------------------------

ASV = """
import json, os, pickle, sys
from asv_runner._aux import update_sys_path
from asv_runner.discovery import disc_benchmarks
root, answers = sys.argv[1:]
update_sys_path(root)
found = {}
for benchmark in disc_benchmarks(root):
    if benchmark.name.startswith("host."):
        benchmark.set_param_idx(0)
        benchmark.set_cache(pickle.load(open(answers, "rb")))
        try:
            found[benchmark.name] = None if benchmark.do_setup() else benchmark.do_run()
        except Exception as error:
            found[benchmark.name] = repr(error)
imports = [name for name in ("torch", "triton", "rope_triton") if name in sys.modules]
print(json.dumps([found, imports]))
"""


def as_asv_runs_it(answers, tmp_path):
    """What each of asv's tracks returns for its first parameters, and what was imported."""
    (tmp_path / "answers").write_bytes(pickle.dumps(answers))
    command = [sys.executable, "-c", ASV, str(ROOT / "benchmarks"), str(tmp_path / "answers")]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


def first_answers():
    """An answer for the first parameters of every track: samples or a fact."""
    samples = {
        (_host.COMPILE, ()): [3.0],
        (_host.WARM_START, ()): [0.5],
        (_host.OWN_START, ()): [0.02],
    }
    samples |= {(_host.CALL_FORWARD, ("sbhd",)): [3e-5, 2e-5]}
    samples |= {(_host.CALL_FORWARD_BACKWARD, ("sbhd",)): [9e-5]}
    samples |= {(_host.PATH_FORWARD, ("thd",)): [4e-5]}
    samples |= {(_host.PATH_FORWARD_BACKWARD, ("thd",)): [8e-5]}
    step = ("forward", "sbhd", "float32", "contiguous")
    facts = {(_host.PEAK_BYTES, step): 4096, (_host.LAUNCHES, step): 1}
    facts |= {(_host.PATH_PEAK_BYTES, ("forward", "thd")): 8192}
    facts |= {(_host.PATH_LAUNCHES, ("forward", "thd")): 3}
    facts |= {(_host.PATH_ERROR, ("forward", "thd", "float32")): 1.5}
    return samples, facts | {(_host.ERROR, ("forward", "float32", "short", "False")): 1.25}


def test_tracks_pick_their_answers_and_asv_needs_no_torch(tmp_path):
    samples, facts = first_answers()
    found, imported = as_asv_runs_it(samples | facts, tmp_path)
    expected = {metric: {"samples": values, "number": 1} for (metric, _), values in samples.items()}
    assert found == expected | {metric: value for (metric, _), value in facts.items()}
    assert imported == []


def test_a_track_that_failed_leaves_the_other_of_its_class_alone(tmp_path):
    samples, facts = first_answers()
    samples[_host.CALL_FORWARD, ("sbhd",)] = RuntimeError("wrong output")
    samples[_host.WARM_START, ()] = NotImplementedError("no GPU")
    found, _ = as_asv_runs_it(samples | facts, tmp_path)
    assert found[_host.CALL_FORWARD] == "RuntimeError('wrong output')"
    assert found[_host.WARM_START] is None
    assert found[_host.CALL_FORWARD_BACKWARD]["samples"] == [9e-5]
    assert found[_host.COMPILE]["samples"] == [3.0]


SUITES = (host.Call, host.FirstCall, host.Memory, host.Launches, host.Error)
PATH_SUITES = (host.PathCall, host.PathMemory, host.PathLaunches, host.PathError)


def tracks_of(suite):
    """asv's names of a class's tracks, and of all its parameters."""
    tracks = [name for name in vars(suite) if name.startswith("track_")]
    params = [tuple(map(str, p)) for p in itertools.product(*getattr(suite, "params", []))]
    return [f"host.{suite.__name__}.{track}" for track in tracks], params


@pytest.mark.parametrize("suite", [*SUITES, *PATH_SUITES])
def test_every_answer_has_its_track(suite, monkeypatch):
    """Every class's tracks and parameters are those that its setup_cache answers."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    names, params = tracks_of(suite)
    answers = suite().setup_cache()
    nothing = set(itertools.product(names, params)) - set(answers)
    assert set(answers) <= set(itertools.product(names, params))
    assert not nothing or suite in PATH_SUITES
    for metric, values in nothing:  # of a rotation in place, the backward
        assert "tables-inplace" in values
        assert "forward_backward" in metric or {"training", "backward"} & {*values}
        with pytest.raises(NotImplementedError, match=str(IN_PLACE)):
            getattr(suite, metric.split(".")[2]).setup(answers, *values)
    for name in names:
        assert getattr(suite, name.split(".")[2]).unit == UNITS[name]
        assert [metric for metric, _ in answers].count(name) == COUNTS[name]
    assert len(getattr(suite, "param_names", [])) == len(getattr(suite, "params", []))
    assert suite.version == "1" and suite.setup_cache.timeout
