"""Queries, keys and values packed: against the single calls, which have their own oracle."""

import pytest
import torch

import rope_triton
from rope_triton.kernel import plans
from tests import covering, oracle
from tests.oracle import LAYOUTS, MODES, Mode

SEQ, BATCH, GROUPS, WIDTH, TABLE = 2, 2, 2, 24, 40
SPLITS = {"mha": (1, 1, 1), "gqa": (4, 1, 1), "odd": (3, 2, 1)}

MODE = {
    "dtype": [torch.float32, torch.float16, torch.bfloat16],
    "tensor_format": ["sbhd", "bshd"],
    "interleaved": [False, True],
    "rotary_percent": [1.0, 0.5],
}


def inputs(mode, counts, device, layout="contiguous"):
    shape = mode.shape(SEQ, BATCH, GROUPS, sum(counts) * WIDTH)
    qkv = LAYOUTS[layout](shape, mode.dtype, device)
    q_freqs, k_freqs = (oracle.random_angles(TABLE, mode.width(WIDTH), device) for _ in range(2))
    return qkv, q_freqs, k_freqs


def fused(qkv, q_freqs, k_freqs, counts, mode, **options):
    return rope_triton.apply_fused_qkv_rotary_pos_emb(
        *(qkv, q_freqs, k_freqs, [count * WIDTH for count in counts], mode.tensor_format),
        interleaved=mode.interleaved,
        **options,
    )


def single(qkv, q_freqs, k_freqs, counts, mode, **options):
    """The same by slices and plain PyTorch."""
    groups = qkv.unflatten(-1, (-1, WIDTH))
    parts = [part.flatten(2, 3) for part in groups.split(counts, dim=3)]
    options |= dict(interleaved=mode.interleaved, fused=False)
    q, k = (
        rope_triton.apply_rotary_pos_emb(part, freqs, mode.tensor_format, **options)
        for part, freqs in zip(parts, (q_freqs, k_freqs), strict=False)
    )
    return q, k, parts[2].contiguous()


def check(qkv, q_freqs, k_freqs, counts, mode, gradient=oracle.random_like, **options):
    leaf, other = qkv.detach().requires_grad_(), qkv.detach().clone().requires_grad_()
    parts = fused(leaf, q_freqs, k_freqs, counts, mode, **options)
    expected = single(other, q_freqs, k_freqs, counts, mode, **options)
    grads = [gradient(part) for part in parts]
    torch.testing.assert_close(parts, expected)
    (grad,) = torch.autograd.grad(parts, leaf, grads)
    torch.testing.assert_close(grad, torch.autograd.grad(expected, other, grads)[0])
    assert all(part.is_contiguous() for part in parts) and grad.is_contiguous()


GRADIENTS = {
    "contiguous": oracle.random_like,
    "expanded": lambda part: torch.ones_like(part[:1, :1, :1, :1]).expand_as(part),
    "transposed": lambda part: oracle.random_like(part.mT).mT,
}


@covering.pairs(
    {"mode": MODES, "counts": list(SPLITS), "layout": list(LAYOUTS), "gradient": list(GRADIENTS)}
)
def test_layouts(case, device):
    mode, counts = case["mode"], SPLITS[case["counts"]]
    check(*inputs(mode, counts, device, case["layout"]), counts, mode, GRADIENTS[case["gradient"]])


@covering.triples(MODE | {"rank": [(1, 0), (2, 0), (2, 1)], "moved": [False, True]})
def test_positions(case, device):
    rank, counts = case["rank"], SPLITS["gqa"]
    mode = Mode(*(case[name] for name in Mode._fields))
    starts = torch.tensor([5, 9], device=device) if case["moved"] else None
    options = dict(start_positions=starts, cp_size=rank[0], cp_rank=rank[1])
    check(*inputs(mode, counts, device), counts, mode, **options)


def test_a_part_without_a_gradient_gets_none(device):
    mode, counts = MODES[0], SPLITS["gqa"]
    qkv, q_freqs, k_freqs = inputs(mode, counts, device)
    qkv.requires_grad_()
    q, _, _ = fused(qkv, q_freqs, k_freqs, counts, mode)
    (grad,) = torch.autograd.grad(q.sum(), qkv)
    others = grad[..., counts[0] * WIDTH :]
    assert not others.any() and grad.any()


def test_double_backward(device):
    mode, counts = MODES[0], SPLITS["odd"]
    qkv, q_freqs, k_freqs = inputs(mode, counts, device)
    qkv.requires_grad_()
    parts = fused(qkv, q_freqs, k_freqs, counts, mode)
    grads = [oracle.random_like(part).requires_grad_() for part in parts]
    (grad,) = torch.autograd.grad(parts, qkv, grads, create_graph=True)
    v = oracle.random_like(grad)
    result = torch.autograd.grad(grad, grads, v)
    torch.testing.assert_close(result, single(v, q_freqs, k_freqs, counts, mode))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_empty(dim, device):
    mode, counts = MODES[0], SPLITS["gqa"]
    qkv, q_freqs, k_freqs = inputs(mode, counts, device)
    qkv = qkv.narrow(dim, 0, 0).requires_grad_()
    parts = fused(qkv, q_freqs, k_freqs, counts, mode)
    assert [part.shape[2] for part in parts] == [qkv.shape[2] * count for count in counts]
    (grad,) = torch.autograd.grad(sum(part.sum() for part in parts), qkv)
    assert grad.shape == qkv.shape


def test_a_grid_that_cuda_does_not_have(monkeypatch, device):
    monkeypatch.setattr(plans, "GRID_LIMIT", 2)
    for mode in MODES[:2]:
        counts = SPLITS["gqa"]
        starts = torch.tensor([5, 9], device=device)
        q_freqs, k_freqs = inputs(mode, counts, device)[1:]
        shape = mode.shape(20, BATCH, GROUPS, sum(counts) * WIDTH)
        qkv = oracle.contiguous(shape, mode.dtype, device)
        check(qkv, q_freqs, k_freqs, counts, mode, start_positions=starts)
