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
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import rope_triton
from rope_triton import checks
from rope_triton.kernel import launch, plans, tiles
from tests import covering, oracle
from tests.oracle import LAYOUTS, MODES
from tests.package.positions import TABLE, Call

HEADS, CHANNELS = 3, 24

both_paths = pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])

# Lengths in units of 2 cp_size. Empty sequences, also side by side, first and last, have no token
# to be found. Padded ones are of one length.
UNITS = {
    **{"one": [2], "equal": [1, 1, 1]},
    **{"some": [1, 3, 2], "empty": [0, 1, 0, 0, 2, 0], "many": [1, 2] * 4},
}
MATRIX = {
    "fused": [True, False],
    "dtype": [torch.float32, torch.float16, torch.bfloat16],
    "interleaved": [False, True],
    "tensor_format": ["sbhd", "bshd", "thd"],
    "index": [torch.int32, torch.int64],
    "index_stride": [1, 2],
    "rank": [(1, 0), (2, 0), (2, 1), (3, 1)],
    "sequences": list(UNITS),
    "moved": [False, True],
}


def possible(case):
    return case["tensor_format"] == "thd" or case["sequences"] in ("one", "equal")


@covering.parametrize(covering.spanning(MATRIX, 3, possible))
def test_positions(case, device):
    options = dict(case)
    units, moved = UNITS[options.pop("sequences")], options.pop("moved")
    starts = [(5 + 4 * i) % 7 for i in range(len(units))] if moved else None
    Call([unit * 2 * case["rank"][0] for unit in units], starts, **options).check(device)


@both_paths
@pytest.mark.parametrize("layout", LAYOUTS)
def test_packed_layout(layout, fused, device):
    Call([4, 0, 3], layout=layout, fused=fused).check(device)


@covering.triples(
    {name: MATRIX[name] for name in ("fused", "dtype", "interleaved", "moved")}
    | {"tensor_format": ["sbhd", "bshd"], "own": ["batch", "heads", "both"]}
)
def test_angles_of_their_own(case, device):
    seq, batch, own = 4, 2, case["own"]
    shape = TABLE, batch if own != "heads" else 1, HEADS if own != "batch" else 1, CHANNELS - 8
    freqs = (torch.rand(shape, device=device) - 0.5) * 50
    starts = [3, 1] if case["moved"] else None
    rows = [freqs[i : i + seq, b % shape[1]] for b, i in enumerate(starts or [0, 0])]
    at = torch.stack(rows, 1 if case["tensor_format"] == "sbhd" else 0)
    call = Call(
        [seq] * batch, starts, *(case[n] for n in ("tensor_format", "dtype", "interleaved"))
    )
    call = call._replace(fused=case["fused"])
    oracle.compare(
        call.tensor(device),
        lambda t: call.rotate(t, freqs),
        lambda t: oracle.rotate_by(t, at, call.interleaved),
    )


# Heads and channels with which a program rotates some tokens, and a single one.
MANY, ONE = (1, CHANNELS), (16, 32)
SEARCHED = [[i % 3 for i in range(n - 1)] + [1] for n in (1, 2, 3, 4, 5, 31, 32, 33)]
# Empty sequences outnumber a step of the search, and more than two steps are needed.
SEARCHED += [[0] * 40 + [2] + [0] * 100 + [1, 0, 3] + [0] * 40]
LONG = [[i % 2 for i in range(n)] for n in (1024, 1025, 2401)]


@both_paths
@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [*itertools.product(SEARCHED, (MANY, ONE)), *((lengths, MANY) for lengths in LONG)],
    ids=lambda value: str(len(value) if isinstance(value, list) else value),
)
def test_search_for_a_tokens_sequence(lengths, sizes, fused, device):
    heads, channels = sizes
    width = channels if sizes == ONE else channels - 8
    call = Call(lengths, fused=fused, heads=heads, channels=channels, width=width)
    tile = tiles.tile_of(4, sum(lengths), heads, channels, width, moved=True, n_bytes=1)
    assert (tile.positions == 1) == (sizes == ONE or sum(lengths) == 1)
    call.check(device)


@both_paths
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("cu_seqlens", [[0, 3, 5], [2, 5, 9], [5, 5], [0, 5, 3, 9]], ids=str)
def test_tokens_of_no_sequence_stay(cu_seqlens, moved, fused, device):
    t = torch.randn(9, HEADS, CHANNELS, device=device)
    options = dict(cu_seqlens=torch.tensor(cu_seqlens, device=device), fused=fused)
    if moved:  # before the first sequence, a start brings the tokens into the table
        options["start_positions"] = torch.full((len(cu_seqlens) - 1,), 7, device=device)
    freqs = oracle.random_angles(TABLE, CHANNELS, device)
    out = rope_triton.apply_rotary_pos_emb(t, freqs, "thd", **options)
    outside = [i for i in range(9) if not cu_seqlens[0] <= i < cu_seqlens[-1]]
    torch.testing.assert_close(out[outside], t[outside], rtol=0, atol=0)
    inside = [i for i in range(9) if i not in outside]
    assert not inside or not torch.equal(out[inside], t[inside])


