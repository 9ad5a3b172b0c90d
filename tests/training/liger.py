"""Stubs of Liger-Kernel with its signatures, in plain PyTorch; tensors that it overwrites are."""

import torch
from torch.nn import functional

from tests.peers import libraries


def liger_rms_norm(X, W, eps, offset=0.0, casting_mode="llama", in_place=True):
    assert (offset, casting_mode, in_place) == (0.0, "llama", True)
    return functional.rms_norm(X, W.shape, W, eps)


def liger_swiglu(a, b):
    return functional.silu(a) * b


class _CrossEntropy(torch.autograd.Function):
    """Its gradient lies where the logits were."""

    @staticmethod
    def forward(ctx, logits, target):
        chance = logits.float().softmax(-1)
        loss = -chance[range(len(target)), target].log().mean()
        chance[range(len(target)), target] -= 1
        logits.data.copy_(chance / len(target))
        ctx.save_for_backward(logits.detach())
        return loss

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0] * grad, None


def liger_cross_entropy(input, target):
    assert input.dim() == 2 and target.shape == input.shape[:1]
    return _CrossEntropy.apply(input, target)


def install(monkeypatch) -> None:
    """Let the stubs be imported as Liger-Kernel's modules."""
    libraries.install(monkeypatch, "liger")
    functions = (liger_rms_norm, liger_swiglu, liger_cross_entropy)
    by_name = {function.__name__: function for function in functions}
    libraries.put(monkeypatch, "liger_kernel.transformers.functional", **by_name)
