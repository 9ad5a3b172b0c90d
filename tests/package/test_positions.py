"""Packed sequences, first positions and context parallelism: which angles a token gets.

Everything runs on both paths: the kernel, in the interpreter where there is no GPU, and plain
PyTorch. What is expected comes from lists of positions, made token by token.
"""

import itertools
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rope_triton
from rope_triton.kernel import plans, tiles
from tests import field, oracle
from tests.oracle import LAYOUTS, MODES, Mode

HEADS, CHANNELS, TABLE = 3, 24, 40

both_paths = pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
index_dtypes = pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)

PACKED = {
    # Lengths in units of 2 cp_size, and whether they start elsewhere than at 0. Empty sequences,
    # also side by side, first and last, have no token to be found.
    "one_moved": ([2], True),
    "some": ([1, 3, 2], False),
    "empty_moved": ([0, 1, 0, 0, 2, 0], True),
    "many": ([1, 2] * 4, False),
}

RANKS = [(1, 0), (2, 0), (2, 1), (3, 1)]
PADDED = {
    "fused": [True, False],
    "dtype": [torch.float32, torch.float16, torch.bfloat16],
    "interleaved": [False, True],
    "tensor_format": ["sbhd", "bshd"],
}
UNPADDED = {name: PADDED[name] for name in ("fused", "dtype", "interleaved")}


def triples(matrix):
    """Few cases of a matrix, with any three values together."""
    return field.parametrize(field.spanning(matrix, 3))


def mode_of(case):
    return Mode(case["dtype"], case.get("tensor_format", "thd"), case["interleaved"], 1.0)


def angles(device):
    return oracle.random_angles(TABLE, CHANNELS - 8, device)


def check(t, freqs, at, mode, fused, **options):
    """Compare forward and gradient with the rotation by each token's own angles, ``at``."""
    leaf = t.detach().requires_grad_()
    out = rope_triton.apply_rotary_pos_emb(
        leaf, freqs, interleaved=mode.interleaved, fused=fused, **options
    )
    cotangent = oracle.random_like(out)
    (grad,) = torch.autograd.grad(out, leaf, cotangent)
    exact = t.detach().double().requires_grad_()
    expected = oracle.rotate_by(exact, at, mode.interleaved)
    (expected_grad,) = torch.autograd.grad(expected, exact, cotangent.double())
    torch.testing.assert_close(out, expected.to(t.dtype))
    torch.testing.assert_close(grad, expected_grad.to(t.dtype))
    assert out.is_contiguous() and out.shape == t.shape


def packed(lengths, starts, rank, freqs, index):
    """cu_seqlens of the whole, start_positions, and the angles of the tokens on this rank."""
    bounds = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    held = sum(oracle.positions(lengths, starts, *rank), [])
    starts = starts and torch.tensor(starts, dtype=index, device=freqs.device)
    cu_seqlens = torch.tensor(bounds, dtype=index, device=freqs.device)
    return cu_seqlens, starts, oracle.angles_at(freqs, held)


@triples(UNPADDED | {"rank": RANKS, "sequences": list(PACKED)})
def test_packed(case, device):
    rank, (units, moved), mode = case["rank"], PACKED[case["sequences"]], mode_of(case)
    freqs, lengths = angles(device), [unit * 2 * rank[0] for unit in units]
    starts = list(range(len(lengths))) if moved else None
    cu_seqlens, starts, at = packed(lengths, starts, rank, freqs, torch.int32)
    t = oracle.contiguous((len(at), HEADS, CHANNELS), mode.dtype, device)
    options = dict(tensor_format="thd", cp_size=rank[0], cp_rank=rank[1])
    options |= dict(cu_seqlens=cu_seqlens, start_positions=starts)
    check(t, freqs, at, mode, case["fused"], **options)


@triples(PADDED | {"rank": RANKS, "index": [torch.int32, torch.int64]})
def test_starts(case, device):
    rank, mode, freqs, (seq, batch) = case["rank"], mode_of(case), angles(device), (6, 3)
    starts = [0, 4, 2]
    held = oracle.positions([seq * rank[0]] * batch, starts, *rank)
    at = torch.stack([oracle.angles_at(freqs, each) for each in held])  # [batch, seq, 1, width]
    t = oracle.contiguous(mode.shape(seq, batch, HEADS, CHANNELS), mode.dtype, device)
    at = at.transpose(0, 1) if mode.tensor_format == "sbhd" else at
    starts = torch.tensor(starts, dtype=case["index"], device=device)
    options = dict(tensor_format=mode.tensor_format, cp_size=rank[0], cp_rank=rank[1])
    check(t, freqs, at, mode, case["fused"], start_positions=starts, **options)


