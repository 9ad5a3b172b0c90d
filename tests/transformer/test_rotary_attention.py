"""Projection, RoPE and attention in one: beside the same steps apart, and beside float64."""

import pytest
import torch
from torch.library import opcheck

from rope_triton import RotaryPositionEmbedding, apply_rotary_pos_emb
from rope_triton.transformer import attention, interleaved_rows, products, rotary_attention
from tests.transformer import plain_attention
from tests.transformer.common import assert_near, assert_same, exact, gradients
from tests.transformer.test_attention import SMALL

HEADS, KV_HEADS, D, WIDTH = 4, 2, 16, 24
ROWS = (HEADS + 2 * KV_HEADS) * D
TOLERANCE = {torch.float32: 3e-6, torch.float16: 4e-3}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(attention, "tiles", lambda channels, item: SMALL)
    # Blocks of columns begin within a head, and one has queries and keys.
    monkeypatch.setattr(products, "tile", lambda *_: (products.Tile(32, 32, 16, 4, 2), 1))


def given(s, dtype, device, b=2):
    torch.manual_seed(0)
    x = torch.randn(b, s, WIDTH, device=device).to(dtype)
    weight = (torch.randn(ROWS, WIDTH, device=device) * WIDTH**-0.5).to(dtype)
    return x, weight, torch.randn(b, s, HEADS * D, device=device).to(dtype)


def angles(s, device, interleaved=True):
    return RotaryPositionEmbedding(D, interleaved=interleaved, device=device)(s)


def plainly(freqs, interleaved=True):
    """The same in float64, by steps."""

    def call(x, weight):
        qkv = (x @ weight.T).unflatten(-1, (-1, D))
        q, k, v = qkv.split([HEADS, KV_HEADS, KV_HEADS], 2)
        q, k = (
            apply_rotary_pos_emb(each, freqs, "bshd", interleaved=interleaved, fused=False)
            for each in (q, k)
        )
        return plain_attention.attention(q, k, v).flatten(2)

    return call


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("s", [32, 45])
def test_output_and_gradients(s, dtype, device):
    x, weight, cotangent = given(s, dtype, device)
    freqs = angles(s + 3, device)
    found = gradients(
        lambda *each: rotary_attention(*each, freqs, HEADS, KV_HEADS), (x, weight), cotangent
    )
    expected = gradients(plainly(freqs), exact((x, weight)), cotangent.double())
    assert_near(found, expected, TOLERANCE[dtype], dtype)


def test_interleaved_rows_are_those_of_a_model_that_rotates_halves(device):
    x, weight, cotangent = given(20, torch.float32, device)
    rotated = (HEADS + KV_HEADS) * D

    def ours(x, weight):
        rows = interleaved_rows(weight[:rotated], D)
        whole = torch.cat((rows, weight[rotated:]))
        return rotary_attention(x, whole, angles(20, device), HEADS, KV_HEADS)

    halves = plainly(angles(20, device, interleaved=False), interleaved=False)
    expected = gradients(halves, exact((x, weight)), cotangent.double())
    found = gradients(ours, (x, weight), cotangent)
    assert_near(found, expected, TOLERANCE[torch.float32])


def test_no_gradient_is_computed_in_vain(device, monkeypatch):
    shapes, product = [], products.product

    def counted(a, b, **options):
        shapes.append(a.shape)
        return product(a, b, **options)

    monkeypatch.setattr(products, "product", counted)
    x, weight, _ = given(4, torch.float32, device, b=1)
    for leaf, expected in ((x, (1, 4, ROWS)), (weight, (1, ROWS, 4))):
        leaf.requires_grad_()
        out = rotary_attention(x, weight, angles(4, device), HEADS, KV_HEADS)
        shapes.clear()
        out.sum().backward()
        assert shapes == [expected] and leaf.grad is not None
        leaf.requires_grad_(False)


def test_opcheck(device):
    x, weight, _ = given(10, torch.float32, device, b=1)
    leaves = [each.requires_grad_() for each in (x, weight)]
    rows = angles(10, device)[:, 0, 0, ::2]
    table = torch.stack((rows.cos(), rows.sin()), dim=-1)
    operator = torch.ops.rope_triton.rotary_attention.default
    opcheck(operator, (*leaves, table, HEADS, KV_HEADS))


def test_compiled_without_a_graph_break(device):
    x, weight, cotangent = given(10, torch.float32, device, b=1)
    freqs = angles(10, device)

    def call(x, weight):
        return rotary_attention(x, weight, freqs, HEADS, KV_HEADS)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert_same(*(gradients(each, (x, weight), cotangent) for each in (call, compiled)))


def test_autocast_casts_the_inputs(device):
    x, weight, _ = given(10, torch.float32, device, b=1)
    freqs = angles(10, device)
    with torch.autocast(device, torch.float16):
        out = rotary_attention(x, weight, freqs, HEADS, KV_HEADS)
    assert out.dtype == torch.float16
    assert torch.equal(out, rotary_attention(x.half(), weight.half(), freqs, HEADS, KV_HEADS))


X, W, F = torch.empty(1, 4, WIDTH), torch.empty(ROWS, WIDTH), torch.empty(4, 1, 1, D)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ((None, W, F, HEADS, KV_HEADS), TypeError, "x must be a tensor"),
        ((X, W.half(), F, HEADS, KV_HEADS), TypeError, "weight torch.float16"),
        ((X, W, F, float(HEADS), KV_HEADS), TypeError, "must be ints, got 4.0 and"),
        ((X, W, F, HEADS, 3), ValueError, "kv_heads must divide heads, got 4 and 3"),
        ((X, W, F, HEADS, 0), ValueError, "got 4 and 0"),
        ((X[0], W, F, HEADS, KV_HEADS), ValueError, r"x must be \[b, s, width\]"),
        ((X, W[:-1], F, HEADS, KV_HEADS), ValueError, r"weight \[8 \* d, width\]"),
        ((X, W[:, 1:], F, HEADS, KV_HEADS), ValueError, r"weight \[8 \* d, width\]"),
        ((X, W[: 8 * 12], F, HEADS, KV_HEADS), ValueError, "channels, got 12"),
        ((X, W, F.double(), HEADS, KV_HEADS), TypeError, "got torch.float64"),
        ((X, W, F[:3], HEADS, KV_HEADS), ValueError, "with s2 >= 4"),
        ((X, W, F[..., 1:], HEADS, KV_HEADS), ValueError, r"\[s2, 1, 1, 16\]"),
        ((X, W, F.clone().requires_grad_(), HEADS, KV_HEADS), ValueError, "need no gradient"),
    ],
)
def test_bad_input_is_refused(arguments, error, said):
    with pytest.raises(error, match=said):
        rotary_attention(*arguments)


@pytest.mark.parametrize(("rows", "channels"), [(30, 16), (30, 15), (30, 0), (30, -2)])
def test_rows_that_are_no_heads_are_refused(rows, channels):
    with pytest.raises(ValueError, match=f"heads of {channels} channels"):
        interleaved_rows(torch.empty(rows, 2), channels)
