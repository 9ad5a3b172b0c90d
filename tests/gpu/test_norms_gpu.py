"""Normalization, SwiGLU and softmax at the sizes of models, on a GPU."""

import pytest
import torch

from rope_triton.transformer import layer_norm, rms_norm, softmax, swiglu
from tests.transformer import common
from tests.transformer.common import assert_same

pytestmark = [pytest.mark.gpu, pytest.mark.public]

ROWS = 16_384
# Of the largest value of a tensor: one rounding of the result.
TOLERANCE = {torch.float16: 6e-4, torch.bfloat16: 4.5e-3, torch.float32: 2e-6}
all_dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
of_models = pytest.mark.parametrize(
    "columns", [1024, 1536, 2048, pytest.param(5504, marks=pytest.mark.large)]
)
functional = torch.nn.functional


def normal(*shape, dtype=torch.bfloat16):
    return torch.randn(shape, device="cuda").to(dtype).requires_grad_()


def gradients(function, given, cotangents):
    out = function(*given)
    out = (out,) if isinstance(out, torch.Tensor) else out
    return [*(o.detach() for o in out), *torch.autograd.grad(out, given, cotangents)]


def assert_near(found, function, given, cotangents):
    """Beside the same of float64."""
    exact = [each.detach().double().requires_grad_() for each in given]
    expected = gradients(function, exact, [each.double() for each in cotangents])
    dtype = given[0].dtype
    common.assert_near(found, expected[: len(found)], TOLERANCE[dtype], dtype)


def plain_rms(x, weight):
    return functional.rms_norm(x, weight.shape, weight, 1e-5)


def plain_layer(x, weight, bias):
    return functional.layer_norm(x, weight.shape, weight, bias, 1e-5)


@of_models
def test_norms_of_models(columns):
    x, weight, bias = normal(ROWS, columns), normal(columns), normal(columns)
    cotangents = [normal(ROWS, columns).detach()]
    for function, plain, given in (
        (rms_norm, plain_rms, (x, weight)),
        (layer_norm, plain_layer, (x, weight, bias)),
    ):
        assert_near(gradients(function, given, cotangents), plain, given, cotangents)


@all_dtypes
@pytest.mark.parametrize("columns", [33, 77, 3000, 16_384])
def test_any_row(columns, dtype):
    x, weight, bias = (normal(*s, dtype=dtype) for s in ((1000, columns), (columns,), (columns,)))
    cotangents = [normal(1000, columns, dtype=dtype).detach()]
    assert_near(gradients(rms_norm, (x, weight), cotangents), plain_rms, (x, weight), cotangents)
    given = x, weight, bias
    assert_near(gradients(layer_norm, given, cotangents), plain_layer, given, cotangents)


@of_models
def test_residual(columns):
    x, residual, weight = normal(ROWS, columns), normal(ROWS, columns), normal(columns)
    cotangents = [normal(ROWS, columns).detach() for _ in range(2)]
    found = gradients(
        lambda x, residual, weight: rms_norm(x, weight, residual=residual),
        (x, residual, weight),
        cotangents,
    )
    y, total, dx, dresidual, dweight = found
    assert torch.equal(total, x + residual) and torch.equal(dx, dresidual)
    given = total.requires_grad_(), weight
    assert_near(
        [y, total, dx, dweight], lambda x, weight: (plain_rms(x, weight), x), given, cotangents
    )


@of_models
def test_swiglu(columns):
    gate, up = normal(ROWS, 2 * columns).detach().chunk(2, -1)
    given = gate.requires_grad_(), up.requires_grad_()
    cotangents = [normal(ROWS, columns).detach()]
    assert_near(
        gradients(swiglu, given, cotangents),
        lambda gate, up: functional.silu(gate) * up,
        given,
        cotangents,
    )


@all_dtypes
@pytest.mark.parametrize("columns", [77, 2048, 16_384])
def test_softmax(columns, dtype):
    given, cotangents = [normal(2048, columns, dtype=dtype)], [normal(2048, columns, dtype=dtype)]
    y, dx = gradients(softmax, given, cotangents)
    assert_near([y], lambda x: torch.softmax(x, -1), given, cotangents)
    # Of y as rounded, which the backward reads.
    rounded, dy = y.double(), cotangents[0].detach().double()
    expected = rounded * (dy - (rounded * dy).sum(-1, keepdim=True))
    common.assert_near([dx], [expected], TOLERANCE[dtype], dtype)


def test_gradients_do_not_depend_on_chance():
    x, weight, bias = normal(ROWS, 2048), normal(2048), normal(2048)
    cotangents = [normal(ROWS, 2048).detach()]
    first = gradients(layer_norm, (x, weight, bias), cotangents)
    for _ in range(3):
        assert_same(first, gradients(layer_norm, (x, weight, bias), cotangents))


def test_more_elements_than_32_bits_count():
    x = torch.zeros(140_000, 16_384, dtype=torch.bfloat16, device="cuda")
    x[-1] = torch.arange(16_384, device="cuda") % 7
    weight = torch.ones(16_384, dtype=torch.bfloat16, device="cuda")
    assert torch.equal(rms_norm(x, weight)[-1], rms_norm(x[-1], weight))
    assert torch.equal(swiglu(x, x)[-1], swiglu(x[-1], x[-1]))


def test_autocast_is_as_in_pytorch():
    x, weight, bias = (torch.randn(s, device="cuda") for s in ((8, 64), (64,), (64,)))
    half = x.bfloat16()
    with torch.autocast("cuda", torch.bfloat16):
        for ours, theirs in (
            (rms_norm(half, weight), plain_rms(half.float(), weight)),
            (layer_norm(half, weight, bias), plain_layer(half, weight, bias)),
            (softmax(half), torch.softmax(half, -1)),
            (swiglu(half, half), functional.silu(half) * half),
        ):
            assert ours.dtype == theirs.dtype
            # In bfloat16 they may be neighbours.
            close = {"rtol": 2**-7, "atol": 1e-3} if ours.dtype == torch.bfloat16 else {}
            torch.testing.assert_close(ours, theirs, **close or {"rtol": 1e-5, "atol": 1e-5})


def test_compiled():
    def block(x, residual, weight):
        y, total = rms_norm(x, weight, residual=residual)
        return swiglu(softmax(y), total)

    given = normal(512, 1024), normal(512, 1024), normal(1024)
    both = block, torch.compile(block, fullgraph=True)
    assert_same(*(gradients(each, given, [torch.ones_like(given[0])]) for each in both))
