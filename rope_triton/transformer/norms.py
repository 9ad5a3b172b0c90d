"""RMS and layer normalization, with the sum of a residual stream, forward and backward."""

import functools
from typing import overload

import torch
import triton

from rope_triton.kernel.launch import Launch, cdiv, is_interpreted, planned, resources
from rope_triton.ops.operators import gradient_operator, operator
from rope_triton.transformer import norm_kernels as kernels
from rope_triton.transformer.checks import accepted, autocasts

_LARGEST = 16_384
_ROWS, _COLUMNS = 128, 16  # of what the programs of the backward leave, summed at once


@overload
def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float = ..., residual: None = ...
) -> torch.Tensor: ...
@overload
def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float = ..., *, residual: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]: ...
def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-5,
    residual: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """``x / sqrt(mean(x ** 2) + eps) * weight`` of each row, in one kernel.

    With ``residual``, of ``x + residual``, which is returned as well: that is how a block of a
    transformer begins. The backward adds the gradients of both results in one kernel. Statistics
    and sums are in float32, and do not depend on chance: no atomics.

    Parameters
    ----------
    x : torch.Tensor
        ``[..., n]``; float16, bfloat16 or float32; ``n`` is at most 16,384. It is copied first if
        it is not contiguous.
    weight : torch.Tensor
        ``[n]``, of the dtype of ``x``.
    eps : float
        Added to the mean of the squares.
    residual : torch.Tensor, optional
        Of the shape and dtype of ``x``.

    Returns
    -------
    torch.Tensor or tuple of torch.Tensor
        The rows normalized; with ``residual`` these and ``x + residual``, which is rounded to its
        dtype before it is normalized. Contiguous, of the shape and dtype of ``x``. Differentiable
        once. Under autocast the dtypes may differ: the sum has that of PyTorch's ``x + residual``,
        and the rows normalized are float32, as by ``torch.nn.functional.layer_norm`` on a GPU.

    Raises
    ------
    TypeError
        If an argument is not a tensor, or the dtypes differ or are not accepted.
    ValueError
        If a shape or device is not accepted, a dimension is empty, or ``eps`` is negative.

    References
    ----------
    B. Zhang and R. Sennrich, Root Mean Square Layer Normalization,
    https://arxiv.org/abs/1910.07467; ``torch.nn.functional.rms_norm``.
    """
    return _normalize(x, weight, None, eps, residual, centred=False)


@overload
def layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = ...,
    eps: float = ...,
    residual: None = ...,
) -> torch.Tensor: ...
@overload
def layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = ...,
    eps: float = ...,
    *,
    residual: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]: ...
def layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    residual: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """``(x - mean(x)) / sqrt(var(x) + eps) * weight + bias`` of each row, in one kernel.

    As :func:`rms_norm`, errors too, but ``eps`` is added to the variance, and ``bias`` is ``[n]``,
    of the dtype of ``x``, or None.

    References
    ----------
    J. L. Ba et al., Layer Normalization, https://arxiv.org/abs/1607.06450;
    ``torch.nn.functional.layer_norm``.
    """
    return _normalize(x, weight, bias, eps, residual, centred=True)


def _normalize(x, weight, bias, eps, residual, centred):
    required, optional = {"x": x, "weight": weight}, {"bias": bias, "residual": residual}
    x, weight, bias, residual = accepted(required, optional, under_autocast="any")
    check_row(x)
    for name, vector in (("weight", weight), ("bias", bias)):
        if vector is not None and tuple(vector.shape) != (x.shape[-1],):
            raise ValueError(f"{name} must be [{x.shape[-1]}], got {tuple(vector.shape)}")
    if residual is not None and residual.shape != x.shape:
        raise ValueError(
            f"residual must have the shape of x, {tuple(x.shape)}, got {tuple(residual.shape)}"
        )
    eps = float(eps)  # a launch is cached by its value
    if not eps >= 0:
        raise ValueError(f"eps must not be negative, got {eps}")
    dtype = torch.float32 if autocasts(x) else x.dtype
    if residual is None:
        return _norm(x, weight, bias, eps, centred, dtype)
    return _add_norm(x, residual, weight, bias, eps, centred, dtype)


def check_row(x: torch.Tensor) -> None:
    """Raise ValueError unless a program can hold a row of ``x``."""
    if x.dim() < 1 or x.shape[-1] > _LARGEST:
        raise ValueError(f"x must be [..., n] with n of at most {_LARGEST}, got {tuple(x.shape)}")


# --- launches -------------------------------------------------------------------------------------


