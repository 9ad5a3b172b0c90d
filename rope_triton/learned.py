"""Angles and tables that are learned: forward by the kernel, derivatives by plain PyTorch."""

from collections.abc import Callable

import torch
from torch.autograd import forward_ad

from rope_triton import ops


def wanted(*tables: torch.Tensor) -> bool:
    """Whether autograd asks for the gradient of one of these, or forward-mode has a tangent."""
    for table in tables:
        if isinstance(table, torch.Tensor) and table.requires_grad and torch.is_grad_enabled():
            return True
    return forward_ad._current_level >= 0 and ops.dual(*tables)


def rotate(fused: Callable, plain: Callable, *inputs: torch.Tensor) -> torch.Tensor:
    """``fused(*inputs)``, with the gradients of ``plain(*inputs)``, which computes the same.

    Any number of times, in all ``inputs``: what is rotated, and the tables. Or with its tangents.

    Raises
    ------
    NotImplementedError
        Under torch.compile and the transforms of torch.func; or if there are tangents beside
        gradients, whose own tangents would be lost.
    """
    if torch.compiler.is_compiling() or ops.transforming():
        raise ops.no_gradient_of_tables()
    if not ops.dual(*inputs):
        return _Learned.apply(fused, plain, *inputs)
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
        raise NotImplementedError(
            "tangents, of forward-mode differentiation, together with a gradient are not supported "
            "where angles or tables have either: pass fused=False"
        )
    out = fused(*(forward_ad.unpack_dual(x).primal for x in inputs))
    return forward_ad.make_dual(out, forward_ad.unpack_dual(plain(*inputs)).tangent)


class _Learned(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fused, plain, *inputs):
        ctx.save_for_backward(*inputs)
        ctx.plain = plain
        return fused(*(x.detach() for x in inputs))

    @staticmethod
    def backward(ctx, grad):
        needed = ctx.needs_input_grad[2:]
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            out = ctx.plain(*ctx.saved_tensors)
        inputs = [x for x, need in zip(ctx.saved_tensors, needed, strict=True) if need]
        grads = iter(torch.autograd.grad(out, inputs, grad, create_graph=again))
        return None, None, *(next(grads) if need else None for need in needed)
