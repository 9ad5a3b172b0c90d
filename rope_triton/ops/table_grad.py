"""Learned angles and tables: the kernel computes the forward, plain PyTorch the derivatives."""

from collections.abc import Callable

import torch
from torch.autograd import forward_ad

from rope_triton.ops import dispatch


def needs_table_grad(*tables: torch.Tensor) -> bool:
    """Whether autograd needs the gradient of a table, or forward mode has a tangent of one."""
    for table in tables:
        if isinstance(table, torch.Tensor) and table.requires_grad and torch.is_grad_enabled():
            return True
    return forward_ad._current_level >= 0 and dispatch.has_tangent(*tables)


def with_table_grad(fused: Callable, plain: Callable, *inputs: torch.Tensor) -> torch.Tensor:
    """``fused(*inputs)`` with the derivatives of ``plain(*inputs)``, which computes the same.

    Differentiable in all ``inputs``, the rotated tensor and the tables: any number of times in
    reverse mode, or once in forward mode; not under torch.compile and torch.func.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        raise dispatch.no_gradient_of_tables()
    if forward_ad._current_level < 0 or not check_tangents(*inputs):
        return _TableGrad.apply(fused, plain, *inputs)
    out = fused(*(forward_ad.unpack_dual(x).primal for x in inputs))
    return forward_ad.make_dual(out, forward_ad.unpack_dual(plain(*inputs)).tangent)


def check_tangents(*inputs: torch.Tensor) -> bool:
    """Whether forward mode has a tangent of what is rotated, or of its angles or tables.

    Refused beside an input that requires a gradient, whose own tangent would be lost.
    """
    if not dispatch.has_tangent(*inputs):
        return False
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
        raise NotImplementedError(
            "tangents, of forward-mode differentiation, together with a gradient are not supported "
            "where angles or tables have either: pass fused=False"
        )
    return True


class _TableGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fused, plain, *inputs):
        ctx.save_for_backward(*inputs)
        ctx.plain = plain
        return fused(*(x.detach() for x in inputs))

    @staticmethod
    def backward(ctx, grad):
        needed, saved = ctx.needs_input_grad[2:], ctx.saved_tensors  # reading them frees them
        create_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            out = ctx.plain(*saved)
        inputs = [x for x, need in zip(saved, needed, strict=True) if need]
        grads = iter(torch.autograd.grad(out, inputs, grad, create_graph=create_graph))
        return None, None, *(next(grads) if need else None for need in needed)
