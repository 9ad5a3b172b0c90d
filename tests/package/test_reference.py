"""The plain PyTorch path against the float64 oracle, which shares no code with it."""

import math

import pytest
import torch

import rope_triton
from tests import oracle

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
SHAPES = {"sbhd": (3, 2, 5, 12), "bshd": (2, 3, 5, 12)}

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
formats = pytest.mark.parametrize("tensor_format", SHAPES)
rotations = pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
widths = pytest.mark.parametrize("width", [12, 6])


def apply(t, freqs, tensor_format="sbhd", interleaved=False):
    return rope_triton.apply_rotary_pos_emb(
        t, freqs, tensor_format, interleaved=interleaved, fused=False
    )


@dtypes
@formats
@rotations
@widths
def test_forward_and_backward(dtype, tensor_format, interleaved, width, device):
    t = oracle.contiguous(SHAPES[tensor_format], dtype, device).requires_grad_()
    freqs = oracle.random_angles(5, width, device)
    cotangent = oracle.random_like(t)
    out = apply(t, freqs, tensor_format, interleaved)
    (grad,) = torch.autograd.grad(out, t, cotangent)
    options = freqs, tensor_format, interleaved
    torch.testing.assert_close(out, oracle.rotate(t, *options).to(dtype))
    torch.testing.assert_close(grad, oracle.gradient(t, *options, cotangent).to(dtype))


@rotations
@widths
@pytest.mark.parametrize("leading", [(7,), (2, 3)], ids=str)
def test_float32_formula_is_that_of_the_exact_oracle(leading, width, interleaved, device):
    """Of the tests themselves: none of the package's code is in either."""
    t = torch.randn(*leading, 5, 12, device=device, requires_grad=True)
    freqs = oracle.random_angles(4, width, device)
    at = torch.arange(math.prod(leading), device=device).view(leading) - 1  # none at both ends
    angles = oracle.angles_at(freqs, [at.flatten().tolist()], "thd").view(*leading, 1, width)
    results = [
        function(t, table, *more, interleaved)
        for function, table, *more in ((oracle.plain, freqs, at), (oracle.rotate_by, angles))
    ]
    cotangent = torch.randn_like(t)
    gradients = [torch.autograd.grad(out, t, cotangent.to(out.dtype))[0] for out in results]
    for found, expected in (results, gradients):
        torch.testing.assert_close(found, expected.float())


@formats
@rotations
@widths
@pytest.mark.parametrize("layout", oracle.LAYOUTS)
def test_layout(layout, width, tensor_format, interleaved, device):
    t = oracle.LAYOUTS[layout](SHAPES[tensor_format], torch.float32, device)
    freqs = oracle.random_angles(3, width, device)
    out = apply(t, freqs, tensor_format, interleaved)
    assert out.is_contiguous()
    torch.testing.assert_close(out, oracle.rotate(t, freqs, tensor_format, interleaved).float())


@formats
@rotations
@widths
def test_gradcheck(tensor_format, interleaved, width, device):
    shape = [min(size, 3) for size in SHAPES[tensor_format][:3]] + [12]
    t = oracle.contiguous(shape, torch.float64, device).requires_grad_()
    freqs = oracle.random_angles(3, width, device)
    assert torch.autograd.gradcheck(lambda x: apply(x, freqs, tensor_format, interleaved), t)
    assert torch.autograd.gradgradcheck(lambda x: apply(x, freqs, tensor_format, interleaved), t)


@pytest.mark.parametrize("freqs_dtype", DTYPES, ids=str)
@dtypes
def test_angles_are_float32(dtype, freqs_dtype, device):
    t = oracle.contiguous(SHAPES["sbhd"], dtype, device)
    freqs = torch.randn(3, 1, 1, 12, dtype=torch.float64, device=device).to(freqs_dtype)
    if dtype == freqs_dtype == torch.float64:
        assert not torch.equal(apply(t, freqs), apply(t, freqs.float()))
        return
    torch.testing.assert_close(apply(t, freqs), apply(t, freqs.float()), rtol=0, atol=0)


@rotations
def test_quarter_turn(interleaved, device):
    t = torch.tensor([1.0, 2, 3, 4, 5, 6], dtype=torch.float64, device=device).reshape(1, 1, 1, 6)
    freqs = torch.full((1, 1, 1, 4), math.pi / 2, device=device)
    expected = [-2.0, 1, -4, 3, 5, 6] if interleaved else [-3.0, -4, 1, 2, 5, 6]
    out = apply(t, freqs, interleaved=interleaved).flatten()
    expected = torch.tensor(expected, dtype=torch.float64, device=device)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-6)


@dtypes
@formats
def test_empty(dtype, tensor_format, device):
    for dim in range(3):
        shape = list(SHAPES[tensor_format])
        shape[dim] = 0
        t = oracle.contiguous(shape, dtype, device).requires_grad_()
        out = apply(t, oracle.random_angles(3, 12, device), tensor_format)
        (grad,) = torch.autograd.grad(out, t, torch.zeros_like(out))
        assert out.shape == grad.shape == t.shape
        assert out.dtype == grad.dtype == dtype


@rotations
def test_freqs_beyond_the_sequence_are_unused(interleaved, device):
    t = oracle.contiguous(SHAPES["bshd"], torch.float32, device)
    freqs = oracle.random_angles(5, 12, device)
    freqs[3:] = torch.nan
    expected = oracle.rotate(t, freqs, "bshd", interleaved).float()
    torch.testing.assert_close(apply(t, freqs, "bshd", interleaved), expected)
