"""From checked tensors to a kernel launch, and the autograd node around it."""

import torch
import triton

from rope_triton.kernels import rope_kernel

# By bytes an element and channels a head: up to how many MiB a tensor is read and written as a
# stream that leaves L2 first, the tile then, and the tile of larger tensors; a tile is positions,
# heads and warps of a program. Measured on an H200 (60 MB of L2), cold cache, both formats, 2 to
# 268 MB: the best of 6 to 9 tiles under 3 cache policies. Where one wave of programs holds the
# whole tensor, fewer and deeper threads win; beyond it, more and shallower ones.
_TILES = {
    (2, 64): (48, (2, 8, 2), (2, 8, 2)),
    (2, 128): (12, (1, 16, 2), (1, 8, 2)),
    (2, 256): (12, (1, 8, 2), (1, 8, 4)),
    (4, 64): (24, (1, 16, 1), (4, 4, 2)),
    (4, 128): (24, (1, 16, 2), (1, 4, 1)),
    (4, 256): (24, (1, 4, 4), (1, 4, 4)),
}
# CUDA's limit for the second and third dimension of a grid.
_GRID_LIMIT = 65535


def check_device(t: torch.Tensor) -> None:
    """Raise ValueError unless ``t`` is on a device that Triton's kernels can read."""
    if not isinstance(rope_kernel, triton.runtime.JITFunction):  # the interpreter takes any device
        return
    try:
        device_type = triton.runtime.driver.active.get_active_torch_device().type
    except RuntimeError as error:  # Triton found no GPU driver
        raise ValueError(
            f"t is on {t.device} and Triton has no GPU here ({error}): "
            "pass fused=False, or set TRITON_INTERPRET=1 before the first import of rope_triton"
        ) from error
    if t.device.type != device_type:
        raise ValueError(
            f"t is on {t.device}, the kernel runs on {device_type}: "
            f"move t and freqs to {device_type}, or pass fused=False"
        )


def rotate(
    t: torch.Tensor, freqs: torch.Tensor, tensor_format: str, interleaved: bool
) -> torch.Tensor:
    """Rotate ``t`` (``[s, b, h, d]`` or ``[b, s, h, d]``) by ``freqs`` (``[s2, 1, 1, d2]``)."""
    return _Rotate.apply(t, freqs, tensor_format, interleaved, False)


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, freqs, tensor_format, interleaved, transposed):
        ctx.save_for_backward(freqs)
        ctx.options = tensor_format, interleaved, transposed
        out = torch.empty_like(t, memory_format=torch.contiguous_format)
        if out.numel():
            with torch.cuda.device_of(t):
                _launch(out, t, freqs, *ctx.options)
        return out

    @staticmethod
    def backward(ctx, grad):
        (freqs,) = ctx.saved_tensors
        tensor_format, interleaved, transposed = ctx.options
        # A rotation is linear: its gradient is the transposed rotation, whose gradient it is.
        grad = _Rotate.apply(grad, freqs, tensor_format, interleaved, not transposed)
        return grad, None, None, None, None


def _launch(out, t, freqs, tensor_format, interleaved, transposed):
    seq, batch = (0, 1) if tensor_format == "sbhd" else (1, 0)
    stream, *tile = _tile(t, freqs.shape[3])
    for part in _parts(out, t, freqs, seq, batch, tile[0]):
        _launch_part(*part, seq, batch, interleaved, transposed, stream, tile)


def _tile(t, width):
    """Whether to stream, and positions, heads and warps of a program, for ``width`` angles."""
    n_heads, channels = t.shape[2], triton.next_power_of_2(t.shape[3])
    measured = min(max(channels, 64), 256)
    mib, *tiles = _TILES[t.element_size(), measured]
    stream = t.numel() * t.element_size() <= mib << 20
    block_s, block_h, num_warps = tiles[0] if stream else tiles[1]
    rows = max(block_s * block_h * measured // channels, 1)
    # Threads share out the angles of either half: where those are few, more positions a program.
    block_s = max(block_s, 32 * num_warps * 2 // triton.next_power_of_2(width))
    block_h = min(triton.next_power_of_2(n_heads), max(rows // block_s, 1))
    return stream, max(rows // block_h, 1), block_h, num_warps


def _parts(out, t, freqs, seq, batch, block_s):
    """Split a call where CUDA's grid ends: one part but for huge sequences and batches."""
    for dim, limit in ((seq, _GRID_LIMIT * block_s), (batch, _GRID_LIMIT)):
        if t.shape[dim] > limit:
            for start in range(0, t.shape[dim], limit):
                length = min(limit, t.shape[dim] - start)
                angles = freqs.narrow(0, start, length) if dim == seq else freqs
                part = out.narrow(dim, start, length), t.narrow(dim, start, length), angles
                yield from _parts(*part, seq, batch, block_s)
            return
    yield out, t, freqs


def _launch_part(out, t, freqs, seq, batch, interleaved, transposed, stream, tile):
    block_s, block_h, num_warps = tile
    n_heads, width = t.shape[2:]
    rows = triton.cdiv(t.shape[seq], block_s), t.shape[batch]
    grid = triton.cdiv(n_heads, block_h), *(rows if batch == 0 else rows[::-1])
    rope_kernel[grid](
        out,
        t,
        freqs,
        t.shape[seq],
        n_heads,
        out.stride(seq),
        out.stride(batch),
        t.stride(seq),
        t.stride(batch),
        t.stride(2),
        t.stride(3),
        freqs.stride(0),
        freqs.stride(3),
        D=width,
        D_ROT=freqs.shape[3],
        BATCH_FIRST=batch == 0,
        INTERLEAVED=interleaved,
        TRANSPOSED=transposed,
        STREAM=stream,
        BLOCK_S=block_s,
        BLOCK_H=block_h,
        num_warps=num_warps,
    )
