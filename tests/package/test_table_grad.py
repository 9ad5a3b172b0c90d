"""Gradients of angles and tables: against finite differences, and the plain path in float64."""

import functools

import pytest
import torch
from torch.autograd import forward_ad
from torch.autograd.forward_ad import make_dual
from torch.utils.checkpoint import checkpoint

import rope_triton

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
    "queries_and_keys": (
        lambda *args, **options: torch.cat(
            rope_triton.apply_qk_rotary_pos_emb(*args, **options), 2
        ),
        [(SEQ, BATCH, 3, CHANNELS), (SEQ, BATCH, 1, CHANNELS), (SEQ, 1, 1, CHANNELS)],
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
    results = []
    for tensors, fused in ((inputs, True), (exact, False)):
        out = call(*tensors, interleaved=interleaved, fused=fused)
        weights = torch.linspace(-1, 1, out.numel(), device=device).view_as(out)
        loss = (out.sin() * weights).sum()
        first = torch.autograd.grad(loss, tensors, create_graph=True)
        second = torch.autograd.grad(sum(x.square().sum() for x in first), tensors)
        results.append([x.float() for x in (out, *first, *second)])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    out = checkpoint(call, *inputs, interleaved=interleaved, use_reentrant=False)
    gradients = torch.autograd.grad((out.sin() * weights).sum(), inputs)
    expected = tuple(results[1][1 : 1 + len(inputs)])
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-4)


@calls
@pytest.mark.parametrize("only_tables", [False, True], ids=["all", "only_tables"])
def test_tangents(call, shapes, only_tables, device):
    inputs = [torch.randn(shape, device=device) for shape in shapes]
    with forward_ad.dual_level():
        duals = [make_dual(x, torch.randn_like(x)) for x in inputs]
        if only_tables:
            duals[0] = inputs[0]
        result, expected = (
            forward_ad.unpack_dual(call(*duals, fused=fused)) for fused in (True, False)
        )
    torch.testing.assert_close(result, expected)
    assert result.tangent.any()


@calls
def test_tangents_beside_a_gradient_are_refused(call, shapes, device):
    x, *tables = (torch.randn(shape, device=device) for shape in shapes)
    with forward_ad.dual_level():
        duals = [make_dual(table, table) for table in tables]
        learned = [table.clone().requires_grad_() for table in tables]
        for inputs in ((x.clone().requires_grad_(), *duals), (make_dual(x, x), *learned)):
            with pytest.raises(NotImplementedError, match="together with a gradient"):
                call(*inputs)


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


def test_not_by_transforms(device):
    x = torch.randn(BATCH, SEQ, HEADS, CHANNELS, device=device)
    cos, sin = (leaf(SEQ, 4, dtype=torch.float32, device=device) for _ in range(2))
    with pytest.raises(NotImplementedError, match=r"not supported under torch\.compile"):
        torch.func.vmap(lambda x: rope_triton.apply_rotary_emb(x, cos, sin))(x[None])
