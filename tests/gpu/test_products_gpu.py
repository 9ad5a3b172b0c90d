"""Products of matrices at the sizes of models, on a GPU, with the tiles that these get."""

import pytest
import torch

from rope_triton.transformer import linear, matmul

pytestmark = [pytest.mark.gpu, pytest.mark.public]

# Of the largest value of a tensor: one rounding of the result, and in float32 those of the sums.
TOLERANCE = {torch.float16: 6e-4, torch.bfloat16: 4.5e-3, torch.float32: 4e-6}
all_dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def gradients(function, given, cotangent):
    leaves = [each.detach().requires_grad_() for each in given]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, cotangent)]


def assert_near(found, expected, dtype):
    for one, other in zip(found, expected, strict=True):
        error = (one.double() - other).abs().max() / other.abs().max()
        assert error <= TOLERANCE[dtype], error.item()


@all_dtypes
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("sizes", [(4096, 1024, 1024), (2048, 2816, 1024), (1000, 777, 333)])
def test_linear(sizes, relu, dtype):
    torch.manual_seed(0)
    rows, columns, inner = sizes
    given = [
        torch.randn(shape, device="cuda").to(dtype)
        for shape in ((rows, inner), (columns, inner), (columns,))
    ]
    cotangent = torch.randn(rows, columns, device="cuda").to(dtype)
    found = gradients(lambda *each: linear(*each, relu=relu), given, cotangent)
    masked = cotangent.masked_fill(found[0] <= 0, 0) if relu else cotangent
    exact = [each.double() for each in given]
    expected = gradients(torch.nn.functional.linear, exact, masked.double())
    expected[0] = expected[0].relu() if relu else expected[0]
    assert_near(found, expected, dtype)


@all_dtypes
def test_batched(dtype):
    torch.manual_seed(0)
    a, b, cotangent = (
        torch.randn(shape, device="cuda").to(dtype)
        for shape in ((16, 500, 300), (16, 300, 200), (16, 500, 200))
    )
    expected = gradients(torch.matmul, (a.double(), b.double()), cotangent.double())
    assert_near(gradients(matmul, (a, b), cotangent), expected, dtype)
    transposed = a.mT.contiguous().mT, b.mT.contiguous().mT
    assert_near(gradients(matmul, transposed, cotangent), expected, dtype)


def test_compiled():
    given = [torch.randn(512, 512, device="cuda", dtype=torch.bfloat16) for _ in "xw"]
    both = linear, torch.compile(linear, fullgraph=True)
    found = (gradients(function, given, torch.ones_like(given[0])) for function in both)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
