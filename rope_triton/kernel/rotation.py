"""Load rows, rotate them by the angles of their tokens, and store them, in Triton."""

import triton
import triton.language as tl

from rope_triton.kernel.positions import position, unpack
from rope_triton.kernel.trigonometry import sincos


@triton.jit
def rotate_rows(
    out_row,
    t_row,
    t_channel,
    store_mask,
    freqs,
    seq,
    batch,
    position_args,
    OPTIONS: tl.constexpr,
):
    """Rotate the first D_ROT of D channels of rows, and copy the others.

    out_row and t_row point to the first channels, ``[BLOCK_S, BLOCK_H, 1]``; seq, the index of a
    token in its sequence or among all packed tokens, is ``[BLOCK_S, 1, 1]``; batch is one number.
    store_mask is False for rows to leave alone, and None unless out is t.
    """
    D: tl.constexpr = OPTIONS[0]
    D_ROT: tl.constexpr = OPTIONS[1]
    INTERLEAVED: tl.constexpr = OPTIONS[2]
    TRANSPOSED: tl.constexpr = OPTIONS[3]
    ROUNDING: tl.constexpr = OPTIONS[4]
    n_seq, n_table, start_ptr, per_token, cu_seqlens, cp_size, cp_rank = position_args
    if D_ROT < D:  # before any store, which no load overtakes
        pass_through = load_pass_through(t_row, t_channel, D_ROT, D)
    if cu_seqlens[0] is not None:
        # t comes first: finding the angles takes a search, and each of its steps waits for a load.
        x1, x2 = load_pairs(t_row, t_channel, D_ROT, INTERLEAVED)
        batch, seq, n_seq = unpack(seq, n_seq, cu_seqlens, cp_size)
        row, valid = position(seq, batch, n_seq, n_table, start_ptr, per_token, cp_size, cp_rank)
        a1, a2 = load_angles(freqs, row, valid, D_ROT, INTERLEAVED)
    elif start_ptr is not None or cp_size is not None:
        row, valid = position(seq, batch, n_seq, n_table, start_ptr, per_token, cp_size, cp_rank)
        x1, x2 = load_pairs(t_row, t_channel, D_ROT, INTERLEAVED)
        # Else the compiler, to save registers, loads some of t only after cos and sin are there.
        tl.debug_barrier()
        a1, a2 = load_angles(freqs, row, valid, D_ROT, INTERLEAVED)
    else:
        # The angles come first: cos and sin are computed while t is still on its way.
        a1, a2 = load_angles(freqs, seq, None, D_ROT, INTERLEAVED)
        x1, x2 = load_pairs(t_row, t_channel, D_ROT, INTERLEAVED)
    if freqs[1] is None:
        s1, c1 = sincos(a1)
        if x1.shape[0] * x1.shape[2] < 256:  # pairs: with so few, asking would take longer
            s2, c2 = sincos(a2)
        else:
            s2, c2 = s1, c1
            if tl.sum((a1 != a2).to(tl.int32)) > 0:
                s2, c2 = sincos(a2)
    else:
        s1, c1, s2, c2 = a2, a1, a2, a1
    if ROUNDING is not None:
        s1, c1 = s1.to(x1.dtype).to(tl.float32), c1.to(x1.dtype).to(tl.float32)
        s2, c2 = s2.to(x1.dtype).to(tl.float32), c2.to(x1.dtype).to(tl.float32)
    if TRANSPOSED:
        y1 = sum_of_products(x1, c1, x2, s2, 1, ROUNDING)
        y2 = sum_of_products(x2, c2, x1, s1, -1, ROUNDING)
    else:
        y1 = sum_of_products(x1, c1, x2, s1, -1, ROUNDING)
        y2 = sum_of_products(x2, c2, x1, s2, 1, ROUNDING)
    if store_mask is not None:
        tl.debug_barrier()  # all threads that share a value have read it
    store_pairs(out_row, y1, y2, store_mask, D_ROT, INTERLEAVED)
    if D_ROT < D:
        store_pass_through(out_row, pass_through, D_ROT, D)


