"""RMS and layer normalization of rows in Triton: GPU code alone.

A program holds a whole row, so that each element is loaded once. The backward computes the
statistics of a row again, which costs no memory.
"""

import triton
import triton.language as tl


@triton.jit
def norm_forward_kernel(
    y_ptr,
    total_ptr,
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    n_columns,
    eps,
    CENTRED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """y = normalized(x) * weight + bias, of rows that lie one after the other; a program each.

    With residual_ptr, total = x + residual is stored, and y is of the sum as stored.
    """
    column = tl.arange(0, BLOCK)
    inside = column < n_columns
    at = tl.program_id(0).to(tl.int64) * n_columns + column
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if residual_ptr is not None:
        x += tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
        total = x.to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + at, total, mask=inside)
        x = total.to(tl.float32)
    normal, _ = normalized(x, inside, n_columns, eps, CENTRED)
    y = normal * tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        y += tl.load(bias_ptr + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def norm_backward_kernel(
    dx_ptr,
    partial_ptr,
    dy_ptr,
    dtotal_ptr,
    x_ptr,
    weight_ptr,
    n_rows,
    n_columns,
    eps,
    CENTRED: tl.constexpr,
    BIASED: tl.constexpr,
    BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """Gradients of x, plus dtotal, and of weight and bias, summed over the rows of a program.

    partial is ``[1, programs, n_columns]`` in float32: of weight; ``[2, ...]`` with that of bias.
    With AHEAD a row is loaded while the one before is summed. Else each program waits for each of
    its rows, which takes half as long again.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, BLOCK)
    inside = column < n_columns
    dweight = tl.zeros([BLOCK], tl.float32)
    dbias = tl.zeros([BLOCK], tl.float32)
    if AHEAD:
        next_x = loaded(x_ptr, program, n_rows, column, n_columns)
        next_dy = loaded(dy_ptr, program, n_rows, column, n_columns)
        if dtotal_ptr is not None:
            next_dtotal = loaded(dtotal_ptr, program, n_rows, column, n_columns)
    for row in tl.range(program, n_rows, programs):
        if AHEAD:
            x, dy = next_x.to(tl.float32), next_dy.to(tl.float32)
            next_x = loaded(x_ptr, row + programs, n_rows, column, n_columns)
            next_dy = loaded(dy_ptr, row + programs, n_rows, column, n_columns)
        else:
            x = loaded(x_ptr, row, n_rows, column, n_columns).to(tl.float32)
            dy = loaded(dy_ptr, row, n_rows, column, n_columns).to(tl.float32)
        normal, scale = normalized(x, inside, n_columns, eps, CENTRED)
        dweight += dy * normal
        if BIASED:
            dbias += dy
        dnormal = dy * tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
        dx = dnormal - normal * (tl.sum(dnormal * normal, 0) / n_columns)
        if CENTRED:
            dx -= tl.sum(dnormal, 0) / n_columns
        dx *= scale
        if dtotal_ptr is not None:
            if AHEAD:
                dx += next_dtotal.to(tl.float32)
                next_dtotal = loaded(dtotal_ptr, row + programs, n_rows, column, n_columns)
            else:
                dx += loaded(dtotal_ptr, row, n_rows, column, n_columns).to(tl.float32)
        at = tl.cast(row, tl.int64) * n_columns + column
        tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=inside)
    at = program.to(tl.int64) * n_columns + column
    tl.store(partial_ptr + at, dweight, mask=inside)
    if BIASED:
        tl.store(partial_ptr + programs.to(tl.int64) * n_columns + at, dbias, mask=inside)


@triton.jit
def sum_of_partial_kernel(
    out_ptr, partial_ptr, n_partial, n_columns, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """out, ``[., n_columns]``, = the sums of partial, ``[., n_partial, n_columns]``, over its rows.

    A program has a block of columns.
    """
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < n_columns
    which = tl.program_id(1)
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for first in tl.range(0, n_partial, ROWS):
        row = first + tl.arange(0, ROWS)
        at = (which * n_partial + row).to(tl.int64)[:, None] * n_columns + column[None, :]
        total += tl.load(
            partial_ptr + at, mask=(row < n_partial)[:, None] & inside[None, :], other=0.0
        )
    out = tl.sum(total, 0).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + which * n_columns + column, out, mask=inside)


@triton.jit
def loaded(pointer, row, n_rows, column, n_columns):
    """A row of ``[n_rows, n_columns]``; 0 outside."""
    at = tl.cast(row, tl.int64) * n_columns + column
    return tl.load(pointer + at, mask=(row < n_rows) & (column < n_columns), other=0.0)


@triton.jit
def normalized(x, inside, n_columns, eps, CENTRED: tl.constexpr):
    """x, less its mean if CENTRED, over its root mean square; and the factor. 0 outside."""
    if CENTRED:
        x = tl.where(inside, x - tl.sum(x, 0) / n_columns, 0.0)
    scale = tl.rsqrt(tl.sum(x * x, 0) / n_columns + eps)
    return x * scale, scale
