"""What is saved for the backward may come back with other strides, as from the host's memory."""

import itertools

import pytest
import torch

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
        found = gradients(call, x)
    assert next(turn) > 1
    for one, other in zip(found, expected, strict=True):
        # Compiled for other strides, other products of the same sums may be rounded.
        torch.testing.assert_close(one, other, rtol=1e-6, atol=2e-6)
