"""asv's view of the host's measures; without a GPU."""

import itertools
import json
import pickle
import subprocess
import sys

import pytest
import torch

import rope_triton
from benchmarks import _subjects, host
from benchmarks._engine.measure import host as _host
from benchmarks._engine.measure import inputs
from benchmarks._subjects import metrics
from tests.engine.measure.common import NO_GPU, ROOT, implement
from tests.package import plain

SUITES = [
    *(host.Call, host.FirstCall, host.Memory, host.Launches, host.Error),
    *(host.PathCall, host.PathMemory, host.PathLaunches, host.PathError),
]


def test_commit_without_the_paths_has_no_answers_and_says_why(monkeypatch):
    def refuse(t, freqs, tensor_format, **options):
        if options:
            raise NotImplementedError(f"{sorted(options)} is not implemented yet")
        return plain.apply_rotary_pos_emb(t, freqs, tensor_format)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(inputs, "DEVICE", "cpu")
    implement(monkeypatch, refuse)
    for name in plain.FUNCTIONS.keys() - {"apply_rotary_pos_emb"}:
        monkeypatch.delattr(rope_triton, name)
    asked = {key: e for key, e in _subjects.eager().items() if key[0].startswith("host.PathCall")}
    answers = _host.answers("host.PathCall", asked)
    assert {type(answer) for answer in answers.values()} == {NotImplementedError}
    assert all(str(answer).startswith("this commit cannot: ") for answer in answers.values())


@pytest.mark.parametrize("suite", SUITES)
def test_every_class_has_its_answers_which_say_that_there_is_no_gpu(suite, monkeypatch, progress):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    title = f"host.{suite.__name__}"
    tracks = {name: getattr(suite, name) for name in vars(suite) if name.startswith("track_")}
    units = {f"{title}.{track}": function.unit for track, function in tracks.items()}
    assert units == {
        name: metric.unit
        for name, metric in metrics.HOST_METRICS.items()
        if name.startswith(f"{title}.")
    }
    params = [tuple(map(str, values)) for values in itertools.product(*suite.params)]
    both = suite().setup_cache()  # of plain and of other calls
    assert {(type(answer), str(answer)) for answer in both.values()} == {
        (NotImplementedError, NO_GPU)
    }
    assert progress() == [f"{title.replace('Path', '')}: n/a, {NO_GPU}"]
    answers = {key: answer for key, answer in both.items() if key[0] in units}
    missing = set(itertools.product(units, params)) - set(answers)
    assert set(answers) <= set(itertools.product(units, params))
    assert not missing or "path" in suite.param_names
    for metric, values in missing:  # the backward of a rotation in place
        assert "tables-inplace" in values
        assert "forward_backward" in metric or {"training", "backward"} & {*values}
        with pytest.raises(NotImplementedError, match="in place has no backward pass"):
            tracks[metric.split(".")[2]].setup(answers, *values)
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
        name: tuple(str(values[0]) for values in metric.params.values())
        for name, metric in metrics.HOST_METRICS.items()
    }
    answers, expected = {}, {}
    for number, (metric, params) in enumerate(first.items()):
        samples = metrics.HOST_METRICS[metric].unit == "seconds"
        answers[metric, params] = [number, 0.5] if samples else number
        expected[metric] = {"samples": [number, 0.5], "number": 1} if samples else number
    answers[metrics.CALL_FORWARD, ("sbhd",)] = RuntimeError("wrong output")
    answers[metrics.WARM_START, ()] = NotImplementedError("no GPU")
    expected |= {metrics.CALL_FORWARD: "RuntimeError('wrong output')", metrics.WARM_START: None}
    (tmp_path / "answers").write_bytes(pickle.dumps(answers))
    command = [sys.executable, "-c", ASV, str(ROOT / "benchmarks"), str(tmp_path / "answers")]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert json.loads(output.splitlines()[-1]) == [expected, []]
