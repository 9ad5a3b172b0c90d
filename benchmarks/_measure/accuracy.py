"""Measure a result's error relative to the error of rounding the exact result. Exact.

1 is perfect: nothing but the unavoidable rounding. Any further error adds to it, even one below
half a unit in the last place of bfloat16, which neither a maximum nor a tolerance shows. The exact
result is computed in float64 from the same angles or tables that the call gets.

The inputs are the same on every machine. 6 digits, because the order of a sum in float64 is not.
"""

from .._subjects.rope import package_calls, subjects
from .._subjects.rope.forms import FORWARD, BaseCell
from .._subjects.rope.grid import PathCell
from . import inputs

_SHAPE = 2048, 1, 2, 128  # sbhd
_PATH_MIB = 2


def error(direction: str, dtype: str, positions: str, interleaved: str) -> float:
    """Root mean square error over that of the exact result rounded to ``dtype``.

    Parameters
    ----------
    direction, dtype, positions, interleaved : str
        Values of the parameters of ``subjects.ERROR``.

    Raises
    ------
    ValueError
        If the result is not finite.
    """
    cell = subjects.error_cell(dtype, positions, interleaved == "True")
    return _error(cell, direction, _SHAPE)


def path_error(direction: str, path: str, dtype: str) -> float:
    """The error of a call of another path; see :func:`error`.

    Parameters
    ----------
    direction, path, dtype : str
        Values of the parameters of ``subjects.PATH_ERROR``.

    Raises
    ------
    ValueError
        If the result is not finite.
    """
    cell = PathCell(path, _PATH_MIB, dtype)
    return _error(cell, direction, cell.shape)


def _error(cell: BaseCell, direction: str, shape: tuple[int, ...]) -> float:
    import torch

    call, x = inputs.call_of(cell), random(shape, getattr(torch, cell.dtype))
    given = call.split(x if direction == FORWARD else call.cotangent(x))
    there = x.to(inputs.DEVICE, copy=True)  # a rotation in place overwrites it
    results = call.split(_result(call, there, direction))
    cos_sin = torch.complex(*(each.cpu() for each in call.cos_sin()))
    exact = [
        _rotated(part, cos_sin, direction, call.interleaved) if rotated else part.double()
        for part, rotated in zip(given, call.rotated, strict=True)
    ]
    return relative(results, exact, x.dtype)


def random(shape: tuple[int, ...], dtype):
    """From -1 to 1, the same on every machine."""
    import torch

    generator = torch.Generator().manual_seed(0)
    return (2 * torch.rand(shape, generator=generator) - 1).to(dtype)


def relative(results, exact, dtype) -> float:
    """The error of all parts of a result together, against the float64 parts; see :func:`error`."""
    import torch

    result, whole = (torch.cat([y.cpu().flatten() for y in parts]) for parts in (results, exact))
    if not result.isfinite().all():
        raise ValueError("the result of finite input has elements that are NaN or infinite")
    return float(f"{_rms(result - whole) / _rms(whole.to(dtype) - whole):.6g}")


def _result(call, x, direction: str):
    """The call's output for ``x``, or its gradient for the cotangent in the memory of ``x``."""
    import torch

    if direction == FORWARD:
        return call.forward(call.operand(x))
    leaf = call.leaf(torch.zeros_like(x))
    return package_calls.gradient(call.forward(leaf), leaf, call.cotangent(x))


def exact_rotation(x, angles, direction: str, interleaved: bool):
    """``x`` rotated by ``angles``, in float64."""
    import torch

    cos_sin = torch.polar(torch.ones_like(angles, dtype=torch.float64), angles.double())
    return _rotated(x, cos_sin, direction, interleaved)


def _rotated(x, cos_sin, direction: str, interleaved: bool):
    """Rotation as multiplication by the complex numbers ``cos_sin``, float64."""
    import torch

    pairs = x.double().unflatten(-1, (-1, 2) if interleaved else (2, -1))
    pairs = pairs if interleaved else pairs.transpose(-1, -2)
    factor = cos_sin if direction == FORWARD else cos_sin.conj()
    rotated = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * factor)
    return (rotated if interleaved else rotated.transpose(-1, -2)).flatten(-2)


def _rms(x) -> float:
    return x.square().mean().sqrt().item()
