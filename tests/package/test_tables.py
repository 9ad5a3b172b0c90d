"""Ready-made tables and rotation in place: against a float64 oracle, and what autograd is told."""

import pytest
import torch

import rope_triton
from tests import oracle
from tests.oracle import LAYOUTS

SEQ, BATCH, HEADS, CHANNELS, TABLE = 3, 2, 3, 24, 12

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
rotations = pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
places = pytest.mark.parametrize("inplace", [False, True], ids=["new", "inplace"])


def tables(device, width=CHANNELS, dtype=torch.float32):
    """Half as wide as what is rotated; cosines and sines of one angle, as the oracle has it."""
    angles = (torch.rand(TABLE, width // 2, device=device) - 0.5) * 50
    return angles, angles.cos().to(dtype), angles.sin().to(dtype)


def turned(x, cos, sin, at, interleaved):
    """The exact result: ``at`` are positions by token, in the shape of the leading dimensions."""
    width = 2 * cos.shape[1]
    inside = (at >= 0) & (at < TABLE)
    rows = at.where(inside, 0)
    c = cos.double()[rows].where(inside[..., None], 1)[..., None, :]
    s = sin.double()[rows].where(inside[..., None], 0)[..., None, :]
    x1, x2 = oracle.pairs(x[..., :width].double(), interleaved).unbind(-1)
    y = torch.stack((x1 * c - x2 * s, x2 * c + x1 * s), -1)
    y = y.flatten(-2) if interleaved else y.transpose(-1, -2).flatten(-2)
    return torch.cat((y, x[..., width:].double()), -1)


def check(x, cos, sin, at, interleaved, inplace, **options):
    exact = x.detach().double().requires_grad_()
    expected = turned(exact, cos, sin, at, interleaved)
    leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    given = leaf * 1 if inplace else leaf
    out = rope_triton.apply_rotary_emb(given, cos, sin, interleaved, inplace, **options)
    assert (out is given) == inplace
    cotangent = oracle.random_like(out)
    torch.testing.assert_close(out, expected.to(x.dtype))
    (grad,) = torch.autograd.grad(out, leaf, cotangent)
    (expected_grad,) = torch.autograd.grad(expected, exact, cotangent.double())
    torch.testing.assert_close(grad, expected_grad.to(x.dtype))


@places
@rotations
@dtypes
@pytest.mark.parametrize("width", [24, 12])
@pytest.mark.parametrize("offset", [0, 5, "each"])
def test_offsets(offset, width, dtype, interleaved, inplace, device):
    _, cos, sin = tables(device, width)
    x = oracle.contiguous((BATCH, SEQ, HEADS, CHANNELS), dtype, device)
    each = torch.tensor([4, TABLE - 1], dtype=torch.int32, device=device)
    starts = each if offset == "each" else torch.full((BATCH,), offset, device=device)
    at = starts[:, None] + torch.arange(SEQ, device=device)
    offset = each if offset == "each" else offset
    check(x, cos, sin, at, interleaved, inplace, seqlen_offsets=offset)


@places
@rotations
def test_packed(interleaved, inplace, device):
    _, cos, sin = tables(device, 12)
    bounds = torch.tensor([0, 4, 4, 9], dtype=torch.int32, device=device)
    x = oracle.contiguous((9, HEADS, CHANNELS), torch.float16, device)
    at = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 4], device=device)
    options = dict(cu_seqlens=bounds, max_seqlen=5)
    check(x, cos, sin, at, interleaved, inplace, **options)
    starts = torch.tensor([-2, 0, 7], device=device)
    moved = at + starts[torch.tensor([0] * 4 + [2] * 5, device=device)]
    check(x, cos, sin, moved, interleaved, inplace, seqlen_offsets=starts, **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_tables_of_other_dtypes_are_taken_as_they_are(dtype, device):
    _, cos, sin = tables(device, dtype=dtype)
    x = oracle.contiguous((BATCH, SEQ, HEADS, CHANNELS), torch.bfloat16, device)
    at = torch.arange(SEQ, device=device).expand(BATCH, SEQ)
    check(x, cos, sin, at, False, False)


def test_tables_of_other_strides(device):
    _, cos, sin = tables(device)
    x = oracle.contiguous((BATCH, SEQ, HEADS, CHANNELS), torch.float32, device)
    at = torch.arange(SEQ, device=device).expand(BATCH, SEQ)
    check(x, cos, sin.T.contiguous().T, at, False, False)


@rotations
@pytest.mark.parametrize("layout", ["contiguous", "transposed_0_1", "packed_amid_nan", "heads"])
def test_in_place_writes_what_it_is_given_and_nothing_else(layout, interleaved, device):
    """Sizes that no tile divides: what repeats a row must not rotate it again."""
    _, cos, sin = tables(device, 12)
    if layout == "heads":
        x = torch.randn(BATCH, 7, 5, CHANNELS, device=device)[:, :, 1:4]
    else:
        x = LAYOUTS[layout]((BATCH, 7, 3, CHANNELS), torch.float32, device)
    base = x._base if x._base is not None else x
    before, inside = base.clone(), torch.zeros_like(base, dtype=torch.bool)
    inside.as_strided(x.shape, x.stride(), x.storage_offset()).fill_(True)
    at = torch.arange(7, device=device).expand(BATCH, 7)
    expected = turned(x, cos, sin, at, interleaved).float()
    version = x._version
    assert rope_triton.apply_rotary_emb(x, cos, sin, interleaved, inplace=True) is x
    assert x._version > version
    torch.testing.assert_close(x, expected)
    torch.testing.assert_close(base[~inside], before[~inside], rtol=0, atol=0, equal_nan=True)


def test_autograd_knows_of_a_change_in_place(device):
    _, cos, sin = tables(device)
    leaf = torch.randn(BATCH, SEQ, HEADS, CHANNELS, device=device, requires_grad=True)
    with pytest.raises(ValueError, match="a leaf that requires a gradient"):
        rope_triton.apply_rotary_emb(leaf, cos, sin, inplace=True)
    x = leaf * 2
    kept = x.square()  # needs x as it was
    rope_triton.apply_rotary_emb(x, cos, sin, inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.sum().backward()
    y = leaf.detach() * 2
    kept = (y * leaf).sum()
    rope_triton.apply_rotary_emb(y, cos, sin, inplace=True)  # nothing here needs a gradient
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.backward()
    with torch.inference_mode():
        z = torch.ones(BATCH, SEQ, HEADS, CHANNELS, device=device)
        rope_triton.apply_rotary_emb(z, cos, sin, inplace=True)
        assert not torch.equal(z, torch.ones_like(z))


@places
def test_compile(inplace, device):
    _, cos, sin = tables(device)

    def model(x):
        x = x * 2
        return rope_triton.apply_rotary_emb(x, cos, sin, inplace=inplace) + x

    x = torch.randn(BATCH, SEQ, HEADS, CHANNELS, device=device, requires_grad=True)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x))
    grads = [torch.autograd.grad(f(x).square().sum(), x)[0] for f in (compiled, model)]
    torch.testing.assert_close(*grads)
