"""Normalization and its gradients, beside float64; small rows, also in the interpreter."""

import pytest
import torch
from torch import empty
from torch.library import opcheck

from rope_triton.transformer import layer_norm, norms, rms_norm
from tests.transformer import common
from tests.transformer.common import assert_same

# Of the largest value. Of a row of one element, layer_norm and its gradient are 0.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3}
EPS = 1e-2  # large enough that its place shows
all_dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
NORMS = ["rms", "layer", "layer without bias"]
all_norms = pytest.mark.parametrize("kind", NORMS)


def normalize(kind, x, weight, bias, residual):
    if kind == "rms":
        return rms_norm(x, weight, EPS, residual)
    return layer_norm(x, weight, bias, EPS, residual)


def plain(kind, x, weight, bias, residual):
    """The same of float64."""
    total = x if residual is None else x + residual
    if kind == "rms":
        y = torch.nn.functional.rms_norm(total, weight.shape, weight, EPS)
    else:
        y = torch.nn.functional.layer_norm(total, weight.shape, weight, bias, EPS)
    return y if residual is None else (y, total)


def inputs(kind, shape, dtype, device, added):
    """x, weight, bias and residual; those that are not asked for are None."""
    x, residual = (torch.randn(shape, device=device) + 0.5 for _ in range(2))
    weight, bias = torch.randn(2, shape[-1], device=device)
    given = x, weight, bias if kind == "layer" else None, residual if added else None
    return [None if each is None else each.to(dtype).requires_grad_() for each in given]


def exact(given):
    return [None if each is None else each.detach().double().requires_grad_() for each in given]


def gradients(function, kind, given, cotangents):
    """Results and gradients; of two cotangents, None leaves out what it belongs to."""
    out = function(kind, *given)
    out = (out,) if isinstance(out, torch.Tensor) else out
    used = [(o, c.to(o.dtype)) for o, c in zip(out, cotangents, strict=True) if c is not None]
    leaves = [each for each in given if each is not None]
    results, cotangents = zip(*used, strict=True)
    return [*out, *torch.autograd.grad(results, leaves, cotangents)]


def assert_near(found, expected, dtype, least=1e-2):
    assert all(each.is_contiguous() for each in found)
    common.assert_near(found, expected, TOLERANCE[dtype], dtype, least)


@all_dtypes
@all_norms
@pytest.mark.parametrize("shape", [(37, 64), (2, 3, 100), (5, 33), (7,), (3, 1)], ids=str)
def test_norm(kind, shape, dtype, device):
    given = inputs(kind, shape, dtype, device, added=False)
    cotangent = torch.randn(shape, device=device).to(dtype)
    found = gradients(normalize, kind, given, [cotangent])
    # A row of one element less its mean is 0, and so is its gradient: what is left on a GPU of
    # roundings is multiplied by eps ** -0.5.
    least = 1.0 if shape[-1] == 1 else 1e-2
    assert_near(found, gradients(plain, kind, exact(given), [cotangent]), dtype, least)


@all_dtypes
@all_norms
@pytest.mark.parametrize("columns", [48, 8200])  # of the latter no row is loaded ahead
def test_residual(kind, dtype, columns, device):
    given = inputs(kind, (2, 3, columns), dtype, device, added=True)
    cotangents = torch.randn(2, 2, 3, columns, device=device).to(dtype)
    found = gradients(normalize, kind, given, cotangents)
    x, weight, bias, residual = given
    assert torch.equal(found[1], x + residual)
    if columns == 48:  # of the sum as rounded; a wide row's own sums have another order
        assert torch.equal(found[0], normalize(kind, found[1], weight, bias, None))
    leaves = exact([(x + residual).detach(), weight, bias, torch.zeros_like(residual)])
    assert_near(found, gradients(plain, kind, leaves, cotangents), dtype)
    assert torch.equal(found[2], found[-1])


@pytest.mark.parametrize("unused", [0, 1])
def test_a_result_that_is_not_used(unused, device):
    x, weight, bias, residual = inputs("layer", (6, 48), torch.float32, device, added=True)
    cotangent = torch.randn(6, 48, device=device)
    result = layer_norm(x, weight, bias, EPS, residual)[1 - unused]
    given = (x, weight, bias, residual)
    found = torch.autograd.grad(result, given, cotangent, allow_unused=True)
    x64, weight64, bias64, residual64 = exact(given)
    expected = torch.autograd.grad(
        plain("layer", x64, weight64, bias64, residual64)[1 - unused],
        (x64, weight64, bias64, residual64),
        cotangent.double(),
        allow_unused=True,
    )
    assert [each is None for each in found] == [each is None for each in expected]
    used = [(f, e) for f, e in zip(found, expected, strict=True) if e is not None]
    assert_near(*zip(*used, strict=True), torch.float32)


def test_gradients_of_the_inputs_share_no_memory(device):
    """Autograd would add to both at once."""
    x, weight, _, residual = inputs("rms", (6, 48), torch.float32, device, added=True)
    for _ in range(2):
        y, total = rms_norm(x, weight, residual=residual)
        (y.sum() + total.sum()).backward()
    assert x.grad.data_ptr() != residual.grad.data_ptr()
    assert torch.equal(x.grad, residual.grad)


