"""The same measures of the package's other paths; without a GPU."""

import math

import pytest

import rope_triton
from benchmarks._cells import grid, subjects
from benchmarks._measure import accuracy, host, host_time, memory_and_launches
from tests.measure.common import implement
from tests.package import plain


@pytest.fixture
def paths_on_cpu(on_cpu, monkeypatch):
    plain.install(monkeypatch)
    monkeypatch.setattr(memory_and_launches, "_PATH_MIB", 1 / 4)
    monkeypatch.setattr(accuracy, "_PATH_MIB", 1 / 4)


PATH_CALLS = [
    *host._path_keys(host.PATH_FORWARD, {"path": subjects.PATHS}),
    *host._path_keys(host.PATH_FORWARD_BACKWARD, {"path": subjects.PATHS}),
]
PATH_ERRORS = [params for _, params in host._path_keys(host.PATH_ERROR, subjects.PATH_ERROR_PARAMS)]
PATH_STEPS = [
    params for _, params in host._path_keys(host.PATH_LAUNCHES, subjects.PATH_STEP_PARAMS)
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
    found = host._answers([(metric, params)])[metric, params]
    assert found == pytest.approx([20e-6] * host_time.BLOCKS)


@pytest.mark.parametrize(("metric", "params"), PATH_CALLS)
def test_wrong_result_of_a_path_has_no_speed(paths_on_cpu, clock, metric, params, monkeypatch):
    change(monkeypatch, lambda output: -output)
    found = host._answers([(metric, params)])[metric, params]
    assert isinstance(found, RuntimeError)
    assert "not close" in str(found)


@pytest.mark.parametrize("params", PATH_ERRORS, ids="-".join)
def test_error_of_a_path_is_that_of_its_roundings(paths_on_cpu, params):
    assert 0.999 < accuracy.path_error(*params) < (2 if params[2] == "float32" else 1.01)


@pytest.mark.parametrize("params", PATH_ERRORS, ids="-".join)
def test_loss_of_precision_in_a_path_is_seen(paths_on_cpu, params, monkeypatch):
    loss = {"float32": 2.0**-16, "bfloat16": 2.0**-7}[params[2]]
    change(monkeypatch, lambda output: output * (1 + loss))
    assert accuracy.path_error(*params) > 2


@pytest.mark.parametrize("params", PATH_STEPS, ids="-".join)
@pytest.mark.parametrize("intermediate", [False, True])
def test_step_of_a_path_runs_as_it_is_called(paths_on_cpu, params, intermediate, monkeypatch):
    outputs = []
    change(monkeypatch, lambda output: outputs.append(output) or output)
    result = memory_and_launches._path_step_call(*params, intermediate)()
    step, path = params
    assert [output.requires_grad for output in outputs] == [step == "training"]
    cell = grid.PathCell(path, memory_and_launches._PATH_MIB, memory_and_launches._PATH_DTYPE)
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
    found = host._answers([*PATH_CALLS, *((host.PATH_ERROR, p) for p in PATH_ERRORS)])
    assert {type(answer) for answer in found.values()} == {NotImplementedError}
    assert all(str(answer).startswith("this commit cannot: ") for answer in found.values())
