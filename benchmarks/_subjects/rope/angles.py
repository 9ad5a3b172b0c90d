"""Compute the angles that calls get and results are checked by; the package's own must agree.

They are Python floats and one product in float64, so they are the same on every machine and for
every commit.
"""

import functools

ROTARY_BASE = 10000.0

CHECKED_POSITIONS = 16384
"""The package's angles are checked up to this position, which lies beyond those of all grids.

A sweep has longer sequences, whose angles have the same frequencies.
"""

TOLERANCE = 20 * 2.0**-24
"""Relative error of an angle that float32 arithmetic explains.

With u = 2^-24, half a unit in the last place, an angle ``p * (1 / base ** (2 i / d))`` is off by

- 9.3 u: the exponent, below 1, is rounded once, and base ** (e (1 + u)) = base ** e * (1 + e u ln
  base), where ln base = 9.21;
- 8 u: the power, which CUDA computes to 4 units in the last place, and the CPU to 1;
- 1 u each: the reciprocal and the product. The position itself is exact below 2^24.

That is 19.3 u. A wrong angle is off by far more: 1 in the base changes the last frequency by 1e-4.
"""


def exact(first: int, positions: int, width: int, device: str = "cpu"):
    """Angles of ``positions`` positions from ``first`` on, radians.

    Float64 ``[positions, 1, 1, width / 2]``, one for each pair of ``width`` channels. Computed on
    the device: of a million positions, a CPU takes as long as all else of a cell.
    """
    import torch

    options = {"dtype": torch.float64, "device": device}
    frequencies = [ROTARY_BASE ** (-2 * i / width) for i in range(width // 2)]
    at = torch.arange(first, first + positions, **options)[:, None, None, None]
    return at * torch.tensor(frequencies, **options)


def by_channel(angles, interleaved: bool = False):
    """Each pair's angle at both of its channels, ``[..., width]``, as the package takes them."""
    import torch

    return angles.repeat_interleave(2, -1) if interleaved else torch.cat((angles, angles), -1)


def check_package(positions: int, width: int, device: str) -> None:
    """Check ``rope_triton.RotaryPositionEmbedding(width)`` on a device, once a process.

    It is called for so many positions, as a user does, and for all ``CHECKED_POSITIONS``.

    Raises
    ------
    AssertionError
        If its angles differ from the suite's by more than float32 explains.
    ImportError
        If the package has no such module.
    """
    from rope_triton import RotaryPositionEmbedding

    for asked in (CHECKED_POSITIONS, positions):
        difference = _difference(RotaryPositionEmbedding, asked, width, device)
        if difference:
            called = f"rope_triton.RotaryPositionEmbedding({width})({asked})"
            raise AssertionError(f"{called} {difference}")


@functools.cache
def _difference(module: type, positions: int, width: int, device: str) -> str:
    """The first wrong angle of the module, in a line; empty if there is none."""
    import torch

    difference = _compared(module(width).to(device)(positions).detach(), positions, width, device)
    torch.cuda.empty_cache()  # what is timed next lies in memory as if nothing had been checked
    return difference


def _compared(result, positions: int, width: int, device: str) -> str:
    import torch

    shape = (positions, 1, 1, width)
    if result.dtype != torch.float32 or result.shape != shape:
        return f"returns {result.dtype} {tuple(result.shape)}, expected torch.float32 {shape}"
    if result.device.type != torch.device(device).type:
        return f"is on {result.device}, expected {device}"
    # On the same device: the GPU has no time to cool down.
    expected = by_channel(exact(0, positions, width, device))
    right = (result.double() - expected).abs() <= TOLERANCE * expected
    if right.all():
        return ""
    position, _, _, channel = map(int, (~right).nonzero()[0])
    here = position, 0, 0, channel
    return (
        f"gives {result[here].item():.9g} radians at position {position}, channel {channel}, "
        f"expected {expected[here].item():.9g}"
    )
