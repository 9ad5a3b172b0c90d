"""Rotation with angles: TransformerEngine's functions, and queries and keys in one launch."""

import torch

from rope_triton import checks, ops, reference
from rope_triton.ops import Options, QkvOptions


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
    *,
    rounding: str = "once",
) -> torch.Tensor:
    """Apply rotary position embedding; signature and semantics of TransformerEngine's function.

    With ``x`` the first ``d2`` channels of ``t``, the result is
    ``x * cos(freqs) + rotate_half(x) * sin(freqs)`` followed by the other channels unchanged.
    Differentiable in ``t`` any number of times, also in forward mode. If ``freqs`` requires a
    gradient or has a tangent, differentiable in both, by plain PyTorch.

    Parameters
    ----------
    t : torch.Tensor
        ``[s, b, h, d]`` for "sbhd", ``[b, s, h, d]`` for "bshd", ``[t, h, d]`` for "thd"; any
        strides; float32, float16 or bfloat16, or float64 with ``fused=False``.
    freqs : torch.Tensor
        Angles in radians by position, ``[s2, 1, 1, d2]`` with ``s2 >= s * cp_size`` and even
        ``d2 <= d``, or ``[s2, 1 or b, 1 or h, d2]`` with angles for each sequence or head; float32
        or float64, converted to float32. Half precision is refused: at position 1000, bfloat16 is
        off by up to 2 radians. See :class:`rope_triton.RotaryPositionEmbedding`,
        :func:`rope_triton.rotary_angles` and :func:`rope_triton.mrope_angles`.
    tensor_format : {"sbhd", "bshd", "thd"}
        Order of the dimensions of ``t``; "thd" is packed sequences of any lengths.
    start_positions : torch.Tensor, optional
        Position of the first token of each sequence, ``[b]``, int32 or int64; 0 by default.
    interleaved : bool
        Rotate the pairs ``(2i, 2i + 1)`` instead of ``(i, i + d2/2)``.
    fused : bool
        True runs the Triton kernel and never falls back: ``t`` must be on Triton's device. False
        runs plain PyTorch, on any device.
    cu_seqlens : torch.Tensor, optional
        Bounds of the packed sequences of "thd" in the tokens of all ranks, ``[b + 1]``, int32 or
        int64, from 0 up to ``t * cp_size``. The other formats accept it for compatibility with
        TransformerEngine, and the result does not depend on it.
    cp_size, cp_rank : int
        Context parallelism: every sequence is cut into ``2 * cp_size`` chunks of equal length, and
        this rank holds the chunks ``cp_rank`` and ``2 * cp_size - 1 - cp_rank``, in this order.
    rounding : {"once", "tables", "each"}
        What is rounded to the dtype of ``t``; all else is float32. "once": only the result, as
        TransformerEngine does. "tables": cos and sin too, as vLLM does. "each": also every product,
        as Hugging Face's models do. Serve a model with the rounding it was trained with.

    Returns
    -------
    torch.Tensor
        Shape and dtype of ``t``, contiguous.

    Raises
    ------
    TypeError
        If ``t`` or ``freqs`` is not a tensor or has a dtype that is not accepted.
    ValueError
        If a shape, device, name or combination of arguments is not accepted.
    NotImplementedError
        If ``freqs`` requires a gradient under torch.compile or torch.func; or if ``freqs`` has a
        tangent while an input requires a gradient, or requires one while ``t`` has a tangent.

    Notes
    -----
    Values on the device are not checked, because that would synchronize. A token whose position is
    beyond ``freqs``, or that is in no sequence, is rotated by the angle 0: finite channels are
    returned unchanged, and an infinite or NaN channel makes the other of its pair NaN. With
    ``ROPE_TRITON_CHECK=1`` in the environment at import, the values are checked, and such a call
    raises ValueError: a compiled or traced one when the kernel runs, with ``fused=False`` never.

    On one GPU architecture and version of Triton, the kernel's result of a row follows from its
    values, its angles, its dtype and ``rounding`` alone: it has the same bits in every layout, at
    every place and in every call. Where both channels of each pair have the same angle, the
    gradient has the bits of a call with negated ``freqs``, but for the sign of a zero. Otherwise it
    is the transpose.

    References
    ----------
    Su et al., https://arxiv.org/abs/2104.09864, equation 34;
    ``transformer_engine.pytorch.attention.rope.apply_rotary_pos_emb``.
    """
    options = Options(tensor_format, bool(interleaved), cp_size, cp_rank, rounding)
    if fused and not ops.needs_table_grad(freqs):
        return ops.rotate(t, freqs, start_positions, cu_seqlens, options)

    def by_kernel(t, freqs):
        return ops.rotate(t, freqs, start_positions, cu_seqlens, options)

    def plain(t, freqs):
        return reference.rotate(t, freqs, start_positions, cu_seqlens, *options[:5])

    values = ops.is_plain((t, freqs), start_positions, cu_seqlens)
    checks.check_by_angles(t, freqs, start_positions, cu_seqlens, options, values=values)
    return ops.with_table_grad(by_kernel, plain, t, freqs) if fused else plain(t, freqs)


