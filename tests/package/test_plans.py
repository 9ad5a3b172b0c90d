"""Which heads share a program, and grids that CUDA has."""

import pytest
import torch

import rope_triton
from rope_triton.kernel import launch, plans
from tests.oracle import LAYOUTS, MODES, Mode
from tests.package.positions import Call

FREQS, MOVED = torch.empty(9, 1, 1, 64), torch.zeros(8, dtype=torch.int32)


def shape(tensor_format, seq, batch, heads, channels=64):
    return Mode(torch.bfloat16, tensor_format, False, 1.0).shape(seq, batch, heads, channels)


def arguments_of(launch):
    """Those of its kernel that are no tensors, by name."""
    names = launch.kernel.arg_names[-len(launch.values) :]
    return dict(zip(names, launch.values, strict=True))


def planned(tensor_format, sizes, freqs=FREQS, starts=None, layout="contiguous"):
    """How many heads a call's launch has, and whether they come before the positions."""
    out = torch.empty(shape(tensor_format, *sizes))
    t = LAYOUTS[layout](out.shape, torch.bfloat16, "cpu")
    options = plans.Options(tensor_format, False, 1, 0)
    tensors = out, None, t, None, freqs, None, starts, None
    arguments = arguments_of(plans.rotation(*tensors, options))
    return arguments["n_heads"], bool(arguments["HEADS_FIRST"])


@pytest.mark.parametrize(
    ("tensor_format", "sizes", "layout", "expected"),
    [
        ("sbhd", (9, 8, 1), "contiguous", (8, False)),
        ("sbhd", (9, 8, 3), "contiguous", (24, False)),
        ("bshd", (9, 8, 1), "contiguous", (8, True)),
        ("bshd", (1, 8, 3), "contiguous", (24, False)),
        ("sbhd", (9, 8, 64), "contiguous", (64, False)),  # a program has enough of them
        ("sbhd", (9, 1, 1), "contiguous", (1, False)),
        ("bshd", (9, 8, 2), "contiguous", (2, False)),
        # No stride leads from one to the next.
        ("sbhd", (9, 8, 2), "sliced_amid_nan", (2, False)),
        ("bshd", (1, 8, 2), "sliced_amid_nan", (2, False)),
    ],
)
def test_few_heads_share_programs_with_those_of_other_sequences(
    tensor_format, sizes, layout, expected
):
    assert planned(tensor_format, sizes, layout=layout) == expected
    # Unless angles or positions differ between them.
    of_batch, of_heads = FREQS.expand(9, sizes[1], 1, 64), FREQS.expand(9, 1, sizes[2], 64)
    alone = sizes[2], False
    assert planned(tensor_format, sizes, of_batch, layout=layout) == alone or sizes[1] == 1
    assert planned(tensor_format, sizes, of_heads, layout=layout) == alone or sizes[2] == 1
    assert planned(tensor_format, sizes, FREQS, MOVED, layout) == alone


def test_queries_and_keys_share_programs_with_those_of_other_sequences():
    """Where the heads of outputs are then contiguous."""

    def heads(tensor_format, n_heads, starts=None, freqs=FREQS):
        q = torch.empty(shape(tensor_format, 9, 8, n_heads))
        k = torch.empty_like(q)[:, :, :1]
        options = plans.Options(tensor_format, False, 1, 0)
        plan = plans.rotation(q, k, q, k.contiguous(), freqs, None, starts, None, options)
        arguments = arguments_of(plan)
        return arguments["n_heads"], arguments["k_heads"], plan.grid[1]

    assert heads("sbhd", 2) == (16, 8, 1)
    assert heads("bshd", 1)[:2] == (1, 1)
    assert heads("sbhd", 64) == (64, 1, 8)  # a program has enough of them
    assert heads("sbhd", 2, MOVED) == heads("sbhd", 2, freqs=FREQS.expand(9, 8, 1, 64)) == (2, 1, 8)


def test_groups_share_programs_with_those_of_other_sequences():
    def groups(tensor_format, n_groups, starts=None):
        qkv = torch.empty(shape(tensor_format, 9, 8, n_groups, 384))
        parts = [qkv.new_empty(*qkv.shape[:2], n_groups * n, 64) for n in (4, 1, 1)]
        options = plans.QkvOptions(tensor_format, False, 1, 0, 256, 64, 64)
        plan = plans.qkv_rotation(qkv, *parts, FREQS, FREQS, starts, options)
        return arguments_of(plan)["n_groups"], plan.grid[1]

    assert groups("sbhd", 1) == (8, 1)
    assert groups("bshd", 1)[0] == groups("sbhd", 1, MOVED)[0] == 1
    assert groups("sbhd", 16) == (16, 8)  # a program has enough of them


@pytest.mark.parametrize(
    ("tensor_format", "shape"),
    [
        *(("sbhd", (1 << 20, 2, 8, 64)), ("sbhd", (3, 1 << 20, 32, 64))),
        *(("bshd", (2, 1 << 20, 8, 64)), ("bshd", (1 << 20, 3, 32, 64))),
        *(("bhsd", (2, 1 << 20, 3, 64)), ("bhsd", (1 << 20, 2, 3, 64)), ("thd", (1 << 20, 8, 64))),
    ],
)
def test_only_the_first_dimension_of_a_grid_has_no_limit(tensor_format, shape):
    t = torch.empty(shape, dtype=torch.bfloat16, device="meta")
    freqs, bounds = t.new_empty(1 << 20, 1, 1, 32), t.new_empty(3) if t.dim() == 3 else None
    options = plans.Options(tensor_format, False, 1, 0)
    grid = plans.rotation(t, None, t, None, freqs, freqs, None, bounds, options).grid
    assert grid[0] > 65_535 >= max(grid[1:])


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
    x, angles = torch.randn(2, 3, 5, 8, device=device), torch.rand(5, 4, device=device)
    results = [
        rope_triton.rotary_embedding(x, angles.cos(), angles.sin(), fused=fused)
        for fused in (True, False)
    ]
    torch.testing.assert_close(*results)
    launch.cache.clear()
