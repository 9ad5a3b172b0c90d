"""A product of matrices with an epilogue, in Triton: GPU code alone.

A persistent kernel: as many programs as the GPU has multiprocessors, each of which computes one
block of the result after the other, so that loads of the next begin during the stores of the last.
Blocks are in groups of rows, which share what they load in L2. Source: Triton's tutorial 09. A
result of few blocks has several parts, each over some of the inner elements, to be summed.
"""

import triton
import triton.language as tl

from rope_triton.transformer.rotation_kernels import rotate_pairs


@triton.jit
def product_kernel(
    c,
    a,
    b,
    bias_ptr,
    table_ptr,
    n_batch,
    n_rows,
    n_columns,
    n_inner,
    n_parts,
    n_seq,
    n_rotated,
    CHANNELS: tl.constexpr,
    A_INNER_FIRST: tl.constexpr,
    B_INNER_FIRST: tl.constexpr,
    RELU: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    GROUP: tl.constexpr,
):
    """c = relu(a @ b + bias) of each matrix of a batch; descriptors of ``[n_batch, ., .]``.

    c is ``[n_batch * n_parts, ., .]``: the parts of a matrix one after the other.

    a is ``[rows, inner]``, or ``[inner, rows]`` if A_INNER_FIRST; b is ``[columns, inner]``, or
    ``[inner, columns]`` if B_INNER_FIRST. Beyond the ends they load as zeros. With table_ptr, the
    first n_rotated columns are heads of CHANNELS that are rotated: see ``rotate_pairs``.
    """
    row_blocks, column_blocks = tl.cdiv(n_rows, ROWS), tl.cdiv(n_columns, COLUMNS)
    blocks = row_blocks * column_blocks
    span = tl.cdiv(n_inner, n_parts * INNER) * INNER
    end = blocks * n_batch * n_parts
    for block in tl.range(tl.program_id(0), end, tl.num_programs(0), flatten=True):
        part, at = block // blocks, block % blocks
        batch, first = part // n_parts, part % n_parts * span
        row, column = block_of(at, row_blocks, column_blocks, GROUP)
        row, column = row * ROWS, column * COLUMNS
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for inner in tl.range(first, tl.minimum(first + span, n_inner), INNER):
            if A_INNER_FIRST:
                left = a.load([batch, inner, row]).reshape(INNER, ROWS).T
            else:
                left = a.load([batch, row, inner]).reshape(ROWS, INNER)
            if B_INNER_FIRST:
                right = b.load([batch, inner, column]).reshape(INNER, COLUMNS)
            else:
                right = b.load([batch, column, inner]).reshape(COLUMNS, INNER).T
            total = tl.dot(left, right, total, input_precision="ieee")
        # In halves: half the shared memory, and half the registers.
        halves = tl.permute(tl.reshape(total, (ROWS, 2, COLUMNS // 2)), (0, 2, 1))
        first, second = tl.split(halves)
        rest = bias_ptr, table_ptr, n_columns, n_seq, n_rotated
        store(c, part, row, column, first, *rest, CHANNELS, RELU)
        store(c, part, row, column + COLUMNS // 2, second, *rest, CHANNELS, RELU)


@triton.jit
def store(
    c,
    part,
    row,
    column,
    total,
    bias_ptr,
    table_ptr,
    n_columns,
    n_seq,
    n_rotated,
    CHANNELS: tl.constexpr,
    RELU: tl.constexpr,
):
    """Finish a block of the sums, and store it."""
    ROWS: tl.constexpr = total.shape[0]
    COLUMNS: tl.constexpr = total.shape[1]
    if bias_ptr is not None:
        channel = column + tl.arange(0, COLUMNS)
        bias = tl.load(bias_ptr + channel, mask=channel < n_columns, other=0.0)
        total += bias.to(tl.float32)[None, :]
    if RELU:
        total = tl.maximum(total, 0.0, tl.PropagateNan.ALL)  # 0 would hide an overflow
    if table_ptr is not None:
        token = row + tl.arange(0, ROWS)
        total = rotate_pairs(total, table_ptr, token, n_seq, column, n_rotated, CHANNELS, False)
    c.store([part, row, column], total.to(c.dtype).reshape(1, ROWS, COLUMNS))


@triton.jit
def block_of(at, row_blocks, column_blocks, GROUP: tl.constexpr):
    """Row and column of a block: down GROUP rows of a column, then on to the next column."""
    in_group = GROUP * column_blocks
    first = at // in_group * GROUP
    rows = tl.minimum(row_blocks - first, GROUP)
    return first + at % in_group % rows, at % in_group // rows
