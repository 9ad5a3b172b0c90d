"""The oracle: differentiable rotary position embedding in plain PyTorch, on any device."""

import torch


def rotate(
    t: torch.Tensor,
    freqs: torch.Tensor,
    sin: torch.Tensor | None = None,
    start_positions: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    tensor_format: str = "sbhd",
    interleaved: bool = False,
    cp_size: int = 1,
    cp_rank: int = 0,
    rounding: str = "once",
) -> torch.Tensor:
    """``t * cos(freqs) + rotate_half(t) * sin(freqs)`` on the first ``d2`` of ``d`` channels.

    Computed in float32 (float64 for float64 input) and rounded as ``rounding`` says. "once" rounds
    the result alone, as a fused kernel does. TransformerEngine's unfused path
    (``_apply_rotary_pos_emb_base``) also rounds cos and sin to the dtype of ``t``: less exact.

    Parameters
    ----------
    t : torch.Tensor
        ``[s, b, h, d]`` ("sbhd"), ``[b, s, h, d]`` ("bshd"), ``[b, h, s, d]`` ("bhsd") or
        ``[t, h, d]`` ("thd"), floating point.
    freqs, sin : torch.Tensor, torch.Tensor or None
        Angles in radians, ``[s2, 1 or b, 1 or h, d2]`` with ``d2 <= d``; or with ``sin`` cosines
        and sines, ``[s2, 1 or b, 1 or h, d2/2]`` each.
    start_positions, cu_seqlens : torch.Tensor or None
        As in :func:`rope_triton.apply_rotary_pos_emb`, ``[b]`` and ``[b + 1]``; or a position for
        each token, ``[b, s]``.

    Returns
    -------
    torch.Tensor
        Shape and dtype of ``t``, contiguous.
    """
    if tensor_format == "bhsd":
        others = "bshd", interleaved, cp_size, cp_rank, rounding
        out = rotate(t.transpose(1, 2), freqs, sin, start_positions, cu_seqlens, *others)
        return out.transpose(1, 2).contiguous()
    at = positions(t, start_positions, cu_seqlens, tensor_format, cp_size, cp_rank)
    if sin is None:
        # TransformerEngine's angles are always float32; here, float64 on both sides stays float64.
        exact = t.dtype == freqs.dtype == torch.float64
        angles = _rows(freqs if exact else freqs.float(), at, tensor_format, 0.0).to(_compute(t))
        return _rotated(t, angles.cos(), angles.sin(), interleaved, rounding)
    cos, sin = (
        _of_each_channel(_rows(table, at, tensor_format, identity), interleaved).to(_compute(t))
        for table, identity in ((freqs, 1.0), (sin, 0.0))
    )
    return _rotated(t, cos, sin, interleaved, rounding)


def _compute(t):
    return torch.float64 if t.dtype == torch.float64 else torch.float32


def _rows(table, at, tensor_format, identity):
    """Each token's row of the table, ``identity`` where it has none; ``[.., .., 1 or h, n]``."""
    inside = (at >= 0) & (at < table.shape[0])
    member = torch.arange(table.shape[1], device=table.device)
    member = {"sbhd": member, "bshd": member[:, None], "thd": 0}[tensor_format]
    return table[at.where(inside, 0), member].where(inside[..., None, None], identity)


def _of_each_channel(table, interleaved):
    return table.repeat_interleave(2, -1) if interleaved else torch.cat((table, table), -1)


def _rotated(t, cos, sin, interleaved, rounding):
    width = cos.shape[-1]
    rotated, pass_through = t[..., :width], t[..., width:]
    if rounding != "once":
        cos, sin = cos.to(t.dtype), sin.to(t.dtype)
    if rounding != "each":
        rotated, cos, sin = (x.to(_compute(t)) for x in (rotated, cos, sin))
    rotated = rotated * cos + _rotate_half(rotated, interleaved) * sin
    # cat keeps the memory format of its inputs, and transposed views can look like channels_last.
    return torch.cat((rotated.to(t.dtype), pass_through), dim=-1).contiguous()


def positions(
    t: torch.Tensor,
    start_positions: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    tensor_format: str,
    cp_size: int,
    cp_rank: int,
) -> torch.Tensor:
    """Position of each token in its sequence: ``[s, 1 or b]``, ``[1 or b, s]`` or ``[t]``, int64.

    Negative for a token that is in no sequence.
    """
    if tensor_format == "thd" and cu_seqlens is not None:
        bounds = cu_seqlens.long() // cp_size
        token = torch.arange(t.shape[0], device=t.device)
        sequence = torch.searchsorted(bounds, token, right=True) - 1
        inside = (sequence >= 0) & (sequence < bounds.shape[0] - 1)
        sequence = sequence.where(inside, 0)
        seq = token - bounds[sequence]
        length = bounds[sequence + 1] - bounds[sequence]
    else:
        length = t.shape[tensor_format.index("s")]
        seq = torch.arange(length, device=t.device)[:, None]
        sequence, inside = slice(None), torch.ones_like(seq, dtype=torch.bool)
    if cp_size > 1:
        # A rank holds the chunks cp_rank and 2 cp_size - 1 - cp_rank of 2 cp_size.
        chunk = length // 2
        seq = seq + chunk * torch.where(seq < chunk, cp_rank, 2 * cp_size - 2 - cp_rank)
    if start_positions is not None and start_positions.dim() == 2:
        seq = start_positions.long().T
    elif start_positions is not None:
        seq = seq + start_positions.long()[sequence]
    seq = seq.where(inside, -1)
    return seq.T if tensor_format == "bshd" else seq


def _rotate_half(x: torch.Tensor, interleaved: bool) -> torch.Tensor:
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)
