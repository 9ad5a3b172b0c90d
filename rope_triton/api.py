"""The public functions, and which implementation computes each call.

With angles: TransformerEngine's functions, and queries and keys in one launch. With tables of
cosines and sines: flash-attention's and PyTorch's functions.
"""

import torch

from rope_triton import checks, reference
from rope_triton.kernel.plans import Options, QkvOptions, by_position
from rope_triton.ops.dispatch import is_plain
from rope_triton.ops.qk import rotate_qk
from rope_triton.ops.qkv import split_qkv
from rope_triton.ops.single import rotate
from rope_triton.ops.table_grad import check_tangents, needs_table_grad, with_table_grad


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
    if fused and not needs_table_grad(freqs):
        return rotate(t, freqs, None, start_positions, cu_seqlens, options)
    return _by_pytorch(t, freqs, None, start_positions, cu_seqlens, options, fused)


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

    ``q`` and ``k`` are as ``t`` there, and differ only in strides and the number of heads:
    grouped-query attention has fewer in ``k``. All heads share ``freqs``, ``[s2, 1 or b, 1, d2]``;
    if it requires a gradient, there are two launches, and plain PyTorch computes the gradient. All
    else is as there.

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
    if fused and not needs_table_grad(freqs):
        return rotate_qk(q, k, freqs, None, start_positions, cu_seqlens, options)
    checks.check_pair(q, k, freqs, None, start_positions, cu_seqlens, options)
    if fused:
        check_tangents(q, k, freqs)
    others = freqs, None, start_positions, cu_seqlens, options, fused
    return _by_pytorch(q, *others), _by_pytorch(k, *others)


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
    if needs_table_grad(q_freqs, k_freqs):
        raise ValueError(
            "q_freqs or k_freqs requires a gradient or has a tangent, which is not computed here: "
            "detach them, or call apply_rotary_pos_emb on queries and keys"
        )
    channels = checks.check_channels(qkv_split_arg_list)
    options = QkvOptions(tensor_format, bool(interleaved), cp_size, cp_rank, *channels)
    return split_qkv(qkv, q_freqs, k_freqs, start_positions, options)


def apply_rotary_emb(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | torch.Tensor = 0,
    cu_seqlens: torch.Tensor | None = None,
    max_seqlen: int | None = None,
    *,
    rounding: str = "once",
    fused: bool = True,
    inplace_gradient: bool = False,
) -> torch.Tensor:
    """Rotate with cos/sin tables; the signature and semantics of flash-attention's function.

    Products are computed in float32 and the result is rounded once. Differentiable in ``x`` any
    number of times, also in forward mode. If a table requires a gradient or has a tangent,
    differentiable in all three, by plain PyTorch.

    Parameters
    ----------
    x : torch.Tensor
        ``[b, s, h, d]``, or ``[t, h, d]`` of packed sequences with ``cu_seqlens``; any strides;
        float32, float16 or bfloat16, or float64 with ``fused=False``.
    cos, sin : torch.Tensor
        Cosines and sines by position, one for each pair of channels: ``[s2, d2/2]`` with
        ``d2 <= d``, or ``[1 or b, s2, d2/2]``, a table for each sequence; float16,
        bfloat16, float32 or float64.
    interleaved : bool
        Rotate the pairs ``(2i, 2i + 1)`` instead of ``(i, i + d2/2)``.
    inplace : bool
        Write to ``x`` and return it. Its channels must be contiguous. Autograd records the change;
        the gradient is a new tensor, unless ``inplace_gradient`` is set.
    seqlen_offsets : int or torch.Tensor
        Position of the first token of every sequence, or of each: ``[b]``, int32 or int64.
    cu_seqlens : torch.Tensor, optional
        Bounds of the packed sequences, ``[b + 1]``, int32 or int64.
    max_seqlen : int, optional
        Ignored; accepted for flash-attention compatibility.
    rounding, fused
        As in :func:`rope_triton.apply_rotary_pos_emb`.
    inplace_gradient : bool
        With ``inplace``: write the gradient into the incoming one, unless that is expanded. Only
        safe if nothing else needs it: the result of ``y + z`` hands one gradient to both, so that
        of ``z`` would be rotated too. Without effect under ``torch.compile``, which plans memory.

    Returns
    -------
    torch.Tensor
        Shape and dtype of ``x``: contiguous, or ``x`` itself; under torch.compile, a view of it.

    Raises
    ------
    TypeError
        If a tensor is not a tensor, or has a dtype that is not accepted.
    ValueError
        If a shape or device is not accepted, an offset is negative or beyond the tables, ``x``
        cannot be written in place, or ``inplace_gradient`` comes without ``inplace`` or ``fused``.
    NotImplementedError
        As in :func:`rope_triton.apply_rotary_pos_emb`, for the tables.

    Notes
    -----
    As upstream, a finite token whose position is beyond the tables is returned unchanged: it is
    rotated by the angle 0, see :func:`rope_triton.apply_rotary_pos_emb`. As there, a row has the
    same bits in every call.

    References
    ----------
    ``flash_attn.layers.rotary.apply_rotary_emb``.
    """
    if inplace_gradient and not (inplace and fused):
        raise ValueError("inplace_gradient=True needs inplace=True and fused=True")
    cos, sin, starts = _from_offsets(cos, sin, seqlen_offsets)
    tensor_format = "bshd" if cu_seqlens is None else "thd"
    options = Options(tensor_format, bool(interleaved), 1, 0, rounding, inplace=bool(inplace))
    return _rotate(x, cos, sin, starts, cu_seqlens, options, fused, bool(inplace_gradient))


