"""flash-attention: its functions that rotate packed queries, keys and values in place."""

import torch
from torch.autograd import forward_ad

from rope_triton import api, checks
from rope_triton.api import apply_rotary_emb
from rope_triton.integrations._errors import renamed

__all__ = ["apply_rotary_emb", "apply_rotary_emb_kv_", "apply_rotary_emb_qkv_"]


def apply_rotary_emb_qkv_(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    cos_k: torch.Tensor | None = None,
    sin_k: torch.Tensor | None = None,
    interleaved: bool = False,
    seqlen_offsets: int | torch.Tensor = 0,
    num_heads_q: int | None = None,
    *,
    inplace_gradient: bool = False,
) -> torch.Tensor:
    """Rotate queries and keys in place, in one launch; flash-attention's function of this name.

    With tables of their own for the keys, in two. Unlike upstream, the gradient is a new tensor
    unless asked for: the incoming one may be the gradient of another tensor too.

    Parameters
    ----------
    qkv : torch.Tensor
        ``[b, s, 3, h, d]``; or with ``num_heads_q`` ``[b, s, num_heads_q + 2 k, d]``, whose queries
        are followed by as many heads of keys as of values. Any strides, but the channels must be
        contiguous; float32, float16 or bfloat16.
    cos, sin, cos_k, sin_k : torch.Tensor
        ``[s2, d2/2]``, of queries and, unless the keys have their own, of keys: of one shape.
    interleaved, seqlen_offsets
        As in :func:`rope_triton.apply_rotary_emb`.
    num_heads_q : int, optional
        Heads of queries, where those of keys differ.
    inplace_gradient
        As in :func:`rope_triton.apply_rotary_emb`; upstream always does so.

    Returns
    -------
    torch.Tensor
        ``qkv`` itself; if it is a view that needs a gradient, or under torch.compile, another view
        of that memory, whose gradient takes fewer copies.

    Raises
    ------
    TypeError, ValueError
        As in :func:`rope_triton.apply_rotary_emb`; also for another shape of ``qkv``, or only one
        table of the keys.

    References
    ----------
    ``flash_attn.layers.rotary.apply_rotary_emb_qkv_``.
    """
    if (cos_k is None) != (sin_k is None):
        raise ValueError("cos_k and sin_k must be given together")
    checks.check_tensors(qkv=qkv)
    n_queries, heads = _heads_of(qkv, num_heads_q)
    n_keys = (heads.shape[2] - n_queries) // 2
    options = {"seqlen_offsets": seqlen_offsets, "inplace_gradient": inplace_gradient}
    if cos_k is None or sin_k is None:
        both = heads[:, :, : n_queries + n_keys]
        _rotate_("qkv", both, cos, sin, interleaved, **options)
        return _changed(qkv)
    _check_tables_of_keys(cos, cos_k, sin_k)
    queries, keys = heads.narrow(2, 0, n_queries), heads.narrow(2, n_queries, n_keys)
    _rotate_("qkv", queries, cos, sin, interleaved, **options)
    _rotate_("qkv", keys, cos_k, sin_k, interleaved, **options)
    return _changed(qkv)


def apply_rotary_emb_kv_(
    kv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool = False,
    seqlen_offsets: int | torch.Tensor = 0,
    *,
    inplace_gradient: bool = False,
) -> torch.Tensor:
    """Rotate the keys of ``[b, s, 2, h, d]`` in place; flash-attention's function of this name.

    The other arguments, what is returned, of ``kv``, and the errors are as of
    :func:`apply_rotary_emb_qkv_`.

    References
    ----------
    ``flash_attn.layers.rotary.apply_rotary_emb_kv_``.
    """
    checks.check_tensors(kv=kv)
    if kv.dim() != 5 or kv.shape[2] != 2:
        raise ValueError(f"kv must have shape [b, s, 2, h, d], got {tuple(kv.shape)}")
    options = {"seqlen_offsets": seqlen_offsets, "inplace_gradient": inplace_gradient}
    _rotate_("kv", kv[:, :, 0], cos, sin, interleaved, **options)
    return _changed(kv)


def _rotate_(name, x, cos, sin, interleaved, **options):
    """Rotate in place a part of what the caller passed by that name."""
    try:
        api.apply_rotary_emb(x, cos, sin, interleaved, True, **options)
    except (TypeError, ValueError) as error:
        raise renamed(error, {"x": name}) from error


def _changed(x):
    """``x`` after a change in place, with a gradient that is not copied.

    Autograd takes a view that is older than a change for a piece of memory like any other, and
    copies its gradient twice.
    """
    if torch.compiler.is_compiling():
        return x.view_as(x)  # as apply_rotary_emb
    if not (torch.is_grad_enabled() and x.requires_grad):
        return x
    base = x._base
    is_whole = (
        base is not None
        and base.is_contiguous()
        and x.is_contiguous()
        and (base.numel(), base.dtype) == (x.numel(), x.dtype)
    )
    return base.view(x.shape) if is_whole else x


def _check_tables_of_keys(cos, cos_k, sin_k):
    """Raise before the queries are rotated, unless what rotates them can rotate the keys."""
    checks.check_tensors(cos=cos)
    checks.check_tables(cos_k, sin_k)
    if cos_k.shape != cos.shape or cos_k.device != cos.device:
        raise ValueError(
            "the tables of the keys must have the shape and the device of those of the queries, "
            f"got {tuple(cos_k.shape)} on {cos_k.device} and {tuple(cos.shape)} on {cos.device}"
        )
    # Without any of these, which is usual, the call would do nothing in 0.2 microseconds.
    if forward_ad._current_level >= 0 or cos_k.requires_grad or sin_k.requires_grad:
        api.check_constant(cos_k, sin_k)


def _heads_of(qkv, num_heads_q):
    """Heads of queries, and a view ``[b, s, heads, d]`` of all."""
    if num_heads_q is None:
        if qkv.dim() != 5 or qkv.shape[2] != 3:
            raise ValueError(f"qkv must have shape [b, s, 3, h, d], got {tuple(qkv.shape)}")
        heads = qkv.shape[3]
        if heads > 1 and qkv.stride(2) != heads * qkv.stride(3):
            raise ValueError(
                "the heads of queries, keys and values must lie at equal distances, got strides "
                f"{qkv.stride()}"
            )
        return heads, qkv.view(*qkv.shape[:2], 3 * heads, qkv.shape[4])
    others = qkv.shape[2] - num_heads_q if qkv.dim() == 4 else -1
    if others < 0 or others % 2 or num_heads_q < 0:
        raise ValueError(
            f"qkv must have shape [b, s, {num_heads_q} + 2 k, d] with num_heads_q={num_heads_q}, "
            f"got {tuple(qkv.shape)}"
        )
    return num_heads_q, qkv
