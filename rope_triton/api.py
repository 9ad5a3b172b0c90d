"""The public function: what is accepted, what is refused and why, and which path computes it."""

import torch

from rope_triton import ops, reference

_FUSED_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_DTYPES = (*_FUSED_DTYPES, torch.float64)


def apply_rotary_pos_emb(
    t: torch.Tensor,
    freqs: torch.Tensor,
    tensor_format: str = "sbhd",
    start_positions: torch.Tensor | None = None,
    interleaved: bool = False,
    fused: bool = True,
    cu_seqlens: torch.Tensor | None = None,
    cp_size: int = 1,
    cp_rank: int = 0,
) -> torch.Tensor:
    """Apply rotary position embedding; signature and semantics of TransformerEngine's function.

    With ``x`` the first ``d2`` channels of ``t``, the result is
    ``x * cos(freqs) + rotate_half(x) * sin(freqs)`` followed by the other channels unchanged.
    cos and sin are computed in float32, the products too, and the result is rounded once.
    Differentiable in ``t``, any number of times.

    Parameters
    ----------
    t : torch.Tensor
        ``[s, b, h, d]`` for "sbhd", ``[b, s, h, d]`` for "bshd"; any strides; float32, float16 or
        bfloat16, or float64 with ``fused=False``.
    freqs : torch.Tensor
        Angles in radians, ``[s2, 1, 1, d2]`` with ``s2 >= s`` and even ``d2 <= d``; floating
        point, converted to float32; see :class:`rope_triton.RotaryPositionEmbedding`.
    tensor_format : {"sbhd", "bshd"}
        Order of the dimensions of ``t``.
    start_positions : None
        Not implemented yet.
    interleaved : bool
        Rotate the pairs ``(2i, 2i + 1)`` instead of ``(i, i + d2/2)``.
    fused : bool
        True runs the Triton kernel, and never anything else: ``t`` must be on the device that
        Triton drives. False runs plain PyTorch, on any device.
    cu_seqlens : None
        Not implemented yet; belongs to "thd".
    cp_size, cp_rank : int
        Not implemented yet beyond 1 and 0.

    Returns
    -------
    torch.Tensor
        Shape and dtype of ``t``, contiguous.

    Raises
    ------
    TypeError
        If ``t`` or ``freqs`` is not a tensor or has a dtype that is not accepted.
    ValueError
        If a shape, device, format name or combination of arguments is not accepted, or ``freqs``
        requires a gradient.
    NotImplementedError
        For "thd", ``start_positions``, ``cu_seqlens`` and ``cp_size > 1``.

    References
    ----------
    Su et al., https://arxiv.org/abs/2104.09864, equation 34;
    ``transformer_engine.pytorch.attention.rope.apply_rotary_pos_emb``.
    """
    _check_options(tensor_format, start_positions, cu_seqlens, cp_size, cp_rank)
    _check_tensors(t, freqs)
    _check_shapes(t, freqs, tensor_format)
    if not fused:
        return reference.rotate(t, freqs, tensor_format, interleaved)
    if t.dtype not in _FUSED_DTYPES:
        raise TypeError(f"t is {t.dtype}, which the kernel does not compute: pass fused=False")
    ops.check_device(t)
    return ops.rotate(t, freqs, tensor_format, bool(interleaved))


def _check_options(tensor_format, start_positions, cu_seqlens, cp_size, cp_rank):
    if tensor_format not in ("sbhd", "bshd", "thd"):
        raise ValueError(f"tensor_format must be 'sbhd', 'bshd' or 'thd', got {tensor_format!r}")
    if cu_seqlens is not None and tensor_format != "thd":
        raise ValueError(f"cu_seqlens belongs to tensor_format='thd', got {tensor_format!r}")
    if cu_seqlens is None and tensor_format == "thd":
        raise ValueError("tensor_format='thd' needs cu_seqlens, got None")
    for name, value in (("cp_size", cp_size), ("cp_rank", cp_rank)):
        if not isinstance(value, int):
            raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if cp_size < 1 or not 0 <= cp_rank < cp_size:
        raise ValueError(f"expected 0 <= cp_rank < cp_size, got {cp_rank=}, {cp_size=}")
    if tensor_format == "thd":
        raise NotImplementedError("tensor_format='thd' is not implemented yet")
    if start_positions is not None:
        raise NotImplementedError("start_positions is not implemented yet")
    if cp_size > 1:
        raise NotImplementedError("context parallelism (cp_size > 1) is not implemented yet")


def _check_tensors(t, freqs):
    for name, value in (("t", t), ("freqs", freqs)):
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if t.dtype not in _DTYPES:
        raise TypeError(f"t must be one of {_DTYPES}, got {t.dtype}")
    if not freqs.dtype.is_floating_point:
        raise TypeError(f"freqs must be floating point (radians), got {freqs.dtype}")
    if freqs.requires_grad:
        raise ValueError("freqs requires a gradient, which is not computed: pass freqs.detach()")
    if t.device != freqs.device:
        raise ValueError(f"t and freqs must share a device, got {t.device} and {freqs.device}")


def _check_shapes(t, freqs, tensor_format):
    if t.dim() != 4:
        raise ValueError(
            f"t must have 4 dimensions for tensor_format={tensor_format!r}, "
            f"got shape {tuple(t.shape)}"
        )
    if freqs.dim() != 4 or freqs.shape[1] != 1 or freqs.shape[2] != 1:
        raise ValueError(f"freqs must have shape [s2, 1, 1, d2], got {tuple(freqs.shape)}")
    seq_len = t.shape[0 if tensor_format == "sbhd" else 1]
    if freqs.shape[0] < seq_len:
        raise ValueError(
            f"freqs covers {freqs.shape[0]} positions, the sequence of "
            f"t with shape {tuple(t.shape)} ({tensor_format}) has {seq_len}"
        )
    width = freqs.shape[3]
    if width == 0 or width % 2 or width > t.shape[3]:
        raise ValueError(
            f"freqs must be an even number of channels wide, from 2 to d={t.shape[3]}, got {width}"
        )
