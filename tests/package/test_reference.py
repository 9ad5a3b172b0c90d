"""The plain PyTorch path against the float64 oracle, which shares no code with it."""

import math

import pytest
import torch

import rope_triton
from tests import oracle

SHAPES = {"sbhd": (3, 2, 5, 12), "bshd": (2, 3, 5, 12)}

rotations = pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])


def apply(t, freqs, tensor_format="sbhd", interleaved=False):
    return rope_triton.apply_rotary_pos_emb(
        t, freqs, tensor_format, interleaved=interleaved, fused=False
    )


@pytest.mark.parametrize("tensor_format", SHAPES)
@pytest.mark.parametrize("width", [12, 6])
@rotations
def test_float64(tensor_format, interleaved, width, device):
    """Other dtypes are beside the kernel's in ``test_kernel``."""
    freqs = oracle.random_angles(5, width, device)
    options = freqs, tensor_format, interleaved
    oracle.compare(
        oracle.contiguous(SHAPES[tensor_format], torch.float64, device),
        lambda t: apply(t, *options),
        lambda t: oracle.rotate(t, *options),
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_angles_are_float32_unless_all_is_float64(dtype, device):
    t = oracle.contiguous(SHAPES["sbhd"], dtype, device)
    freqs = torch.randn(3, 1, 1, 12, dtype=torch.float64, device=device)
    same = torch.equal(apply(t, freqs), apply(t, freqs.float()))
    assert same == (dtype != torch.float64)


@rotations
def test_quarter_turn(interleaved, device):
    t = torch.tensor([1.0, 2, 3, 4, 5, 6], dtype=torch.float64, device=device).reshape(1, 1, 1, 6)
    freqs = torch.full((1, 1, 1, 4), math.pi / 2, device=device)
    expected = [-2.0, 1, -4, 3, 5, 6] if interleaved else [-3.0, -4, 1, 2, 5, 6]
    out = apply(t, freqs, interleaved=interleaved).flatten()
    expected = torch.tensor(expected, dtype=torch.float64, device=device)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-6)
