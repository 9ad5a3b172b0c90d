"""How far a result is from the exact one, over what its rounding costs. Exact."""

from .._cells import angles as _angles
from .._cells import package_calls, subjects
from .._cells.forms import FORWARD
from .._cells.grid import PathCell
from . import inputs

_SHAPE = 2048, 1, 2, 128  # sbhd
_PATH_MIB = 2


def error(direction: str, dtype: str, positions: str, interleaved: str) -> float:
    """Root mean square error over that of the exact result rounded to ``dtype``.

    1 is perfect: nothing but the unavoidable rounding. Any further error adds to it, also one that
    hides below half a unit in the last place of bfloat16, where a largest error or a tolerance
    stays as it is. Exact is float64, of the very angles that the call gets.

    The inputs are the same on every machine; 6 digits, because the order of a sum in float64 is
    not.

    Parameters
    ----------
    direction, dtype, positions, interleaved : str
        Values of ``PARAMS``.

    Raises
    ------
    ValueError
        If the result is not finite.
    """
    import torch

    seq_len, *_, width = _SHAPE
    x = random(_SHAPE, getattr(torch, dtype))
    angles = _angles.exact(subjects.POSITIONS[positions], seq_len, width).float()
    pairs_adjoin = interleaved == "True"
    freqs = _angles.by_channel(angles, pairs_adjoin).to(inputs.DEVICE)
    result = _package_result(x.to(inputs.DEVICE), freqs, direction, pairs_adjoin)
    return relative(result.cpu(), exact_rotation(x, angles, direction, pairs_adjoin), x.dtype)


def path_error(direction: str, path: str, dtype: str) -> float:
    """The same of a call of another path; of ready-made tables, those that it gets are exact.

    Parameters
    ----------
    direction, path, dtype : str
        Values of ``PATH_PARAMS``.

    Raises
    ------
    ValueError
        If the result is not finite.
    """
    import torch

    cell = PathCell(path, _PATH_MIB, dtype)
    call, x = inputs.path_call(cell), random(cell.shape, getattr(torch, dtype))
    given = call.split(x if direction == FORWARD else call.cotangent(x))
    there = x.to(inputs.DEVICE, copy=True)  # a rotation in place overwrites it
    results = call.split(_path_result(call, there, direction))
    turn = torch.complex(*(each.cpu() for each in call.turn()))
    exact = [
        _turned(part, turn, direction, interleaved=False) if rotated else part.double()
        for part, rotated in zip(given, call.rotated, strict=True)
    ]
    return relative_of_parts(results, exact, x.dtype)


def random(shape: tuple[int, ...], dtype):
    """From -1 to 1, the same on every machine."""
    import torch

    generator = torch.Generator().manual_seed(0)
    return (2 * torch.rand(shape, generator=generator) - 1).to(dtype)


def relative(result, exact, dtype) -> float:
    """Of a float result against a float64 one, as :func:`error` says."""
    if not result.isfinite().all():
        raise ValueError("the result of finite input has elements that are NaN or infinite")
    return float(f"{_rms(result - exact) / _rms(exact.to(dtype) - exact):.6g}")


def relative_of_parts(results, exact, dtype) -> float:
    """The same of all parts of a result together."""
    import torch

    result, whole = (torch.cat([y.cpu().flatten() for y in parts]) for parts in (results, exact))
    return relative(result, whole, dtype)


def _package_result(x, freqs, direction: str, interleaved: bool):
    """The package's rotation of ``x``, or its gradient for the cotangent ``x``."""
    import torch

    def rotate(t):
        return inputs.apply(t, freqs, "sbhd", interleaved)

    if direction == FORWARD:
        return rotate(x)
    t = torch.zeros_like(x).requires_grad_()
    return torch.autograd.grad(rotate(t), t, x)[0]


def _path_result(call, x, direction: str):
    """What a call makes of ``x``, or of the cotangent that lies there in its backward pass."""
    import torch

    if direction == FORWARD:
        return call.forward(call.operand(x))
    leaf = call.leaf(torch.zeros_like(x))
    return package_calls.gradient(call.forward(leaf), leaf, call.cotangent(x))


def exact_rotation(x, angles, direction: str, interleaved: bool):
    """``x`` turned by ``angles``, in float64."""
    import torch

    turn = torch.polar(torch.ones_like(angles, dtype=torch.float64), angles.double())
    return _turned(x, turn, direction, interleaved)


def _turned(x, turn, direction: str, interleaved: bool):
    """Rotation as multiplication by the complex numbers ``turn``, float64."""
    import torch

    pairs = x.double().unflatten(-1, (-1, 2) if interleaved else (2, -1))
    pairs = pairs if interleaved else pairs.transpose(-1, -2)
    turn = turn if direction == FORWARD else turn.conj()
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
    return (turned if interleaved else turned.transpose(-1, -2)).flatten(-2)


def _rms(x) -> float:
    return x.square().mean().sqrt().item()
