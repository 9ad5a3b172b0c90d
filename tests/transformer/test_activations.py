"""SwiGLU and softmax and their gradients, beside float64."""

import pytest
import torch

from rope_triton.transformer import softmax, swiglu
from tests.conftest import COMPILED
from tests.transformer.common import LAYOUTS, assert_near, assert_same, exact, gradients

pytestmark = [pytest.mark.gpu_or_interpreter, pytest.mark.public]

# Of the largest value: one rounding of the result.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 6e-4}
SHAPES = [(9, 32), (2, 3, 50), (7,), (3, 2)]
if COMPILED:
    TOLERANCE[torch.bfloat16] = 4.5e-3
    SHAPES += [(16_384, 1024), (16_384, 1536), (16_384, 5504), (2048, 77), (2048, 16_384)]
all_dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
all_shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def normal(*shape, dtype=torch.float32, device="cpu"):
    return (3 * torch.randn(shape, device=device)).to(dtype)


@all_dtypes
@all_shapes
def test_swiglu(shape, dtype, device):
    """Of the halves of a projection."""
    inputs = normal(*shape[:-1], 2 * shape[-1], dtype=dtype, device=device).chunk(2, -1)
    cotangent = normal(*shape, dtype=dtype, device=device)
    expected = gradients(
        lambda gate, up: torch.nn.functional.silu(gate) * up, exact(inputs), cotangent.double()
    )
    assert_near(gradients(swiglu, inputs, cotangent), expected, TOLERANCE[dtype], dtype)


@all_dtypes
@all_shapes
def test_softmax(shape, dtype, device):
    """The backward reads the result as rounded."""
    x, cotangent = (normal(*shape, dtype=dtype, device=device) for _ in range(2))
    y, dx = gradients(softmax, [x], cotangent)
    rounded, dy = y.double(), cotangent.double()
    expected = x.double().softmax(-1), rounded * (dy - (rounded * dy).sum(-1, keepdim=True))
    assert_near((y, dx), expected, TOLERANCE[dtype], dtype)


@pytest.mark.parametrize(("function", "count"), [(swiglu, 2), (softmax, 1)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_has_the_same_bits(function, count, layout, device):
    change = LAYOUTS[layout]
    *inputs, cotangent = (change(normal(2, 5, 20, device=device)) for _ in range(count + 1))
    straight = [x.contiguous() for x in inputs]
    expected = gradients(function, straight, cotangent.contiguous())
    assert_same(gradients(function, inputs, cotangent), expected)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # of the interpreter
def test_extreme_gates(device):
    gate = torch.tensor([-1e4, -100.0, 0.0, 100.0, 1e4], device=device)
    ones = torch.ones(5, device=device)
    y, dgate, dup = gradients(swiglu, [gate, ones], ones)
    assert torch.equal(y, gate.relu()) and torch.equal(dup, y)
    assert dgate.tolist() == [0, 0, 0.5, 1, 1]


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # of the interpreter
def test_softmax_of_infinities(device):
    x = torch.tensor([[1e4, 1e4, -torch.inf], [-torch.inf] * 3], device=device).requires_grad_()
    y = softmax(x)
    assert y[0].tolist() == [0.5, 0.5, 0] and y[1].isnan().all()
    (dx,) = torch.autograd.grad(y[0, 0], x)
    assert dx[0].tolist() == [0.25, -0.25, 0]


def test_autocast_is_as_in_pytorch(device):
    gate, up = (normal(3, 20, device=device).half().requires_grad_() for _ in range(2))
    with torch.autocast(device, torch.float16):
        y, weights = swiglu(gate, up), softmax(gate)
    assert torch.equal(y, swiglu(gate, up)) and y.dtype == torch.float16
    assert torch.equal(weights, softmax(gate.float()))
    assert torch.autograd.grad(weights.square().sum(), gate)[0].dtype == torch.float16


@pytest.mark.gpu
def test_more_elements_than_32_bits_count():
    x = torch.zeros(140_000, 16_384, dtype=torch.bfloat16, device="cuda")
    x[-1] = torch.arange(16_384, device="cuda") % 7
    assert torch.equal(swiglu(x, x)[-1], swiglu(x[-1], x[-1]))
