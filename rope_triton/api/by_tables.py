"""Rotation with cos/sin tables: flash-attention's and PyTorch's functions."""

import torch

from rope_triton import checks, ops, reference
from rope_triton.ops import Options


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
    if ops.needs_table_grad(cos, sin):
        checks.check_pair(q, k, cos, sin, starts, cu_seqlens, options)
        ops.check_tangents(q, k, cos, sin)
        others = cos, sin, starts, cu_seqlens, options, True
        return _rotate(q, *others), _rotate(k, *others)
    return ops.rotate_qk(q, k, cos, sin, starts, cu_seqlens, options)


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
    is_4d = isinstance(x, torch.Tensor) and isinstance(cos, torch.Tensor) and x.dim() == 4
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
    if fused and not ops.needs_table_grad(cos, sin):
        return ops.rotate_by_tables(x, cos, sin, starts, cu_seqlens, options, inplace_gradient)
    values = ops.is_plain((x, cos, sin), starts, cu_seqlens)
    checks.check_by_tables(x, cos, sin, starts, cu_seqlens, options, values=values)
    if options.inplace:
        check_constant(cos, sin)

    def by_kernel(x, cos, sin):
        return ops.rotate_by_tables(x, cos, sin, starts, cu_seqlens, options)

    def plain(x, cos, sin):
        cos, sin = (table[:, None, None] if table.dim() == 2 else table for table in (cos, sin))
        others = options.tensor_format, options.interleaved, options.rounding
        return reference.rotate_by_tables(x, cos, sin, starts, cu_seqlens, *others)

    if fused:
        return ops.with_table_grad(by_kernel, plain, x, cos, sin)
    out = plain(x, cos, sin)
    return x.copy_(out) if options.inplace else out


def check_constant(cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Raise ValueError if a derivative by a table is needed: a rotation in place has none."""
    if ops.needs_table_grad(cos, sin):
        raise ValueError(
            "in place, cos and sin cannot have a gradient or a tangent: x is needed for it"
        )
