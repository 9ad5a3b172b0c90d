"""Adapters that need only torch and this package: the package, a copy, the formula."""

import functools

from ..._subjects.rope import angles
from .. import compiling
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
    either_order = True

    def __init__(self, cell, device):
        super().__init__(cell, device)
        self.rotated = (False,) * len(self.rotated)

    def _find(self):
        return _copy_function().apply

    def _tables(self) -> tuple:
        return ()


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
    rounds_products = either_order = True
    backend: str | None = None  # of torch.compile

    def _find(self):
        return compiling.alone(self._formula(), self.backend)

    def _formula(self):
        import torch

        def rotate(x, cos, sin):
            first, second = x.chunk(2, dim=-1)
            return x * cos + torch.cat((-second, first), dim=-1) * sin

        return rotate

    def _tables(self) -> tuple:
        import torch

        wide = (torch.cat((table,) * 2, dim=-1)[:, None] for table in super()._tables())
        axis = self._call.format.index("b")
        return tuple(table.unsqueeze(axis) for table in wide)


class Compiled(Formula):
    """The compiler's own rounding is between that of the formula and none."""

    provider = "compile"
    about = "the same formula by torch.compile, with static shapes"
    backend = "inductor"


class CompiledAngles(Compiled):
    """What the package's own call computes, compiled: the compiler's sines, in its kernel."""

    provider = "compile-angles"
    about = "the formula with angles, rounded once, by torch.compile with static shapes"
    by_angles = True
    rounds_products = False

    def _formula(self):
        import torch

        def rotate(x, angles):
            wide = x.float()
            first, second = wide.chunk(2, dim=-1)
            turned = torch.cat((-second, first), dim=-1)
            return (wide * angles.cos() + turned * angles.sin()).to(x.dtype)

        return rotate

    def _tables(self) -> tuple:
        freqs = angles.by_channel(self._angles)
        return (freqs if self._call.format == "sbhd" else freqs.transpose(0, 1),)
