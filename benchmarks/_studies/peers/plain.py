"""Adapters that need only torch and this package: the package, a copy, the formula."""

import functools
import types

from ..._subjects.rope import angles
from .adapter import Peer, Provider


class Angles(Provider):
    """In either order."""

    provider = "rope-triton"
    about = "this package with angles: sines inside the kernel, rounded once"
    layer = "with angles, queries and keys in one launch"
    by_angles = True


class OwnTables(Provider):
    """In the dtype of the tensor, batch first."""

    provider = "rope-triton-tables"
    about = "this package by precomputed tables, rounded once"
    layer = "by precomputed tables, queries and keys in one launch"

    def forward(self, operand):
        if self._call.format != "sbhd":
            return super().forward(operand)
        return self._ordered(super().forward(self._ordered(operand)))


class Copy(Peer):
    """What a rotation cannot beat."""

    provider = "copy"
    about = "no rotation: a copy of the input, and of the gradient"
    layer = "a copy of each tensor, and of each gradient"

    def __init__(self, cell, device):
        super().__init__(cell, device)
        self.rotated = (False,) * len(self.rotated)

    def _find(self):
        return _copy_function().apply

    def _tables(self) -> tuple:
        return ()

    def _ordered(self, x):
        return x


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


class Formula(Peer):
    """In plain PyTorch, the tables made for its broadcasting."""

    provider = "pytorch"
    about = "x * cos + rotate_half(x) * sin on precomputed tables, every step rounded"
    rounds_products = True

    def _find(self):
        return _formula()

    def _tables(self) -> tuple:
        import torch

        tables = (torch.cat((table,) * 2, dim=-1)[None, :, None] for table in super()._tables())
        ordered = map(super()._ordered, tables)
        return tuple(table.contiguous() for table in ordered)

    def _ordered(self, x):
        return x


def _formula():
    import torch

    def rotate(x, cos, sin):
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-second, first), dim=-1) * sin

    return rotate


class ByCompiler(Peer):
    """Runs its function by torch.compile, for exactly this way to call it.

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


class Compiled(ByCompiler, Formula):
    """The compiler's own rounding is between that of the formula and none."""

    provider = "compile"
    about = "the same formula by torch.compile, with static shapes"


class _AngleFormula(Peer):
    """The same with angles, ``[s, 1, 1, d]`` or ``[1, s, 1, d]``: float32 inside, rounded once."""

    by_angles = True

    def _find(self):
        return _formula_of_angles()

    def _tables(self) -> tuple:
        freqs = angles.by_channel(self._angles)
        return (freqs if self._call.format == "sbhd" else freqs.transpose(0, 1),)

    def _ordered(self, x):
        return x


def _formula_of_angles():
    import torch

    def rotate(x, angles):
        wide = x.float()
        first, second = wide.chunk(2, dim=-1)
        turned = torch.cat((-second, first), dim=-1)
        return (wide * angles.cos() + turned * angles.sin()).to(x.dtype)

    return rotate


class CompiledAngles(ByCompiler, _AngleFormula):
    """What the package's own call computes, compiled: the compiler's sines, in its kernel."""

    provider = "compile-angles"
    about = "the formula with angles, rounded once, by torch.compile with static shapes"
