"""asv's view of the host's measures; without a GPU."""

import itertools

import pytest
import torch

from benchmarks import host
from benchmarks._subjects import metric_list

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
    metrics = {f"{title}.{track}" for track in tracks}
    params = [tuple(map(str, values)) for values in itertools.product(*suite.params)]
    both = suite().setup_cache()  # of plain and of other calls
    assert {(type(answer), str(answer)) for answer in both.values()} == {
        (NotImplementedError, NO_GPU)
    }
    assert progress() == [f"{title.replace('Path', '')}: n/a, {NO_GPU}"]
    answers = {key: answer for key, answer in both.items() if key[0] in metrics}
    missing = set(itertools.product(metrics, params)) - set(answers)
    assert set(answers) <= set(itertools.product(metrics, params))
    assert not missing or "path" in suite.param_names
    for metric, values in missing:  # the backward of a rotation in place
        assert "tables-inplace" in values
        assert "forward_backward" in metric or {"training", "backward"} & {*values}
        with pytest.raises(NotImplementedError, match="in place has no backward pass"):
            tracks[metric.split(".")[2]].setup(answers, *values)
    assert len(suite.param_names) == len(suite.params)


@pytest.mark.parametrize("metric", metric_list.HOST_METRICS)
def test_tracks_pick_their_answers_and_fail_alone(metric):
    """As asv calls them: with parameters, after a track's own setup."""
    _, suite, name = metric.split(".")
    track, described = getattr(getattr(host, suite)(), name), metric_list.HOST_METRICS[metric]
    params = [values[0] for values in described.params.values()]
    key = metric, tuple(map(str, params))
    answer, value = 3, 3
    if described.kind == "seconds":
        answer, value = [2.0, 0.5], {"samples": [2.0, 0.5], "number": 1}
    track.setup({key: answer}, *params)
    assert track({key: answer}, *params) == value
    for error in (RuntimeError("wrong output"), NotImplementedError("no GPU")):
        with pytest.raises(type(error), match=str(error)):
            track.setup({key: error}, *params)