LAYOUTS = {
    "transposed": lambda x: x.mT.contiguous().mT,
    "sliced": lambda x: torch.cat((x, x), -1)[..., : x.shape[-1]],
    "every second": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "expanded": lambda x: x[:1].expand_as(x),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("added", [False, True])
def test_any_layout_has_the_same_bits(layout, added, device):
    x, weight, bias, residual = inputs("layer", (6, 20), torch.float32, device, added)
    turned = [None if t is None else LAYOUTS[layout](t.detach()) for t in (x, residual)]
    cotangents = [LAYOUTS[layout](torch.randn(6, 20, device=device)) for _ in range(1 + added)]
    given = [turned[0].requires_grad_(), weight, bias, turned[1]]
    if added:
        turned[1].requires_grad_()
    straight = [None if t is None else t.detach().contiguous().requires_grad_() for t in given]
    found = gradients(normalize, "layer", given, cotangents)
    expected = gradients(normalize, "layer", straight, [c.contiguous() for c in cotangents])
    assert_same(found, expected)


def test_large_mean(device):
    """The variance is of the row less its mean, not a difference of large numbers."""
    x = torch.randn(4, 96, device=device) + 1000
    weight = torch.ones(96, device=device)
    expected = plain("layer", x.double(), weight.double(), None, None)
    assert (layer_norm(x, weight, None, EPS) - expected).abs().max() < 1e-3


@pytest.mark.parametrize(
    ("columns", "expected"),
    [(1, (1, 1)), (1000, (1024, 4)), (2048, (2048, 8)), (5504, (8192, 16)), (16384, (16384, 16))],
)
def test_warps_follow_the_row(columns, expected):
    assert norms.row_block(columns) == expected
    block, warps = expected
    assert norms.row_block(columns, 16) == (block, min(16, max(1, block // 512)))


@pytest.mark.parametrize("added", [False, True])
def test_opcheck(added, device):
    x, weight, bias, residual = inputs("layer", (3, 20), torch.float32, device, added)
    if added:
        opcheck(norms._add_norm.overload, (x, residual, weight, bias, EPS, True, torch.float32))
    else:
        opcheck(norms._norm.overload, (x, weight, bias, EPS, True, torch.float32))


@pytest.mark.parametrize("added", [False, True])
@all_norms
def test_compiled_without_a_graph_break(kind, added, device):
    given = inputs(kind, (3, 20), torch.float32, device, added)
    cotangents = torch.randn(1 + added, 3, 20, device=device)
    compiled = torch.compile(normalize, fullgraph=True, backend="aot_eager")
    assert_same(*(gradients(each, kind, given, cotangents) for each in (normalize, compiled)))


def test_eps_of_other_types(device):
    x, weight, *_ = inputs("rms", (3, 20), torch.float32, device, added=False)
    for eps in (1.0, 2.0):
        assert torch.equal(rms_norm(x, weight, torch.tensor(eps)), rms_norm(x, weight, eps))
    assert torch.equal(rms_norm(x, weight, True), rms_norm(x, weight, 1.0))


def test_the_second_derivative_is_refused(device):
    x, weight, *_ = inputs("rms", (3, 20), torch.float32, device, added=False)
    (dx,) = torch.autograd.grad(rms_norm(x, weight).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="norm_backward"):
        dx.sum().backward()


@all_norms
@pytest.mark.parametrize("stream", [torch.float16, torch.float32])
def test_autocast_normalizes_to_float32_and_leaves_the_sum_its_dtype(kind, stream, device):
    x, weight, bias, residual = inputs(kind, (3, 20), torch.float32, device, added=True)
    half = x.detach().half().requires_grad_()  # as a product leaves it
    residual = residual.detach().to(stream).requires_grad_()
    with torch.autocast(device, torch.float16):
        y, total = normalize(kind, half, weight, bias, residual)
    assert torch.equal(total, half + residual) and total.dtype == stream
    expected = normalize(kind, total.detach().float(), weight, bias, None)
    assert torch.equal(y, expected) and y.dtype == torch.float32
    gradients = torch.autograd.grad(y.sum() + total.sum(), (half, residual, weight))
    assert [each.dtype for each in gradients] == [torch.float16, stream, torch.float32]


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"x": None}, TypeError, "x must be a tensor, got NoneType"),
        ({"weight": 1.0}, TypeError, "weight must be a tensor, got float"),
        ({"x": empty(4, 3).double()}, TypeError, "x torch.float64, weight torch.float32"),
        ({"residual": empty(4, 3).half()}, TypeError, "residual torch.float16"),
        ({"weight": empty(3).to("meta")}, ValueError, "one device, got cpu and meta"),
        ({"x": empty(0, 3)}, ValueError, r"x must not be empty, got \(0, 3\)"),
        ({"x": empty(())}, ValueError, r"x must be \[\.\.\., n\]"),
        ({"x": empty(2, 16_385)}, ValueError, r"at most 16384, got \(2, 16385\)"),
        ({"weight": empty(4)}, ValueError, r"weight must be \[3\], got \(4,\)"),
        ({"bias": empty(1, 3)}, ValueError, r"bias must be \[3\], got \(1, 3\)"),
        ({"residual": empty(3)}, ValueError, r"the shape of x, \(4, 3\), got \(3,\)"),
        ({"eps": -1e-5}, ValueError, "eps must not be negative, got -1e-05"),
    ],
)
def test_bad_input_is_refused(given, error, said):
    with pytest.raises(error, match=said):
        layer_norm(**({"x": empty(4, 3), "weight": empty(3)} | given))
