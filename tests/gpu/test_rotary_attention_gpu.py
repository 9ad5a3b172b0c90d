"""Projection, RoPE and attention in one, on a GPU, at the size of a model's layer."""

import pytest
import torch

from rope_triton import RotaryPositionEmbedding, apply_rotary_pos_emb
from rope_triton.transformer import interleaved_rows, rotary_attention

pytestmark = [pytest.mark.gpu, pytest.mark.public]


@pytest.mark.parametrize(("heads", "kv_heads", "d"), [(16, 16, 64), (16, 4, 128)])
@pytest.mark.parametrize("s", [2048, 1000])
def test_output_and_gradients(heads, kv_heads, d, s):
    """Beside float32 of the same steps, halves rotated: a rounding of bfloat16 is 0.4 %."""
    torch.manual_seed(0)
    width, rotated = heads * d, (heads + kv_heads) * d
    x = torch.randn(2, s, width, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn((heads + 2 * kv_heads) * d, width, device="cuda") * width**-0.5
    weight = weight.bfloat16()
    cotangent = torch.randn_like(x)
    pairs = RotaryPositionEmbedding(d, interleaved=True, device=x.device)(s)
    halves = RotaryPositionEmbedding(d, device=x.device)(s)

    def ours(x, weight):
        whole = torch.cat((interleaved_rows(weight[:rotated], d), weight[rotated:]))
        return rotary_attention(x, whole, pairs, heads, kv_heads)

    def steps(x, weight):
        qkv = (x @ weight.T).unflatten(-1, (-1, d)).split([heads, kv_heads, kv_heads], 2)
        q, k = (apply_rotary_pos_emb(each, halves, "bshd") for each in qkv[:2])
        q, k, v = (each.transpose(1, 2) for each in (q, k, qkv[2]))
        mixed = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True
        )
        return mixed.transpose(1, 2).flatten(2)

    def results(call, *given):
        leaves = [each.detach().requires_grad_() for each in given]
        out = call(*leaves)
        return out.detach(), *torch.autograd.grad(out, leaves, cotangent.to(out.dtype))

    found = results(ours, x, weight)
    for name, one, other in zip(
        ("out", "dx", "dweight"), found, results(steps, x.float(), weight.float()), strict=True
    ):
        error = (one.float() - other).norm() / other.norm()
        assert error < 1e-2, (name, error.item())
