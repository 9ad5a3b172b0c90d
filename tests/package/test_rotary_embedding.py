"""Tables in attention's layout, ``[b, h, s, d]``: against a float64 oracle."""

import pytest
import torch

import rope_triton
from tests import oracle

BATCH, HEADS, SEQ, CHANNELS, TABLE = 2, 3, 5, 24, 11

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
rotations = pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
paths = pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])


def tables(*shape, device):
    angles = (torch.rand(shape, device=device) - 0.5) * 50
    return angles.cos(), angles.sin()


def turned(x, cos, sin, interleaved):
    """The exact result; the tables broadcast."""
    width = 2 * cos.shape[-1]
    x1, x2 = oracle.pairs(x[..., :width].double(), interleaved).unbind(-1)
    cos, sin = cos.double(), sin.double()
    y = torch.stack((x1 * cos - x2 * sin, x2 * cos + x1 * sin), -1)
    y = y.flatten(-2) if interleaved else y.transpose(-1, -2).flatten(-2)
    return torch.cat((y, x[..., width:].double()), -1)


def check(x, cos, sin, by_token, interleaved, **options):
    leaf = x.detach().requires_grad_()
    exact = x.detach().double().requires_grad_()
    out = rope_triton.rotary_embedding(leaf, cos, sin, interleaved=interleaved, **options)
    expected = turned(exact, *by_token, interleaved)
    torch.testing.assert_close(out, expected.to(x.dtype))
    assert out.is_contiguous()
    cotangent = oracle.random_like(out)
    (grad,) = torch.autograd.grad(out, leaf, cotangent)
    (expected,) = torch.autograd.grad(expected, exact, cotangent.double())
    torch.testing.assert_close(grad, expected.to(x.dtype))


SHAPES = {
    "seq": (SEQ, 12),
    "one_position": (1, 12),
    "partial": (SEQ, 5),
    "heads": (HEADS, SEQ, 12),
    "batch": (BATCH, 1, SEQ, 12),
    "all": (BATCH, HEADS, SEQ, 12),
}


@paths
@rotations
@dtypes
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_tables_that_broadcast(shape, dtype, interleaved, fused, device):
    cos, sin = tables(*shape, device=device)
    x = oracle.contiguous((BATCH, HEADS, SEQ, CHANNELS), dtype, device)
    check(x, cos, sin, (cos, sin), interleaved, fused=fused)


@paths
@rotations
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_position_ids(index, interleaved, fused, device):
    """Any order, one twice, and where the tables have none the token as it is."""
    cos, sin = tables(TABLE, 12, device=device)
    x = oracle.contiguous((BATCH, HEADS, SEQ, CHANNELS), torch.float32, device)
    ids = torch.tensor([[0, 3, 3, 10, 1], [-1, 11, 7, 2, 10**6]], dtype=index, device=device)
    known = ((ids >= 0) & (ids < TABLE))[:, None, :, None]
    rows = ids.long().clamp(0, TABLE - 1)
    by_token = cos[rows][:, None].where(known, 1), sin[rows][:, None].where(known, 0)
    check(x, cos, sin, by_token, interleaved, position_ids=ids, fused=fused)
    shared = ids[:1].expand(BATCH, -1)
    by_token = cos[rows[:1]][:, None], sin[rows[:1]][:, None]
    check(x, cos, sin, by_token, interleaved, position_ids=shared, fused=fused)


@pytest.mark.parametrize("layout", ["transposed_0_1", "transposed_2_3", "packed_amid_nan"])
@pytest.mark.parametrize("heads", [1, 2, 7])
def test_layouts_and_sizes_that_no_tile_divides(heads, layout, device):
    shape = BATCH, heads, 37, CHANNELS
    x = oracle.LAYOUTS[layout](shape, torch.float16, device)
    cos, sin = tables(37, 12, device=device)
    check(x, cos, sin, (cos, sin), False)


def test_queries_of_attention_are_a_view(device):
    """What a projection gives is ``[b, s, h, d]`` in memory."""
    x = torch.randn(BATCH, SEQ, HEADS, CHANNELS, device=device).transpose(1, 2)
    cos, sin = tables(SEQ, 12, device=device)
    check(x, cos, sin, (cos, sin), False)


def test_compile_and_vmap(device):
    cos, sin = tables(TABLE, 12, device=device)
    ids = torch.randint(0, TABLE, (BATCH, SEQ), device=device)

    def model(x):
        return rope_triton.rotary_embedding(x * 2, cos, sin, ids).sin()

    x = torch.randn(BATCH, HEADS, SEQ, CHANNELS, device=device, requires_grad=True)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x))
    grads = [torch.autograd.grad(f(x).sum(), x)[0] for f in (compiled, model)]
    torch.testing.assert_close(*grads)
    many = torch.stack([x, 2 * x, -x], dim=2).detach()
    for out, one in zip(torch.func.vmap(model, 2)(many), many.unbind(2), strict=True):
        torch.testing.assert_close(out, model(one))
