"""Packed sequences, first positions and context parallelism: which angles a token gets.

Everything runs on both paths: the kernel, in the interpreter where there is no GPU, and plain
PyTorch. What is expected comes from lists of positions, made token by token.
"""

import functools
import itertools
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import rope_triton
from rope_triton import checks
from rope_triton.kernel import tiles
from tests import covering, oracle
from tests.oracle import MODES
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
    "layout": ["contiguous", "transposed_0_1", "sliced_amid_nan", "expanded_all"],
    "size": [(3, 24, 16), (1, 8, 8), (2, 7, 2)],  # heads, channels, rotated channels
}


def possible(case):
    return case["tensor_format"] == "thd" or case["sequences"] in ("one", "equal")


@covering.parametrize(covering.spanning(MATRIX, 3, possible))
def test_positions(case, device):
    options = dict(case)
    units, moved = UNITS[options.pop("sequences")], options.pop("moved")
    heads, channels, width = options.pop("size")
    # Also before the table and behind it.
    starts = [(5 + 4 * i) % 7 - 2 for i in range(len(units))] if moved else None
    lengths = [unit * 2 * case["rank"][0] for unit in units]
    Call(lengths, starts, **options, heads=heads, channels=channels, width=width).check(device)


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
    tile = tiles.tile_of(4, sum(lengths) == 1, heads, channels, width, shifted=True, busy=False)
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


