"""Every answer and every failure, and asv's view of them; without a GPU."""

import itertools
import json
import pickle
import subprocess
import sys

import pytest
import torch

import rope_triton
from benchmarks import host
from benchmarks._measure import host as _host
from benchmarks._subjects import metrics
from benchmarks._system import process
from tests.measure.common import NO_GPU, ROOT, implement
from tests.package import plain

METRICS = {
    metrics.CALL_FORWARD: (2, "seconds"),
    metrics.CALL_FORWARD_BACKWARD: (2, "seconds"),
    metrics.IMPORT: (1, "seconds"),
    metrics.COMPILE: (1, "seconds"),
    metrics.WARM_START: (1, "seconds"),
    metrics.OWN_START: (1, "seconds"),
    metrics.PEAK_BYTES: (24, "bytes"),
    metrics.LAUNCHES: (24, "launches"),
    metrics.ERROR: (24, "x rounding"),
    metrics.PATH_FORWARD: (7, "seconds"),
    metrics.PATH_FORWARD_BACKWARD: (6, "seconds"),
    metrics.PATH_PEAK_BYTES: (13, "bytes"),
    metrics.PATH_LAUNCHES: (13, "launches"),
    metrics.PATH_ERROR: (26, "x rounding"),
}
"""Keys of each metric, and its unit."""
EXACT = metrics.host_keys(*metrics.EXACT)
SUITES = (host.Call, host.FirstCall, host.Memory, host.Launches, host.Error)
PATH_SUITES = (host.PathCall, host.PathMemory, host.PathLaunches, host.PathError)


def raising(error):
    def fail(*_, **__):
        raise error

    return fail


@pytest.mark.parametrize("error", [NotImplementedError("not yet"), AssertionError("not close")])
def test_failure_is_its_own_cells_only(on_cpu, error, monkeypatch):
    """Which errors are failures, and which a lack: see the tests of ``cell_outcomes``."""
    bad = ("training", "sbhd", "float16", "transposed")

    def measure(*params):
        return raising(error)() if params == bad else 1.0

    for metric, _ in EXACT:
        monkeypatch.setitem(_host._MEASURES, metric, measure)
    found = _host.exact_facts()
    assert list(found) == EXACT
    failed = [found.pop((metric, bad)) for metric in (metrics.PEAK_BYTES, metrics.LAUNCHES)]
    assert set(found.values()) == {1.0}
    for each in failed:
        assert str(error) in str(each)
        assert isinstance(each, NotImplementedError) == isinstance(error, NotImplementedError)
        assert ("Traceback" in str(each)) == isinstance(error, AssertionError)


def test_commit_without_the_paths_has_no_answers_and_says_why(on_cpu, monkeypatch):
    def refuse(t, freqs, tensor_format, **options):
        if options:
            raise NotImplementedError(f"{sorted(options)} is not implemented yet")
        return plain.apply_rotary_pos_emb(t, freqs, tensor_format)

    implement(monkeypatch, refuse)
    for name in plain.FUNCTIONS.keys() - {"apply_rotary_pos_emb"}:
        monkeypatch.delattr(rope_triton, name)
    found = _host.answers("host.PathCall", "host.PathError")
    assert {type(answer) for answer in found.values()} == {NotImplementedError}
    assert all(str(answer).startswith("this commit cannot: ") for answer in found.values())


def test_a_fault_that_ends_the_process_leaves_the_rest_to_a_fresh_one(on_cpu, monkeypatch):
    lost = raising(RuntimeError("CUDA error: an illegal memory access was encountered"))

    def measure(*params):
        if params == keys[1][1]:
            monkeypatch.setattr(torch.cuda, "synchronize", lost)
            lost()
        return 1.0

    keys = metrics.host_keys("host.Memory")
    monkeypatch.setitem(_host._MEASURES, metrics.PEAK_BYTES, measure)
    monkeypatch.setattr(
        process, "call", lambda function, rest: {key: (function, 2.0) for key in rest}
    )
    found = _host.answers("host.Memory")
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


# --- as asv sees it -------------------------------------------------------------------------------


@pytest.mark.parametrize("suite", [*SUITES, *PATH_SUITES])
def test_every_class_has_its_answers_which_say_that_there_is_no_gpu(suite, monkeypatch, progress):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    title = f"host.{suite.__name__}"
    tracks = {each: getattr(suite, each) for each in vars(suite) if each.startswith("track_")}
    names = [f"{title}.{track}" for track in tracks]
    assert set(names) == {name for name in METRICS if name.startswith(f"{title}.")}
    params = [tuple(map(str, values)) for values in itertools.product(*suite.params)]
    answers = suite().setup_cache()
    assert {(type(answer), str(answer)) for answer in answers.values()} == {
        (NotImplementedError, NO_GPU)
    }
    assert progress() == [f"{title}: n/a, {NO_GPU}"]
    missing = set(itertools.product(names, params)) - set(answers)
    assert set(answers) <= set(itertools.product(names, params))
    assert not missing or suite in PATH_SUITES
    for metric, values in missing:  # the backward of a rotation in place
        assert "tables-inplace" in values
        assert "forward_backward" in metric or {"training", "backward"} & {*values}
        with pytest.raises(NotImplementedError, match="in place has no backward pass"):
            tracks[metric.split(".")[2]].setup(answers, *values)
    counts = [[metric for metric, _ in answers].count(name) for name in names]
    units = [track.unit for track in tracks.values()]
    assert list(zip(counts, units, strict=True)) == [METRICS[name] for name in names]
    assert len(suite.param_names) == len(suite.params)


ASV = """
import json, pickle, sys
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


def test_tracks_pick_their_answers_and_fail_alone_and_asv_needs_no_torch(tmp_path):
    """For the first parameters of every track: samples or a value."""
    first = {
        metric: params
        for metric, params in reversed(
            metrics.host_keys(*metrics.CALLS, metrics.FIRST_CALL, *metrics.EXACT)
        )
    }
    answers, expected = {}, {}
    for number, (metric, params) in enumerate(first.items()):
        samples = METRICS[metric][1] == "seconds"
        answers[metric, params] = [number, 0.5] if samples else number
        expected[metric] = {"samples": [number, 0.5], "number": 1} if samples else number
    answers[metrics.CALL_FORWARD, ("sbhd",)] = RuntimeError("wrong output")
    answers[metrics.WARM_START, ()] = NotImplementedError("no GPU")
    expected |= {metrics.CALL_FORWARD: "RuntimeError('wrong output')", metrics.WARM_START: None}
    (tmp_path / "answers").write_bytes(pickle.dumps(answers))
    command = [sys.executable, "-c", ASV, str(ROOT / "benchmarks"), str(tmp_path / "answers")]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert json.loads(output.splitlines()[-1]) == [expected, []]
