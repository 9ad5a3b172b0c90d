"""Products of matrices, with a bias and ReLU, forward and backward."""

from typing import NamedTuple

import torch

from rope_triton.kernel.launch import Launch, cdiv, is_loadable, planned, resources
from rope_triton.ops.operators import operator
from rope_triton.transformer import product_kernels as kernels
from rope_triton.transformer.checks import accepted
from rope_triton.transformer.norm_kernels import sum_of_partial_kernel

_INNER = 64  # elements of a load, 128 bytes
_GROUP = 8  # rows of blocks that share what they load
_PART = 512  # fewest inner elements of a part of the sums
# A part is stored in float32 and read again: as long as so many inner elements take.
_SUM = 800
_PARTS_AT_ONCE, _ADDED = 4, 1024  # parts and elements that a program adds at once
# Rows, columns and warps of a program, and how fast it is beside the first, on an H200.
_SIZES = ((128, 256, 8, 1.0), (128, 128, 4, 0.9), (64, 128, 4, 0.75))
_SIZES_FLOAT32 = ((64, 64, 4, 0.06),)


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, relu: bool = False
) -> torch.Tensor:
    """``x @ weight.T + bias``, then ReLU if asked for, in one kernel.

    Sums are in float32 (without TensorFloat-32), and do not depend on chance. The gradient of
    ``weight`` is one product over all rows.

    Parameters
    ----------
    x : torch.Tensor
        ``[..., inner]``; float16, bfloat16 or float32.
    weight : torch.Tensor
        ``[columns, inner]``, of the dtype of ``x``.
    bias : torch.Tensor, optional
        ``[columns]``, of the dtype of ``x``.
    relu : bool
        Whether negative results become 0. NaN stays, as by ``torch.relu``.

    Returns
    -------
    torch.Tensor
        ``[..., columns]``, of the dtype of ``x``. Differentiable once. Under autocast the inputs
        are cast to its dtype, as by ``torch.nn.functional.linear``.

    Raises
    ------
    TypeError
        If an argument is not a tensor, or the dtypes differ or are not accepted.
    ValueError
        If a shape or device is not accepted, or a dimension is empty.

    References
    ----------
    ``torch.nn.functional.linear``; P. Tillet's persistent matmul, Triton's tutorial 09.
    """
    x, weight, bias = accepted({"x": x, "weight": weight}, {"bias": bias})
    if x.dim() < 1 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            "x must be [..., inner] and weight [columns, inner], got "
            f"{tuple(x.shape)} and {tuple(weight.shape)}"
        )
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise ValueError(f"bias must be [{weight.shape[0]}], got {tuple(bias.shape)}")
    rows = x.reshape(-1, x.shape[-1])
    return _linear(rows, weight, bias, relu).reshape(*x.shape[:-1], weight.shape[0])


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b`` of matrices, or of each pair of a batch.

    Parameters
    ----------
    a : torch.Tensor
        ``[rows, inner]`` or ``[batch, rows, inner]``; float16, bfloat16 or float32. A transposed
        view costs no copy; other strides do, unless they are multiples of 16 bytes.
    b : torch.Tensor
        ``[inner, columns]`` or ``[batch, inner, columns]``, of the dtype of ``a``; likewise.

    Returns
    -------
    torch.Tensor
        ``[rows, columns]`` or ``[batch, rows, columns]``, of the dtype of ``a``. Differentiable
        once. Under autocast the inputs are cast to its dtype, as by ``torch.matmul``.

    Raises
    ------
    TypeError, ValueError
        As :func:`linear`.
    """
    a, b = accepted({"a": a, "b": b})
    batched = a.dim() == b.dim() == 3 and a.shape[0] == b.shape[0]
    if not (batched or a.dim() == b.dim() == 2) or a.shape[-1] != b.shape[-2]:
        raise ValueError(
            "a must be [rows, inner] and b [inner, columns], or both with a batch before, got "
            f"{tuple(a.shape)} and {tuple(b.shape)}"
        )
    if batched:
        return matmul_operator(a, b)
    return matmul_operator(a[None], b[None])[0]


# --- operators ------------------------------------------------------------------------------------


@operator("linear")
def _linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, relu: bool
) -> torch.Tensor:
    return product(x[None], weight.mT[None], bias, relu).squeeze_(0)  # no view: see _cut


@_linear.register_fake
def _(x, weight, bias, relu):
    return _result(x[None], weight.mT[None]).squeeze_(0)


def _save_linear(ctx, inputs, output) -> None:
    x, weight, bias, ctx.relu = inputs
    ctx.has_bias = bias is not None
    ctx.save_for_backward(x, weight, output if ctx.relu else None)


@_linear.gradient(_save_linear)
def _(ctx, dy):
    x, weight, output = ctx.saved_tensors
    if ctx.relu:
        dy = dy.masked_fill(output <= 0, 0)
    needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
    dx = matmul_operator(dy[None], weight[None])[0] if needs_x else None
    dweight = matmul_operator(dy.mT[None], x[None])[0] if needs_weight else None
    dbias = dy.sum(0, dtype=torch.float32).to(dy.dtype) if needs_bias and ctx.has_bias else None
    return dx, dweight, dbias, None


@operator("matmul")
def matmul_operator(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return product(a, b)


@matmul_operator.register_fake
def _(a, b):
    return _result(a, b)


@matmul_operator.gradient(lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
def _(ctx, dc):
    a, b = ctx.saved_tensors
    needs_a, needs_b = ctx.needs_input_grad
    return (
        matmul_operator(dc, b.mT) if needs_a else None,
        matmul_operator(a.mT, dc) if needs_b else None,
    )


# --- the launch -----------------------------------------------------------------------------------


class Tile(NamedTuple):
    """A program's rows and columns, the inner elements of a load, warps, and stages of loads."""

    rows: int
    columns: int
    inner: int
    warps: int
    stages: int


