"""Adapters that need only torch and this package: the package, a copy, the formula."""

import functools
import types

from ..._subjects.rope import angles
from ..._subjects.rope.rotation import Rotation
from .adapter import Peer, Tables


class Angles(Rotation):
    """This package, by angles, in either order."""


class OwnTables(Tables):
    """This package, by ready-made tables, in the dtype of the tensor, ``[b, s, h, d]``.

    Any strides; the result is contiguous in its own order.
    """

    _public = Rotation._public  # what is missing is missing from a commit

    def _find(self):
        from rope_triton import apply_rotary_emb

        return apply_rotary_emb


class Copy(Peer):
    """A copy of the input, and in the backward of the gradient: what a rotation cannot beat."""

    provider = "copy"
    rotated = (False,)

    def _find(self):
        return _copy_function().apply

    def forward(self, x):
        return self._function(x)


@functools.cache
def _copy_function():
    import torch

    class Copied(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad.clone()

    return Copied


class Formula(Tables):
    """``x * cos + rotate_half(x) * sin`` in plain PyTorch, the tables made for its broadcasting.

    Both products and their sum are rounded to the dtype of the tensor.
    """

    provider = "pytorch"
    whole = True
    rounds_products = True

    def __init__(self, cell, device):
        super().__init__(cell, device)
        tables = (self._bshd(table[None, :, None]) for table in (self._cos, self._sin))
        self._cos, self._sin = (table.contiguous() for table in tables)

    def _find(self):
        return _formula()

    def forward(self, x):
        return self._function(x, self._cos, self._sin)


def _formula():
    import torch

    def rotate(x, cos, sin):
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-second, first), dim=-1) * sin

    return rotate


class _ByCompiler(Peer):
    """Runs its function by torch.compile, for exactly this form of the call.

    torch counts compilations by the function's code object, and goes back to plain PyTorch after
    eight: each call has a code object of its own, shares nothing and is shared by nothing. Should
    it not compile as a whole, that is an error, never a slower figure.
    """

    backend = "inductor"

    def _find(self):
        return self._compile(super()._find())

    def _compile(self, shared):
        import torch

        own = types.FunctionType(
            shared.__code__.replace(), shared.__globals__, shared.__name__, None, shared.__closure__
        )
        return torch.compile(own, dynamic=False, fullgraph=True, backend=self.backend)


class Compiled(_ByCompiler, Formula):
    """The formula on ready-made tables, compiled.

    The compiler's own rounding is between that of the formula and none, so its tolerance holds.
    """

    provider = "compile"


class _AngleFormula(Peer):
    """The same by angles, ``[s, 1, 1, d]`` or ``[1, s, 1, d]``: float32 inside, rounded once."""

    def __init__(self, cell, device):
        super().__init__(cell, device)
        freqs = angles.by_channel(self._angles)
        self._freqs = freqs if cell.format == "sbhd" else freqs.transpose(0, 1)

    def _find(self):
        return _formula_of_angles()

    def forward(self, x):
        return self._function(x, self._freqs)


def _formula_of_angles():
    import torch

    def rotate(x, angles):
        wide = x.float()
        first, second = wide.chunk(2, dim=-1)
        turned = torch.cat((-second, first), dim=-1)
        return (wide * angles.cos() + turned * angles.sin()).to(x.dtype)

    return rotate


class CompiledAngles(_ByCompiler, _AngleFormula):
    """What the package's own call computes, compiled: the compiler's sines, in its kernel."""

    provider = "compile-angles"