def calls_without_positions(freqs, **options):
    """By name, calls on ``[2, 2, 3, 8]`` whose tokens are before or behind the table, or packed."""
    tables = (
        freqs[:, 0, 0, : freqs.shape[-1] // 2].cos(),
        freqs[:, 0, 0, : freqs.shape[-1] // 2].sin(),
    )
    starts, ids, bounds = (
        torch.tensor(x, device=freqs.device) for x in ([-5, 3], [[-1, 3, 9], [7, -9, 4]], [4, 4, 9])
    )
    angles, offsets = rope_triton.apply_rotary_pos_emb, options | {"seqlen_offsets": starts}
    return {
        "starts": lambda x: angles(x, freqs, "bshd", starts, **options),
        "packed": lambda x: angles(x.flatten(0, 1), freqs, "thd", cu_seqlens=bounds, **options),
        "ids": lambda x: rope_triton.rotary_embedding(x, *tables, ids, **options),
        "offsets": lambda x: rope_triton.apply_rotary_emb(x, *tables, **offsets),
        "inplace": lambda x: rope_triton.apply_rotary_emb(x * 1, *tables, inplace=True, **offsets),
        "qk": lambda x: rope_triton.apply_qk_rotary_pos_emb(
            x[:, :, :1], x[:, :, 1:], freqs, "bshd", starts, **options
        ),
    }


@both_paths
@pytest.mark.parametrize("name", calls_without_positions(torch.ones(3, 1, 1, 8)))
@pytest.mark.parametrize("mode", MODES[1:4], ids=str)
def test_tokens_without_a_position_are_rotated_by_the_angle_0(mode, name, fused, device):
    """Finite channels stay, and so does their gradient; 0 times an infinity is NaN."""
    special = [math.inf, -0.0, math.nan, -math.inf, 1.5, -2.0, 0.0, 65504.0]
    t = torch.tensor(special, dtype=mode.dtype, device=device).repeat(2, 2, 3, 1)
    width, interleaved = mode.width(8), mode.interleaved
    x = t[..., :width]
    pair = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2) if interleaved else x.roll(width // 2, -1)
    expected = torch.cat((x + 0 * pair, t[..., width:]), -1)
    freqs = torch.randn(3, 1, 1, width, device=device)
    calls, leaf = calls_without_positions(freqs, fused=fused, interleaved=interleaved), t.clone()
    out = calls[name](leaf.requires_grad_())
    out = torch.cat(out, 2) if isinstance(out, tuple) else out.view(t.shape)
    for result in (out, torch.autograd.grad(out, leaf, t)[0]):
        torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


def test_packed_queries_and_keys_without_a_position(device):
    t = torch.randn(2, 2, 3, 24, device=device, requires_grad=True)
    freqs, starts = torch.randn(3, 1, 1, 8, device=device), torch.tensor([-5, 3], device=device)
    parts = rope_triton.apply_fused_qkv_rotary_pos_emb(t, freqs, freqs, [8] * 3, "bshd", starts)
    gradient = torch.autograd.grad(parts, t, [part.detach() for part in parts])[0]
    for result in (torch.cat(parts, -1), gradient):
        torch.testing.assert_close(result, t, rtol=0, atol=0)


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


# Shape, format and options of a call, and what it says in a process that checks values.
CHECKED = {
    '(8,), "thd", cu_seqlens=[0, 4, 8], start_positions=[4, 1]': "passed",
    '(8, 2), "sbhd", start_positions=[0, 0]': "passed",
    '(4,), "thd", cu_seqlens=[0, 4, 8], cp_size=2': "passed",
    '(8,), "thd", cu_seqlens=[0, 4, 7]': "cu_seqlens must lead from 0 to .* = 8, got 0 to 7",
    '(8,), "thd", cu_seqlens=[1, 4, 8]': "cu_seqlens must lead from 0 to .* = 8, got 1 to 8",
    '(8,), "thd", cu_seqlens=[0, 9, 8]': r"cu_seqlens must not decrease, got \[0, 9, 8\]",
    '(4,), "thd", cu_seqlens=[0, 2, 8], cp_size=2': r"every .* into 2 \* cp_size = 4 .*\[2, 6\]",
    '(8,), "thd", cu_seqlens=[0, 4, 8], start_positions=[5, 1]': "8 positions, .* ends at 9",
    '(7, 2), "sbhd", start_positions=[1, 2]': "freqs covers 8 positions, a sequence ends at 9",
    '(2, 7), "bshd", start_positions=[-1, 0]': r"start_positions must not be .*\[-1, 0\]",
}
PROCESS = """
import torch, rope_triton
torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")

def call(shape, tensor_format, **options):
    options = {k: torch.tensor(x) if isinstance(x, list) else x for k, x in options.items()}
    t, freqs = torch.ones(*shape, 1, 4), torch.ones(8, 1, 1, 4)
    try:
        rope_triton.apply_rotary_pos_emb(t, freqs, tensor_format, fused=False, **options)
        print("passed")
    except ValueError as error:
        print(error)
"""


def test_values_are_looked_at_where_the_environment_asks_for_it():
    calls = "\n".join(f"call({arguments})" for arguments in CHECKED)
    python = subprocess.run(
        [sys.executable, "-c", f"{PROCESS}\n{calls}"],
        env=os.environ | {"ROPE_TRITON_CHECK": "1"},
        cwd=Path(rope_triton.__file__).parents[1],
        capture_output=True,
        text=True,
    )
    for line, expected in zip(python.stdout.splitlines(), CHECKED.values(), strict=True):
        assert re.search(expected, line), python.stderr


def exported(call, *inputs):
    module = torch.nn.Module()
    module.forward = call
    return torch.export.export(module, inputs).module()


def fake(call, *inputs):
    with FakeTensorMode() as mode:
        assert call(*map(mode.from_tensor, inputs)).shape == inputs[0].shape
    return call


compiled = functools.partial(torch.compile, fullgraph=True, backend="aot_eager")
TRACED = {
    "compile": lambda call, *_: compiled(call),
    "dynamic": lambda call, *_: compiled(call, dynamic=True),
    "export": exported,
    "make_fx": lambda call, *inputs: make_fx(call)(*inputs),
    "pre_dispatch": lambda call, *inputs: make_fx(call, pre_dispatch=True)(*inputs),
    "fake": fake,
}


@both_paths
@pytest.mark.parametrize("traced", TRACED.values(), ids=TRACED)
def test_values_are_looked_at_when_a_traced_call_runs(traced, fused, device, monkeypatch):
    """By the operator, which the trace holds; plain PyTorch does not look at them."""
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
