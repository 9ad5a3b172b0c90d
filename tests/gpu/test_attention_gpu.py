"""Causal attention at the sizes of models, on a GPU, with the tiles that these get."""

import pytest
import torch

from rope_triton.transformer import causal_attention
from tests.transformer import plain_attention
from tests.transformer.common import assert_near, assert_same, gradients

pytestmark = [pytest.mark.gpu, pytest.mark.public]

# Of the largest value of a tensor: roundings of the result, and of the weights that it mixes.
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("d", [16, 32, 64, 128, 256])
@pytest.mark.parametrize(
    ("s", "h", "shared", "alibi"),
    [(1024, 4, 4, False), (777, 4, 2, False), (1025, 8, 1, True), (1, 2, 2, False)],
)
def test_output_and_gradients(s, h, shared, alibi, d, dtype):
    torch.manual_seed(0)
    q, dout = (torch.randn(2, s, h, d, device="cuda").to(dtype) for _ in range(2))
    k, v = (torch.randn(2, s, shared, d, device="cuda").to(dtype) for _ in range(2))
    slopes = 2.0 ** -torch.arange(1, h + 1, device="cuda") if alibi else None
    found = gradients(causal_attention, (q, k, v), dout, alibi_slopes=slopes)
    expected = plain_attention.gradients(q, k, v, dout, slopes)
    assert_near(found, expected, TOLERANCE[dtype], dtype, least=0.1)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_scores_of_minus_infinity(dtype):
    """In the first blocks of keys, by slopes that are too large for far ones."""
    torch.manual_seed(0)
    q, k, v, dout = (torch.randn(1, 300, 2, 64, device="cuda").to(dtype) for _ in range(4))
    slopes = torch.full((2,), 3e37, device="cuda")
    found = gradients(causal_attention, (q, k, v), dout, alibi_slopes=slopes)
    expected = plain_attention.gradients(q, k, v, dout, slopes)
    assert_near(found, expected, TOLERANCE[dtype], dtype, least=0.5)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_saved_tensors_at_odd_addresses(dtype):
    """Hooks may return parts of a buffer for many tensors."""

    def odd(x):
        return torch.cat((x.new_zeros(1), x.flatten()))[1:].view_as(x)

    q, k, v, dout = (torch.randn(1, 300, 2, 64, device="cuda").to(dtype) for _ in range(4))
    expected = gradients(causal_attention, (q, k, v), dout)
    with torch.autograd.graph.saved_tensors_hooks(odd, lambda x: x):
        found = gradients(causal_attention, (q, k, v), dout)
    assert_same(found, expected)


def test_long_sequences_agree_with_pytorch():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 16384, 8, 128, device="cuda", dtype=torch.bfloat16) for _ in "qkv")
    found = causal_attention(q, k, v).transpose(1, 2)
    given = (each.transpose(1, 2) for each in (q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(*given, is_causal=True)
    assert (found - expected).abs().max() < 1e-2 * expected.abs().max()


def test_compiled():
    q, k, v = (torch.randn(1, 256, 8, 64, device="cuda", dtype=torch.bfloat16) for _ in "qkv")
    both = causal_attention, torch.compile(causal_attention, fullgraph=True)
    assert_same(*(gradients(each, (q, k, v), q) for each in both))
