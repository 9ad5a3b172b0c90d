"""Rotate a block of a product before it is stored, in Triton: GPU code alone."""

import triton
import triton.language as tl

from rope_triton.kernel.rotation import sum_of_products


@triton.jit
def rotate_pairs(
    block,
    table_ptr,
    rows,
    n_seq,
    column,
    n_rotated,
    D: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):
    """Rotate neighbouring columns of a block ``[rows, columns]`` in float32.

    rows are tokens of sequences of n_seq; columns begin at ``column`` and are heads of D channels;
    those from n_rotated on are left alone. table is ``[n_seq, D / 2, 2]``, float32: the cosine and
    the sine of each angle, because to compute them here took longer than the rest of the rotation.
    """
    PAIRS: tl.constexpr = block.shape[1] // 2
    columns = column + tl.arange(0, 2 * PAIRS)
    at = (rows % n_seq)[:, None] * D + (columns % D)[None, :]
    unchanged = tl.where(columns % 2 == 0, 1.0, 0.0)[None, :]
    table = tl.load(table_ptr + at, mask=(columns < n_rotated)[None, :], other=unchanged)
    cos, sin = tl.split(table.reshape(block.shape[0], PAIRS, 2))
    x1, x2 = tl.split(block.reshape(block.shape[0], PAIRS, 2))
    if TRANSPOSED:
        y1 = sum_of_products(x1, cos, x2, sin, 1, None)
        y2 = sum_of_products(x2, cos, x1, sin, -1, None)
    else:
        y1 = sum_of_products(x1, cos, x2, sin, -1, None)
        y2 = sum_of_products(x2, cos, x1, sin, 1, None)
    return tl.join(y1, y2).reshape(block.shape[0], 2 * PAIRS)
