"""On a GPU: TransformerEngine's matrices for positions, packed sequences and fused QKV.

The values are those of its ``tests/pytorch/test_fused_rope.py``, in cases that have any three of
them together. What is expected comes from the oracle's formula in float32, none of it from the
package.
"""

import functools
import math

import pytest
import torch

import rope_triton
from tests import covering, oracle
from tests.gpu.common import LOSSES, model_angles, non_overlapping, overlapping
from tests.oracle import MODES

pytestmark = [pytest.mark.gpu, pytest.mark.public]

CU_SEQLENS = [0, 400, 542, 711, 727, 752, 1270, 1426, 1450, 1954, 2044, 2048]

BOTH = {
    "dtype": (torch.float32, torch.bfloat16, torch.float16),
    "rotary_percent": (0.5, 1.0),
    "margin": (0, 10),
    "loss": tuple(LOSSES),
    "cp_size": (1, 2),
    "interleaved": (False, True),
    "moved": (False, True),
}
SEQUENCES = BOTH | {
    "seq_length": (2048, 4096),
    "hidden_size": (128, 256),
    "transpose": (None, (0, 1), (-2, -1)),
    "tensor_format": ("sbhd", "bshd", "thd"),
}
FUSED_QKV = BOTH | {  # the largest cases take 21 GiB
    "seq_length": (2, 8, 2048, 4096),
    "hidden_size": (64, 128, 256),
    "tensor_format": ("sbhd", "bshd"),
}


def upstream_has(case) -> bool:
    """Whether upstream has this case of ``SEQUENCES`` or ``FUSED_QKV``."""
    return case["seq_length"] >= case["margin"] and (case["margin"] or not case["moved"])


def check(t, loss, freqs, held, interleaved, call):
    """``call(t)``, forward and backward, against the oracle in float32.

    ``held``: the positions of the tokens of each sequence; of sbhd and bshd all are as long.
    """
    t.requires_grad_()
    fused = call(t)
    (fused_grad,) = torch.autograd.grad(loss(fused), t)
    if t.dim() == 3:
        at = torch.tensor(sum(held, [])[: len(t)], device="cuda")
    else:
        at = torch.tensor(held, device="cuda")
        at = at if at.shape == t.shape[:2] else at.T
    plain = oracle.plain(t, freqs, at, interleaved).to(t.dtype)
    (plain_grad,) = torch.autograd.grad(loss(plain), t)
    assert fused.is_contiguous()
    torch.testing.assert_close(fused, plain)
    torch.testing.assert_close(fused_grad, plain_grad)


