"""The rotation by the suite's own float32 formula, which outputs are checked against."""

from ..._engine.subject import BACKWARD

CHECKED_BYTES = 512 << 20  # of inputs and outputs that are checked at once


def check_part(output, x, cos_sin, call, direction: str) -> None:
    """Raise AssertionError unless ``output`` is ``x`` rotated, or copied, slice by slice.

    ``cos_sin``: of every token, None for a part that is copied. ``call`` is a
    ``rotation_calls.Rotation``, which says how it pairs and rounds.
    """
    import torch

    dim = max(call.cell.call_name.format.find("s"), 0)  # of positions, or of all tokens
    positions = x.shape[dim]
    rows = max(1, CHECKED_BYTES // (2 * x.nbytes // positions))
    for start in range(0, positions, rows):
        here = dim, start, min(rows, positions - start)
        expected, result = x.narrow(*here), output.narrow(*here)
        if cos_sin:
            cos, sin = (table.narrow(*here) for table in cos_sin)
            part, expected = expected, _rotated(expected, cos, sin, call, direction).to(x.dtype)
            result = _without_slack(result, expected, part, call) if call.slack else result
        torch.testing.assert_close(result, expected)


def _without_slack(result, expected, x, call):
    """``result``, moved towards ``expected`` by the call's slack of the length of each pair."""
    import torch

    length = torch.hypot(*_pairs(x.float(), call.interleaved)) * call.slack
    allowed = _joined((length, length), call.interleaved)
    off = result.float() - expected.float()
    return (expected.float() + (off - off.clamp(-allowed, allowed))).to(result.dtype)


def _rotated(x, cos, sin, call, direction: str):
    sin = -sin if direction == BACKWARD else sin
    return rotated(x, cos, sin, call.interleaved, call.rounding)


def rotated(x, cos, sin, interleaved: bool = False, rounding: str = "once"):
    """Pairs of channels rotated by their cosines and sines, ``[..., d / 2]``.

    In float32, or float64 where ``x`` is.
    """
    rounded = {"once": (False, False), "tables": (True, False), "each": (True, True)}
    tables_too, products_too = rounded[rounding]
    first, second = _pairs(x if x.dtype.itemsize == 8 else x.float(), interleaved)
    if tables_too:
        cos, sin = (table.to(x.dtype).float() for table in (cos, sin))
    products = first * cos, second * sin, second * cos, first * sin
    if products_too:
        products = tuple(product.to(x.dtype).float() for product in products)
    turned = products[0] - products[1], products[2] + products[3]
    return _joined(turned, interleaved)


def _pairs(x, interleaved: bool) -> tuple:
    return (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)


def _joined(pair: tuple, interleaved: bool):
    import torch

    return torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