@triples(PADDED | {"rank": RANKS[1:]})
def test_context_parallel(case, device):
    rank, mode, freqs, (seq, batch) = case["rank"], mode_of(case), angles(device), (6, 2)
    (held,) = oracle.positions([seq * rank[0]], None, *rank)
    at = oracle.angles_at(freqs, held)[:, None]
    t = oracle.contiguous(mode.shape(seq, batch, HEADS, CHANNELS), mode.dtype, device)
    at = at if mode.tensor_format == "sbhd" else at.transpose(0, 1)
    options = dict(tensor_format=mode.tensor_format, cp_size=rank[0], cp_rank=rank[1])
    check(t, freqs, at, mode, case["fused"], **options)


@triples(PADDED | {"own": ["batch", "heads", "both"], "moved": [False, True]})
def test_angles_of_their_own(case, device):
    own, moved, mode = case["own"], case["moved"], mode_of(case)
    seq, batch, width = 4, 2, CHANNELS - 8
    shape = TABLE, batch if own != "heads" else 1, HEADS if own != "batch" else 1, width
    freqs = (torch.rand(shape, device=device) - 0.5) * 50
    starts = torch.tensor([3, 1], device=device) if moved else None
    at = torch.stack(
        [
            freqs[i : i + seq, min(b, shape[1] - 1)]
            for b, i in enumerate([3, 1] if moved else [0, 0])
        ]
    )  # [batch, seq, heads or 1, width]
    t = oracle.contiguous(mode.shape(seq, batch, HEADS, CHANNELS), mode.dtype, device)
    at = at.transpose(0, 1) if mode.tensor_format == "sbhd" else at
    options = dict(tensor_format=mode.tensor_format, start_positions=starts)
    check(t, freqs, at, mode, case["fused"], **options)


@both_paths
@pytest.mark.parametrize("layout", LAYOUTS)
def test_packed_layout(layout, fused, device):
    mode, freqs = MODES[0], angles(device)
    cu_seqlens, _, at = packed([4, 0, 3], None, (1, 0), freqs, torch.int64)
    four = LAYOUTS[layout]((7, 1, HEADS, CHANNELS), mode.dtype, device)
    check(four[:, 0], freqs, at, mode, fused, tensor_format="thd", cu_seqlens=cu_seqlens)


# Heads and channels of which a program rotates some tokens, and a single one.
MANY, ONE = (1, CHANNELS), (16, 32)
searched = pytest.mark.parametrize("sizes", [MANY, ONE], ids=["many_tokens_a_program", "one"])


@both_paths
@searched
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 31, 32, 33])
def test_every_number_of_sequences_is_searched(n, sizes, fused, device):
    check_packed([i % 3 for i in range(n - 1)] + [1], sizes, fused, device)


@both_paths
@pytest.mark.parametrize("n", [1024, 1025, 2401])
def test_search_takes_more_than_two_steps(n, fused, device):
    check_packed([i % 2 for i in range(n)], MANY, fused, device)


@both_paths
@searched
def test_empty_sequences_outnumber_a_step_of_the_search(sizes, fused, device):
    check_packed([0] * 40 + [2] + [0] * 100 + [1, 0, 3] + [0] * 40, sizes, fused, device)


def check_packed(lengths, sizes, fused, device):
    (heads, channels), mode = sizes, MODES[0]
    width = channels if sizes == ONE else channels - 8
    freqs = oracle.random_angles(TABLE, width, device)
    cu_seqlens, _, at = packed(lengths, None, (1, 0), freqs, torch.int32)
    t = oracle.contiguous((len(at), heads, channels), mode.dtype, device)
    tile = tiles.tile_of(t.nbytes, t.itemsize, heads, channels, width, packed=True)
    assert (tile.positions == 1) == (sizes == ONE)
    check(t, freqs, at, mode, fused, tensor_format="thd", cu_seqlens=cu_seqlens)


@both_paths
@pytest.mark.parametrize("cu_seqlens", [[0, 3, 5], [2, 5, 9], [5, 5], [0, 5, 3, 9]], ids=str)
def test_tokens_of_no_sequence_stay(cu_seqlens, fused, device):
    freqs, t = angles(device), torch.randn(9, HEADS, CHANNELS, device=device)
    bounds = torch.tensor(cu_seqlens, device=device)
    out = rope_triton.apply_rotary_pos_emb(t, freqs, "thd", cu_seqlens=bounds, fused=fused)
    outside = [i for i in range(9) if not cu_seqlens[0] <= i < cu_seqlens[-1]]
    torch.testing.assert_close(out[outside], t[outside], rtol=0, atol=0)
    inside = [i for i in range(9) if i not in outside]
    assert not inside or not torch.equal(out[inside], t[inside])


