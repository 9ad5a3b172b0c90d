"""Measure a result's error relative to the error of rounding the exact result. Exact.

1 is perfect: nothing but the unavoidable rounding. Any further error adds to it, even one below
half a unit in the last place of bfloat16, which neither a maximum nor a tolerance shows. The exact
result is the call's own, in float64, of the same constants that the package gets.

The inputs are the same on every machine. 6 digits, because the order of a sum in float64 is not.
"""

from ..subject import FORWARD, Cell
from . import inputs


def error(cell: Cell, direction: str) -> float:
    """Root mean square error over that of the exact result rounded to the cell's dtype.

    Raises ValueError if the result is not finite.
    """
    import torch

    call, x = cell.call(inputs.DEVICE), _random(cell)
    there = x.to(inputs.DEVICE, copy=True)  # a call in place overwrites it
    if direction == FORWARD:
        result = call.forward(call.operand(there))
    else:
        leaf = call.leaf(torch.zeros_like(there))
        result = inputs.gradient(call.forward(leaf), leaf, call.cotangent(there))
    return _relative(call.split(result), call.exact(x, direction), x.dtype)


def _random(cell: Cell):
    """Values from -1 to 1 on the CPU, the same on every machine."""
    import torch

    generator = torch.Generator().manual_seed(0)
    values = 2 * torch.rand(cell.shape, generator=generator) - 1
    return values.to(getattr(torch, cell.dtype))


def _relative(parts, exact_parts, dtype) -> float:
    """The error of all parts of a result together, against the float64 parts."""
    import torch

    result, exact = (torch.cat([part.cpu().flatten() for part in p]) for p in (parts, exact_parts))
    if not result.isfinite().all():
        raise ValueError("the result of finite input has elements that are NaN or infinite")
    return float(f"{_rms(result - exact) / _rms(exact.to(dtype) - exact):.6g}")


def _rms(x) -> float:
    return x.square().mean().sqrt().item()