@both_paths
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_positions_that_the_table_lacks_turn_nothing(index, fused, device):
    starts = [-2, TABLE - 2, torch.iinfo(index).max - 4]
    Call([4] * 3, starts, "sbhd", fused=fused, index=index).check(device)


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
@pytest.mark.parametrize("tensor_format", ["sbhd", "bshd"])
def test_bounds_say_nothing_new_where_all_are_of_one_length(tensor_format, fused, device):
    call = Call([3, 3, 3], tensor_format=tensor_format, fused=fused)
    t, freqs = call.tensor(device), call.angles(device)
    bounds = torch.tensor([0, 3, 6, 9], dtype=torch.int32, device=device)
    options = dict(tensor_format=tensor_format, cu_seqlens=bounds, fused=fused)
    out = rope_triton.apply_rotary_pos_emb(t, freqs, **options)
    torch.testing.assert_close(out, call.rotate(t, freqs), rtol=0, atol=0)


@both_paths
@pytest.mark.parametrize("lengths", [[], [0]], ids=str)
def test_no_tokens(lengths, fused, device):
    Call(lengths, fused=fused).check(device)


@both_paths
def test_double_backward(fused, device):
    call = Call([12, 12], [3, 1], rank=(2, 1), fused=fused)
    t, freqs = call.tensor(device).requires_grad_(), call.angles(device)
    u, v = oracle.random_like(t).requires_grad_(), oracle.random_like(t)
    (grad,) = torch.autograd.grad(call.rotate(t, freqs), t, u, create_graph=True)
    (grad_of_grad,) = torch.autograd.grad(grad, u, v)
    torch.testing.assert_close(grad_of_grad, call.exact(v, freqs).float())


def test_a_grid_that_cuda_does_not_have(monkeypatch, device):
    """With 2 for CUDA's 65535."""
    launch.cache.clear()
    monkeypatch.setattr(plans, "GRID_LIMIT", 2)
    for dtype, tensor_format, interleaved, _ in MODES:
        seq = 18 if dtype == torch.float32 else 33  # three or five blocks, the last not full
        for starts in ([3, 1, 2], None):
            Call([seq] * 3, starts, tensor_format, dtype, interleaved).check(device)
    for tokens in range(18, 40, 4):
        Call([tokens, 0], None, "thd", torch.float16, True).check(device)
    t, freqs = torch.randn(2, 3, 5, 8, device=device), torch.rand(5, 4, device=device)
    call = rope_triton.rotary_embedding
    found, expected = (call(t, freqs, freqs.cos(), fused=fused) for fused in (True, False))
    torch.testing.assert_close(found, expected)
    launch.cache.clear()


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


def fake(call, *given):
    with FakeTensorMode() as mode:
        assert call(*map(mode.from_tensor, given)).shape == given[0].shape
    return call


class Model(torch.nn.Module):
    def __init__(self, call):
        super().__init__()
        self.forward = call


TRACED = {
    "compile": lambda call, *_: torch.compile(call, fullgraph=True, backend="aot_eager"),
    "dynamic": lambda call, *_: torch.compile(
        call, fullgraph=True, backend="aot_eager", dynamic=True
    ),
    "export": lambda call, *given: torch.export.export(Model(call), given).module(),
    "make_fx": lambda call, *given: make_fx(call)(*given),
    "pre_dispatch": lambda call, *given: make_fx(call, pre_dispatch=True)(*given),
    "fake": fake,
}


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("traced", TRACED.values(), ids=TRACED)
def test_values_are_looked_at_when_a_traced_call_runs(traced, fused, device, monkeypatch):
    """By the operator; plain PyTorch does not look at them."""
    monkeypatch.setattr(checks, "CHECK_VALUES", True)

    def call(t, freqs, starts, bounds):
        options = {"start_positions": starts, "cu_seqlens": bounds, "fused": fused}
        return rope_triton.apply_rotary_pos_emb(t, freqs, "thd", **options)

    torch.compiler.reset()
    t, freqs = torch.randn(8, 2, 4, device=device), torch.ones(9, 1, 1, 4, device=device)
    starts, bounds = (torch.tensor(x, device=device) for x in ([4, 1], [0, 3, 8]))
    f = traced(call, t, freqs, starts, bounds)
    torch.testing.assert_close(f(t, freqs, starts, bounds), call(t, freqs, starts, bounds))
    if fused:
        with pytest.raises(ValueError, match="start_positions must not be negative"):
            f(t, freqs, -starts, bounds)