@functools.cache
def row_block(columns: int, elements: int = 8) -> tuple[int, int]:
    """Elements and warps of a program that holds a row.

    A thread has ``elements``, as long as that takes no more than 16 warps: AMD's limit.
    """
    block = triton.next_power_of_2(columns)
    return block, max(1, min(16, block // (32 * elements)))


def _forward(x, residual, weight, bias, eps, centred, dtype):
    y = x.new_empty(x.shape, dtype=dtype)
    total = None if residual is None else _empty_sum(x, residual)
    x, residual, weight, bias = _contiguous(x, residual, weight, bias)
    launch = planned(_forward_launch, x, residual, weight, bias, eps, centred, dtype)
    launch.on(y, total, x, residual, weight, bias)
    return y, total


def _forward_launch(x, residual, weight, bias, eps, centred, dtype) -> Launch:
    columns = x.shape[-1]
    block, warps = row_block(columns)
    return Launch(
        kernels.norm_forward_kernel,
        (x.numel() // columns, 1, 1),
        (columns, eps, centred, block),
        num_warps=warps,
    )


def _empty_sum(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape, dtype=torch.promote_types(x.dtype, residual.dtype))


def _contiguous(*tensors: torch.Tensor | None) -> list[torch.Tensor | None]:
    return [None if x is None else x.contiguous() for x in tensors]


@functools.cache
def _at_once(device: torch.device, warps: int) -> int:
    """Programs of the backward that run at once: a multiprocessor's registers hold 16 warps."""
    count, _ = resources(device)
    # The interpreter's programs are few, so that each has several rows to sum.
    return count if is_interpreted() else count * (16 // warps)


# --- operators ------------------------------------------------------------------------------------


@operator("norm")
def _norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    centred: bool,
    dtype: torch.dtype,
) -> torch.Tensor:
    return _forward(x, None, weight, bias, eps, centred, dtype)[0]


@_norm.register_fake
def _(x, weight, bias, eps, centred, dtype):
    return x.new_empty(x.shape, dtype=dtype)


@operator("add_norm")
def _add_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    centred: bool,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _forward(x, residual, weight, bias, eps, centred, dtype)


@_add_norm.register_fake
def _(x, residual, weight, bias, eps, centred, dtype):
    return x.new_empty(x.shape, dtype=dtype), _empty_sum(x, residual)


@gradient_operator("norm_backward")
def _norm_backward(
    dy: torch.Tensor,
    dtotal: torch.Tensor | None,
    x: torch.Tensor,
    weight: torch.Tensor,
    biased: bool,
    eps: float,
    centred: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient of ``x``, plus ``dtotal``; those of weight and bias, ``[1 + biased, n]``.

    Each program sums its rows into one of its own; the sum of these is the second.
    """
    dy, dtotal, x, weight = _contiguous(dy, dtotal, x, weight)
    programs, launch, sums = planned(
        _backward_launches, dy, dtotal, x, weight, biased, eps, centred
    )
    columns = x.shape[-1]
    dx = x.new_empty(x.shape)
    partial = x.new_empty(1 + biased, programs, columns, dtype=torch.float32)
    of_parameters = weight.new_empty(1 + biased, columns)
    launch.on(dx, partial, dy, dtotal, x, weight)
    sums.on(of_parameters, partial)
    return dx, of_parameters


def _backward_launches(dy, dtotal, x, weight, biased, eps, centred) -> tuple[int, Launch, Launch]:
    """Programs of the first launch, which sum rows; it; and that of the sums of theirs."""
    columns = x.shape[-1]
    rows = x.numel() // columns
    # A thread has 32 bytes of a row. If there are more, its registers do not hold the next one too.
    # Rows that begin anywhere are loaded an element at a time; with 8 elements a thread, those of
    # 1000 in half precision take up to 22 % less.
    size = max(x.element_size(), dy.element_size())
    block, warps = row_block(columns, 8 if columns % 16 else 32 // size)
    ahead = block * size <= 32 * warps * 32
    programs = min(rows, _at_once(x.device, warps))
    launch = Launch(
        kernels.norm_backward_kernel,
        (programs, 1, 1),
        (rows, columns, eps, centred, biased, block, ahead),
        num_warps=warps,
    )
    sums = Launch(
        kernels.sum_of_partial_kernel,
        (cdiv(columns, _COLUMNS), 1 + biased, 1),
        (programs, columns, _ROWS, _COLUMNS),
        num_warps=4,
    )
    return programs, launch, sums


@_norm_backward.register_fake
def _(dy, dtotal, x, weight, biased, eps, centred):
    return x.new_empty(x.shape), weight.new_empty(1 + biased, x.shape[-1])


def _save_norm(ctx, inputs, output) -> None:
    x, weight, bias, ctx.eps, ctx.centred, _ = inputs
    ctx.biased = bias is not None
    ctx.save_for_backward(x, weight)


@_norm.gradient(_save_norm)
def _(ctx, dy):
    dx, dweight, dbias = _gradients(ctx, dy, None)
    return dx, dweight, dbias, None, None, None


def _save_add_norm(ctx, inputs, output) -> None:
    _, _, weight, bias, ctx.eps, ctx.centred, _ = inputs
    ctx.biased = bias is not None
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1], weight)


@_add_norm.gradient(_save_add_norm)
def _(ctx, dy, dtotal):
    if dy is None:  # only the sum was used
        return dtotal, dtotal, None, None, None, None, None
    dx, dweight, dbias = _gradients(ctx, dy, dtotal)
    return dx, dx, dweight, dbias, None, None, None


def _gradients(ctx, dy, dtotal):
    x, weight = ctx.saved_tensors
    dx, of_parameters = _norm_backward(dy, dtotal, x, weight, ctx.biased, ctx.eps, ctx.centred)
    return dx, of_parameters[0], of_parameters[1] if ctx.biased else None
