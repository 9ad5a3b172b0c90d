"""From checked tensors to a kernel launch, and the autograd node around it."""

import torch
import triton

from rope_triton.kernels import rope_kernel

# Up to so many bytes, by bytes an element, tensors are read and written as a stream that leaves L2
# first: on an H200 (60 MB of L2) up to 10 % faster for small tensors, 1-2 % slower for large ones.
_STREAM_BYTES = {2: 48 << 20, 4: 24 << 20}
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
    tile = _tile(t.shape[2], t.shape[3], t.element_size(), freqs.shape[3])
    stream = t.numel() * t.element_size() <= _STREAM_BYTES[t.element_size()]
    for part in _parts(out, t, freqs, seq, batch, tile[0]):
        _launch_part(*part, seq, batch, interleaved, transposed, stream, tile)


def _tile(n_heads, channels, element_size, width):
    """Positions, heads and warps of a program.

    At least 64 angles of either half, whose cos and sin the threads share out, 2 to 4 KB of t, and
    16 elements a thread. Measured on an H200 against 1-8 positions x 1-64 heads x 1-8 warps, over
    1 MB to 1 GB.
    """
    half = triton.next_power_of_2(width) // 2
    channels = triton.next_power_of_2(channels)
    block_s = max(64 // half, 1)
    tile_bytes = 1024 * min(block_s * half // 32, 4)
    rows = max(tile_bytes // (channels * element_size), 1)
    block_h = min(triton.next_power_of_2(n_heads), max(rows // block_s, 1))
    block_s = max(rows // block_h, 1)
    num_warps = min(max(block_s * block_h * channels // 512, 1), 4)
    return block_s, block_h, num_warps


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
