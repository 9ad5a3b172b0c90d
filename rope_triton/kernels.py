"""The kernel: one program rotates some heads of some positions, in any order and strides."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["n_seq", "n_heads"])
def rope_kernel(
    out_ptr,
    t_ptr,
    freqs_ptr,
    n_seq,
    n_heads,
    out_seq,
    out_batch,
    t_seq,
    t_batch,
    t_head,
    t_channel,
    freqs_seq,
    freqs_channel,
    D: tl.constexpr,
    D_ROT: tl.constexpr,
    BATCH_FIRST: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    STREAM: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """out = R(freqs) t, or its transpose (the gradient), on the first D_ROT of D channels.

    t is ``[seq, batch, heads, D]`` in any order and with any strides (in elements); out is
    contiguous in heads and channels. R maps the pair (x1, x2) to
    (x1 cos a1 - x2 sin a1, x2 cos a2 + x1 sin a2), with a1 and a2 the angles at the two channels of
    the pair: equal in most models, but not by contract.

    The grid is (head blocks, batch, sequence blocks), or with the last two exchanged where the
    batch comes first, so that programs follow the output's memory.
    """
    # Nothing of t is read twice: it need not stay in L1, nor, as a stream, in L2.
    READ: tl.constexpr = ("", "evict_first") if STREAM else (".cg", "")
    WRITE: tl.constexpr = ".cs" if STREAM else ""
    batch = tl.program_id(2 if BATCH_FIRST else 1).to(tl.int64)
    seq = tl.program_id(1 if BATCH_FIRST else 2) * BLOCK_S + tl.arange(0, BLOCK_S)
    heads = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    # Positions and heads past the end repeat the last one: same address, same value, no masks.
    seq = tl.minimum(seq, n_seq - 1)[:, None, None].to(tl.int64)
    heads = tl.minimum(heads, n_heads - 1)[None, :, None].to(tl.int64)
    t_row = t_ptr + seq * t_seq + batch * t_batch + heads * t_head
    out_row = out_ptr + seq * out_seq + batch * out_batch + heads * D

    # The angles come first: cos and sin are computed while t is still on its way.
    a1, a2 = load_pairs(freqs_ptr + seq * freqs_seq, freqs_channel, D_ROT, INTERLEAVED, ("", ""))
    x1, x2 = load_pairs(t_row, t_channel, D_ROT, INTERLEAVED, READ)
    s1, c1 = sincos(a1.to(tl.float32))
    s2, c2 = sincos(a2.to(tl.float32))
    if TRANSPOSED:
        y1 = x1 * c1 + x2 * s2
        y2 = x2 * c2 - x1 * s1
    else:
        y1 = x1 * c1 - x2 * s1
        y2 = x2 * c2 + x1 * s2
    store_pairs(out_row, y1, y2, D_ROT, INTERLEAVED, WRITE)

    if D_ROT < D:
        k = D_ROT + channels(triton.next_power_of_2(D - D_ROT))
        rest = load(t_row + k * t_channel, k < D, READ)
        tl.store(out_row + k, rest, mask=k < D, cache_modifier=WRITE)


@triton.jit
def channels(n: tl.constexpr):
    """``[1, 1, n]`` channel indices; 64 bits, as the channels may be the outermost in memory."""
    return tl.arange(0, n)[None, None, :].to(tl.int64)


@triton.jit
def load(ptr, mask, READ: tl.constexpr):
    """tl.load with READ's cache modifier and eviction policy."""
    return tl.load(ptr, mask=mask, other=0.0, cache_modifier=READ[0], eviction_policy=READ[1])


@triton.jit
def load_pairs(row, stride, D_ROT: tl.constexpr, INTERLEAVED: tl.constexpr, READ: tl.constexpr):
    """First and second members of the channel pairs of rows, each ``[.., .., >= D_ROT / 2]``."""
    BLOCK: tl.constexpr = triton.next_power_of_2(D_ROT // 2)
    if INTERLEAVED:
        k = channels(2 * BLOCK)
        x = load(row + k * stride, k < D_ROT, READ)
        return tl.split(tl.reshape(x, (x.shape[0], x.shape[1], BLOCK, 2)))
    else:
        k = channels(BLOCK)
        first = load(row + k * stride, k < D_ROT // 2, READ)
        second = load(row + (k + D_ROT // 2) * stride, k < D_ROT // 2, READ)
        return first, second


@triton.jit
def store_pairs(
    row, first, second, D_ROT: tl.constexpr, INTERLEAVED: tl.constexpr, WRITE: tl.constexpr
):
    """Store what :func:`load_pairs` loads, to rows that are contiguous in the channels."""
    BLOCK: tl.constexpr = triton.next_power_of_2(D_ROT // 2)
    if INTERLEAVED:
        k = channels(2 * BLOCK)
        y = tl.reshape(tl.join(first, second), (first.shape[0], first.shape[1], 2 * BLOCK))
        tl.store(row + k, y, mask=k < D_ROT, cache_modifier=WRITE)
    else:
        k = channels(BLOCK)
        tl.store(row + k, first, mask=k < D_ROT // 2, cache_modifier=WRITE)
        tl.store(row + k + D_ROT // 2, second, mask=k < D_ROT // 2, cache_modifier=WRITE)


@triton.jit
def sincos(x):
    """sin and cos of float32 angles up to 2^24, within 2e-7 of float64 where fma is exact.

    Quarter turns are removed by a three-term Cody-Waite reduction, pi/2 = P1 - P2 - P3 in float32,
    in two steps: multiples of 4096 first, so that both counts stay exact and are rounded by adding
    1.5 * 2^23. Short polynomials follow (coefficients of Cephes' sinf and cosf). Against libdevice
    this keeps angles of any length on one path, and runs on AMD and in the interpreter.
    """
    TURNS: tl.constexpr = 0.6366197723675814
    ROUND: tl.constexpr = 12582912.0
    P1: tl.constexpr = 1.5707963705062866
    P2: tl.constexpr = 4.371138828673793e-08
    P3: tl.constexpr = 1.7151245100058819e-15
    coarse = (tl.fma(x, TURNS / 4096, ROUND) - ROUND) * 4096.0
    r = tl.fma(coarse, -P1, x)
    shifted = tl.fma(tl.fma(coarse, P2, r), TURNS, ROUND)
    fine = shifted - ROUND
    turns = coarse + fine
    r = tl.fma(turns, P3, tl.fma(turns, P2, tl.fma(fine, -P1, r)))

    z = r * r
    sin = tl.fma(tl.fma(z, -1.9515295891e-4, 8.3321608736e-3), z, -1.6666654611e-1)
    sin = tl.fma(sin * z, r, r)
    cos = tl.fma(tl.fma(z, 2.443315711809948e-5, -1.388731625493765e-3), z, 4.166664568298827e-2)
    cos = tl.fma(cos * z, z, tl.fma(z, -0.5, 1.0))

    # The lowest bits of the rounded count are the quadrant, which swaps and negates.
    quadrant = shifted.to(tl.int32, bitcast=True)
    odd = (quadrant & 1) == 1
    return (
        flip_sign(tl.where(odd, cos, sin), quadrant),
        flip_sign(tl.where(odd, sin, cos), quadrant + 1),
    )


@triton.jit
def flip_sign(x, quadrant):
    """Negate x where bit 1 of quadrant is set."""
    return (x.to(tl.int32, bitcast=True) ^ ((quadrant & 2) << 30)).to(tl.float32, bitcast=True)
