"""Tensors whose memory differs: saved ones with other strides, and negated values."""

import itertools

import pytest
import torch

import rope_triton
from tests import oracle
from tests.package import calls
from tests.package.calls import CALLS, parts, random


def gradients(call, x):
    """Of the output in ``x``, and again so that it has gradients itself, and those."""
    outputs = parts(call(x))
    cotangents = [
        torch.linspace(-1, 1, out.numel(), device=x.device).view_as(out).requires_grad_()
        for out in outputs
    ]
    (alone,) = torch.autograd.grad(outputs, x, cotangents, retain_graph=True)
    (first,) = torch.autograd.grad(outputs, x, cotangents, create_graph=True)
    return alone, first, *torch.autograd.grad(first, cotangents, x)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_gradients_are_the_same(device, call):
    x = random(device).requires_grad_()
    expected = gradients(call, x)
    turn = itertools.count()

    def back(saved):
        """Contiguous, or as contiguous as its transpose, in turns."""
        return saved.mT.contiguous().mT if saved.dim() > 1 and next(turn) % 2 else saved.clone()

    with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.contiguous, back):
        result = gradients(call, x)
    assert next(turn) > 1
    for one, other in zip(result, expected, strict=True):
        # Compiled for other strides, other products of the same sums may be rounded.
        torch.testing.assert_close(one, other, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("batched", [False, True], ids=["alone", "batched"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_they_are_unpacked_once(call, batched, device):
    """Hooks may free what they return, as a checkpoint does that is not reentrant."""
    packed, numbers, x = {}, itertools.count(), random(device).requires_grad_()

    def pack(saved):
        number = next(numbers)
        packed[number] = saved.detach()
        return number

    with torch.autograd.graph.saved_tensors_hooks(pack, packed.pop):
        outputs = parts(call(x))
        cotangents = [
            torch.stack([out.detach()] * 2) if batched else out.detach() for out in outputs
        ]
        (result,) = torch.autograd.grad(outputs, x, cotangents, is_grads_batched=batched)
    assert next(numbers)
    outputs = parts(call(x))
    (expected,) = torch.autograd.grad(outputs, x, [out.detach() for out in outputs])
    torch.testing.assert_close(result, torch.stack([expected] * 2) if batched else expected)


def negated(x):
    """The same values, in the imaginary part of a conjugate: its memory holds them negated."""
    out = torch.complex(torch.zeros_like(x), -x).conj().imag
    assert out.is_neg()
    return out


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_values_that_are_negated_in_memory(device, call, monkeypatch):
    """Of what is rotated, of gradients and of angles or tables, known forms or not."""
    x = random(device)
    expected, (expected_gradient, *_) = parts(call(x)), gradients(call, x.requires_grad_())
    turns, (cos, sin) = negated(calls.angles(device)), calls.tables(device)
    back = torch.complex(cos, -sin).conj()
    monkeypatch.setattr(calls, "angles", lambda _: turns)
    monkeypatch.setattr(calls, "tables", lambda _: (back.real, back.imag))
    for _ in range(2):
        x = negated(x.detach()).requires_grad_()
        outputs = parts(call(x))
        cotangents = [
            negated(torch.linspace(-1, 1, out.numel(), device=device).view_as(out))
            for out in outputs
        ]
        result = (*outputs, *torch.autograd.grad(outputs, x, cotangents))
        for one, other in zip(result, (*expected, expected_gradient), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=2e-6)


def test_negated_values_with_a_dimension_of_size_1(device):
    """Whose step may be of one element, as those of other tensors are."""
    x, freqs = torch.randn(8, 2, 32, device=device), oracle.random_angles(8, 32, device)
    expected = rope_triton.apply_rotary_pos_emb(x[:, :, None], freqs)
    cos, sin = torch.randn(2, 8, 1, device=device)
    of_a_pair = rope_triton.apply_rotary_emb(x[None], cos, sin)
    for change in (lambda x: torch.complex(x, x).imag, negated):
        result = rope_triton.apply_rotary_pos_emb(change(x).unsqueeze(-1).mT, freqs)
        torch.testing.assert_close(result, expected)
        tables = (change(table[:, 0])[:, None] for table in (cos, sin))
        torch.testing.assert_close(rope_triton.apply_rotary_emb(x[None], *tables), of_a_pair)
