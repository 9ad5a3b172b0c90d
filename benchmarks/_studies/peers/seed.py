"""Adapter of the seed: this project's first design, written anew from its description.

A program for each position and each head reads its row of precomputed tables and loops over the
batch: short rows, one after the other, and twice as much of the tables as it needs.
"""

import functools
from typing import Any

from .adapter import Peer

# Triton looks for its language among the globals of a kernel, and no module here may import it.
tl: Any = None


class Seed(Peer):
    """By float32 tables ``[s, d]``, in either order; computed in float32 and rounded once.

    The backward is the transposed rotation, by the same kernel.
    """

    provider = "seed"
    about = "a Triton program for each position and head, looping over the batch; float32 tables"

    def _find(self):
        return _function().apply

    def _tables(self) -> tuple:
        import torch

        return tuple(torch.cat((table,) * 2, dim=-1) for table in super()._tables())

    def _table_dtype(self):
        import torch

        return torch.float32


@functools.cache
def _function():
    import torch

    class Rotated(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, cos, sin):
            ctx.save_for_backward(cos, sin)
            return _launch(x, cos, sin, transposed=False)

        @staticmethod
        def backward(ctx, grad):
            cos, sin = ctx.saved_tensors
            return _launch(grad, cos, sin, transposed=True), None, None

    return Rotated


def _launch(x, cos, sin, transposed: bool):
    """Rotate ``[b, s, h, d]`` of any strides, contiguous in its channels, by tables ``[s, d]``."""
    import torch
    import triton

    batch, positions, heads, channels = x.shape
    out = torch.empty_like(x)
    _kernel()[positions, heads](
        *(out, x, cos, sin, batch),
        *(*out.stride()[:3], *x.stride()[:3]),
        TRANSPOSED=transposed,
        D=channels,
        BLOCK=triton.next_power_of_2(channels // 2),
    )
    return out


@functools.cache
def _kernel():
    global tl
    import triton
    import triton.language as tl

    @triton.jit
    def rotate_position_and_head(
        out_ptr,
        x_ptr,
        cos_ptr,
        sin_ptr,
        batch,
        out_batch,
        out_seq,
        out_head,
        x_batch,
        x_seq,
        x_head,
        TRANSPOSED: tl.constexpr,
        D: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        position = tl.program_id(0).to(tl.int64)
        head = tl.program_id(1).to(tl.int64)
        channel = tl.arange(0, BLOCK)
        inside = channel < D // 2
        row = position * D + channel
        cos_1 = tl.load(cos_ptr + row, mask=inside)
        cos_2 = tl.load(cos_ptr + row + D // 2, mask=inside)
        sin_1 = tl.load(sin_ptr + row, mask=inside)
        sin_2 = tl.load(sin_ptr + row + D // 2, mask=inside)
        if TRANSPOSED:
            sin_1, sin_2 = -sin_2, -sin_1
        x_row = x_ptr + position * x_seq + head * x_head + channel
        out_row = out_ptr + position * out_seq + head * out_head + channel
        for _ in range(batch):
            x_1 = tl.load(x_row, mask=inside).to(tl.float32)
            x_2 = tl.load(x_row + D // 2, mask=inside).to(tl.float32)
            y_1 = x_1 * cos_1 - x_2 * sin_1
            y_2 = x_2 * cos_2 + x_1 * sin_2
            tl.store(out_row, y_1.to(out_ptr.dtype.element_ty), mask=inside)
            tl.store(out_row + D // 2, y_2.to(out_ptr.dtype.element_ty), mask=inside)
            x_row += x_batch
            out_row += out_batch

    return rotate_position_and_head