@covering.parametrize(covering.spanning(SEQUENCES, 3, upstream_has))
def test_matrix_of_sequences(case):
    interleaved, cp_size, channels = case["interleaved"], case["cp_size"], case["hidden_size"]
    options = dict(tensor_format=case["tensor_format"], interleaved=interleaved, cp_size=cp_size)
    if case["tensor_format"] == "thd":
        lengths = [b - a for a, b in zip(CU_SEQLENS, CU_SEQLENS[1:], strict=False)]
        lengths = [math.ceil(n / (2 * cp_size)) * 2 * cp_size for n in lengths]
        options["cu_seqlens"] = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
        shape = (sum(lengths) // cp_size,)
    else:
        seq = case["seq_length"] - case["margin"]
        lengths = [seq * cp_size] * 2
        shape = (seq, 2) if case["tensor_format"] == "sbhd" else (2, seq)
    t = torch.rand((*shape, 64, channels), device="cuda").to(case["dtype"])
    if case["transpose"]:
        t = t.transpose(*case["transpose"]).contiguous().transpose(*case["transpose"])
    starts = torch.randint(0, 10, (len(lengths),), dtype=torch.int32) if case["moved"] else None
    options["start_positions"] = starts if starts is None else starts.cuda()
    table = case["seq_length"] * cp_size
    freqs = model_angles(table, channels, case["rotary_percent"], interleaved)
    for cp_rank in range(cp_size):
        call = functools.partial(
            rope_triton.apply_rotary_pos_emb, freqs=freqs, cp_rank=cp_rank, **options
        )
        first = None if starts is None else starts.tolist()
        held = oracle.positions(lengths, first, cp_size, cp_rank)
        check(t.detach(), LOSSES[case["loss"]], freqs, held, interleaved, call)


@covering.parametrize(covering.spanning(FUSED_QKV, 3, upstream_has))
def test_matrix_of_fused_qkv(case):
    """Bitwise equal to the rotation of its parts."""
    loss, hidden_size, cp_size = LOSSES[case["loss"]], case["hidden_size"], case["cp_size"]
    seq = case["seq_length"] - case["margin"]
    shape = (seq, 2) if case["tensor_format"] == "sbhd" else (2, seq)
    qkv = torch.rand((*shape, 64, hidden_size * 6), device="cuda").to(case["dtype"])
    qkv.requires_grad_()
    options = {name: case[name] for name in ("tensor_format", "interleaved", "cp_size")}
    if case["moved"]:
        options["start_positions"] = torch.randint(0, 10, (2,), dtype=torch.int32, device="cuda")
    length = case["seq_length"] * cp_size
    freqs = model_angles(length, hidden_size, case["rotary_percent"], case["interleaved"])
    sizes = [hidden_size * 4, hidden_size, hidden_size]
    for cp_rank in range(cp_size):
        options["cp_rank"] = cp_rank
        fused = rope_triton.apply_fused_qkv_rotary_pos_emb(qkv, freqs, freqs, sizes, **options)
        (fused_grad,) = torch.autograd.grad(sum(map(loss, fused)), qkv)
        q, k, v = (
            part.unflatten(3, (-1, hidden_size)).flatten(2, 3) for part in qkv.split(sizes, 3)
        )
        q, k = (rope_triton.apply_rotary_pos_emb(part, freqs, **options) for part in (q, k))
        (grad,) = torch.autograd.grad(sum(map(loss, (q, k, v))), qkv)
        torch.testing.assert_close(fused, (q, k, v), rtol=0, atol=0)
        torch.testing.assert_close(fused_grad, grad, rtol=0, atol=0)


@pytest.mark.memcheck
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_small_positions(mode):
    freqs = oracle.random_angles(9, mode.width(40), "cuda")
    options = dict(interleaved=mode.interleaved)
    bounds = torch.tensor([0, 0, 5, 6, 17, 17, 30], dtype=torch.int32, device="cuda")
    # Positions beyond the table, sequences beyond the tokens: neither may be read.
    starts = torch.tensor([0, 3, -7, 1 << 30, 0, -(1 << 31)], dtype=torch.int32, device="cuda")
    t = torch.randn(24, 5, 40, device="cuda").to(mode.dtype)
    options |= dict(cu_seqlens=bounds, start_positions=starts, cp_size=1)
    lengths = bounds.diff().tolist()
    check(
        *(t, overlapping, freqs, oracle.positions(lengths, starts.tolist(), 1, 0)),
        mode.interleaved,
        lambda x: rope_triton.apply_rotary_pos_emb(x, freqs, "thd", **options),
    )
    qkv = torch.randn(mode.shape(5, 2, 3, 160), device="cuda").to(mode.dtype).requires_grad_()
    parts = rope_triton.apply_fused_qkv_rotary_pos_emb(
        *(qkv, freqs, freqs, [80, 40, 40], mode.tensor_format, starts[1:3]),
        interleaved=mode.interleaved,
    )
    torch.autograd.grad(sum(part.sum() for part in parts), qkv)


@pytest.mark.parametrize("tokens", [65_537, 131_072, 200_003])
def test_the_last_of_many_packed_tokens_is_in_a_sequence(tokens):
    """Also where an empty sequence follows, as of padding."""
    t, freqs = torch.randn(tokens, 8, 128, device="cuda").bfloat16(), model_angles(tokens, 128)
    expected = rope_triton.apply_rotary_pos_emb(t[:, None], freqs)[:, 0]
    bounds = torch.tensor([0, tokens, tokens], dtype=torch.int32, device="cuda")
    for _ in range(10):  # two programs that write the last token would do so in any order
        result = rope_triton.apply_rotary_pos_emb(t, freqs, "thd", cu_seqlens=bounds)
        assert torch.equal(result, expected)


def test_more_packed_tokens_than_a_grid_has_blocks():
    tokens, freqs = 200_003, model_angles(4096, 32)
    t = torch.randn(tokens, 1, 32, device="cuda")
    bounds = torch.tensor([0, 70_000, 73_000, tokens], dtype=torch.int64, device="cuda")
    held = oracle.positions(bounds.diff().tolist(), None, 1, 0)
    check(
        *(t, non_overlapping, freqs, held, False),
        lambda x: rope_triton.apply_rotary_pos_emb(x, freqs, "thd", cu_seqlens=bounds),
    )
