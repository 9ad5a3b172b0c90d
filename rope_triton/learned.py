"""Angles and tables that are learned: forward by the kernel, backward by plain PyTorch."""

from collections.abc import Callable

import torch

from rope_triton import ops


def wanted(*tables: torch.Tensor) -> bool:
    """Whether autograd asks for the gradient of one of these."""
    for table in tables:
        if isinstance(table, torch.Tensor) and table.requires_grad:
            return torch.is_grad_enabled()
    return False


def rotate(fused: Callable, plain: Callable, *inputs: torch.Tensor) -> torch.Tensor:
    """``fused(*inputs)``, with the gradients of ``plain(*inputs)``, which computes the same.

    Any number of times, in all ``inputs``: what is rotated, and the tables.

    Raises
    ------
    NotImplementedError
        Under torch.compile and the transforms of torch.func.
    """
    if torch.compiler.is_compiling() or ops.transforming():
        raise NotImplementedError(
            "the gradient of angles or tables is not supported under torch.compile and torch.func: "
            "pass fused=False, or detach them"
        )
    return _Learned.apply(fused, plain, *inputs)


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
