"""The oracle: rotary position embedding in plain PyTorch, on any device, differentiable."""

import torch


def rotate(
    t: torch.Tensor, freqs: torch.Tensor, tensor_format: str, interleaved: bool
) -> torch.Tensor:
    """``t * cos(freqs) + rotate_half(t) * sin(freqs)`` on the first ``d2`` of ``d`` channels.

    Computed in float32 (float64 for float64 input) and rounded once, at the end: what a fused
    kernel does, and more exact than rounding cos and sin to the dtype of ``t`` as
    TransformerEngine's unfused path (``_apply_rotary_pos_emb_base``) does.

    Parameters
    ----------
    t : torch.Tensor
        ``[s, b, h, d]`` ("sbhd") or ``[b, s, h, d]`` ("bshd"), floating point.
    freqs : torch.Tensor
        Angles in radians, ``[s2, 1, 1, d2]`` with ``s2 >= s`` and ``d2 <= d``.

    Returns
    -------
    torch.Tensor
        Shape and dtype of ``t``, contiguous.
    """
    seq_dim = 0 if tensor_format == "sbhd" else 1
    compute = torch.float64 if t.dtype == torch.float64 else torch.float32
    # TransformerEngine's angles are float32 whatever the caller passes; float64 input keeps them
    # exactly and only computes with more digits.
    angles = freqs[: t.shape[seq_dim]].float().to(compute).transpose(0, seq_dim)
    width = freqs.shape[-1]
    turned, passed = t[..., :width].to(compute), t[..., width:]
    turned = turned * angles.cos() + _rotate_half(turned, interleaved) * angles.sin()
    # cat keeps the memory format of its inputs, and transposed views can look like channels_last.
    return torch.cat((turned.to(t.dtype), passed), dim=-1).contiguous()


def _rotate_half(x: torch.Tensor, interleaved: bool) -> torch.Tensor:
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)
