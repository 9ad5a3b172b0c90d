"""Projection, RoPE and attention in one: beside the same steps apart, in float64."""

import pytest
import torch

from rope_triton import RotaryPositionEmbedding, apply_rotary_pos_emb
from rope_triton.transformer import interleaved_rows, rotary_attention
from tests.conftest import COMPILED
from tests.transformer import plain
from tests.transformer.common import assert_near, exact, gradients

pytestmark = [pytest.mark.gpu_or_interpreter, pytest.mark.public]

# Of the largest value.
TOLERANCE = {torch.float32: 3e-6, torch.float16: 4e-3}
SIZES = [(32, 4, 2, 16, 24), (45, 4, 2, 16, 24)]  # s, heads, kv_heads, channels, width
if COMPILED:
    TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 5e-2}
CASES = [(sizes, dtype) for sizes in SIZES for dtype in TOLERANCE]
if COMPILED:
    CASES += [
        ((s, 16, kv_heads, d, 16 * d), torch.bfloat16)
        for s in (2048, 1000)
        for kv_heads, d in ((16, 64), (4, 128))
    ]


def by_steps(freqs, heads, kv_heads, interleaved):
    def call(x, weight):
        qkv = (x @ weight.T).unflatten(-1, (heads + 2 * kv_heads, -1))
        q, k, v = qkv.split([heads, kv_heads, kv_heads], 2)
        options = {"interleaved": interleaved, "fused": False}
        q, k = (apply_rotary_pos_emb(t, freqs, "bshd", **options) for t in (q, k))
        return plain.attention(q, k, v).flatten(2)

    return call


@pytest.mark.parametrize("of_halves", [False, True])
@pytest.mark.parametrize(("sizes", "dtype"), CASES)
def test_output_and_gradients(sizes, dtype, of_halves, device):
    """Also with the rows of a model that rotates halves, put in another order."""
    s, heads, kv_heads, d, width = sizes
    torch.manual_seed(0)
    x = torch.randn(2, s, width, device=device).to(dtype)
    weight = torch.randn((heads + 2 * kv_heads) * d, width, device=device) * width**-0.5
    inputs = x, weight.to(dtype)
    cotangent = torch.randn(2, s, heads * d, device=device).to(dtype)
    rotated = (heads + kv_heads) * d
    pairs, halves = (
        RotaryPositionEmbedding(d, interleaved=interleaved, device=device)(s + 3)
        for interleaved in (True, False)
    )

    def ours(x, weight):
        if of_halves:
            weight = torch.cat((interleaved_rows(weight[:rotated], d), weight[rotated:]))
        return rotary_attention(x, weight, pairs, heads, kv_heads)

    steps = by_steps(halves if of_halves else pairs, heads, kv_heads, not of_halves)
    actual = gradients(ours, inputs, cotangent)
    expected = gradients(steps, exact(inputs), cotangent.double())
    if s < 1000:
        assert_near(actual, expected, TOLERANCE[dtype], dtype)
        return
    for name, result, right in zip(("out", "dx", "dweight"), actual, expected, strict=True):
        error = (result.double() - right).norm() / right.norm()
        assert error < 1e-2, (name, error.item())  # a rounding of bfloat16 is 0.4 %


def test_autocast_casts_the_inputs(device):
    x, weight = torch.randn(1, 10, 24, device=device), torch.randn(128, 24, device=device)
    freqs = RotaryPositionEmbedding(16, interleaved=True, device=device)(10)
    with torch.autocast(device, torch.float16):
        out = rotary_attention(x, weight, freqs, 4, 2)
    assert out.dtype == torch.float16
    assert torch.equal(out, rotary_attention(x.half(), weight.half(), freqs, 4, 2))
