"""Causal attention and its gradients, beside float64."""

import pytest
import torch

from rope_triton.transformer import causal_attention
from tests.conftest import COMPILED
from tests.transformer import common, plain
from tests.transformer.common import assert_same, exact, gradients

pytestmark = [pytest.mark.gpu_or_interpreter, pytest.mark.public]

# Of the largest value: roundings of the result, and of the weights that it mixes.
TOLERANCE = {torch.float32: 4e-6, torch.float16: 4e-3}
SIZES = [  # s, h, h_kv, d, alibi
    (64, 2, 2, 16, False),  # whole blocks
    (50, 4, 2, 32, False),  # a part of a block, two heads of queries for one of keys
    (70, 2, 1, 16, True),
    (33, 1, 1, 64, True),  # one row in the last block
    (1, 2, 1, 16, False),
]
if COMPILED:
    TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
    SIZES += [
        (s, h, h_kv, d, alibi)
        for d in (16, 32, 64, 128, 256)
        for s, h, h_kv, alibi in ((1024, 4, 4, False), (777, 4, 2, False), (1025, 8, 1, True))
    ]
all_dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def tensors(s, h, h_kv, d, dtype, device):
    """Queries, keys and values, and a cotangent."""
    torch.manual_seed(s)
    q, cotangent = (torch.randn(2, s, h, d, device=device).to(dtype) for _ in range(2))
    k, v = (torch.randn(2, s, h_kv, d, device=device).to(dtype) for _ in range(2))
    return (q, k, v), cotangent


def check(inputs, cotangent, **options):
    actual = gradients(causal_attention, inputs, cotangent, **options)
    expected = gradients(plain.attention, exact(inputs), cotangent.double(), **options)
    assert all(x.is_contiguous() for x in actual)
    # With one key the gradient of q is the difference of equal sums, whose terms are about 1.
    dtype = cotangent.dtype
    common.assert_near(actual, expected, TOLERANCE[dtype], dtype, least=0.5)


@all_dtypes
@pytest.mark.parametrize(("s", "h", "h_kv", "d", "alibi"), SIZES)
def test_output_and_gradients(s, h, h_kv, d, alibi, dtype, device):
    inputs, cotangent = tensors(s, h, h_kv, d, dtype, device)
    slopes = 2.0 ** -torch.arange(1, h + 1, device=device) if alibi else None
    check(inputs, cotangent, alibi_slopes=slopes)


def test_scale(device):
    check(*tensors(40, 2, 2, 16, torch.float32, device), scale=0.5)


def test_a_later_key_changes_nothing(device):
    (q, k, v), _ = tensors(48, 2, 1, 16, torch.float32, device)
    before = causal_attention(q, k, v)
    k[:, 40:] += 1
    v[:, 40:] = 1e4
    after = causal_attention(q, k, v)
    assert torch.equal(before[:, :40], after[:, :40])
    assert (after[:, 40:] - before[:, 40:]).abs().min() > 0


@all_dtypes
def test_scores_of_minus_infinity_by_slopes(dtype, device):
    """In the first blocks of keys, as the slopes are too large for far ones."""
    sizes = (300, 2, 2, 64) if COMPILED else (70, 2, 1, 16)
    inputs, cotangent = tensors(*sizes, dtype, device)
    check(inputs, cotangent, alibi_slopes=torch.full((2,), 3e37, device=device))


def test_scores_of_minus_infinity_by_keys(device):
    (q, k, v), _ = tensors(70, 2, 1, 16, torch.float32, device)
    q[..., 0], k[:, :33, :, 0] = 1, -torch.inf
    actual, expected = (call(q, k, v) for call in (causal_attention, plain.attention))
    common.assert_near([actual[:, 33:]], [expected[:, 33:]], TOLERANCE[torch.float32])
    assert actual[:, :33].isnan().all()


@pytest.mark.parametrize("layout", ["packed", "transposed", "odd", "expanded"])
def test_strides(layout, device):
    (q, k, v), cotangent = tensors(40, 2, 2, 16, torch.float32, device)
    if layout == "packed":
        q, k, v = torch.stack((q, k, v), 3).unbind(3)
    elif layout == "transposed":
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    elif layout == "odd":
        q = torch.cat((q[..., :1], q), -1)[..., 1:]
    else:
        cotangent = cotangent[:, :1].expand_as(cotangent)
    check((q, k, v), cotangent)


def test_the_same_bits_every_time(device):
    inputs, cotangent = tensors(50, 4, 2, 16, torch.float16, device)
    assert_same(*(gradients(causal_attention, inputs, cotangent) for _ in range(2)))


@pytest.mark.gpu
def test_long_sequences_agree_with_pytorch():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 16384, 8, 128, device="cuda", dtype=torch.bfloat16) for _ in "qkv")
    result = causal_attention(q, k, v).transpose(1, 2)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert (result - expected).abs().max() < 1e-2 * expected.abs().max()
