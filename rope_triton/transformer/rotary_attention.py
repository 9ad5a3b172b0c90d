"""Projection to queries, keys and values, rotation, and causal attention: RoPE in no kernel of its
own."""

import torch

from rope_triton.ops.operators import gradient_operator, operator
from rope_triton.transformer import attention, products
from rope_triton.transformer.checks import accepted


def rotary_attention(
    x: torch.Tensor, weight: torch.Tensor, freqs: torch.Tensor, heads: int, kv_heads: int
) -> torch.Tensor:
    """Causal attention of queries and keys that are rotated on their way.

    As the projection of ``x`` by ``weight``, :func:`rope_triton.apply_rotary_pos_emb` with
    ``interleaved=True`` on queries and keys, and :func:`causal_attention`. But the projection
    rotates what it stores, and attention's backward rotates the gradients back before it stores
    them, so that no kernel reads queries and keys for RoPE alone. A model whose RoPE rotates halves
    reorders the rows of its weight once: see :func:`interleaved_rows`.

    Parameters
    ----------
    x : torch.Tensor
        ``[b, s, width]``; float16, bfloat16 or float32.
    weight : torch.Tensor
        ``[(heads + 2 * kv_heads) * d, width]``, of the dtype of ``x``: the rows of queries, keys
        and values one after the other, each by head.
    freqs : torch.Tensor
        Angles in radians by position, ``[s2, 1, 1, d]`` with ``s2 >= s``, float32, equal for both
        channels of a pair: that is what ``RotaryPositionEmbedding(d, interleaved=True)`` returns.
        No gradient is computed.
    heads, kv_heads : int
        Heads of queries, and of keys and values; the second divides the first.

    Returns
    -------
    torch.Tensor
        ``[b, s, heads * d]``, of the dtype of ``x``. Differentiable once, in ``x`` and ``weight``.
        Under autocast these are cast to its dtype.

    Raises
    ------
    TypeError
        If an argument is not a tensor, or not an int, or a dtype is not accepted.
    ValueError
        If a shape or device is not accepted, or ``freqs`` requires a gradient.
    """
    x, weight = accepted({"x": x, "weight": weight})
    if not type(heads) is type(kv_heads) is int:
        raise TypeError(f"heads and kv_heads must be ints, got {heads!r} and {kv_heads!r}")
    if min(heads, kv_heads) < 1 or heads % kv_heads:
        raise ValueError(f"kv_heads must divide heads, got {heads} and {kv_heads}")
    rows = heads + 2 * kv_heads
    if x.dim() != 3 or weight.dim() != 2 or weight.shape[1] != x.shape[2] or weight.shape[0] % rows:
        raise ValueError(
            f"x must be [b, s, width] and weight [{rows} * d, width], got {tuple(x.shape)} and "
            f"{tuple(weight.shape)}"
        )
    d = weight.shape[0] // rows
    attention.check_sizes(x.shape[0], x.shape[1], heads, d)
    if not isinstance(freqs, torch.Tensor) or freqs.dtype != torch.float32:
        raise TypeError(f"freqs must be a tensor of float32, got {getattr(freqs, 'dtype', freqs)}")
    if freqs.dim() != 4 or freqs.shape[1:] != (1, 1, d) or freqs.shape[0] < x.shape[1]:
        raise ValueError(
            f"freqs must be [s2, 1, 1, {d}] with s2 >= {x.shape[1]}, got {tuple(freqs.shape)}"
        )
    if freqs.device != x.device or freqs.requires_grad:
        raise ValueError(f"freqs must be on {x.device} and need no gradient")
    angles = freqs[: x.shape[1], 0, 0, ::2]
    table = torch.stack((angles.cos(), angles.sin()), dim=-1)
    out, _, _ = _rotary_attention(x, weight, table, heads, kv_heads)
    return out.view(*out.shape[:2], -1)  # PyTorch has no rule for flatten of a batch of gradients


def interleaved_rows(weight: torch.Tensor, channels: int) -> torch.Tensor:
    """The rows of queries or keys for rotation in neighbouring pairs, from those for halves.

    Row ``i`` of a head goes to ``2 i``, and row ``i + channels / 2`` to ``2 i + 1``: the scores of
    attention stay the same.

    Parameters
    ----------
    weight : torch.Tensor
        ``[heads * channels, ...]``: a matrix or a bias.
    channels : int
        Of a head; even.

    Raises
    ------
    ValueError
        If the rows are not heads of ``channels``, or ``channels`` is odd or not positive.
    """
    if weight.dim() < 1 or channels < 1 or channels % 2 or weight.shape[0] % channels:
        raise ValueError(f"rows must be heads of {channels} channels, got {tuple(weight.shape)}")
    halves = weight.reshape(-1, 2, channels // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def _heads(qkv: torch.Tensor, d: int, heads: int, kv_heads: int) -> tuple[torch.Tensor, ...]:
    """Views ``[b, s, ., d]`` of queries, keys and values."""
    return qkv.unflatten(-1, (-1, d)).split([heads, kv_heads, kv_heads], dim=2)


@operator("rotary_attention")
def _rotary_attention(
    x: torch.Tensor, weight: torch.Tensor, table: torch.Tensor, heads: int, kv_heads: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    d = 2 * table.shape[1]
    rotation = products.Rotation(table, (heads + kv_heads) * d)
    rows = x.reshape(1, -1, x.shape[2])
    qkv = products.product(rows, weight.mT[None], rotation=rotation).view(*x.shape[:2], -1)
    q, k, v = _heads(qkv, d, heads, kv_heads)
    out, lse = attention.forward(q, k, v, None, d**-0.5)
    return out, lse, qkv


@_rotary_attention.register_fake
def _(x, weight, table, heads, kv_heads):
    b, s, _ = x.shape
    out, lse = attention.outputs(x, b, s, heads, 2 * table.shape[1])
    return out, lse, x.new_empty(b, s, weight.shape[0])


@gradient_operator("rotary_attention_backward", like=3)
def _rotary_attention_backward(
    dout: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    qkv: torch.Tensor,
    table: torch.Tensor,
    heads: int,
    kv_heads: int,
) -> torch.Tensor:
    """The gradient of the projection's result, before it was rotated."""
    d, gradient = 2 * table.shape[1], qkv.new_empty(qkv.shape)
    q, k, v = _heads(qkv, d, heads, kv_heads)
    gradients = _heads(gradient, d, heads, kv_heads)
    attention.backward(gradients, dout, out, lse, q, k, v, None, d**-0.5, table)
    return gradient


def _save(ctx, inputs, output) -> None:
    x, weight, table, ctx.heads, ctx.kv_heads = inputs
    out, lse, qkv = output
    ctx.mark_non_differentiable(lse, qkv)
    ctx.save_for_backward(x, weight, table, out, lse, qkv)


@_rotary_attention.gradient(_save)
def _(ctx, dout, *_):
    x, weight, table, out, lse, qkv = ctx.saved_tensors
    dqkv = _rotary_attention_backward(dout, out, lse, qkv, table, ctx.heads, ctx.kv_heads)
    rows, x_rows = dqkv.view(1, -1, dqkv.shape[2]), x.flatten(0, 1)[None]
    needs_x, needs_weight, *_ = ctx.needs_input_grad
    dx = products.matmul_operator(rows, weight[None]).view(x.shape) if needs_x else None
    dweight = products.matmul_operator(rows.mT, x_rows)[0] if needs_weight else None
    return dx, dweight, None, None, None
