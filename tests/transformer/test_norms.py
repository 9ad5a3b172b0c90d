"""Normalization and its gradients, beside float64."""

import pytest
import torch

from rope_triton.transformer import layer_norm, rms_norm
from tests.conftest import COMPILED
from tests.transformer import common
from tests.transformer.common import LAYOUTS, assert_same, exact, gradients

pytestmark = [pytest.mark.gpu_or_interpreter, pytest.mark.public]

# Of the largest value: one rounding of the result.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 6e-4}
EPS = 1e-2  # large enough that its place shows
SHAPES = [(37, 64), (2, 3, 100), (5, 33), (7,), (3, 1)]
ROWS = 16_384
if COMPILED:
    TOLERANCE[torch.bfloat16] = 4.5e-3
    SHAPES += [(1000, 77), (1000, 3000), (1000, 16_384)]
CASES = [(shape, dtype) for shape in SHAPES for dtype in TOLERANCE]
WITH_RESIDUAL = [((2, 3, columns), dtype) for columns in (48, 8200) for dtype in TOLERANCE]
if COMPILED:
    OF_MODELS = [((ROWS, columns), torch.bfloat16) for columns in (1024, 1536, 2048, 5504)]
    CASES, WITH_RESIDUAL = CASES + OF_MODELS, WITH_RESIDUAL + OF_MODELS
all_norms = pytest.mark.parametrize("kind", ["rms", "layer", "layer without bias"])


def normalize(kind, x, weight, bias, residual):
    if kind == "rms":
        return rms_norm(x, weight, EPS, residual)
    return layer_norm(x, weight, bias, EPS, residual)


def plain(kind, x, weight, bias, residual):
    total = x if residual is None else x + residual
    if kind == "rms":
        y = torch.nn.functional.rms_norm(total, weight.shape, weight, EPS)
    else:
        y = torch.nn.functional.layer_norm(total, weight.shape, weight, bias, EPS)
    return y if residual is None else (y, total)


def inputs(kind, shape, dtype, device, added):
    """x, weight, bias and residual; None for what this kind of call does not take."""
    x, residual = (torch.randn(shape, device=device) + 0.5 for _ in range(2))
    weight, bias = torch.randn(2, shape[-1], device=device)
    tensors = x, weight, bias if kind == "layer" else None, residual if added else None
    return [None if t is None else t.to(dtype) for t in tensors]


def results(function, kind, tensors, *cotangents):
    return gradients(lambda *leaves: function(kind, *leaves), tensors, *cotangents)


def assert_near(actual, expected, dtype, least=1e-2):
    assert all(x.is_contiguous() for x in actual)
    common.assert_near(actual, expected, TOLERANCE[dtype], dtype, least)


@all_norms
@pytest.mark.parametrize(("shape", "dtype"), CASES, ids=str)
def test_norm(kind, shape, dtype, device):
    tensors = inputs(kind, shape, dtype, device, added=False)
    cotangent = torch.randn(shape, device=device).to(dtype)
    # A row of one element less its mean is 0, and so is its gradient: what is left on a GPU of
    # roundings is multiplied by eps ** -0.5.
    least = 1.0 if shape[-1] == 1 else 1e-2
    expected = results(plain, kind, exact(tensors), cotangent.double())
    assert_near(results(normalize, kind, tensors, cotangent), expected, dtype, least)


@all_norms
@pytest.mark.parametrize(("shape", "dtype"), WITH_RESIDUAL, ids=str)
def test_residual(kind, shape, dtype, device):
    tensors = inputs(kind, shape, dtype, device, added=True)
    x, weight, bias, residual = tensors
    cotangents = torch.randn(2, *shape, device=device).to(dtype)
    actual = results(normalize, kind, tensors, *cotangents)
    assert torch.equal(actual[1], x + residual)
    if shape[-1] == 48:  # a wide row's own sums have another order
        assert torch.equal(actual[0], normalize(kind, actual[1], weight, bias, None))
    rounded = exact([x + residual, weight, bias, torch.zeros_like(residual)])
    assert_near(actual, results(plain, kind, rounded, *cotangents.double()), dtype)
    assert torch.equal(actual[2], actual[-1])