def tile(
    shape: tuple[int, int, int], inner: int, item: int, gpu: tuple[int, int], as_it_is: bool = True
) -> tuple[Tile, int]:
    """The tile of a product, and the parts of its sums, that are estimated to take the least time.

    What counts is how many blocks, one after the other, a multiprocessor has: blocks that are few,
    or little more than a multiple of the multiprocessors, are divided into parts. The gradients of
    the weights of a model of 410M take 0.75 of the time so.

    shape: matrices, rows and columns of the result. inner: elements of a sum, item: their bytes.
    gpu: multiprocessors, and bytes of shared memory that a program can have: it holds all stages of
    loads, and half of the result while that is stored. as_it_is: whether the product itself is the
    result. Else it is rotated, or gets a bias or ReLU: it is then not divided, and what is rotated
    goes through shared memory in float32.
    """
    count, shared = gpu
    inner_block, most_stages = (_INNER // 2, 2) if item == 4 else (_INNER, 4)
    candidates = []
    for rows, columns, warps, speed in _SIZES_FLOAT32 if item == 4 else _SIZES:
        blocks = shape[0] * cdiv(shape[1], rows) * cdiv(shape[2], columns)
        for parts in range(1, max(1, min(16, inner // _PART)) + 1 if as_it_is else 2):
            stored = rows * columns // 2 * (item if as_it_is and parts == 1 else 4)
            stages = (shared - stored) // ((rows + columns) * inner_block * item)
            used = Tile(rows, columns, inner_block, warps, max(1, min(most_stages, stages)))
            elements = inner / parts / speed + (_SUM if parts > 1 else 0)
            cost = cdiv(blocks * parts, count) * rows * columns * elements
            candidates.append((cost, used, parts))
    several = [candidate for candidate in candidates if candidate[1].stages > 1]
    _, best, parts = min(several or candidates[-1:], key=lambda candidate: candidate[0])
    return best, parts


class Rotation(NamedTuple):
    """The first ``columns`` of a product are heads, whose neighbouring channels are rotated.

    ``table``: ``[s, channels / 2, 2]``, cosines and sines, float32; rows are tokens of sequences of
    ``s``.
    """

    table: torch.Tensor
    columns: int


class _Plan(NamedTuple):
    """How a product is computed: the shape of what is stored, whose rows have a pitch; its columns;
    the parts of its sums; and which of the factors lies in memory as its transpose."""

    stored: tuple[int, int, int]
    columns: int
    parts: int
    transposed: tuple[bool, bool]
    launch: Launch


def product(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None = None,
    relu: bool = False,
    rotation: Rotation | None = None,
) -> torch.Tensor:
    """``relu(a @ b + bias)`` of ``[batch, rows, inner]`` and ``[batch, inner, columns]``."""
    table, n_rotated = rotation or (None, 0)
    bias = None if bias is None else bias.contiguous()
    plan = planned(_planned, a, b, bias, table, relu, n_rotated)
    if plan is None:
        a, b = _loadable(a), _loadable(b)
        plan = planned(_planned, a, b, bias, table, relu, n_rotated)
    factors = [x.mT if turn else x for x, turn in zip((a, b), plan.transposed, strict=True)]
    c = a.new_empty(plan.stored, dtype=a.dtype if plan.parts == 1 else torch.float32)
    c = c if plan.stored[2] == plan.columns else _cut(c, plan.columns)
    plan.launch.on(c, *factors, bias, table)
    return c if plan.parts == 1 else _summed(c, plan.parts, a.dtype)


def _planned(a, b, bias, table, relu: bool, n_rotated: int) -> _Plan | None:
    """None if the GPU's bulk copies cannot load a factor."""
    if not (_is_loadable(a) and _is_loadable(b)):
        return None
    batch, rows, inner = a.shape
    shape = batch, rows, b.shape[2]
    as_it_is = bias is table is None and not relu
    gpu = resources(a.device)
    used, parts = tile(shape, inner, a.element_size(), gpu, as_it_is)
    blocks = batch * cdiv(rows, used.rows) * cdiv(shape[2], used.columns)
    n_seq, pairs = (0, 0) if table is None else table.shape[:2]
    transposed = a_inner_first, b_columns_first = _is_transposed(a), _is_transposed(b)
    launch = Launch(
        kernels.product_kernel,
        (min(parts * blocks, gpu[0]), 1, 1),
        (
            *(*shape, inner, parts, n_seq, n_rotated, 2 * pairs),
            *(a_inner_first, not b_columns_first, relu),
            *(used.rows, used.columns, used.inner, _GROUP),
        ),
        blocks=(
            (1, used.rows, used.columns // 2),
            (1, *_turned(used.rows, used.inner, a_inner_first)),
            (1, *_turned(used.inner, used.columns, b_columns_first)),
            *(None, None),
        ),
        num_warps=used.warps,
        num_stages=used.stages,
    )
    stored = _pitched(parts * batch, rows, shape[2])
    return _Plan(stored, shape[2], parts, transposed, launch)


def _summed(partial: torch.Tensor, parts: int, dtype: torch.dtype) -> torch.Tensor:
    """The sums ``[batch, rows, columns]`` of ``[batch * parts, rows, columns]``."""
    _, rows, columns = partial.shape
    pitch = partial.stride(1)
    out = partial.new_empty(partial.shape[0] // parts, rows, pitch, dtype=dtype)
    planned(_sum_launch, out, parts).on(out, partial)
    return _cut(out, columns)


def _sum_launch(out: torch.Tensor, parts: int) -> Launch:
    n = out[0].numel()
    return Launch(
        sum_of_partial_kernel,
        (cdiv(n, _ADDED), out.shape[0], 1),
        (parts, n, _PARTS_AT_ONCE, _ADDED),
        num_warps=4,
    )


def _result(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    shape = a.shape[0], a.shape[1], b.shape[2]
    return _cut(a.new_empty(_pitched(*shape)), shape[2])


def _cut(x: torch.Tensor, columns: int) -> torch.Tensor:
    """``x`` itself with its first columns alone.

    Autograd would not let the result of an operator be changed in place if it were a view.
    """
    return x.as_strided_((*x.shape[:2], columns), x.stride())


def _pitched(batch: int, rows: int, columns: int) -> tuple[int, int, int]:
    """The shape with columns added, so that rows begin at multiples of 16 bytes: the GPU's bulk
    copies ask for that."""
    return batch, rows, cdiv(columns, 8) * 8  # elements of 2 bytes


def _is_transposed(x: torch.Tensor) -> bool:
    return x.stride(2) != 1 and x.stride(1) == 1


def _is_loadable(x: torch.Tensor) -> bool:
    """Whether the GPU's bulk copies can load blocks of ``x``, or of its transpose."""
    return is_loadable(x.mT if _is_transposed(x) else x)


def _loadable(x: torch.Tensor) -> torch.Tensor:
    """``x``, or a copy that lies as it does if the GPU's bulk copies cannot load it."""
    if _is_loadable(x):
        return x
    if _is_transposed(x):
        return _loadable(x.mT).mT
    return x.new_empty(_pitched(*x.shape))[..., : x.shape[2]].copy_(x)


def _turned(first: int, second: int, turn: bool) -> tuple[int, int]:
    return (second, first) if turn else (first, second)