@both_paths
@index_dtypes
def test_positions_that_the_table_lacks_turn_nothing(index, fused, device):
    freqs, t = angles(device), torch.randn(4, 3, HEADS, CHANNELS, device=device)
    starts = torch.tensor([-2, TABLE - 2, torch.iinfo(index).max - 4], dtype=index, device=device)
    at = [oracle.angles_at(freqs, list(range(s, s + 4))) for s in starts.tolist()]
    mode = Mode(torch.float32, "sbhd", False, 1.0)
    check(t, freqs, torch.stack(at, 1), mode, fused, start_positions=starts)


SPECIAL = [math.inf, -0.0, math.nan, -math.inf, 1.5, -2.0, 0.0, 65504.0]


def by_angle_0(t, width, interleaved):
    x, rest = t[..., :width], t[..., width:]
    other = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2) if interleaved else x.roll(width // 2, -1)
    return torch.cat((x + 0 * other, rest), -1)


@pytest.mark.parametrize(
    ("case", "fused"),
    [
        *((case, True) for case in ("qkv", "qk")),
        *itertools.product(("starts", "packed", "ids", "offsets", "inplace"), (True, False)),
    ],
)
@pytest.mark.parametrize("mode", MODES[1:4], ids=str)
def test_tokens_without_a_position_are_rotated_by_the_angle_0(mode, case, fused, device):
    """Finite channels stay, and so does their gradient; 0 times an infinity is NaN."""
    width, special = mode.width(8), torch.tensor(SPECIAL, dtype=mode.dtype, device=device)
    freqs = torch.randn(3, 1, 1, width, device=device)
    tables = freqs[:, 0, 0, : width // 2].cos(), freqs[:, 0, 0, : width // 2].sin()
    starts = torch.tensor([-5, 3], device=device)
    options = dict(interleaved=mode.interleaved)
    shape = {"packed": (4, 3, 8), "ids": (2, 3, 2, 8), "qkv": (2, 2, 3, 24)}.get(case, (2, 2, 3, 8))
    t = special.repeat(math.prod(shape) // 8).view(shape)
    leaf = t.clone().requires_grad_()
    if case == "packed":
        bounds = torch.tensor([4, 4, 9], device=device)
        out = rope_triton.apply_rotary_pos_emb(
            leaf, freqs, "thd", cu_seqlens=bounds, fused=fused, **options
        )
    elif case == "ids":
        ids = torch.tensor([[-1, 3], [7, -9]], device=device)
        out = rope_triton.rotary_embedding(leaf, *tables, ids, fused=fused, **options)
    elif case in ("offsets", "inplace"):
        options |= dict(seqlen_offsets=starts, fused=fused, inplace=case == "inplace")
        out = rope_triton.apply_rotary_emb(leaf * 1, *tables, **options)
    elif case == "qkv":
        out = rope_triton.apply_fused_qkv_rotary_pos_emb(
            leaf, freqs, freqs, [8, 8, 8], "bshd", starts, **options
        )
        out = torch.cat(out, -1)
    elif case == "qk":
        q, k = leaf[:, :, :1], leaf[:, :, 1:]
        out = rope_triton.apply_qk_rotary_pos_emb(q, k, freqs, "bshd", starts, **options)
        out = torch.cat(out, 2)
    else:
        out = rope_triton.apply_rotary_pos_emb(leaf, freqs, "bshd", starts, fused=fused, **options)
    (grad,) = torch.autograd.grad(out, leaf, t)
    parts = [by_angle_0(part, width, mode.interleaved) for part in t.split(8, -1)]
    expected = torch.cat((*parts[:2], *t.split(8, -1)[2:]), -1)  # values are not rotated
    for found in (out, grad):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@both_paths
def test_strided_index_tensors(fused, device):
    mode, freqs = MODES[0], angles(device)
    cu_seqlens, starts, at = packed([4, 3], [1, 2], (1, 0), freqs, torch.int32)
    cu_seqlens, starts = (x.repeat_interleave(2)[::2] for x in (cu_seqlens, starts))
    t = oracle.contiguous((7, HEADS, CHANNELS), mode.dtype, device)
    options = dict(cu_seqlens=cu_seqlens, start_positions=starts)
    check(t, freqs, at, mode, fused, tensor_format="thd", **options)


@both_paths
@pytest.mark.parametrize("tensor_format", ["sbhd", "bshd"])
def test_bounds_say_nothing_new_where_all_are_of_one_length(tensor_format, fused, device):
    t, freqs = torch.randn(3, 3, HEADS, CHANNELS, device=device), angles(device)
    bounds = torch.tensor([0, 3, 6, 9], dtype=torch.int32, device=device)
    options = freqs, tensor_format, None, False, fused
    out = rope_triton.apply_rotary_pos_emb(t, *options, cu_seqlens=bounds)
    expected = rope_triton.apply_rotary_pos_emb(t, *options)
    torch.testing.assert_close(out, expected, rtol=0, atol=0)


@both_paths
def test_no_tokens(fused, device):
    t = torch.empty(0, HEADS, CHANNELS, device=device, requires_grad=True)
    for bounds in ([0], [0, 0]):
        cu_seqlens = torch.tensor(bounds, dtype=torch.int32, device=device)
        out = rope_triton.apply_rotary_pos_emb(
            t, angles(device), "thd", cu_seqlens=cu_seqlens, fused=fused
        )
        assert out.shape == torch.autograd.grad(out.sum(), t)[0].shape == t.shape


@both_paths
def test_double_backward(fused, device):
    freqs = angles(device)
    cu_seqlens, starts, at = packed([12, 12], [3, 1], (2, 1), freqs, torch.int32)
    options = dict(cu_seqlens=cu_seqlens, start_positions=starts, cp_size=2, cp_rank=1)
    t = torch.randn(len(at), HEADS, CHANNELS, device=device, requires_grad=True)
    u, v = oracle.random_like(t).requires_grad_(), oracle.random_like(t)
    out = rope_triton.apply_rotary_pos_emb(t, freqs, "thd", fused=fused, **options)
    (grad,) = torch.autograd.grad(out, t, u, create_graph=True)
    (grad_of_grad,) = torch.autograd.grad(grad, u, v)
    torch.testing.assert_close(grad_of_grad, oracle.rotate_by(v, at, False).float())


def test_a_grid_that_cuda_does_not_have_is_split(monkeypatch, device):
    """With 2 for CUDA's 65535: several launches, or both dimensions for packed tokens."""
    monkeypatch.setattr(plans, "_GRID_LIMIT", 2)
    freqs, starts = angles(device), torch.tensor([3, 1, 2], device=device)
    for mode in MODES:
        seq = 18 if mode.dtype == torch.float32 else 33  # three or five blocks, the last not full
        t = oracle.contiguous(mode.shape(seq, 3, HEADS, CHANNELS), mode.dtype, device)
        held = oracle.positions([seq] * 3, starts.tolist(), 1, 0)
        at = torch.stack([oracle.angles_at(freqs, each) for each in held])
        at = at.transpose(0, 1) if mode.tensor_format == "sbhd" else at
        check(t, freqs, at, mode, True, tensor_format=mode.tensor_format, start_positions=starts)
        oracle.check(t, freqs, mode, oracle.random_like(t))
    cu_seqlens, _, at = packed([12, 24], None, (1, 0), freqs, torch.int32)
    t = oracle.contiguous((36, HEADS, CHANNELS), torch.float16, device)
    check(t, freqs, at, MODES[2], True, tensor_format="thd", cu_seqlens=cu_seqlens)


CHECKED = """
import torch, rope_triton
device = "cuda" if torch.cuda.is_available() else "cpu"
freqs = torch.ones(8, 1, 1, 4, device=device)

def call(t, tensor_format, cu_seqlens=None, starts=None, **options):
    t = torch.ones(*t, 1, 4, device=device)
    given = [x and torch.tensor(x, device=device) for x in (starts, cu_seqlens)]
    options |= dict(start_positions=given[0], cu_seqlens=given[1], fused=False)
    try:
        rope_triton.apply_rotary_pos_emb(t, freqs, tensor_format, **options)
        print("passed")
    except ValueError as error:
        print(error)

call((8,), "thd", [0, 4, 8], [4, 1])
call((8, 2), "sbhd", None, [0, 0])
call((4,), "thd", [0, 4, 8], cp_size=2)
call((8,), "thd", [0, 4, 7])
call((8,), "thd", [1, 4, 8])
call((8,), "thd", [0, 9, 8])
call((4,), "thd", [0, 2, 8], cp_size=2)
call((8,), "thd", [0, 4, 8], [5, 1])
call((7, 2), "sbhd", None, [1, 2])
call((2, 7), "bshd", None, [-1, 0])
"""

ANSWERS = [
    *("passed", "passed", "passed"),
    "cu_seqlens must lead from 0 to t * cp_size = 8, got 0 to 7",
    "cu_seqlens must lead from 0 to t * cp_size = 8, got 1 to 8",
    "cu_seqlens must not decrease, got [0, 9, 8]",
    "every sequence must be cut into 2 * cp_size = 4 equal chunks, got lengths [2, 6]",
    "freqs covers 8 positions, a sequence ends at 9",
    "freqs covers 8 positions, a sequence ends at 9",
    "start_positions must not be negative, got [-1, 0]",
]


def test_values_are_looked_at_where_the_environment_asks_for_it():
    python = subprocess.run(
        [sys.executable, "-c", CHECKED],
        env=os.environ | {"ROPE_TRITON_CHECK": "1"},
        cwd=Path(rope_triton.__file__).parents[1],
        capture_output=True,
        text=True,
    )
    assert python.stdout.splitlines() == ANSWERS, python.stderr
