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


@formats
@rotations
@widths
def test_float64(tensor_format, interleaved, width, device):
    """Other dtypes are beside the kernel's in ``test_kernel``."""
    freqs = oracle.random_angles(5, width, device)
    options = freqs, tensor_format, interleaved
    oracle.compare(
        oracle.contiguous(SHAPES[tensor_format], torch.float64, device),
        lambda t: apply(t, *options),
        lambda t: oracle.rotate(t, *options),
    )


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


@pytest.mark.parametrize("freqs_dtype", [torch.float32, torch.float64], ids=str)
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
