"""Tables of cosines and sines, of tokens or in attention's layout, and rotation in place.

Against a float64 oracle; and what autograd learns of a change in place.
"""

import pytest
import torch

import rope_triton
from tests import covering, oracle, other_libraries
from tests.oracle import LAYOUTS

SEQ, BATCH, HEADS, CHANNELS, TABLE = 5, 2, 3, 24, 12
MODE = {
    "dtype": [torch.float32, torch.float16, torch.bfloat16],
    "interleaved": [False, True],
    "fused": [True, False],
}

rotations = pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])


def tables(*shape, device, dtype=torch.float32):
    angles = (torch.rand(shape, device=device) - 0.5) * 50
    return angles.cos().to(dtype), angles.sin().to(dtype)


@covering.triples(
    other_libraries.FLASH_ATTENTION
    | MODE
    | {
        "offsets": ["none", "int", "each", "outside"],
        "table_dtype": [torch.float32, torch.float16, torch.bfloat16, torch.float64],
        "transposed": [False, True],
    }
)
def test_tables_of_tokens(case, device):
    other_libraries.flash_attention(case, (3, 5, 3, 24), device)


# --- in attention's layout, [b, h, s, d] ----------------------------------------------------------

SHAPES = {
    **{"seq": (SEQ, 12), "one_position": (1, 12), "partial": (SEQ, 5), "heads": (HEADS, SEQ, 12)},
    **{"batch": (BATCH, 1, SEQ, 12), "all": (BATCH, HEADS, SEQ, 12), "one": (12,)},
}


def check_attention(x, cos, sin, by_token, interleaved=False, **options):
    oracle.compare(
        x,
        lambda x: rope_triton.rotary_embedding(x, cos, sin, interleaved=interleaved, **options),
        lambda x: oracle.rotate_by_tables(x, *by_token, interleaved),
    )


@covering.triples(MODE | {"shape": list(SHAPES)})
def test_tables_that_broadcast(case, device):
    cos, sin = tables(*SHAPES[case["shape"]], device=device)
    x = oracle.contiguous((BATCH, HEADS, SEQ, CHANNELS), case["dtype"], device)
    check_attention(x, cos, sin, (cos, sin), case["interleaved"], fused=case["fused"])


@pytest.mark.parametrize("kind", [torch.Tensor.clone, torch.nn.Parameter])
@pytest.mark.parametrize("shape", ["seq", "batch", "all"])
@pytest.mark.parametrize("fused", [True, False])
def test_tables_with_equal_halves(shape, kind, fused, device):
    """As models keep them for ``x * cos + rotate_half(x) * sin``."""
    cos, sin = tables(*SHAPES[shape], device=device)
    x = oracle.contiguous((BATCH, HEADS, SEQ, CHANNELS), torch.float32, device)
    both = [kind(torch.cat((table, table), -1)).requires_grad_(False) for table in (cos, sin)]
    oracle.compare(
        x,
        lambda x: rope_triton.rotary_embedding(x, *both, fused=fused),
        lambda x: oracle.rotate_by_tables(x, cos, sin, False),
    )


@covering.triples(MODE | {"index": [torch.int32, torch.int64], "shared": [False, True]})
def test_position_ids(case, device):
    """Any order, one twice, and where the tables have none the token as it is."""
    cos, sin = tables(TABLE, 12, device=device)
    x = oracle.contiguous((BATCH, HEADS, SEQ, CHANNELS), case["dtype"], device)
    ids = torch.tensor([[0, 3, 3, 10, 1], [-1, 12, 7, 2, 10**6]], device=device).to(case["index"])
    ids = ids[:1].expand(BATCH, -1) if case["shared"] else ids
    known = ((ids >= 0) & (ids < TABLE))[:, None, :, None]
    rows = ids.long().clamp(0, TABLE - 1)
    by_token = cos[rows][:, None].where(known, 1), sin[rows][:, None].where(known, 0)
    options = dict(position_ids=ids, fused=case["fused"])
    check_attention(x, cos, sin, by_token, case["interleaved"], **options)


@pytest.mark.parametrize("layout", ["transposed_0_1", "transposed_2_3", "packed_amid_nan", "view"])
@pytest.mark.parametrize("heads", [1, 2, 7])
def test_layouts_and_sizes_that_no_tile_divides(heads, layout, device):
    """Also a view of ``[b, s, h, d]``, as a projection gives it."""
    if layout == "view":
        x = torch.randn(BATCH, 37, heads, CHANNELS, device=device).half().transpose(1, 2)
    else:
        x = LAYOUTS[layout]((BATCH, heads, 37, CHANNELS), torch.float16, device)
    cos, sin = tables(37, 12, device=device)
    check_attention(x, cos, sin, (cos, sin))


# --- in place -------------------------------------------------------------------------------------


@rotations
@pytest.mark.parametrize("layout", ["contiguous", "transposed_0_1", "packed_amid_nan", "heads"])
def test_in_place_writes_what_it_is_given_and_nothing_else(layout, interleaved, device):
    """Sizes that no tile divides: what repeats a row must not rotate it again."""
    cos, sin = tables(TABLE, 6, device=device)
    if layout == "heads":
        x = torch.randn(BATCH, 7, 5, CHANNELS, device=device)[:, :, 1:4]
    else:
        x = LAYOUTS[layout]((BATCH, 7, 3, CHANNELS), torch.float32, device)
    base = x._base if x._base is not None else x
    before, inside = base.clone(), torch.zeros_like(base, dtype=torch.bool)
    inside.as_strided(x.shape, x.stride(), x.storage_offset()).fill_(True)
    at = torch.arange(7, device=device).expand(BATCH, 7)
    expected = other_libraries.rotate(x, cos, sin, at, interleaved).float()
    version = x._version
    assert rope_triton.apply_rotary_emb(x, cos, sin, interleaved, inplace=True) is x
    assert x._version > version
    torch.testing.assert_close(x, expected)
    torch.testing.assert_close(base[~inside], before[~inside], rtol=0, atol=0, equal_nan=True)


