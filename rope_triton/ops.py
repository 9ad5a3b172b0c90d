"""From checked tensors to a kernel launch, and the autograd node around it."""

import torch
import triton

from rope_triton.kernels import rope_kernel


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
        return _launch(t, freqs, tensor_format, interleaved, transposed)

    @staticmethod
    def backward(ctx, grad):
        (freqs,) = ctx.saved_tensors
        tensor_format, interleaved, transposed = ctx.options
        # A rotation is linear: its gradient is the transposed rotation, whose gradient it is.
        grad = _Rotate.apply(grad, freqs, tensor_format, interleaved, not transposed)
        return grad, None, None, None, None


def _launch(t, freqs, tensor_format, interleaved, transposed):
    out = torch.empty_like(t, memory_format=torch.contiguous_format)
    if out.numel() == 0:
        return out
    seq_first = tensor_format == "sbhd"
    n_seq, n_batch = t.shape[:2] if seq_first else (t.shape[1], t.shape[0])
    stride_s, stride_b = t.stride()[:2] if seq_first else (t.stride(1), t.stride(0))
    n_heads, width = t.shape[2:]
    out_s, out_b = out.stride()[:2] if seq_first else (out.stride(1), out.stride(0))
    block_h = min(triton.next_power_of_2(n_heads), 4)
    with torch.cuda.device_of(t):
        rope_kernel[(n_seq, n_batch, triton.cdiv(n_heads, block_h))](
            out,
            t,
            freqs,
            n_heads,
            out_s,
            out_b,
            stride_s,
            stride_b,
            t.stride(2),
            t.stride(3),
            freqs.stride(0),
            freqs.stride(3),
            D=width,
            D_ROT=freqs.shape[3],
            INTERLEAVED=interleaved,
            TRANSPOSED=transposed,
            BLOCK_H=block_h,
            num_warps=4,
        )
    return out
