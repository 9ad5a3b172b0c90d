"""SwiGLU and softmax, forward and backward."""

import torch

from rope_triton.kernel.launch import Launch, cdiv, planned
from rope_triton.ops.operators import gradient_operator, operator
from rope_triton.transformer import activation_kernels as kernels
from rope_triton.transformer.checks import accepted
from rope_triton.transformer.norms import check_row, row_block

_LONGEST = 1 << 30  # elements of a row of swiglu
_BLOCK = 1024  # elements of a program of 4 warps: 8 of a thread, 16 bytes in half precision


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` in one kernel, computed in float32; the backward computes silu again.

    Parameters
    ----------
    gate : torch.Tensor
        ``[..., n]``; float16, bfloat16 or float32; ``n`` is at most ``2 ** 30``. Half of the
        columns of a wider tensor costs no copy; other strides do, unless only those of rows differ,
        by one step.
    up : torch.Tensor
        Of the shape and dtype of ``gate``; likewise.

    Returns
    -------
    torch.Tensor
        Contiguous, of the shape and dtype of ``gate``. Differentiable once. Autocast changes
        nothing, as with ``torch.nn.functional.silu``.

    Raises
    ------
    TypeError
        If an argument is not a tensor, or the dtypes differ or are not accepted.
    ValueError
        If the shapes or devices differ, a dimension is empty, or ``n`` is too large.

    References
    ----------
    N. Shazeer, GLU Variants Improve Transformer, https://arxiv.org/abs/2002.05202.
    """
    gate, up = accepted({"gate": gate, "up": up}, under_autocast="same")
    if gate.dim() < 1 or gate.shape != up.shape:
        raise ValueError(
            f"gate and up must be [..., n] both, got {tuple(gate.shape)} and {tuple(up.shape)}"
        )
    if gate.shape[-1] > _LONGEST:  # the kernels count columns in int32
        raise ValueError(f"rows must be of at most {_LONGEST} elements, got {gate.shape[-1]}")
    return _swiglu(gate, up)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """``exp(x) / sum(exp(x))`` of each row, in one kernel, computed in float32.

    Parameters
    ----------
    x : torch.Tensor
        ``[..., n]``; float16, bfloat16 or float32; ``n`` is at most 16,384. It is copied first if
        it is not contiguous. An element of minus infinity gives 0, a row of nothing else NaN.

    Returns
    -------
    torch.Tensor
        Contiguous, of the shape and dtype of ``x``. Differentiable once. Under autocast ``x`` is
        cast to float32, and so is the result, as by ``torch.softmax`` on a GPU.

    Raises
    ------
    TypeError
        If ``x`` is not a tensor, or its dtype is not accepted.
    ValueError
        If its shape is not accepted, or a dimension is empty.

    References
    ----------
    ``torch.softmax``; Triton's tutorial 02, fused softmax.
    """
    (x,) = accepted({"x": x}, under_autocast="float32")
    check_row(x)
    return _softmax(x)


# --- operators ------------------------------------------------------------------------------------


@operator("swiglu", like=0)
def _swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    y = gate.new_empty(gate.shape)
    gate, up = _rows(gate), _rows(up)
    planned(_swiglu_launch, gate, up).on(y, gate, up)
    return y


@gradient_operator("swiglu_backward", like=(1, 2))
def _swiglu_backward(
    dy: torch.Tensor, gate: torch.Tensor, up: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    dgate, dup = gate.new_empty(gate.shape), up.new_empty(up.shape)
    dy, gate, up = map(_rows, (dy, gate, up))
    planned(_swiglu_launch, dy, gate, up).on(dgate, dup, dy, gate, up)
    return dgate, dup


def _swiglu_launch(*rows: torch.Tensor) -> Launch:
    """Of gate and up, or of their gradients: then the gradient of the result comes first."""
    n_rows, columns = rows[0].shape
    blocks = cdiv(columns, _BLOCK)
    return Launch(
        kernels.swiglu_forward_kernel if len(rows) == 2 else kernels.swiglu_backward_kernel,
        (n_rows * blocks, 1, 1),
        (columns, *(x.stride(0) for x in rows), blocks, _BLOCK),
        num_warps=4,
    )


def _rows(x: torch.Tensor) -> torch.Tensor:
    """``x`` as a matrix whose rows are contiguous."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


@_swiglu.gradient(lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
def _(ctx, dy):
    return _swiglu_backward(dy, *ctx.saved_tensors)


@operator("softmax", like=0)
def _softmax(x: torch.Tensor) -> torch.Tensor:
    y, x = x.new_empty(x.shape), x.contiguous()
    planned(_softmax_launch, x).on(y, x)
    return y


@gradient_operator("softmax_backward", like=1)
def _softmax_backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    dx, dy, y = y.new_empty(y.shape), dy.contiguous(), y.contiguous()
    planned(_softmax_launch, y, dy).on(dx, dy, y)
    return dx


def _softmax_launch(x: torch.Tensor, dy: torch.Tensor | None = None) -> Launch:
    columns = x.shape[-1]
    block, warps = row_block(columns)
    return Launch(
        kernels.softmax_forward_kernel if dy is None else kernels.softmax_backward_kernel,
        (x.numel() // columns, 1, 1),
        (columns, block),
        num_warps=warps,
    )


@_softmax.gradient(lambda ctx, inputs, output: ctx.save_for_backward(output))
def _(ctx, dy):
    return _softmax_backward(dy, *ctx.saved_tensors)
