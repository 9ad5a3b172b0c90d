"""Products of matrices, with a bias and ReLU, forward and backward."""

import functools
from typing import NamedTuple

import torch

from rope_triton.kernel.launch import Blocks, cdiv, resources, run_planned
from rope_triton.transformer import product_kernels as kernels
from rope_triton.transformer.checks import accepted
from rope_triton.transformer.operators import operator

_INNER = 64  # elements of a load, 128 bytes
_GROUP = 8  # rows of blocks that share what they load
_PART = 512  # fewest inner elements of a part of the sums


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
        Whether negative results become 0.

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
    return product(x[None], weight.mT[None], bias, relu)[0]


@_linear.register_fake
def _(x, weight, bias, relu):
    return _result(x[None], weight.mT[None])[0]


def _save_linear(ctx, inputs, output) -> None:
    x, weight, bias, ctx.relu = inputs
    ctx.has_bias = bias is not None
    ctx.save_for_backward(x, weight, output if ctx.relu else None)


def _linear_backward(ctx, dy):
    x, weight, output = ctx.saved_tensors
    if ctx.relu:
        dy = dy.masked_fill(output <= 0, 0)
    needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
    dx = matmul_operator(dy[None], weight[None])[0] if needs_x else None
    dweight = matmul_operator(dy.mT[None], x[None])[0] if needs_weight else None
    dbias = dy.sum(0, dtype=torch.float32).to(dy.dtype) if needs_bias and ctx.has_bias else None
    return dx, dweight, dbias, None


_linear.register_autograd(_linear_backward, setup_context=_save_linear)


@operator("matmul")
def matmul_operator(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return product(a, b)


@matmul_operator.register_fake
def _(a, b):
    return _result(a, b)


def _save_matmul(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _matmul_backward(ctx, dc):
    a, b = ctx.saved_tensors
    needs_a, needs_b = ctx.needs_input_grad
    return (
        matmul_operator(dc, b.mT) if needs_a else None,
        matmul_operator(a.mT, dc) if needs_b else None,
    )


matmul_operator.register_autograd(_matmul_backward, setup_context=_save_matmul)


# --- the launch -----------------------------------------------------------------------------------


class Tile(NamedTuple):
    """A program's rows and columns, the inner elements of a load, warps, and stages of loads."""

    rows: int
    columns: int
    inner: int
    warps: int
    stages: int


@functools.cache
def tile(item: int, shared: int, rotated: bool, in_parts: bool = False) -> Tile:
    """The largest tile whose loads have two stages or more.

    On an H200 the first was the best of six for most of 36 products of models.

    Parameters
    ----------
    item : int
        Bytes of an element.
    shared : int
        Bytes of shared memory that a program can have: it holds all stages, and half of the result
        while that is stored.
    rotated : bool
        Whether the result is rotated: it goes through shared memory in float32.
    in_parts : bool
        Whether the result is in float32, and the blocks are few: they are small then.
    """
    if item == 4:
        return Tile(64, 64, 32, 4, 2)
    sizes = [(128, 256, 8), (128, 128, 8), (64, 128, 4)]
    for rows, columns, warps in sizes[1:] if in_parts else sizes:
        stored = rows * columns // 2 * (4 if rotated or in_parts else item)
        stages = (shared - stored) // ((rows + columns) * _INNER * item)
        found = Tile(rows, columns, _INNER, warps, max(1, min(4, stages)))
        if stages > 1:
            break
    return found


class Rotation(NamedTuple):
    """The first ``columns`` of a product are heads, whose neighbouring channels are rotated.

    ``table``: ``[s, channels / 2, 2]``, cosines and sines, float32; rows are tokens of sequences of
    ``s``.
    """

    table: torch.Tensor
    columns: int


def product(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None = None,
    relu: bool = False,
    rotation: Rotation | None = None,
) -> torch.Tensor:
    """``relu(a @ b + bias)`` of ``[batch, rows, inner]`` and ``[batch, inner, columns]``."""
    c = _result(a, b)
    batch, rows, columns = c.shape
    count, shared = resources(c.device)
    used, parts = tile(a.element_size(), shared, rotation is not None), 1
    if bias is rotation is None and not relu and 2 * batch * _blocks_of(c, used) <= count:
        # Too few blocks to occupy the GPU: some parts of the sums, each in float32.
        used = tile(a.element_size(), shared, False, True)
        parts = max(1, min(count // (batch * _blocks_of(c, used)), a.shape[2] // _PART))
    stored = c if parts == 1 else _pitched(c, (batch * parts, rows, columns), torch.float32)
    a, a_inner_first = _stored(a)
    b, b_columns_first = _stored(b)
    table, n_rotated = rotation or (None, 0)
    n_seq, pairs = (0, 0) if table is None else table.shape[:2]
    run_planned(
        kernels.product_kernel,
        (min(batch * parts * _blocks_of(c, used), count), 1, 1),
        (
            Blocks(stored, (1, used.rows, used.columns // 2)),
            Blocks(a, (1, *_turned(used.rows, used.inner, a_inner_first))),
            Blocks(b, (1, *_turned(used.inner, used.columns, b_columns_first))),
            *(None if bias is None else bias.contiguous(), table),
        ),
        (
            *(batch, rows, columns, a.shape[1] if a_inner_first else a.shape[2], parts),
            *(n_seq, n_rotated, 2 * pairs, a_inner_first, not b_columns_first, relu),
            *(used.rows, used.columns, used.inner, _GROUP),
        ),
        num_warps=used.warps,
        num_stages=used.stages,
    )
    if parts > 1:
        c.copy_(stored.unflatten(0, (batch, parts)).sum(1))
    return c


def _blocks_of(c: torch.Tensor, used: Tile) -> int:
    """Blocks of a matrix of the result."""
    return cdiv(c.shape[1], used.rows) * cdiv(c.shape[2], used.columns)


def _result(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return _pitched(a, (a.shape[0], a.shape[1], b.shape[2]))


def _pitched(like: torch.Tensor, shape: tuple, dtype: torch.dtype | None = None) -> torch.Tensor:
    """An empty tensor whose rows begin at multiples of 16 bytes, as the GPU's bulk copies ask."""
    width = cdiv(shape[2], 8) * 8  # of elements of 2 bytes
    return like.new_empty(*shape[:2], width, dtype=dtype)[..., : shape[2]]


def _stored(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """``x`` in the order in which it lies in memory, and whether that is transposed."""
    transposed = x.stride(2) != 1 and x.stride(1) == 1
    x = x.mT if transposed else x
    outer = [stride * x.element_size() for stride in x.stride()[:2]]
    if x.data_ptr() % 16 or x.stride(2) != 1 or not all(each and each % 16 == 0 for each in outer):
        x = _pitched(x, x.shape).copy_(x)
    return x, transposed


def _turned(first: int, second: int, turn: bool) -> tuple[int, int]:
    return (second, first) if turn else (first, second)