class OwnView(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x[:]

    @staticmethod
    def backward(ctx, grad):
        return grad


def test_autograd_knows_of_a_change_in_place(device):
    cos, sin = tables(TABLE, CHANNELS // 2, device=device)
    leaf = torch.randn(BATCH, SEQ, HEADS, CHANNELS, device=device, requires_grad=True)
    before = leaf.detach().clone()
    with torch.no_grad():
        hidden = (leaf * 1)[:]
    for part in (leaf, leaf[:, 1:], hidden.requires_grad_()):
        with pytest.raises(ValueError, match="a leaf that requires a gradient"):
            rope_triton.apply_rotary_emb(part, cos, sin, inplace=True)
    assert torch.equal(leaf, before)
    x = leaf * 2
    for part in (*x.split(1, dim=2), *x[None].unbind()):
        with pytest.raises(ValueError, match="returns several views, such as chunk"):
            rope_triton.apply_rotary_emb(part, cos, sin, inplace=True)
    with pytest.raises(ValueError, match=r"because a custom autograd\.Function"):
        rope_triton.apply_rotary_emb(OwnView.apply(x), cos, sin, inplace=True)
    assert torch.equal(x, 2 * before)
    loss = x.square()  # needs x as it was
    rope_triton.apply_rotary_emb(x, cos, sin, inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.sum().backward()
    y = leaf.detach() * 2
    loss = (y * leaf).sum()
    rope_triton.apply_rotary_emb(y, cos, sin, inplace=True)  # nothing here needs a gradient
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():
        z = torch.ones(BATCH, SEQ, HEADS, CHANNELS, device=device)
        rope_triton.apply_rotary_emb(z, cos, sin, inplace=True)
        assert not torch.equal(z, torch.ones_like(z))


# What of a tensor [BATCH, SEQ, 3 * HEADS, CHANNELS] is rotated in place.
PARTS = {
    "whole": lambda x: x,
    "another shape": lambda x: x.view(BATCH * SEQ, -1).view(x.shape),
    "slice": lambda x: x[:, 1:, 2:5],
    "transposed": lambda x: x.transpose(0, 1)[1:],
    "of a strided whole": lambda x: (x.transpose(0, 1).contiguous().transpose(0, 1) * 1)[:, 1:],
    "of complex numbers": lambda x: torch.view_as_real(torch.complex(x, x)).flatten(-2)[..., 24:],
}


@pytest.mark.parametrize("inplace_gradient", [False, True])
@pytest.mark.parametrize("part", PARTS)
def test_the_gradient_of_a_view_that_is_changed_in_place(part, inplace_gradient, device):
    """Once and twice, alone and as a batch, beside what reads the rest of the memory."""
    leaf = torch.randn(BATCH, SEQ, 3 * HEADS, CHANNELS, device=device, requires_grad=True)

    both = tables(TABLE, CHANNELS // 2, device=device)
    weights = torch.randn_like(leaf)

    def rotate(x, **options):
        options = {"inplace_gradient": inplace_gradient} | options
        cos, sin = (table[: x.shape[1]] for table in both)
        return rope_triton.apply_rotary_emb(x, cos, sin, inplace=True, **options)

    def gradients(**options):
        memory = leaf * 1
        view = PARTS[part](memory)
        loss = rotate(view, **options).square().sum()
        others = memory if part in ("whole", "another shape", "slice", "transposed") else view
        loss = loss + (others * torch.arange(CHANNELS, device=device)).sum()
        (once,) = torch.autograd.grad(loss, leaf, retain_graph=True)
        (first,) = torch.autograd.grad(loss, leaf, create_graph=True)
        return once, first, *torch.autograd.grad((first * weights).sum(), leaf)

    expected = gradients(inplace_gradient=False, fused=False)
    torch.testing.assert_close(gradients(), expected, rtol=1e-5, atol=1e-4)
    out = rotate(PARTS[part](leaf * 1))
    several = torch.randn(3, *out.shape, device=device)
    together = torch.autograd.grad(out, leaf, several, is_grads_batched=True, retain_graph=True)
    one_by_one = [torch.autograd.grad(out, leaf, grad, retain_graph=True)[0] for grad in several]
    torch.testing.assert_close(together[0], torch.stack(one_by_one), rtol=1e-5, atol=1e-5)


def test_a_gradient_is_changed_in_place_only_if_the_caller_says_so(device):
    cos, sin = tables(TABLE, CHANNELS // 2, device=device)
    leaf = torch.randn(BATCH, SEQ, HEADS, CHANNELS, device=device, requires_grad=True)
    before = torch.randn_like(leaf)
    one = torch.ones(1, device=device)
    for grad, inplace_gradient, is_changed in (
        (before.clone(), False, False),
        (before.clone(), True, True),
        (one.expand(leaf.shape), True, False),
        (before.mT.contiguous().mT, True, False),
        (before.transpose(0, 1).contiguous().transpose(0, 1), True, True),
    ):
        expected, version = rope_triton.apply_rotary_emb(grad, cos, -sin), grad._version
        out = rope_triton.apply_rotary_emb(
            leaf.clone(), cos, sin, inplace=True, inplace_gradient=inplace_gradient
        )
        (result,) = torch.autograd.grad(out, leaf, grad)
        torch.testing.assert_close(result, expected, rtol=0, atol=0)
        assert (result.data_ptr() == grad.data_ptr()) == is_changed
        assert (grad._version > version) == is_changed
    assert one == 1
