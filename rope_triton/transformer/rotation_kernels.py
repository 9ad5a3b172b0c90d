"""Rotate a block of a product before it is stored, in Triton: GPU code alone."""

import triton
import triton.language as tl

from rope_triton.kernel.rotation import sum_of_products
from rope_triton.kernel.trigonometry import sincos


@triton.jit
def rotate_pairs(
    block,
    angles_ptr,
    rows,
    n_seq,
    column,
    n_rotated,
    D: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):
    """Rotate neighbouring columns of a block ``[rows, columns]`` in float32.

    rows are tokens of sequences of n_seq; columns begin at ``column`` and are heads of D channels;
    those from n_rotated on are left alone. angles_ptr is ``[n_seq, D / 2]``, radians in float32.
    """
    PAIRS: tl.constexpr = block.shape[1] // 2
    columns = column + 2 * tl.arange(0, PAIRS)
    at = (rows % n_seq)[:, None] * (D // 2) + (columns % D // 2)[None, :]
    # Angle 0 changes no bit.
    sin, cos = sincos(tl.load(angles_ptr + at, mask=(columns < n_rotated)[None, :], other=0.0))
    x1, x2 = tl.split(block.reshape(block.shape[0], PAIRS, 2))
    if TRANSPOSED:
        y1 = sum_of_products(x1, cos, x2, sin, 1, None)
        y2 = sum_of_products(x2, cos, x1, sin, -1, None)
    else:
        y1 = sum_of_products(x1, cos, x2, sin, -1, None)
        y2 = sum_of_products(x2, cos, x1, sin, 1, None)
    return tl.join(y1, y2).reshape(block.shape[0], 2 * PAIRS)
