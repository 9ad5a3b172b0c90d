"""Cross-entropy of logits, and of a linear layer whose logits never exist all at once."""

import functools

import torch
import triton

from rope_triton.kernel.launch import Launch, cdiv, planned
from rope_triton.ops.dispatch import transforming
from rope_triton.ops.operators import gradient_operator, operator
from rope_triton.transformer import loss_kernels as kernels
from rope_triton.transformer.checks import accepted

_BLOCK = 4096  # most columns that a program has in registers
_CHUNK = 4096  # fewest tokens whose logits exist at once, if there are so many


def cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, ignore_index: int = -100, reduction: str = "mean"
) -> torch.Tensor:
    """The cross-entropy of each token's logits and its target, in float32.

    The forward reads the logits once, and keeps them and a number per token; the backward reads
    them again and writes their gradient. They are not overwritten: a gradient that the forward
    writes over them has to be read and written once more in the backward, which alone knows the
    factor, and whoever else holds the logits would find them changed. To have no second tensor of
    their size, use :func:`linear_cross_entropy`. The result does not depend on chance, and the host
    waits for nothing.

    Parameters
    ----------
    logits : torch.Tensor
        ``[tokens, vocabulary]``; float16, bfloat16 or float32. A tensor whose last dimension is not
        contiguous is copied first.
    targets : torch.Tensor
        ``[tokens]``, int64. A target that is neither in ``[0, vocabulary)`` nor ``ignore_index``
        makes the loss NaN, and the gradient of its row: PyTorch stops the process on a GPU.
    ignore_index : int
        A target that counts for nothing: its row's gradient is 0.
    reduction : str
        ``"mean"`` over the targets that count, NaN if there are none; or ``"sum"``.

    Returns
    -------
    torch.Tensor
        ``[]``, float32, with autocast as without. Differentiable once, in ``logits``.

    Raises
    ------
    TypeError
        If ``logits`` or ``targets`` is not a tensor or has another dtype, or ``ignore_index`` is
        not an int.
    ValueError
        If a shape or device is not accepted, a dimension is empty, or ``reduction`` is another.

    References
    ----------
    ``torch.nn.functional.cross_entropy``; M. Milakov and N. Gimelshein, online normalizer
    calculation for softmax, https://arxiv.org/abs/1805.02867.
    """
    (logits,) = accepted({"logits": logits}, under_autocast="same")
    if logits.dim() != 2:
        raise ValueError(f"logits must be [tokens, vocabulary], got {tuple(logits.shape)}")
    _check(targets, logits, ignore_index, reduction)
    loss, _, _ = _cross_entropy(logits, targets, ignore_index, reduction == "mean")
    return loss


