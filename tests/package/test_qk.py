"""Queries and keys in one launch: the same as one by one, with any number of heads each.

To a rounding in float32: a compiler may take another one of two products into the sum unrounded.
"""

import functools

import pytest
import torch

import rope_triton
from tests import covering, oracle
from tests.oracle import LAYOUTS, MODES

SEQ, BATCH, CHANNELS = 4, 2, 24
BY_ANGLES = rope_triton.apply_qk_rotary_pos_emb, rope_triton.apply_rotary_pos_emb
BY_TABLES = rope_triton.apply_qk_rotary_emb, rope_triton.apply_rotary_emb


def check(q, k, functions, **options):
    """The function for both against that for one: forward, backward and backward again."""
    both, one = (functools.partial(function, **options) for function in functions)
    leaves = [x.detach().requires_grad_() for x in (q, k)]
    together, one_by_one = both(*leaves), [one(x) for x in leaves]
    grads = [oracle.random_like(x) for x in together]
    results = []
    for outputs in (together, one_by_one):
        first = torch.autograd.grad(outputs, leaves, grads, create_graph=True)
        losses = [x.sin().sum() for x in outputs]
        results.append((*outputs, *first, *torch.autograd.grad(losses, leaves)))
    torch.testing.assert_close(*results)
    assert all(x.is_contiguous() for x in results[0])


OPTIONS = {
    "none": dict(),
    "moved": dict(start_positions=[2, 0]),
    "parallel": dict(cp_size=2, cp_rank=1),
    "each": dict(rounding="each"),
    "plain": dict(fused=False),
    "by_batch": dict(batch=BATCH),
}


@covering.pairs(
    {
        "mode": MODES,
        "heads": [(4, 4), (6, 2), (5, 1), (1, 1), (1, 3), (0, 3), (3, 0), (0, 0)],
        "layout": ["contiguous", "transposed_0_1", "packed_amid_nan"],
        "options": list(OPTIONS),
    }
)
def test_angles(case, device):
    mode, options = case["mode"], dict(OPTIONS[case["options"]])
    q, k = (
        LAYOUTS[case["layout"]](mode.shape(SEQ, BATCH, n, CHANNELS), mode.dtype, device)
        for n in case["heads"]
    )
    shape = 2 * SEQ + 1, options.pop("batch", 1), 1, mode.width(CHANNELS)
    options["freqs"] = (torch.rand(shape, device=device) - 0.5) * 50
    if "start_positions" in options:
        options["start_positions"] = torch.tensor(options["start_positions"], device=device)
    options |= dict(tensor_format=mode.tensor_format, interleaved=mode.interleaved)
    check(q, k, BY_ANGLES, **options)


@pytest.mark.parametrize("heads", [(6, 2), (0, 3), (3, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("packed", [False, True], ids=["bshd", "thd"])
def test_tables(packed, heads, device):
    angles = (torch.rand(12, 12, device=device) - 0.5) * 50
    shape = (9,) if packed else (BATCH, SEQ)
    q, k = (oracle.contiguous((*shape, n, CHANNELS), torch.float32, device) for n in heads)
    options = dict(cos=angles.cos(), sin=angles.sin(), seqlen_offsets=3)
    if packed:
        options["cu_seqlens"] = torch.tensor([0, 4, 9], dtype=torch.int32, device=device)
    check(q, k, BY_TABLES, **options)
