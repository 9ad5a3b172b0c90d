"""Products of matrices and their gradients, beside float64."""

import math
import threading

import pytest
import torch

from rope_triton.transformer import linear, matmul
from tests.conftest import COMPILED
from tests.transformer.common import LAYOUTS, assert_near, assert_same, exact, gradients

pytestmark = [pytest.mark.gpu_or_interpreter, pytest.mark.public]

# Of the largest value: one rounding of the result, and in float32 those of the sums.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 6e-4}
SIZES = [((64,), 64, 32), ((2, 35), 40, 40), ((3,), 33, 5), ((), 16, 16)]  # odd sizes, a vector
BATCHES = [(2, 20, 12, 28)]
if COMPILED:
    TOLERANCE = {torch.float32: 4e-6, torch.float16: 6e-4, torch.bfloat16: 4.5e-3}
    SIZES += [((4096,), 1024, 1024), ((2048,), 2816, 1024), ((1000,), 777, 333)]
    BATCHES += [(16, 500, 300, 200)]
all_dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def normal(*shape, dtype=torch.float32, device="cpu"):
    return torch.randn(shape, device=device).to(dtype)


@all_dtypes
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("rows", "columns", "inner"), SIZES)
def test_linear(rows, columns, inner, biased, relu, dtype, device):
    shapes = (*rows, inner), (columns, inner), (columns,)
    inputs = [normal(*shape, dtype=dtype, device=device) for shape in shapes[: 2 + biased]]
    cotangent = normal(*rows, columns, dtype=dtype, device=device)
    actual = gradients(linear, [*inputs, None][:3], cotangent, relu=relu)
    # A sum near 0 may round to the other side of it.
    masked = cotangent.masked_fill(actual[0] <= 0, 0) if relu else cotangent
    expected = gradients(torch.nn.functional.linear, exact(inputs), masked.double())
    expected[0] = expected[0].relu() if relu else expected[0]
    assert_near(actual, expected, TOLERANCE[dtype], dtype)


@all_dtypes
@pytest.mark.parametrize("sizes", BATCHES)
@pytest.mark.parametrize("left", ["as it is", *LAYOUTS])
@pytest.mark.parametrize("right", ["as it is", *LAYOUTS])
def test_matmul_of_any_layout(left, right, sizes, dtype, device):
    b, rows, inner, columns = sizes
    shapes = (left, (b, rows, inner)), (right, (b, inner, columns))
    inputs = [
        LAYOUTS.get(layout, lambda x: x)(normal(*shape, dtype=dtype, device=device))
        for layout, shape in shapes
    ]
    cotangent = normal(b, rows, columns, dtype=dtype, device=device)
    expected = gradients(torch.matmul, exact(inputs), cotangent.double())
    assert_near(gradients(matmul, inputs, cotangent), expected, TOLERANCE[dtype], dtype)
    assert_near([matmul(inputs[0][0], inputs[1][0])], [expected[0][0]], TOLERANCE[dtype], dtype)


def test_the_gradient_of_a_weight_lies_as_the_weight(device):
    """Else autograd copies it."""
    x, weight = (normal(n, 16, device=device).requires_grad_() for n in (8, 32))
    linear(x, weight).sum().backward()
    assert weight.grad.is_contiguous() and x.grad.is_contiguous()


@pytest.mark.parametrize("biased", [False, True])
def test_relu_hides_no_nan(biased, device):
    """As compiled for a GPU: Triton's interpreter hides none anyway."""
    x, weight = normal(3, 16, device=device), normal(8, 16, device=device)
    x[1] = math.nan
    bias = torch.ones(8, device=device) if biased else None
    y = linear(x, weight, bias, relu=True)
    assert y[1].isnan().all() and y[[0, 2]].isfinite().all()


@pytest.mark.parametrize("columns", [16, 15])
def test_results_can_be_changed_in_place(columns, device):
    x, weight = (normal(n, 24, device=device).requires_grad_() for n in (5, columns))
    for call in (linear, lambda x, weight: matmul(x, weight.mT)):
        expected = torch.autograd.grad((2 * call(x, weight)).sum(), (x, weight))
        assert_same(torch.autograd.grad(call(x, weight).mul_(2).sum(), (x, weight)), expected)


def test_autocast_casts_the_inputs(device):
    x, weight, bias = (normal(*s, device=device).requires_grad_() for s in ((5, 12), (8, 12), (8,)))
    with torch.autocast(device, torch.float16):
        y = linear(x.half(), weight, bias)  # of a layer before, with weights in float32
        product = matmul(x, weight.mT)
    assert y.dtype == product.dtype == torch.float16
    assert torch.equal(y, linear(x.half(), weight.half(), bias.half()))
    for gradient in torch.autograd.grad(y.sum(), (x, weight, bias)):
        assert gradient.dtype == torch.float32


@pytest.mark.gpu
def test_a_thread_whose_first_call_of_cuda_it_is():
    """It has no context of CUDA yet, which the encoding of a tensor map needs."""
    a, *others = (torch.randn(512, 512, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    expected = [matmul(a, other) for other in others]
    matmul(a, others[0])  # of a known address, with memory for its result
    results = list[torch.Tensor]()
    fresh = others[1].clone()
    thread = threading.Thread(target=lambda: results.append(matmul(a, fresh)))
    thread.start()
    thread.join()
    assert_same(results, expected[1:])


@pytest.mark.gpu
def test_results_at_many_addresses():
    """Tensors of other shapes have them later."""
    for _ in range(3):
        for n in (512, 1024, 512, 768):
            a, b = (torch.randn(n, n, device="cuda", dtype=torch.float16) for _ in "ab")
            assert_near([matmul(a, b)], [a.double() @ b.double()], TOLERANCE[torch.float16])
