"""Queries and keys in one launch: the same as one by one, with any number of heads each.

To a rounding in float32: a compiler may take another one of two products into the sum unrounded.
"""

import functools

import pytest
import torch

import rope_triton
from tests import oracle
from tests.oracle import LAYOUTS, MODES

SEQ, BATCH, CHANNELS = 5, 2, 24

modes = pytest.mark.parametrize("mode", MODES, ids=str)


def check(q, k, rotate_both, rotate):
    """``rotate_both(q, k)`` against ``rotate`` of each, forward, backward and backward again."""
    given = [x.detach().requires_grad_() for x in (q, k)]
    both, one_by_one = rotate_both(*given), [rotate(x) for x in given]
    grads = [oracle.random_like(x) for x in both]
    found, expected = (
        torch.autograd.grad(out, given, grads, create_graph=True) for out in (both, one_by_one)
    )
    again = [
        torch.autograd.grad(
            [x.sin().sum() for x in each], given, retain_graph=True, allow_unused=True
        )
        for each in (both, one_by_one)
    ]
    for one, other in zip(
        (*both, *found, *again[0]), (*one_by_one, *expected, *again[1]), strict=True
    ):
        torch.testing.assert_close(one, other)
        assert one.is_contiguous()


@modes
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (5, 1), (1, 3)], ids=str)
def test_angles(mode, heads, device):
    q, k = (
        oracle.contiguous(mode.shape(SEQ, BATCH, n, CHANNELS), mode.dtype, device) for n in heads
    )
    freqs = oracle.random_angles(SEQ + 1, mode.width(CHANNELS), device)
    options = dict(freqs=freqs, tensor_format=mode.tensor_format, interleaved=mode.interleaved)
    check(
        q,
        k,
        functools.partial(rope_triton.apply_qk_rotary_pos_emb, **options),
        functools.partial(rope_triton.apply_rotary_pos_emb, **options),
    )


OPTIONS = {
    "moved": dict(start_positions=[2, 0]),
    "parallel": dict(cp_size=2, cp_rank=1),
    "each": dict(rounding="each"),
    "plain": dict(fused=False),
    "by_batch": dict(batch=BATCH),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("layout", ["contiguous", "transposed_0_1", "packed_amid_nan"])
def test_options(options, layout, device):
    options = dict(options)
    q, k = (LAYOUTS[layout]((4, BATCH, n, CHANNELS), torch.float16, device) for n in (6, 2))
    freqs = (torch.rand(9, options.pop("batch", 1), 1, CHANNELS, device=device) - 0.5) * 50
    if "start_positions" in options:
        options["start_positions"] = torch.tensor(options["start_positions"], device=device)
    check(
        q,
        k,
        functools.partial(rope_triton.apply_qk_rotary_pos_emb, freqs=freqs, **options),
        functools.partial(rope_triton.apply_rotary_pos_emb, freqs=freqs, **options),
    )


@pytest.mark.parametrize("packed", [False, True], ids=["bshd", "thd"])
def test_tables(packed, device):
    angles = (torch.rand(12, 12, device=device) - 0.5) * 50
    shape = (9,) if packed else (BATCH, SEQ)
    q, k = (oracle.contiguous((*shape, n, CHANNELS), torch.float32, device) for n in (6, 2))
    options = dict(cos=angles.cos(), sin=angles.sin(), seqlen_offsets=3)
    if packed:
        options["cu_seqlens"] = torch.tensor([0, 4, 9], dtype=torch.int32, device=device)
    check(
        q,
        k,
        functools.partial(rope_triton.apply_qk_rotary_emb, **options),
        functools.partial(rope_triton.apply_rotary_emb, **options),
    )


def test_learned(device):
    q, k = (torch.randn(SEQ, BATCH, n, CHANNELS, device=device, requires_grad=True) for n in (6, 2))
    freqs = torch.randn(SEQ, 1, 1, CHANNELS, device=device, requires_grad=True)
    both = rope_triton.apply_qk_rotary_pos_emb(q, k, freqs)
    loss = sum(x.sin().sum() for x in both)
    found = torch.autograd.grad(loss, (q, k, freqs))
    plain = [rope_triton.apply_rotary_pos_emb(x, freqs, fused=False) for x in (q, k)]
    expected = torch.autograd.grad(sum(x.sin().sum() for x in plain), (q, k, freqs))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("heads", [(0, 3), (3, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("by_tables", [False, True], ids=["angles", "tables"])
def test_no_heads(by_tables, heads, device):
    q, k = (torch.randn(BATCH, SEQ, n, CHANNELS, device=device) for n in heads)
    freqs = oracle.random_angles(SEQ, CHANNELS, device)
    half = freqs[:, 0, 0, : CHANNELS // 2]
    if by_tables:
        tables = dict(cos=half.cos(), sin=half.sin())
        both, one = rope_triton.apply_qk_rotary_emb, rope_triton.apply_rotary_emb
    else:
        tables = dict(freqs=freqs, tensor_format="bshd")
        both, one = rope_triton.apply_qk_rotary_pos_emb, rope_triton.apply_rotary_pos_emb
    check(q, k, functools.partial(both, **tables), functools.partial(one, **tables))
