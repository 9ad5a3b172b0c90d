"""Positions times inverse frequencies, in the layout that the kernel reads."""

import torch

_POSITION_DTYPES = (torch.int32, torch.int64, torch.float32)


def rotary_angles(
    positions: torch.Tensor, inv_freq: torch.Tensor, *, interleaved: bool = False
) -> torch.Tensor:
    """Angles ``position x inverse frequency`` for :func:`rope_triton.apply_rotary_pos_emb`.

    Parameters
    ----------
    positions : torch.Tensor
        Positions in tokens: ``[s]`` if all sequences share them, ``[b, s]`` if each has its own
        (``position_ids`` in Hugging Face); int32, int64 or float32.
    inv_freq : torch.Tensor
        Inverse frequencies ``[d/2]`` in radians per position, float32, on the device of
        ``positions``; for example ``scalings.yarn(...).inv_freq``.
    interleaved : bool
        Whether angle ``i`` belongs to the channels ``(2i, 2i + 1)`` instead of ``(i, i + d/2)``.

    Returns
    -------
    torch.Tensor
        Radians, float32, ``[s, 1, 1, d]`` for shared positions and ``[s, b, 1, d]`` for positions
        of each sequence; every angle appears twice, at both channels of its pair.

    Raises
    ------
    TypeError
        If an argument is not a tensor or has a dtype that is not accepted.
    ValueError
        If a shape is not accepted or the devices differ.

    Notes
    -----
    Product and result are float32, as in Hugging Face's models, vLLM and TransformerEngine, so the
    same ``inv_freq`` gives the same bits as there. (Some of Hugging Face's form the product as a
    matrix product, which TF32 may round on a GPU where it is switched on.) A float32 angle is off
    by up to ``2**-24`` of itself, 0.008 radians at position 131072 and frequency 1; models are
    trained with this rounding. Integers above ``2**24`` are not exact in float32.
    """
    _check(positions, inv_freq)
    if positions.dim() not in (1, 2):
        raise ValueError(f"positions must have shape [s] or [b, s], got {tuple(positions.shape)}")
    per_sequence = positions if positions.dim() == 2 else positions[None]
    return _laid_out(per_sequence.T.float()[..., None] * inv_freq, interleaved)


def mrope_angles(
    positions: torch.Tensor,
    inv_freq: torch.Tensor,
    sections: list[int] | tuple[int, ...],
    *,
    interleaved_sections: bool = False,
    interleaved: bool = False,
) -> torch.Tensor:
    """Angles of multimodal rotary position embedding (M-RoPE): each pair follows one of three axes.

    Parameters
    ----------
    positions : torch.Tensor
        Temporal, height and width positions ``[3, b, s]``; int32, int64 or float32.
    inv_freq : torch.Tensor
        As in :func:`rotary_angles`; ``[d/2]``.
    sections : list or tuple of int
        Pairs of channels that follow each axis, ``mrope_section`` in a config: three counts that
        add up to ``d/2``.
    interleaved_sections : bool
        ``mrope_interleaved`` in a config. False: the first ``sections[0]`` pairs are temporal, then
        come height and width (Qwen2-VL, Qwen2.5-VL). True: axes take turns (T H W T H W ...) until
        height or width has its count, and what is left is temporal (Qwen3-VL).
    interleaved : bool
        As in :func:`rotary_angles`; a matter of channels in a pair, not of axes.

    Returns
    -------
    torch.Tensor
        ``[s, b, 1, d]``, radians, float32. Equal positions on all axes (text) give the angles of
        :func:`rotary_angles`.

    Raises
    ------
    TypeError, ValueError
        As :func:`rotary_angles`; and if the sections are not three counts that fit ``d/2`` pairs.

    References
    ----------
    Wang et al., https://arxiv.org/abs/2409.12191, section 2.1; the ``recomposition_frequencies`` of
    ``transformers``' ``Qwen2VLRotaryEmbedding`` and ``Qwen3VLTextRotaryEmbedding``.
    """
    _check(positions, inv_freq)
    if positions.dim() != 3 or positions.shape[0] != 3:
        raise ValueError(
            "positions must have shape [3, b, s] (temporal, height, width), "
            f"got {tuple(positions.shape)}"
        )
    axes = _axes(sections, inv_freq.shape[0], interleaved_sections)
    by_axis = positions.transpose(1, 2).float()
    # Views by axis, not an index tensor: nothing is copied from the host.
    by_pair = torch.stack([by_axis[axis] for axis in axes], dim=-1)
    return _laid_out(by_pair * inv_freq, interleaved)


def by_channel(angles: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Each pair's angle ``[..., d/2]`` at both of its channels ``[..., d]``."""
    if interleaved:
        return angles.repeat_interleave(2, dim=-1)
    return torch.cat((angles, angles), dim=-1)


def _laid_out(angles, interleaved):
    """``[s, b, d/2]`` -> ``[s, b, 1, d]``."""
    return by_channel(angles, interleaved)[:, :, None]


def _axes(sections, pairs, interleaved_sections):
    """The axis that each pair of channels follows."""
    counts = list(sections) if isinstance(sections, list | tuple) else []
    if len(counts) != 3 or not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError(f"sections must be three counts of channel pairs, got {sections}")
    if sum(counts) != pairs:
        raise ValueError(
            f"sections must add up to the {pairs} inverse frequencies, got {sections}, "
            f"which add up to {sum(counts)}"
        )
    if not interleaved_sections:
        return [axis for axis, count in enumerate(counts) for _ in range(count)]
    axes = [pair % 3 if pair // 3 < counts[pair % 3] else 0 for pair in range(pairs)]
    if [axes.count(axis) for axis in range(3)] != counts:
        raise ValueError(f"sections {sections} cannot take turns over {pairs} pairs of channels")
    return axes


def _check(positions, inv_freq):
    for name, value in (("positions", positions), ("inv_freq", inv_freq)):
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if positions.dtype not in _POSITION_DTYPES:
        raise TypeError(f"positions must be one of {_POSITION_DTYPES}, got {positions.dtype}")
    if inv_freq.dtype != torch.float32:
        raise TypeError(f"inv_freq must be torch.float32, got {inv_freq.dtype}")
    if inv_freq.dim() != 1 or not inv_freq.shape[0]:
        raise ValueError(f"inv_freq must have shape [d/2], got {tuple(inv_freq.shape)}")
    if positions.device != inv_freq.device:
        raise ValueError(
            "positions and inv_freq must share a device, "
            f"got {positions.device} and {inv_freq.device}"
        )
