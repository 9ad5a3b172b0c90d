"""The same measures of the package's other paths; without a GPU."""

import math

import pytest

import rope_triton
from benchmarks import _grid, _host, _host_error, _host_inputs, _host_steps, _host_time
from tests import plain

from .common import implement


@pytest.fixture
def paths_on_cpu(on_cpu, monkeypatch):
    plain.install(monkeypatch)
    monkeypatch.setattr(_host_steps, "_PATH_MIB", 1 / 4)
    monkeypatch.setattr(_host_error, "_PATH_MIB", 1 / 4)


PATH_CALLS = [
    *_host._path_keys(_host.PATH_FORWARD, {"path": _host_inputs.PATHS}),
    *_host._path_keys(_host.PATH_FORWARD_BACKWARD, {"path": _host_inputs.PATHS}),
]
PATH_ERRORS = [params for _, params in _host._path_keys(_host.PATH_ERROR, _host_error.PATH_PARAMS)]
PATH_STEPS = [
    params for _, params in _host._path_keys(_host.PATH_LAUNCHES, _host_steps.PATH_PARAMS)
]


def change(monkeypatch, what):
    """Let ``what`` be made of the first tensor that each function of the package returns."""

    def changed(function):
        def call(*args, **options):
            output = function(*args, **options)
            if isinstance(output, tuple):
                return what(output[0]), *output[1:]
            return output.copy_(what(output)) if options.get("inplace") else what(output)

        return call

    for name, function in plain.FUNCTIONS.items():
        monkeypatch.setattr(rope_triton, name, changed(function))


@pytest.mark.parametrize(("metric", "params"), PATH_CALLS)
def test_time_in_the_call_of_a_path_is_seen(paths_on_cpu, clock, metric, params, monkeypatch):
    def slow(output):
        clock.seconds += 20e-6
        return output

    change(monkeypatch, slow)
    found = _host._answers([(metric, params)])[metric, params]
    assert found == pytest.approx([20e-6] * _host_time.BLOCKS)


@pytest.mark.parametrize(("metric", "params"), PATH_CALLS)
def test_wrong_result_of_a_path_has_no_speed(paths_on_cpu, clock, metric, params, monkeypatch):
    change(monkeypatch, lambda output: -output)
    found = _host._answers([(metric, params)])[metric, params]
    assert isinstance(found, RuntimeError)
    assert "not close" in str(found)


@pytest.mark.parametrize("params", PATH_ERRORS, ids="-".join)
def test_error_of_a_path_is_that_of_its_roundings(paths_on_cpu, params):
    assert 0.999 < _host_error.path_error(*params) < (2 if params[2] == "float32" else 1.01)


@pytest.mark.parametrize("params", PATH_ERRORS, ids="-".join)
def test_loss_of_precision_in_a_path_is_seen(paths_on_cpu, params, monkeypatch):
    loss = {"float32": 2.0**-16, "bfloat16": 2.0**-7}[params[2]]
    change(monkeypatch, lambda output: output * (1 + loss))
    assert _host_error.path_error(*params) > 2


@pytest.mark.parametrize("params", PATH_STEPS, ids="-".join)
@pytest.mark.parametrize("intermediate", [False, True])
def test_step_of_a_path_runs_as_it_is_called(paths_on_cpu, params, intermediate, monkeypatch):
    outputs = []
    change(monkeypatch, lambda output: outputs.append(output) or output)
    result = _host_steps._path_step_call(*params, intermediate)()
    step, path = params
    assert [output.requires_grad for output in outputs] == [step == "training"]
    cell = _grid.PathCell(path, _host_steps._PATH_MIB, _host_steps._PATH_DTYPE)
    if step == "training":
        assert sum(gradient.numel() for gradient in result) == math.prod(cell.shape)


def test_commit_without_the_paths_has_no_answers_and_says_why(paths_on_cpu, monkeypatch):
    def refuse(t, freqs, tensor_format, **options):
        if options:
            raise NotImplementedError(f"{sorted(options)} is not implemented yet")
        return plain.apply_rotary_pos_emb(t, freqs, tensor_format)

    implement(monkeypatch, refuse)
    for name in plain.FUNCTIONS.keys() - {"apply_rotary_pos_emb"}:
        monkeypatch.delattr(rope_triton, name)
    found = _host._answers([*PATH_CALLS, *((_host.PATH_ERROR, p) for p in PATH_ERRORS)])
    assert {type(answer) for answer in found.values()} == {NotImplementedError}
    assert all(str(answer).startswith("this commit cannot: ") for answer in found.values())
