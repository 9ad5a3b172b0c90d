"""Sine and cosine of float32 angles of any size, in Triton."""

import triton
import triton.language as tl


@triton.jit
def sincos(x):
    """sin and cos of float32 angles up to 2^24, within 2e-7 of float64 where fma is exact.

    Quarter turns are removed by a three-term Cody-Waite reduction, pi/2 = P1 - P2 - P3 in float32,
    in two steps: multiples of 4096 first, so that both counts stay exact and are rounded by adding
    1.5 * 2^23. Short polynomials follow (coefficients of Cephes' sinf and cosf). Unlike
    libdevice, this takes one path for all angles, and runs on AMD and in the interpreter.
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
