"""The angles that calls get and results are checked by, and the check of the package's own.

All are the suite's: of Python's floats and one product in float64, so that they are the same on
every machine and for every commit. A package whose own angles are wrong must not be measured by
them.
"""

import functools

from .forms import Measured

ROTARY_BASE = 10000.0

CHECKED_POSITIONS = 16384
"""The package's angles are checked from 0 up to here, beyond all positions of any grid.

A sweep has longer sequences, whose angles have the same frequencies.
"""

TOLERANCE = 20 * 2.0**-24
"""What float32 may cost an angle, relative.

With u = 2^-24, half a unit in the last place, an angle ``p * (1 / base ** (2 i / d))`` is off by

- 9.3 u: the exponent, below 1, is rounded once, and base ** (e (1 + u)) = base ** e * (1 + e u ln
  base), where ln base = 9.21;
- 8 u: the power, which CUDA computes to 4 units in the last place, and the CPU to 1;
- 1 u each: the reciprocal and the product. The position itself is exact below 2^24.

That is 19.3 u. What is wrong is off by far more: 1 in the base changes the last frequency by 1e-4.
"""


def exact(first: int, positions: int, width: int, device: str = "cpu"):
    """Angles of the pairs of ``width`` channels, radians, float64 ``[positions, 1, 1, width / 2]``.

    For ``positions`` positions from ``first`` on.
    """
    import torch

    options = {"dtype": torch.float64, "device": device}
    frequencies = [ROTARY_BASE ** (-2 * i / width) for i in range(width // 2)]
    at = torch.arange(first, first + positions, **options)[:, None, None, None]
    return at * torch.tensor(frequencies, **options)


def by_channel(angles, interleaved: bool = False):
    """What the package takes: each pair's angle at both of its channels, ``[..., width]``."""
    import torch

    return angles.repeat_interleave(2, -1) if interleaved else torch.cat((angles, angles), -1)


def of_cell(cell: Measured, device: str):
    """Angles of a cell's positions, float32 ``[positions, 1, 1, hidden_size]``, half-rotation."""
    return by_channel(exact(0, cell.positions, cell.hidden_size).float()).to(device)


def check_package(positions: int, width: int, device: str) -> None:
    """Check ``rope_triton.RotaryPositionEmbedding(width)`` on a device, once a process.

    Of so many positions, as a user asks for them, and of all ``CHECKED_POSITIONS``.

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
    """What is wrong with the module's angles, in a line; empty if nothing is."""
    import torch

    said = _compared(module(width).to(device)(positions).detach(), positions, width, device)
    torch.cuda.empty_cache()  # what is timed next lies in memory as if nothing had been checked
    return said


def _compared(found, positions: int, width: int, device: str) -> str:
    import torch

    shape = (positions, 1, 1, width)
    if found.dtype != torch.float32 or found.shape != shape:
        return f"returns {found.dtype} {tuple(found.shape)}, expected torch.float32 {shape}"
    if found.device.type != torch.device(device).type:
        return f"is on {found.device}, expected {device}"
    # On the same device, which has an answer before it has time to cool down.
    expected = by_channel(exact(0, positions, width, device))
    right = (found.double() - expected).abs() <= TOLERANCE * expected
    if right.all():
        return ""
    position, _, _, channel = map(int, (~right).nonzero()[0])
    here = position, 0, 0, channel
    return (
        f"gives {found[here].item():.9g} radians at position {position}, channel {channel}, "
        f"expected {expected[here].item():.9g}"
    )
