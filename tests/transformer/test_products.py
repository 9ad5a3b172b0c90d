"""Products of matrices and their gradients, beside float64; small ones, also in the interpreter."""

import math

import pytest
import torch
from torch import empty
from torch.library import opcheck

from rope_triton.transformer import linear, matmul, products
from rope_triton.transformer.products import Tile
from tests.transformer.common import assert_near, assert_same, exact, gradients

# Of the largest value.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3}
TILE = products.tile
all_dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Several blocks in small matrices, which the interpreter can do."""
    monkeypatch.setattr(products, "tile", lambda *_: (Tile(32, 16, 16, 4, 2), 1))


def normal(*shape, dtype=torch.float32, device="cpu"):
    return torch.randn(shape, device=device).to(dtype)


def leaves(*tensors):
    return [each.requires_grad_() for each in tensors]


@all_dtypes
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("rows", "columns", "inner"),
    [((64,), 32, 32), ((2, 35), 24, 40), ((3,), 17, 5), ((), 16, 16)],  # odd sizes, a vector
)
def test_linear(rows, columns, inner, biased, relu, dtype, device):
    torch.manual_seed(0)
    x = normal(*rows, inner, dtype=dtype, device=device)
    weight = normal(columns, inner, dtype=dtype, device=device)
    bias = normal(columns, dtype=dtype, device=device) if biased else None
    cotangent = normal(*rows, columns, dtype=dtype, device=device)

    def plain(x, weight, bias=None):
        y = torch.nn.functional.linear(x, weight, bias)
        return y.relu() if relu else y

    given = x, weight, bias
    found = gradients(linear, given, cotangent, relu=relu)
    expected = gradients(plain, exact(given), cotangent.double())
    if relu:  # a sum near 0 may round to the other side
        assert (found[0] > 0).eq(expected[0] > 0).all()
    assert_near(found, expected, TOLERANCE[dtype], dtype)


LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.mT.contiguous().mT,
    "sliced": lambda x: torch.cat((x, x), -1)[..., : x.shape[-1]],
    "every second": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "expanded": lambda x: x[:, :1].expand_as(x),
}


@pytest.mark.parametrize("a", LAYOUTS)
@pytest.mark.parametrize("b", LAYOUTS)
def test_matmul_of_any_layout(a, b, device):
    torch.manual_seed(0)
    left = LAYOUTS[a](normal(2, 20, 12, device=device))
    right = LAYOUTS[b](normal(2, 12, 28, device=device))
    cotangent = normal(2, 20, 28, device=device)
    expected = gradients(torch.matmul, exact((left, right)), cotangent.double())
    limits = TOLERANCE[torch.float32], torch.float32
    assert_near(gradients(matmul, (left, right), cotangent), expected, *limits)
    assert_near([matmul(left[0], right[0])], [expected[0][0]], *limits)


def test_the_gradient_of_a_weight_lies_as_the_weight(device):
    """Else autograd copies it."""
    x, weight = leaves(normal(8, 16, device=device), normal(32, 16, device=device))
    linear(x, weight).sum().backward()
    assert weight.grad.is_contiguous() and x.grad.is_contiguous()


@pytest.mark.parametrize(
    ("kib", "rotated", "expected"),
    [
        (227, False, (128, 256, 4)),  # sm_90
        (227, True, (128, 256, 3)),
        (163, False, (128, 256, 2)),  # sm_80
        (99, False, (128, 128, 2)),  # sm_86, sm_89, sm_120
        (99, True, (128, 128, 2)),
        (64, True, (64, 128, 2)),  # gfx942
    ],
)
def test_tiles_fit_into_shared_memory(kib, rotated, expected):
    found, parts = TILE((1, 1 << 15, 1 << 15), 1024, 2, (132, kib << 10), not rotated)
    assert (found.rows, found.columns, found.stages) == expected and parts == 1


@pytest.mark.parametrize(
    ("shape", "parts"),
    [
        ((1, 1024, 2816), 3),  # 88 blocks for 132 multiprocessors: 264 are two for each
        ((1, 3072, 1024), 4),
        ((1, 2048, 2048), 1),  # 128 blocks
        ((1, 16384, 16384), 1),
    ],
)
def test_few_blocks_are_divided(shape, parts):
    tokens, gpu = 16384, (132, 227 << 10)
    found, divided = TILE(shape, tokens, 2, gpu)
    assert (found.rows, found.columns, divided) == (128, 256, parts)
    assert TILE(shape, tokens, 2, gpu, False)[1] == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("columns", [24, 21])
def test_parts_of_the_sums_are_added(columns, dtype, device, monkeypatch):
    asked = []

    def in_parts(shape, inner, item, gpu, as_it_is):
        asked.append((shape, inner, as_it_is))
        return Tile(32, 16, 16, 4, 2), 3 if as_it_is else 1

    monkeypatch.setattr(products, "tile", in_parts)
    a, b = (normal(2, *s, device=device).to(dtype) for s in ((40, 200), (200, columns)))
    limits = TOLERANCE[dtype], dtype
    assert_near([matmul(a, b)], [a.double() @ b.double()], *limits)
    x, weight, bias = a[0], b[0].mT, torch.ones(columns, device=device, dtype=dtype)
    assert_near([linear(x, weight, bias)], [x.double() @ b[0].double() + 1], *limits)
    assert asked == [((2, 40, columns), 200, True), ((1, 40, columns), 200, False)]


def test_no_gradient_is_computed_in_vain(device, monkeypatch):
    shapes, product = [], products.product
    monkeypatch.setattr(
        products, "product", lambda *given: shapes.append(given[0].shape) or product(*given)
    )
    x, weight = normal(8, 16, device=device), normal(32, 16, device=device).requires_grad_()
    linear(x, weight).sum().backward()
    assert shapes == [(1, 8, 16), (1, 32, 8)]


@pytest.mark.parametrize("biased", [False, True])
def test_relu_hides_no_nan(biased, device):
    """As compiled for a GPU: Triton's interpreter hides none anyway."""
    x, weight = normal(3, 16, device=device), normal(8, 16, device=device)
    x[1] = math.nan
    bias = torch.ones(8, device=device) if biased else None
    y = linear(x, weight, bias, relu=True)
    assert y[1].isnan().all() and y[[0, 2]].isfinite().all()


