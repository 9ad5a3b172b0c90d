"""Products of matrices at the sizes of models, on a GPU, with the tiles that these get."""

import threading

import pytest
import torch

from rope_triton.transformer import linear, matmul
from tests.transformer.common import assert_near, assert_same, exact, gradients

pytestmark = [pytest.mark.gpu, pytest.mark.public]

# Of the largest value of a tensor: one rounding of the result, and in float32 those of the sums.
TOLERANCE = {torch.float16: 6e-4, torch.bfloat16: 4.5e-3, torch.float32: 4e-6}
all_dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


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
    found = gradients(linear, given, cotangent, relu=relu)
    masked = cotangent.masked_fill(found[0] <= 0, 0) if relu else cotangent
    expected = gradients(torch.nn.functional.linear, exact(given), masked.double())
    expected[0] = expected[0].relu() if relu else expected[0]
    assert_near(found, expected, TOLERANCE[dtype], dtype)


@all_dtypes
def test_batched(dtype):
    torch.manual_seed(0)
    a, b, cotangent = (
        torch.randn(shape, device="cuda").to(dtype)
        for shape in ((16, 500, 300), (16, 300, 200), (16, 500, 200))
    )
    expected = gradients(torch.matmul, exact((a, b)), cotangent.double())
    limits = TOLERANCE[dtype], dtype
    assert_near(gradients(matmul, (a, b), cotangent), expected, *limits)
    transposed = a.mT.contiguous().mT, b.mT.contiguous().mT
    assert_near(gradients(matmul, transposed, cotangent), expected, *limits)


def test_a_thread_whose_first_call_of_cuda_it_is():
    """It has no context of CUDA yet, which the encoding of a tensor map needs."""
    a, *others = (torch.randn(512, 512, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    expected = [matmul(a, each) for each in others]
    matmul(a, others[0])  # known, and memory for its result is kept
    found = list[torch.Tensor]()
    fresh = others[1].clone()
    thread = threading.Thread(target=lambda: found.append(matmul(a, fresh)))
    thread.start()
    thread.join()
    assert_same(found, expected[1:])


def test_results_of_many_addresses():
    """Tensors of other shapes have them later."""
    torch.manual_seed(0)
    for _ in range(3):
        for n in (512, 1024, 512, 768):
            a, b = (torch.randn(n, n, device="cuda", dtype=torch.float16) for _ in "ab")
            assert_near([matmul(a, b)], [a.double() @ b.double()], TOLERANCE[torch.float16])


def test_compiled():
    given = [torch.randn(512, 512, device="cuda", dtype=torch.bfloat16) for _ in "xw"]
    both = linear, torch.compile(linear, fullgraph=True)
    assert_same(*(gradients(each, given, torch.ones_like(given[0])) for each in both))