@triton.jit
def sum_of_products(x, c, y, s, SIGN: tl.constexpr, ROUNDING: tl.constexpr):
    """x c + SIGN y s in float32, both products rounded to the dtype of x if ROUNDING is "each".

    A fused multiply-add leaves one product unrounded. Written out, it is the same one in every
    kernel: left to the compiler, a row would have other bits in another layout or tile.
    """
    second = y * s
    if ROUNDING == "each":
        second = second.to(x.dtype).to(tl.float32)
        first = (x * c).to(x.dtype).to(tl.float32)
        return first + second if SIGN == 1 else first - second
    else:
        return tl.fma(x.to(tl.float32), c, second if SIGN == 1 else -second)


@triton.jit
def load_angles(freqs, row, valid, D_ROT: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Angles at both channels of each pair, or cosines and sines, in float32.

    The identity, angle 0, in rows that are not valid.
    """
    freqs_ptr, sin_ptr, first, stride, channel = freqs
    at = first + row * stride
    if sin_ptr is None:
        a1, a2 = load_pairs(freqs_ptr + at, channel, D_ROT, INTERLEAVED, valid)
    else:
        k = channels(triton.next_power_of_2(D_ROT // 2))
        mask = k < D_ROT // 2 if valid is None else valid & (k < D_ROT // 2)
        a1 = load(freqs_ptr + at + k * channel, mask)
        a2 = load(sin_ptr + at + k * channel, mask)
        if valid is not None:
            a1 = tl.where(valid, a1.to(tl.float32), 1.0)
    return a1.to(tl.float32), a2.to(tl.float32)


@triton.jit
def load_pairs(
    row,
    stride,
    D_ROT: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    valid=None,
):
    """First and second members of the channel pairs of rows, each ``[.., .., >= D_ROT / 2]``.

    0 in rows that are not valid.
    """
    BLOCK: tl.constexpr = triton.next_power_of_2(D_ROT // 2)
    if INTERLEAVED:
        k = channels(2 * BLOCK)
        mask = k < D_ROT if valid is None else valid & (k < D_ROT)
        x = load(row + k * stride, mask)
        return tl.split(tl.reshape(x, (x.shape[0], x.shape[1], BLOCK, 2)))
    else:
        k = channels(BLOCK)
        mask = k < D_ROT // 2 if valid is None else valid & (k < D_ROT // 2)
        first = load(row + k * stride, mask)
        second = load(row + (k + D_ROT // 2) * stride, mask)
        return first, second


@triton.jit
def store_pairs(row, first, second, store_mask, D_ROT: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Store what :func:`load_pairs` loads, to rows that are contiguous in the channels."""
    BLOCK: tl.constexpr = triton.next_power_of_2(D_ROT // 2)
    if INTERLEAVED:
        k = channels(2 * BLOCK)
        mask = k < D_ROT if store_mask is None else store_mask & (k < D_ROT)
        y = tl.reshape(tl.join(first, second), (first.shape[0], first.shape[1], 2 * BLOCK))
        tl.store(row + k, y, mask=mask)
    else:
        k = channels(BLOCK)
        mask = k < D_ROT // 2 if store_mask is None else store_mask & (k < D_ROT // 2)
        tl.store(row + k, first, mask=mask)
        tl.store(row + k + D_ROT // 2, second, mask=mask)


@triton.jit
def load_pass_through(row, stride, FIRST: tl.constexpr, D: tl.constexpr):
    """The channels of rows from FIRST on."""
    k = FIRST + channels(triton.next_power_of_2(D - FIRST))
    return load(row + k * stride, k < D)


@triton.jit
def store_pass_through(row, pass_through, FIRST: tl.constexpr, D: tl.constexpr):
    """Store what :func:`load_pass_through` loads, to rows that are contiguous in the channels."""
    k = FIRST + channels(triton.next_power_of_2(D - FIRST))
    tl.store(row + k, pass_through, mask=k < D)


@triton.jit
def load(ptr, mask):
    """tl.load, 0 where masked. With evict_last, a call of any size has the speed of a copy.

    The policy does not do what its name says: on an H200, these lines do not stay in L2 when others
    are read later, so the output stays there for the next kernel that reads it. With evict_first,
    calls up to 4 MiB were faster alone, and slower together with that next kernel.
    """
    return tl.load(ptr, mask=mask, other=0.0, eviction_policy="evict_last")


@triton.jit
def channels(n: tl.constexpr):
    """``[1, 1, n]`` channel indices; 64 bits, as the channels may be the outermost in memory."""
    return tl.arange(0, n)[None, None, :].to(tl.int64)
