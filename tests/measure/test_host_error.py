"""The error of the package's result, from inputs to figure; without a GPU."""

import functools

import pytest
import torch

import rope_triton
from benchmarks._measure import accuracy
from benchmarks._subjects import metrics
from benchmarks._subjects.rope import angles
from tests import oracle
from tests.measure.common import change, implement, params_of


def rounded_rotation(loss):
    """A rotation in float64 on cos and sin with a loss, rounded once to the dtype of ``t``."""

    def apply(t, freqs, tensor_format, interleaved):
        assert tensor_format == "sbhd"
        cos, sin = loss(freqs.double().cos()).double(), loss(freqs.double().sin()).double()
        first, second = oracle.pairs(t.double(), interleaved).unbind(-1)
        cos, sin = (oracle.pairs(x, interleaved)[..., 0] for x in (cos, sin))
        turned = first * cos - second * sin, second * cos + first * sin
        return (torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)).to(
            t.dtype
        )

    return apply


@pytest.mark.parametrize("params", params_of(metrics.ERROR), ids="-".join)
def test_perfect_result_has_the_error_1(on_cpu, params, monkeypatch):
    implement(monkeypatch, rounded_rotation(lambda x: x))
    assert accuracy.error(*params) == 1.0


LOSSES = {
    # a loss of cos and sin: for each dtype, at least this error
    "bfloat16": (lambda x: x.bfloat16(), {"bfloat16": 1.25, "float16": 5, "float32": 1e4}),
    "float16": (lambda x: x.half(), {"bfloat16": 1.004, "float16": 1.25, "float32": 1e3}),
    "approximation": (lambda x: x + 5e-7, {"bfloat16": 1, "float16": 1, "float32": 5}),
}


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("dtype", metrics.DTYPES)
@pytest.mark.parametrize("loss", LOSSES)
def test_loss_of_precision_is_seen(on_cpu, loss, dtype, direction, monkeypatch):
    function, least = LOSSES[loss]
    implement(monkeypatch, rounded_rotation(function))
    assert accuracy.error(direction, dtype, "long", "False") >= least[dtype]


def test_loss_that_the_tolerance_of_the_tests_lets_through_is_seen(on_cpu, monkeypatch):
    """cos and sin with the error of hardware approximations, in float32."""
    freqs = angles.by_channel(angles.exact(0, 64, 128).float())
    t = torch.rand(64, 1, 2, 128)
    coarse = rounded_rotation(LOSSES["approximation"][0])
    exact = oracle.rotate(t, freqs, "sbhd", False).float()
    torch.testing.assert_close(coarse(t, freqs, "sbhd", False), exact)
    implement(monkeypatch, coarse)
    assert accuracy.error("forward", "float32", "short", "False") > 5


@pytest.mark.parametrize("params", params_of(metrics.PATH_ERROR), ids="-".join)
def test_error_of_a_path_is_that_of_its_roundings_and_shows_a_loss(on_cpu, params, monkeypatch):
    float32 = params[2] == "float32"
    assert 0.999 < accuracy.path_error(*params) < (2 if float32 else 1.01)
    change(monkeypatch, lambda output: output * (1 + (2.0**-16 if float32 else 2.0**-7)))
    assert accuracy.path_error(*params) > 2


def test_error_of_plain_float32_is_that_of_a_few_roundings(on_cpu):
    for positions in metrics.POSITIONS:
        assert 1 < accuracy.error("forward", "float32", positions, "True") < 2


def test_long_positions_are_long(on_cpu, monkeypatch):
    """A reduction of the angles that loses one bit in 2^20 shows there and only there."""
    fine = rounded_rotation(lambda x: x)

    def apply(t, freqs, tensor_format, interleaved):
        return fine(t, freqs.double() + 2.0**-30 * freqs.double(), tensor_format, interleaved)

    implement(monkeypatch, apply)
    short, long = (accuracy.error("forward", "float32", p, "False") for p in ("short", "long"))
    assert short < 20 < 100 < long


def test_error_is_the_same_again_and_with_other_threads(on_cpu):
    before = torch.get_num_threads()
    try:
        errors = set()
        for threads in (1, 2, 1):
            torch.set_num_threads(threads)
            torch.manual_seed(threads)
            errors.add(accuracy.error("backward", "float32", "short", "False"))
    finally:
        torch.set_num_threads(before)
    assert len(errors) == 1


def test_nan_has_no_error(on_cpu, monkeypatch):
    implement(monkeypatch, lambda t, *_, **__: t * float("nan"))
    with pytest.raises(ValueError, match="NaN or infinite"):
        accuracy.error("forward", "float32", "short", "False")


@pytest.mark.parametrize("interleaved", [False, True])
def test_exact_result_is_that_of_the_oracle(interleaved):
    radians = angles.exact(1000, 16, 12).float()
    x = torch.rand(16, 2, 3, 12)
    twice = radians.repeat_interleave(2, -1) if interleaved else torch.cat((radians, radians), -1)
    options = twice, "sbhd", interleaved
    close = functools.partial(torch.testing.assert_close, rtol=1e-14, atol=1e-14)
    close(accuracy.exact_rotation(x, radians, "forward", interleaved), oracle.rotate(x, *options))
    close(
        accuracy.exact_rotation(x, radians, "backward", interleaved),
        oracle.gradient(x, *options, x),
    )


def test_long_positions_have_the_angles_of_the_package():
    for first in metrics.POSITIONS.values():
        expected = rope_triton.RotaryPositionEmbedding(128, device="cpu")(64, offset=first)
        found = angles.by_channel(angles.exact(first, 64, 128)).float()
        torch.testing.assert_close(found, expected, rtol=angles.TOLERANCE, atol=0)
