"""Cross-entropy of rows of logits, and its gradient, in Triton: GPU code alone.

A program has a row, and reads it by blocks of columns: once for ``lse``, the logarithm of the row's
sum of exponentials, computed on the way (M. Milakov and N. Gimelshein, online normalizer
calculation for softmax, https://arxiv.org/abs/1805.02867), and once more where the gradient is
written. Rows of logits and of gradients begin at multiples of their strides; all else is
contiguous. ``lse`` is NaN where the target is no column, and so are the loss and the gradient; all
three are 0 where the target is ``ignored``.
"""

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def loss_kernel(
    loss_ptr,
    lse_ptr,
    gradient_ptr,
    logits_ptr,
    targets_ptr,
    gradient_stride,
    logits_stride,
    n_columns,
    ignored,
    BLOCK: tl.constexpr,
):
    """The loss of a row; with lse_ptr its lse; with gradient_ptr its gradient.

    gradient_ptr may be logits_ptr.
    """
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * logits_stride
    target = tl.load(targets_ptr + row)
    counts = target != ignored
    valid = (target >= 0) & (target < n_columns)
    at_target = tl.load(logits_ptr + target, mask=counts & valid, other=0.0).to(tl.float32)
    highest = tl.full([], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)  # times exp(-highest)
    for first in tl.range(0, tl.where(counts & valid, n_columns, 0), BLOCK):
        column = first + tl.arange(0, BLOCK)
        logits = tl.load(logits_ptr + column, mask=column < n_columns, other=float("-inf"))
        logits = logits.to(tl.float32)
        higher = tl.maximum(highest, tl.max(logits, 0))
        finite = tl.where(higher == float("-inf"), 0.0, higher)  # -inf less itself would be NaN
        total = total * exp(highest - finite) + exp(logits - finite)
        highest = higher
    summed = tl.where(counts & valid, tl.sum(total, 0), 1.0)
    lse = tl.where(valid, highest + tl.log(summed), float("nan"))
    lse = tl.where(counts, lse, 0.0)
    tl.store(loss_ptr + row, lse - at_target)
    if lse_ptr is not None:
        tl.store(lse_ptr + row, lse)
    if gradient_ptr is not None:
        tl.debug_barrier()  # no warp writes before all have read the logit of the target
        store_gradient(
            gradient_ptr + row * gradient_stride,
            *(logits_ptr, target, counts, lse, 1.0, n_columns, BLOCK),
        )


@triton.jit
def gradient_kernel(
    gradient_ptr,
    logits_ptr,
    targets_ptr,
    lse_ptr,
    factor_ptr,
    gradient_stride,
    logits_stride,
    n_columns,
    ignored,
    BLOCK: tl.constexpr,
):
    """The gradient of a row's loss times the factor, from the row's lse."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets_ptr + row)
    store_gradient(
        gradient_ptr + row * gradient_stride,
        *(logits_ptr + row * logits_stride, target, target != ignored, tl.load(lse_ptr + row)),
        *(tl.load(factor_ptr), n_columns, BLOCK),
    )


@triton.jit
def store_gradient(
    gradient_ptr, logits_ptr, target, counts, lse, factor, n_columns, BLOCK: tl.constexpr
):
    """``factor * (softmax - one_hot(target))`` of a row, or 0 where it does not count."""
    for first in tl.range(0, n_columns, BLOCK):
        column = first + tl.arange(0, BLOCK)
        inside = column < n_columns
        logits = tl.load(logits_ptr + column, mask=inside & counts, other=0.0).to(tl.float32)
        gradient = (exp(logits - lse) - tl.where(column == target, 1.0, 0.0)) * factor
        gradient = tl.where(counts, gradient, 0.0)
        tl.store(gradient_ptr + column, gradient.to(gradient_ptr.dtype.element_ty), mask=inside)


@triton.jit
def exp(x):
    return tl.math.exp2(x * LOG2_E)
