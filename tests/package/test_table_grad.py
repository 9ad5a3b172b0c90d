"""Gradients of angles and tables: against finite differences, and float64 through an oracle."""

import functools

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import rope_triton
from tests import oracle

SEQ, BATCH, HEADS, CHANNELS = 4, 2, 2, 8

rotations = pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])


def leaf(*shape, dtype=torch.float64, device="cpu"):
    return torch.randn(shape, dtype=dtype, device=device, requires_grad=True)


CALLS = {
    "angles": (
        rope_triton.apply_rotary_pos_emb,
        [(SEQ, BATCH, HEADS, CHANNELS), (SEQ, 1, 1, CHANNELS)],
    ),
    "angles_by_batch_and_head": (
        functools.partial(rope_triton.apply_rotary_pos_emb, tensor_format="bshd"),
        [(BATCH, SEQ, HEADS, CHANNELS), (SEQ + 1, BATCH, HEADS, 6)],
    ),
    "tables": (
        rope_triton.apply_rotary_emb,
        [(BATCH, SEQ, HEADS, CHANNELS), (SEQ, 3), (SEQ, 3)],
    ),
    "tables_of_attention": (
        rope_triton.rotary_embedding,
        [(BATCH, HEADS, SEQ, CHANNELS), (HEADS, SEQ, 4), (HEADS, SEQ, 4)],
    ),
}
calls = pytest.mark.parametrize(("call", "shapes"), CALLS.values(), ids=CALLS)


@calls
@rotations
def test_finite_differences(call, shapes, interleaved, device):
    """Of the plain path: of all inputs at once, of the gradient, and in forward mode."""
    inputs = [leaf(*shape, device=device) for shape in shapes]
    rotate = functools.partial(call, interleaved=interleaved, fused=False)
    assert torch.autograd.gradcheck(rotate, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(rotate, inputs)


@calls
@rotations
def test_fused(call, shapes, interleaved, device):
    """First and second derivatives, as the plain path gives them in float64.

    Also in a checkpoint that is not reentrant: it frees a saved tensor once that is read.
    """
    inputs = [leaf(*shape, dtype=torch.float32, device=device) for shape in shapes]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    weights = oracle.random_like(inputs[0])
    results = []
    for tensors, fused in ((inputs, True), (exact, False)):
        out = call(*tensors, interleaved=interleaved, fused=fused)
        loss = (out.sin() * weights).sum()
        first = torch.autograd.grad(loss, tensors, create_graph=True)
        second = torch.autograd.grad(sum(x.square().sum() for x in first), tensors)
        results.append([x.float() for x in (out, *first, *second)])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    out = checkpoint(call, *inputs, interleaved=interleaved, use_reentrant=False)
    gradients = torch.autograd.grad((out.sin() * weights).sum(), inputs)
    expected = tuple(results[1][1 : 1 + len(inputs)])
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-4)


def test_packed_and_moved(device):
    bounds = torch.tensor([0, 3, 3, 8], dtype=torch.int32, device=device)
    starts = torch.tensor([1, 0, 2], device=device)
    t = leaf(8, HEADS, CHANNELS, dtype=torch.float32, device=device)
    freqs = leaf(9, 1, 1, CHANNELS, dtype=torch.float32, device=device)
    rotate = functools.partial(
        rope_triton.apply_rotary_pos_emb,
        tensor_format="thd",
        start_positions=starts,
        cu_seqlens=bounds,
    )
    grads = [
        torch.autograd.grad(rotate(t, freqs, fused=fused).square().sin().sum(), (t, freqs))
        for fused in (True, False)
    ]
    torch.testing.assert_close(*grads)
    assert grads[0][1][0].eq(0).all() and grads[0][1][1:4].ne(0).any()


def test_only_the_tables(device):
    """What is rotated needs no gradient, and there is none to pay for without a graph."""
    t = torch.randn(SEQ, BATCH, HEADS, CHANNELS, device=device)
    freqs = torch.nn.Parameter(torch.randn(SEQ, 1, 1, CHANNELS, device=device))
    out = rope_triton.apply_rotary_pos_emb(t, freqs)
    (grad,) = torch.autograd.grad(out.square().sum(), freqs)
    plain = rope_triton.apply_rotary_pos_emb(t, freqs, fused=False)
    (expected,) = torch.autograd.grad(plain.square().sum(), freqs)
    torch.testing.assert_close(grad, expected)
    with torch.no_grad():
        assert not rope_triton.apply_rotary_pos_emb(t, freqs).requires_grad


def test_not_in_place_nor_compiled(device):
    x = torch.randn(BATCH, SEQ, HEADS, CHANNELS, device=device)
    cos, sin = (leaf(SEQ, 4, dtype=torch.float32, device=device) for _ in range(2))
    with pytest.raises(ValueError, match="in place, cos and sin cannot have a gradient"):
        rope_triton.apply_rotary_emb(x, cos, sin, inplace=True)
    with pytest.raises(NotImplementedError, match=r"not supported under torch\.compile"):
        torch.func.vmap(lambda x: rope_triton.apply_rotary_emb(x, cos, sin))(x[None])