def linear_cross_entropy(
    x: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> torch.Tensor:
    """``cross_entropy(x @ weight.T, targets)``, some tokens at a time.

    The logits of 4,096 tokens exist at once, or of ``width`` tokens if that is more. Gradients
    are computed in the forward, each chunk's written over its logits, and without the factor that
    the backward multiplies by: in float16 they would vanish with ``1 / tokens``. The gradient of
    ``weight`` is summed and stored in float32, and rounded once, in the backward. Products are
    PyTorch's. What needs no gradient costs none.

    Parameters
    ----------
    x : torch.Tensor
        ``[tokens, width]``; float16, bfloat16 or float32.
    weight : torch.Tensor
        ``[vocabulary, width]``, of the dtype of ``x``.
    targets, ignore_index, reduction
        As :func:`cross_entropy`. A target that is not accepted makes the loss NaN, the gradient of
        its row of ``x``, and all of the gradient of ``weight``.

    Returns
    -------
    torch.Tensor
        ``[]``, float32. Differentiable once, in ``x`` and ``weight``. Under autocast these are cast
        to its dtype, as by ``torch.nn.functional.linear``.

    Raises
    ------
    TypeError, ValueError
        As :func:`cross_entropy`, for ``x`` and ``weight`` too, or if their dtypes differ.

    References
    ----------
    P. Hsu et al., Liger Kernel, https://arxiv.org/abs/2410.10989, section 3.2.
    """
    x, weight = accepted({"x": x, "weight": weight})
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(
            "x must be [tokens, width] and weight [vocabulary, width], got "
            f"{tuple(x.shape)} and {tuple(weight.shape)}"
        )
    _check(targets, x, ignore_index, reduction)
    # What vmap gives does not say whether a gradient is needed.
    needed = [torch.is_grad_enabled() and (t.requires_grad or transforming()) for t in (x, weight)]
    return _linear_cross_entropy(x, weight, targets, ignore_index, reduction == "mean", *needed)[0]


def _check(targets, rows, ignore_index, reduction) -> None:
    if not isinstance(targets, torch.Tensor) or targets.dtype != torch.int64:
        actual = targets.dtype if isinstance(targets, torch.Tensor) else type(targets).__name__
        raise TypeError(f"targets must be a tensor of int64, got {actual}")
    if tuple(targets.shape) != (rows.shape[0],) or targets.device != rows.device:
        raise ValueError(
            f"targets must be [{rows.shape[0]}] on {rows.device}, got {tuple(targets.shape)} on "
            f"{targets.device}"
        )
    if type(ignore_index) is not int:
        raise TypeError(f"ignore_index must be an int, got {type(ignore_index).__name__}")
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction must be 'mean' or 'sum', got {reduction!r}")


# --- cross-entropy --------------------------------------------------------------------------------


@operator("cross_entropy")
def _cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, ignore_index: int, mean: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    logits, targets = _readable(logits), targets.contiguous()
    losses = logits.new_empty(logits.shape[0], dtype=torch.float32)
    lse = torch.empty_like(losses)
    _launch_loss(losses, lse, None, logits, targets, ignore_index)
    loss, factor = _reduced(losses, targets, ignore_index, mean)
    return loss, factor, lse


@_cross_entropy.register_fake
def _(logits, targets, ignore_index, mean):
    loss = logits.new_empty((), dtype=torch.float32)
    return loss, torch.empty_like(loss), loss.new_empty(logits.shape[0])


@gradient_operator("cross_entropy_backward", like=0)
def _cross_entropy_backward(
    logits: torch.Tensor,
    targets: torch.Tensor,
    lse: torch.Tensor,
    factor: torch.Tensor,
    ignore_index: int,
) -> torch.Tensor:
    logits, targets, lse = _readable(logits), targets.contiguous(), lse.contiguous()
    gradient = logits.new_empty(logits.shape)
    launch = planned(_gradient_launch, logits, targets, lse, factor, ignore_index)
    launch.on(gradient, logits, targets, lse, factor)
    return gradient


def _gradient_launch(logits, targets, lse, factor, ignore_index) -> Launch:
    rows, columns = logits.shape
    block, warps = _block(columns)
    return Launch(
        kernels.gradient_kernel,
        (rows, 1, 1),
        (columns, logits.stride(0), columns, ignore_index, block),
        num_warps=warps,
    )


def _save(ctx, inputs, output) -> None:
    logits, targets, ctx.ignore_index, _ = inputs
    _, factor, lse = output
    ctx.mark_non_differentiable(factor, lse)
    ctx.save_for_backward(logits, targets, lse, factor)


@_cross_entropy.gradient(_save)
def _(ctx, dloss, *_):
    *saved, factor = ctx.saved_tensors
    return _cross_entropy_backward(*saved, dloss * factor, ctx.ignore_index), None, None, None


# --- with the linear layer ------------------------------------------------------------------------


@operator("linear_cross_entropy")
def _linear_cross_entropy(
    x: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    ignore_index: int,
    mean: bool,
    needs_x: bool,
    needs_weight: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    targets = targets.contiguous()
    losses = x.new_empty(x.shape[0], dtype=torch.float32)
    dx, dweight = _empty_gradients(x, weight, needs_x, needs_weight)
    (tokens, width), vocabulary = x.shape, weight.shape[0]
    chunk = chunk_of(tokens, width)
    # Rows at multiples of 16 elements: else products of an odd vocabulary are slow.
    chunk_logits = x.new_empty(chunk, cdiv(vocabulary, 16) * 16)[:, :vocabulary]
    for first in range(0, tokens, chunk):
        some = slice(first, min(first + chunk, tokens))
        logits = torch.mm(x[some], weight.mT, out=chunk_logits[: some.stop - first])
        gradient = logits if needs_x or needs_weight else None
        _launch_loss(losses[some], None, gradient, logits, targets[some], ignore_index)
        if needs_x:
            torch.mm(logits, weight, out=dx[some])
        if needs_weight:
            _add_product(dweight, logits.mT, x[some], first > 0)
    loss, factor = _reduced(losses, targets, ignore_index, mean)
    return loss, factor, dx, dweight


@_linear_cross_entropy.register_fake
def _(x, weight, targets, ignore_index, mean, needs_x, needs_weight):
    loss = x.new_empty((), dtype=torch.float32)
    return loss, torch.empty_like(loss), *_empty_gradients(x, weight, needs_x, needs_weight)


def _empty_gradients(x, weight, needs_x, needs_weight):
    """Empty gradients without their factor; of what needs none, tensors without elements."""
    return (
        x.new_empty(x.shape if needs_x else (0,)),
        weight.new_empty(weight.shape if needs_weight else (0,), dtype=torch.float32),
    )


def chunk_of(tokens: int, width: int) -> int:
    """Tokens whose logits exist at once.

    Each chunk reads and writes the sum of the gradient of ``weight``, 8 bytes an element: on an
    H200 that costs as much as the products of 700 tokens. Logits of ``width`` tokens take half the
    memory of the sum.
    """
    return min(tokens, max(width, _CHUNK))


def _add_product(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor, beta: bool) -> None:
    """``total = beta * total + a @ b`` where ``total`` is float32; without beta it is not read."""
    if a.dtype == torch.float32:
        torch.addmm(total, a, b, beta=beta, out=total)
    elif total.is_cuda:
        torch.addmm(total, a, b, out_dtype=torch.float32, beta=beta, out=total)
    else:  # PyTorch has no such product on the CPU, where Triton's interpreter runs
        torch.addmm(total, a.float(), b.float(), beta=beta, out=total)


@gradient_operator("scaled")
def _scaled(x: torch.Tensor, factor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``x * factor`` in float32, rounded once: ``*`` on a GPU would round ``factor`` first."""
    return torch.mul(x, factor[None], out=torch.empty_like(x, dtype=dtype))


@_scaled.register_fake
def _(x, factor, dtype):
    return torch.empty_like(x, dtype=dtype)


def _save_linear(ctx, inputs, output) -> None:
    ctx.dtype = inputs[0].dtype
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*output[1:])


@_linear_cross_entropy.gradient(_save_linear)
def _(ctx, dloss, *_):
    factor, *gradients = ctx.saved_tensors
    factor = dloss * factor
    dx, dweight = (
        _scaled(gradient, factor, ctx.dtype) if needed else None
        for gradient, needed in zip(gradients, ctx.needs_input_grad[:2], strict=True)
    )
    return dx, dweight, None, None, None, None, None


# --- both -----------------------------------------------------------------------------------------


def _launch_loss(losses, lse, gradient, logits, targets, ignore_index) -> None:
    """Write the losses of rows, their ``lse`` and the gradient of their sum, if given."""
    launch = planned(_loss_launch, losses, lse, gradient, logits, targets, ignore_index)
    launch.on(losses, lse, gradient, logits, targets)


def _loss_launch(losses, lse, gradient, logits, targets, ignore_index) -> Launch:
    rows, columns = logits.shape
    block, warps = _block(columns)
    step = 0 if gradient is None else gradient.stride(0)
    return Launch(
        kernels.loss_kernel,
        (rows, 1, 1),
        (step, logits.stride(0), columns, ignore_index, block),
        num_warps=warps,
    )


@functools.cache
def _block(columns: int) -> tuple[int, int]:
    """Columns that a program has at once, and its warps: 16 to a thread."""
    block = min(_BLOCK, triton.next_power_of_2(columns))
    return block, max(1, block // 512)


def _readable(logits: torch.Tensor) -> torch.Tensor:
    return logits if logits.stride(1) == 1 else logits.contiguous()


def _reduced(
    losses: torch.Tensor, targets: torch.Tensor, ignore_index: int, mean: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and the derivative of it by each row's."""
    loss = losses.sum()
    if not mean:
        return loss, torch.ones_like(loss)
    count = targets.ne(ignore_index).sum()
    return loss / count, 1.0 / count.clamp(min=1)  # without targets gradients are 0