def apply_qk_rotary_pos_emb(
    q: torch.Tensor,
    k: torch.Tensor,
    freqs: torch.Tensor,
    tensor_format: str = "sbhd",
    start_positions: torch.Tensor | None = None,
    interleaved: bool = False,
    fused: bool = True,
    cu_seqlens: torch.Tensor | None = None,
    cp_size: int = 1,
    cp_rank: int = 0,
    *,
    rounding: str = "once",
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`apply_rotary_pos_emb` for queries and keys in one launch, their gradients in one.

    Parameters
    ----------
    q, k : torch.Tensor
        As ``t`` in :func:`apply_rotary_pos_emb`. They differ only in strides and the number of
        heads: grouped-query attention has fewer in ``k``.
    freqs : torch.Tensor
        As there, ``[s2, 1 or b, 1, d2]``: all heads share it. If it requires a gradient, there are
        two launches, and plain PyTorch computes the gradient.

    The other parameters are as there.

    Returns
    -------
    tuple of torch.Tensor
        Shapes and dtype of ``q`` and ``k``, contiguous.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        As there; also if ``q`` and ``k`` do not match.
    """
    options = Options(tensor_format, bool(interleaved), cp_size, cp_rank, rounding)
    if fused and not ops.needs_table_grad(freqs):
        return ops.rotate_qk(q, k, freqs, None, start_positions, cu_seqlens, options)
    checks.check_pair(q, k, freqs, None, start_positions, cu_seqlens, options)
    if fused:
        ops.check_tangents(q, k, freqs)
    call = freqs, tensor_format, start_positions, interleaved, fused, cu_seqlens, cp_size, cp_rank
    q, k = (apply_rotary_pos_emb(x, *call, rounding=rounding) for x in (q, k))
    return q, k


def apply_fused_qkv_rotary_pos_emb(
    qkv: torch.Tensor,
    q_freqs: torch.Tensor,
    k_freqs: torch.Tensor,
    qkv_split_arg_list: list[int],
    tensor_format: str = "sbhd",
    start_positions: torch.Tensor | None = None,
    interleaved: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    cp_size: int = 1,
    cp_rank: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Split a packed projection and rotate queries and keys in one launch, its gradient in one.

    Signature and semantics of TransformerEngine's function: the same as splitting ``qkv`` along
    its last dimension and calling :func:`apply_rotary_pos_emb` on queries and keys.

    Parameters
    ----------
    qkv : torch.Tensor
        ``[s, b, h, d_q + d_k + d_v]`` for "sbhd", ``[b, s, h, d_q + d_k + d_v]`` for "bshd", with
        ``h`` groups of heads; any strides; float32, float16 or bfloat16.
    q_freqs, k_freqs : torch.Tensor
        Angles in radians by position for queries and for keys, each ``[s2, 1, 1, d2]``; as in
        :func:`apply_rotary_pos_emb`.
    qkv_split_arg_list : list of int
        ``[d_q, d_k, d_v]``: channels of queries, keys and values in a group. ``d_v`` is the size
        of a head, and ``d_q`` and ``d_k`` are multiples of it.
    tensor_format : {"sbhd", "bshd"}
        Order of the dimensions of ``qkv``.
    start_positions, interleaved, cp_size, cp_rank
        As in :func:`apply_rotary_pos_emb`. Unlike upstream, the first two may be combined with
        context parallelism and with gradients.
    cu_seqlens : None
        Packed sequences are not supported, as upstream.

    Returns
    -------
    tuple of torch.Tensor
        Queries, keys and values, ``[.., .., h * d_q / d_v, d_v]`` and so on, contiguous.

    Raises
    ------
    TypeError, ValueError
        As in :func:`apply_rotary_pos_emb`; also if the split does not match ``qkv``, or the two
        tables differ in shape.

    Notes
    -----
    As in :func:`apply_rotary_pos_emb`, a row has the same bits in every call.

    References
    ----------
    ``transformer_engine.pytorch.attention.rope.apply_fused_qkv_rotary_pos_emb``.
    """
    if cu_seqlens is not None:
        raise ValueError("cu_seqlens must be None: packed sequences have no fused QKV call")
    if ops.needs_table_grad(q_freqs, k_freqs):
        raise ValueError(
            "q_freqs or k_freqs requires a gradient or has a tangent, which is not computed here: "
            "detach them, or call apply_rotary_pos_emb on queries and keys"
        )
    channels = checks.check_channels(qkv_split_arg_list)
    options = QkvOptions(tensor_format, bool(interleaved), cp_size, cp_rank, *channels)
    return ops.split_qkv(qkv, q_freqs, k_freqs, start_positions, options)