def rotate_tokens_(x, cos, sin, positions, *, interleaved, inverse):
    """:func:`apply_rotary_emb` in place, or back by the transposed rotation, as gradients are."""
    options = Options("bshd", interleaved, 1, 0, transposed=bool(inverse), inplace=True)
    cos, sin, starts = _from_offsets(cos, sin, positions)
    _rotate(x, cos, sin, starts, None, options, True)


def apply_qk_rotary_emb(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool = False,
    seqlen_offsets: int | torch.Tensor = 0,
    cu_seqlens: torch.Tensor | None = None,
    max_seqlen: int | None = None,
    *,
    rounding: str = "once",
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`apply_rotary_emb` for queries and keys in one launch, their gradients in one.

    ``q`` and ``k`` are as ``x`` there, and differ only in strides and the number of heads; all else
    is as there. If a table requires a gradient, there are two launches, and plain PyTorch computes
    the gradient.

    Returns
    -------
    tuple of torch.Tensor
        Shapes and dtype of ``q`` and ``k``, contiguous.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        As in :func:`apply_rotary_emb`; also if ``q`` and ``k`` do not match.
    """
    tensor_format = "bshd" if cu_seqlens is None else "thd"
    cos, sin, starts = _from_offsets(cos, sin, seqlen_offsets)
    options = Options(tensor_format, bool(interleaved), 1, 0, rounding)
    if needs_table_grad(cos, sin):
        checks.check_pair(q, k, cos, sin, starts, cu_seqlens, options)
        check_tangents(q, k, cos, sin)
        others = cos, sin, starts, cu_seqlens, options, True
        return _by_pytorch(q, *others), _by_pytorch(k, *others)
    return rotate_qk(q, k, cos, sin, starts, cu_seqlens, options)


def _from_offsets(cos, sin, seqlen_offsets):
    """Tables from a common offset on, and the offset of each sequence if they differ."""
    _check_rows(cos, sin, "cos and sin must have shape [s2, d2/2] or [b, s2, d2/2]", (2, 3))
    if cos.dim() == 3:
        checks.check_tables(cos, sin)
        cos, sin = (table.transpose(0, 1)[:, :, None] for table in (cos, sin))
    if not isinstance(seqlen_offsets, int):
        return cos, sin, seqlen_offsets
    if not seqlen_offsets:
        return cos, sin, None
    checks.check_tables(cos, sin)
    if not 0 <= seqlen_offsets <= cos.shape[0]:
        raise ValueError(f"seqlen_offsets must be from 0 to {cos.shape[0]}, got {seqlen_offsets}")
    return cos[seqlen_offsets:], sin[seqlen_offsets:], None


def _check_rows(cos, sin, expected, dims=(2,)):
    """Raise unless the tables have so many dimensions; all else is checked with the call."""
    if type(cos) is type(sin) is torch.Tensor and cos.dim() in dims:
        return
    checks.check_tables(cos, sin)
    if cos.dim() not in dims:
        raise ValueError(f"{expected}, got {tuple(cos.shape)}")


def rotary_embedding(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    position_ids: torch.Tensor | None = None,
    *,
    interleaved: bool = False,
    rounding: str = "once",
    fused: bool = True,
) -> torch.Tensor:
    """Rotate heads before positions with cos/sin tables; signature proposed for PyTorch.

    Differentiable as :func:`apply_rotary_emb`.

    Parameters
    ----------
    x : torch.Tensor
        ``[b, h, s, d]``, as in ``scaled_dot_product_attention``; any strides; dtypes as there.
    cos, sin : torch.Tensor
        One value for each pair of channels, dtypes as there: ``[n, d2/2]`` by position with
        ``position_ids``, else whatever broadcasts to ``[b, h, s, d2/2]``, ``[s, d2/2]`` say;
        ``d2 <= d``. Or one for each channel, ``[..., d]``, unless ``interleaved``: the halves are
        taken to be equal, as those of ``x * cos + rotate_half(x) * sin`` are, and the second is not
        read.
    position_ids : torch.Tensor, optional
        Row of the tables for each token, ``[b, s]``, int32 or int64. A token whose row is beyond
        the tables is rotated by the angle 0, as in :func:`apply_rotary_emb`.
    interleaved, rounding, fused
        As in :func:`apply_rotary_emb`.

    Returns
    -------
    torch.Tensor
        Shape and dtype of ``x``, contiguous.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        As in :func:`apply_rotary_emb`.

    Notes
    -----
    As in :func:`rope_triton.apply_rotary_pos_emb`, a row has the same bits in every call.

    References
    ----------
    ``torch.nn.functional.rotary_embedding`` of https://github.com/pytorch/pytorch/pull/187286;
    RotaryEmbedding of ONNX, opset 23.
    """
    is_4d = isinstance(x, torch.Tensor) and x.dim() == 4
    is_4d = is_4d and isinstance(cos, torch.Tensor) and isinstance(sin, torch.Tensor)
    if is_4d and not interleaved and cos.shape[-1:] == x.shape[-1:]:
        checks.check_tables(cos, sin)
        cos, sin = (table[..., : x.shape[-1] // 2] for table in (cos, sin))
    if position_ids is not None:
        _check_rows(cos, sin, "with position_ids, cos and sin must have shape [n, d2/2]")
    elif not (is_4d and cos.dim() == 2 and cos.shape[0] == x.shape[2]):
        checks.check_tables(cos, sin)
        cos, sin = (_by_token(table, x) for table in (cos, sin))
    options = Options("bhsd", bool(interleaved), 1, 0, rounding)
    return _rotate(x, cos, sin, position_ids, None, options, fused)


def _by_token(table, x):
    """``[s, 1 or b, 1 or h, n]`` of a table that broadcasts to ``[b, h, s, n]``."""
    table_4d = table[(None,) * (4 - table.dim())]
    length = x.shape[2] if isinstance(x, torch.Tensor) and x.dim() == 4 else table_4d.shape[2]
    if not 1 <= table.dim() <= 4 or table_4d.shape[2] not in (1, length):
        raise ValueError(
            "cos and sin must broadcast to [b, h, s, d2/2] of x, "
            f"got {tuple(table.shape)} for s={length}"
        )
    return table_4d.permute(2, 0, 1, 3).expand(length, -1, -1, -1)


def _rotate(x, cos, sin, starts, cu_seqlens, options, fused, inplace_gradient=False):
    if fused and not needs_table_grad(cos, sin):
        return rotate(x, cos, sin, starts, cu_seqlens, options, inplace_gradient)
    return _by_pytorch(x, cos, sin, starts, cu_seqlens, options, fused)


def _by_pytorch(x, freqs, sin, starts, cu_seqlens, options, fused):
    """A rotation in plain PyTorch, or with ``fused`` its derivatives alone."""
    tables = (freqs,) if sin is None else (freqs, sin)
    values = is_plain((x, *tables), starts, cu_seqlens)
    checks.check_rotation(x, freqs, sin, starts, cu_seqlens, options, values=values)
    if options.inplace:
        check_constant(*tables)

    def by_kernel(x, freqs, sin=None):
        return rotate(x, freqs, sin, starts, cu_seqlens, options)

    def plain(x, freqs, sin=None):
        if sin is not None:
            freqs, sin = by_position(freqs), by_position(sin)
        return reference.rotate(x, freqs, sin, starts, cu_seqlens, *options[:5])

    if fused:
        return with_table_grad(by_kernel, plain, x, *tables)
    out = plain(x, *tables)
    return x.copy_(out) if options.inplace else out


def check_constant(cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Raise ValueError if a derivative by a table is needed: a rotation in place has none."""
    if needs_table_grad(cos, sin):
        raise ValueError(
            "in place, cos and sin cannot have a gradient or a tangent: x is needed for it"
        )
