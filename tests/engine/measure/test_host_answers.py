"""asv's view of the host's measures; without a GPU."""

import itertools
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import host
from benchmarks._subjects import metrics

ROOT = Path(__file__).resolve().parents[3]
NO_GPU = "no NVIDIA GPU: torch.cuda.is_available() is False"
SUITES = [
    *(host.Call, host.FirstCall, host.Memory, host.Launches, host.Error),
    *(host.PathCall, host.PathMemory, host.PathLaunches, host.PathError),
]


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
results = {}
for benchmark in disc_benchmarks(root):
    if benchmark.name.startswith("host."):
        benchmark.set_param_idx(0)
        benchmark.set_cache(pickle.load(open(answers, "rb")))
        try:
            results[benchmark.name] = None if benchmark.do_setup() else benchmark.do_run()
        except Exception as error:
            results[benchmark.name] = repr(error)
imports = [name for name in ("torch", "triton", "rope_triton") if name in sys.modules]
print(json.dumps([results, imports]))
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