@pytest.mark.parametrize("columns", [16, 15])
@pytest.mark.parametrize("parts", [1, 2])
def test_results_can_be_changed_in_place(columns, parts, device, monkeypatch):
    monkeypatch.setattr(products, "tile", lambda *_: (Tile(32, 16, 16, 4, 2), parts))
    x, weight = leaves(normal(5, 24, device=device), normal(columns, 24, device=device))
    for call in (linear, lambda x, weight: matmul(x, weight.mT)):
        expected = torch.autograd.grad((2 * call(x, weight)).sum(), (x, weight))
        assert_same(torch.autograd.grad(call(x, weight).mul_(2).sum(), (x, weight)), expected)


def test_opcheck(device):
    x, weight, bias = leaves(*(normal(*s, device=device) for s in ((5, 12), (7, 12), (7,))))
    opcheck(products._linear.overload, (x, weight, bias, True))
    opcheck(
        products.matmul_operator.overload,
        (x.detach()[None].requires_grad_(), weight.detach().mT[None]),
    )


def test_compiled_without_a_graph_break(device):
    given = [normal(*s, device=device) for s in ((5, 12), (8, 12), (8,))]
    cotangent = normal(5, 8, device=device)
    compiled = torch.compile(linear, fullgraph=True, backend="aot_eager")
    assert_same(*(gradients(each, given, cotangent) for each in (linear, compiled)))


def test_autocast_casts_the_inputs(device):
    given = leaves(*(normal(*s, device=device) for s in ((5, 12), (8, 12), (8,))))
    with torch.autocast(device, torch.float16):
        y = linear(given[0].half(), *given[1:])  # of a layer before, with weights in float32
        product = matmul(given[0], given[1].mT)
    assert y.dtype == product.dtype == torch.float16
    assert torch.equal(y, linear(*(each.half() for each in given)))
    assert all(each.dtype == torch.float32 for each in torch.autograd.grad(y.sum(), given))


@pytest.mark.parametrize(
    ("function", "given", "error", "said"),
    [
        (linear, (None, empty(2, 3)), TypeError, "x must be a tensor, got NoneType"),
        (linear, (empty(4, 3).double(), empty(2, 3)), TypeError, "x torch.float64, weight torch.f"),
        (linear, (empty(4, 3), empty(2, 3).half()), TypeError, "weight torch.float16"),
        (linear, (empty(4, 3), empty(3, 2)), ValueError, r"got \(4, 3\) and \(3, 2\)"),
        (linear, (empty(0, 3), empty(2, 3)), ValueError, r"x must not be empty, got \(0, 3\)"),
        (
            linear,
            (empty(4, 3), empty(2, 3), empty(3)),
            ValueError,
            r"bias must be \[2\], got \(3,\)",
        ),
        (matmul, (empty(4, 3), empty(2, 3)), ValueError, r"got \(4, 3\) and \(2, 3\)"),
        (matmul, (empty(2, 4, 3), empty(3, 2)), ValueError, "both with a batch"),
        (matmul, (empty(2, 4, 3), empty(1, 3, 2)), ValueError, "both with a batch"),
    ],
)
def test_bad_input_is_refused(function, given, error, said):
    with pytest.raises(error, match=said):
        function(*given)
