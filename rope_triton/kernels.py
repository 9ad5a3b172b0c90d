"""The kernel: one program rotates the heads of one position of one sequence."""

import triton
import triton.language as tl


@triton.jit
def rope_kernel(
    out_ptr,
    t_ptr,
    freqs_ptr,
    n_heads,
    out_s,
    out_b,
    t_s,
    t_b,
    t_h,
    t_d,
    freqs_s,
    freqs_d,
    D: tl.constexpr,
    D_ROT: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """out = R(freqs) t, or its transpose (the gradient), on the first D_ROT of D channels.

    t is ``[s, b, h, d]`` in any order and strides (in elements), out is contiguous in h and d.
    R turns the pair (x1, x2) into (x1 cos a1 - x2 sin a1, x2 cos a2 + x1 sin a2), where a1 and a2
    are the angles at the two channels of the pair (equal in most models, not by contract).
    """
    s = tl.program_id(0).to(tl.int64)
    b = tl.program_id(1).to(tl.int64)
    h = (tl.program_id(2) * BLOCK_H + tl.arange(0, BLOCK_H))[:, None].to(tl.int64)
    t_row = t_ptr + s * t_s + b * t_b + h * t_h
    out_row = out_ptr + s * out_s + b * out_b + h * D
    freqs_row = freqs_ptr + s * freqs_s

    BLOCK: tl.constexpr = triton.next_power_of_2(D_ROT // 2)
    if INTERLEAVED:
        k = tl.arange(0, 2 * BLOCK)[None, :].to(tl.int64)
        live = (h < n_heads) & (k < D_ROT)
        x = tl.load(t_row + k * t_d, mask=live, other=0.0)
        x1, x2 = tl.split(tl.reshape(x, (BLOCK_H, BLOCK, 2)))
        a = tl.load(freqs_row + k * freqs_d, mask=k < D_ROT, other=0.0).to(tl.float32)
        a1, a2 = tl.split(tl.reshape(a, (1, BLOCK, 2)))
        y1, y2 = rotate(x1, x2, a1, a2, TRANSPOSED)
        y = tl.reshape(tl.join(y1, y2), (BLOCK_H, 2 * BLOCK))
        tl.store(out_row + k, y, mask=live)
    else:
        k = tl.arange(0, BLOCK)[None, :].to(tl.int64)
        live = (h < n_heads) & (k < D_ROT // 2)
        x1 = tl.load(t_row + k * t_d, mask=live, other=0.0)
        x2 = tl.load(t_row + (k + D_ROT // 2) * t_d, mask=live, other=0.0)
        used = k < D_ROT // 2
        a1 = tl.load(freqs_row + k * freqs_d, mask=used, other=0.0).to(tl.float32)
        a2 = tl.load(freqs_row + (k + D_ROT // 2) * freqs_d, mask=used, other=0.0).to(tl.float32)
        y1, y2 = rotate(x1, x2, a1, a2, TRANSPOSED)
        tl.store(out_row + k, y1, mask=live)
        tl.store(out_row + k + D_ROT // 2, y2, mask=live)

    if D_ROT < D:
        k = D_ROT + tl.arange(0, triton.next_power_of_2(D - D_ROT))[None, :].to(tl.int64)
        live = (h < n_heads) & (k < D)
        tl.store(out_row + k, tl.load(t_row + k * t_d, mask=live), mask=live)


@triton.jit
def rotate(x1, x2, a1, a2, TRANSPOSED: tl.constexpr):
    if TRANSPOSED:
        y1 = x1 * tl.cos(a1) + x2 * tl.sin(a2)
        y2 = x2 * tl.cos(a2) - x1 * tl.sin(a1)
    else:
        y1 = x1 * tl.cos(a1) - x2 * tl.sin(a1)
        y2 = x2 * tl.cos(a2) + x1 * tl.sin(a2)
    return y1, y2