@pytest.mark.parametrize("unused", [0, 1])
def test_an_unused_result(unused, device):
    tensors = inputs("layer", (6, 48), torch.float32, device, added=True)
    cotangent = torch.randn(6, 48, device=device)
    both = []
    for function, arguments in ((normalize, tensors), (plain, exact(tensors))):
        leaves = [x.detach().requires_grad_() for x in arguments]
        used = function("layer", *leaves)[1 - unused]
        both.append(torch.autograd.grad(used, leaves, cotangent.to(used.dtype), allow_unused=True))
    used = [(a, b) for a, b in zip(*both, strict=True) if a is not None or b is not None]
    assert_near(*zip(*used, strict=True), torch.float32)


def test_gradients_of_the_inputs_share_no_memory(device):
    """Autograd would add to both at once."""
    x, weight, _, residual = inputs("rms", (6, 48), torch.float32, device, added=True)
    x.requires_grad_(), residual.requires_grad_()
    for _ in range(2):
        y, total = rms_norm(x, weight, residual=residual)
        (y.sum() + total.sum()).backward()
    assert x.grad.data_ptr() != residual.grad.data_ptr()
    assert torch.equal(x.grad, residual.grad)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("added", [False, True])
def test_any_layout_has_the_same_bits(layout, added, device):
    x, weight, bias, residual = inputs("layer", (6, 20), torch.float32, device, added)
    tensors = [LAYOUTS[layout](x), weight, bias, LAYOUTS[layout](residual) if added else None]
    cotangents = [LAYOUTS[layout](torch.randn(6, 20, device=device)) for _ in range(1 + added)]
    straight = [None if t is None else t.contiguous() for t in tensors]
    expected = results(normalize, "layer", straight, *(c.contiguous() for c in cotangents))
    assert_same(results(normalize, "layer", tensors, *cotangents), expected)


def test_large_mean(device):
    """The variance is of the row less its mean, not a difference of large numbers."""
    x = torch.randn(4, 96, device=device) + 1000
    weight = torch.ones(96, device=device)
    expected = plain("layer", x.double(), weight.double(), None, None)
    assert (layer_norm(x, weight, None, EPS) - expected).abs().max() < 1e-3


def test_eps_of_other_types(device):
    x, weight, *_ = inputs("rms", (3, 20), torch.float32, device, added=False)
    for eps in (1.0, 2.0):
        assert torch.equal(rms_norm(x, weight, torch.tensor(eps)), rms_norm(x, weight, eps))
    assert torch.equal(rms_norm(x, weight, True), rms_norm(x, weight, 1.0))


@all_norms
@pytest.mark.parametrize("stream", [torch.float16, torch.float32])
def test_autocast_normalizes_to_float32_and_leaves_the_sum_its_dtype(kind, stream, device):
    x, weight, bias, residual = inputs(kind, (3, 20), torch.float32, device, added=True)
    half = x.half().requires_grad_()  # as a product leaves it
    residual, weight = residual.to(stream).requires_grad_(), weight.requires_grad_()
    with torch.autocast(device, torch.float16):
        y, total = normalize(kind, half, weight, bias, residual)
    assert torch.equal(total, half + residual) and total.dtype == stream
    expected = normalize(kind, total.detach().float(), weight, bias, None)
    assert torch.equal(y, expected) and y.dtype == torch.float32
    actual = torch.autograd.grad(y.sum() + total.sum(), (half, residual, weight))
    assert [x.dtype for x in actual] == [torch.float16, stream, torch.float32]


@pytest.mark.gpu
def test_gradients_do_not_depend_on_chance(device):
    tensors = inputs("layer", (ROWS, 2048), torch.bfloat16, device, added=False)
    first = results(normalize, "layer", tensors, tensors[0])
    for _ in range(3):
        assert_same(first, results(normalize, "layer", tensors, tensors[0]))


@pytest.mark.gpu
def test_more_elements_than_32_bits_count():
    x = torch.zeros(140_000, 16_384, dtype=torch.bfloat16, device="cuda")
    x[-1] = torch.arange(16_384, device="cuda") % 7
    weight = torch.ones(16_384, dtype=torch.bfloat16, device="cuda")
    assert torch.equal(rms_norm(x, weight)[-1], rms_norm(x[-1], weight))
