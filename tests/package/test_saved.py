"""What is saved for the backward may come back with other strides, as from the host's memory."""

import functools
import itertools

import pytest
import torch

import rope_triton
from tests import oracle

BATCH, SEQ, HEADS, CHANNELS = 2, 4, 3, 16


@functools.cache
def angles(device):
    """By strides of their own, which no copy of them has."""
    return oracle.random_angles(SEQ, 2 * CHANNELS, device)[..., ::2]


def tables(device):
    return (table(angles(device)[:, 0, 0, : CHANNELS // 2]) for table in (torch.cos, torch.sin))


def starts(device):
    return torch.zeros(2 * BATCH, dtype=torch.int32, device=device)[::2]


def by_angles(x):
    return rope_triton.apply_rotary_pos_emb(x, angles(x.device), "bshd", starts(x.device))


def by_tables(x):
    return rope_triton.apply_rotary_emb(x, *tables(x.device))


def in_place(x):
    return rope_triton.apply_rotary_emb(x.clone(), *tables(x.device), inplace=True)


def both_by_tables(x):
    return torch.cat(rope_triton.apply_qk_rotary_emb(x, x * 2, *tables(x.device)))


def joined(x):
    whole, freqs = torch.cat([x] * 3, dim=-1), angles(x.device)
    call = rope_triton.apply_fused_qkv_rotary_pos_emb
    return torch.cat(call(whole, freqs, freqs, [CHANNELS] * 3, "bshd", starts(x.device)))


CALLS = [by_angles, by_tables, in_place, both_by_tables, joined]


def gradients(call, x):
    """Of the output in ``x``, and again so that it has gradients itself, and those."""
    output = call(x)
    cotangent = torch.linspace(-1, 1, output.numel(), device=x.device).view_as(output)
    cotangent.requires_grad_()
    (alone,) = torch.autograd.grad(output, x, cotangent, retain_graph=True)
    (first,) = torch.autograd.grad(output, x, cotangent, create_graph=True)
    return alone, first, *torch.autograd.grad(first, cotangent, x)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_gradients_are_the_same(device, call):
    x = oracle.contiguous((BATCH, SEQ, HEADS, CHANNELS), torch.float32, device).requires_grad_()
    expected = gradients(call, x)
    turn = itertools.count()

    def back(saved):
        """Contiguous, or as contiguous as its transpose, in turns."""
        return saved.mT.contiguous().mT if saved.dim() > 1 and next(turn) % 2 else saved.clone()

    with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.contiguous, back):
        found = gradients(call, x)
    assert next(turn) > 1
    for one, other in zip(found, expected, strict=True):
        # Compiled for other strides, other products of the same sums may be rounded.
        torch.testing.assert_close(one, other, rtol=1e-6, atol=2e-6)
