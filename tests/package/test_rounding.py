"""Numeric modes, bit by bit: what other implementations compute, written down in their arithmetic.

The result of "once" is held by every other test.
"""

import pytest
import torch

import rope_triton
from tests import oracle

SEQ, BATCH, HEADS, CHANNELS = 5, 2, 3, 24

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
rotations = pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
modes = pytest.mark.parametrize("rounding", ["tables", "each"])
paths = pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])


def hugging_face(x, cos, sin):
    """``x * cos + rotate_half(x) * sin``, each operation in the dtype of x, as models have it."""
    first, second = x.chunk(2, -1)
    return x * torch.cat((cos, cos), -1) + torch.cat((-second, first), -1) * torch.cat(
        (sin, sin), -1
    )


def vllm(x, cos, sin):
    """Tables in the dtype of x; two products and their sum in float32, rounded once."""
    x1, x2 = x.float().chunk(2, -1)
    cos, sin = cos.float(), sin.float()
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), -1).to(x.dtype)


def origin(rounding, interleaved):
    rotate = {"tables": vllm, "each": hugging_face}[rounding]
    if not interleaved:
        return rotate

    def pairs_apart(x, cos, sin):
        x = torch.cat((x[..., ::2], x[..., 1::2]), -1)
        return torch.stack(rotate(x, cos, sin).chunk(2, -1), -1).flatten(-2)

    return pairs_apart


def agree(out, expected, rounding):
    if out.dtype == torch.float32 and rounding == "tables":
        # Two products and a sum may be rounded once or twice: vLLM's compiler decides, and ours.
        torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)
    elif out.dtype == torch.bfloat16 and not out.is_cuda:
        # Triton's interpreter cuts bfloat16 off and never rounds up; a GPU shows the bits.
        torch.testing.assert_close(out, expected, rtol=0.03, atol=0.06)
    else:
        assert torch.equal(out, expected)


@paths
@modes
@rotations
@dtypes
def test_tables(dtype, interleaved, rounding, fused, device):
    """A gradient is the same arithmetic, turned back."""
    angles = (torch.rand(SEQ, CHANNELS // 2, device=device) - 0.5) * 50
    cos, sin = angles.cos(), angles.sin()
    x = oracle.contiguous((BATCH, HEADS, SEQ, CHANNELS), dtype, device).requires_grad_()
    options = dict(interleaved=interleaved, rounding=rounding, fused=fused)
    out = rope_triton.rotary_embedding(x, cos, sin, **options)
    rotate = origin(rounding, interleaved)
    expected = rotate(x, cos.to(dtype), sin.to(dtype))
    agree(out, expected, rounding)
    grad = oracle.random_like(out)
    (gradient,) = torch.autograd.grad(out, x, grad)
    agree(gradient, rotate(grad, cos.to(dtype), -sin.to(dtype)), rounding)
    turned = x.detach().transpose(1, 2)
    out = rope_triton.apply_rotary_emb(turned, cos, sin, **options)
    agree(out.transpose(1, 2), expected, rounding)


@paths
@modes
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_angles(dtype, rounding, fused, device):
    """Cosines that lie next to the middle of two values may be rounded to the other one."""
    freqs = oracle.random_angles(SEQ, CHANNELS, device)
    freqs[..., CHANNELS // 2 :] = freqs[..., : CHANNELS // 2]
    x = oracle.contiguous((SEQ, BATCH, HEADS, CHANNELS), dtype, device)
    out = rope_triton.apply_rotary_pos_emb(x, freqs, rounding=rounding, fused=fused)
    half = freqs[..., : CHANNELS // 2].double()
    expected = origin(rounding, False)(x, half.cos().to(dtype), half.sin().to(dtype))
    if dtype == torch.bfloat16 and fused and not out.is_cuda:
        torch.testing.assert_close(out, expected, rtol=0.03, atol=0.06)
        return
    assert (out != expected).float().mean() < 0.01
    torch.testing.assert_close(out, expected)
