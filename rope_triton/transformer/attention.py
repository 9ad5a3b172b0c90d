"""Causal attention with shared heads of keys and values, and with ALiBi, forward and backward."""

import functools
import math
from typing import NamedTuple

import torch

from rope_triton.kernel.launch import GRID_LIMIT, Launch, cdiv, is_loadable, planned
from rope_triton.ops.operators import gradient_operator, operator
from rope_triton.transformer import attention_kernels as kernels
from rope_triton.transformer.checks import accepted

_CHANNELS = (16, 32, 64, 128, 256)
# The kernels count elements of ``lse``, whose rows are whole blocks, in 32 bits.
_MOST_ROWS = 2**30
_MOST_QUERIES = 64  # of a block
_LOG2_E = math.log2(math.e)


def causal_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    alibi_slopes: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention in which each query sees the keys up to its own position.

    ``softmax(scale * q @ k.T + bias) @ v`` of each head, by blocks: no score is stored. Sums are in
    float32, and the result does not depend on chance: no atomics.

    Parameters
    ----------
    q : torch.Tensor
        Queries, ``[b, s, h, d]``; float16, bfloat16 or float32; ``d`` is 16, 32, 64, 128 or 256. A
        tensor whose last dimension is not contiguous, or whose other strides or address are no
        multiples of 16 bytes, is copied first.
    k, v : torch.Tensor
        Keys and values, ``[b, s, h_kv, d]`` where ``h_kv`` divides ``h``: ``h / h_kv`` heads of
        queries, one after the other, share a head of these.
    scale : float, optional
        Of the scores, positive; ``d ** -0.5`` by default.
    alibi_slopes : torch.Tensor, optional
        ``[h]``, floating point, without a gradient. A score then gets ``slope * (j - i)`` for query
        ``i`` and key ``j``, which is computed where it is needed and never stored.

    Returns
    -------
    torch.Tensor
        ``[b, s, h, d]``, contiguous, of the dtype of ``q``. Differentiable once, in ``q``, ``k``
        and ``v``. Under autocast the inputs are cast to its dtype, as by PyTorch's
        ``scaled_dot_product_attention``.

    Raises
    ------
    TypeError
        If an argument is not a tensor, or the dtypes differ or are not accepted.
    ValueError
        If a shape or device is not accepted, ``scale`` is not positive, or ``alibi_slopes``
        requires a gradient.

    References
    ----------
    T. Dao, FlashAttention-2, https://arxiv.org/abs/2307.08691; O. Press et al., ALiBi,
    https://arxiv.org/abs/2108.12409; ``torch.nn.functional.scaled_dot_product_attention``.
    """
    q, k, v = accepted({"q": q, "k": k, "v": v})
    _check_shapes(q, k, v, alibi_slopes)
    factor = q.shape[-1] ** -0.5 if scale is None else float(scale)
    if not 0 < factor < math.inf:
        raise ValueError(f"scale must be positive and finite, got {scale}")
    out, _ = _attention(q, k, v, alibi_slopes, factor)
    return out


def _check_shapes(q, k, v, slopes) -> None:
    if not q.dim() == k.dim() == v.dim() == 4:
        shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v))
        raise ValueError(f"q, k and v must be [b, s, h, d], got {shapes}")
    b, s, h, d = q.shape
    shared = k.shape[2]
    if tuple(k.shape) != (b, s, shared, d) or k.shape != v.shape or h % shared:
        raise ValueError(
            "k and v must be [b, s, h_kv, d] with the b, s and d of q and h_kv that divides its h; "
            f"got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
        )
    check_sizes(b, s, h, d)
    if slopes is None:
        return
    if not isinstance(slopes, torch.Tensor) or not slopes.is_floating_point():
        raise TypeError(f"alibi_slopes must be a tensor of floating point, got {slopes!r}")
    if tuple(slopes.shape) != (h,) or slopes.device != q.device or slopes.requires_grad:
        raise ValueError(
            f"alibi_slopes must be [{h}] on {q.device} and need no gradient, got "
            f"{tuple(slopes.shape)} on {slopes.device}, requires_grad={slopes.requires_grad}"
        )


def check_sizes(b: int, s: int, h: int, d: int) -> None:
    """Raise ValueError unless the kernels take ``[b, s, h, d]``."""
    if max(b, h) > GRID_LIMIT:
        raise ValueError(f"there must be at most {GRID_LIMIT} sequences and heads, got {b} and {h}")
    rows = cdiv(s, _MOST_QUERIES) * _MOST_QUERIES
    if max(b * h, d) * rows > _MOST_ROWS:
        raise ValueError(
            f"sequences times heads, or channels, times tokens must be at most {_MOST_ROWS}, got "
            f"{b} * {h}, or {d}, times {rows}: {s} rounded up to {_MOST_QUERIES}"
        )
    if d not in _CHANNELS:
        raise ValueError(f"a head must have 16, 32, 64, 128 or 256 channels, got {d}")


# --- launches -------------------------------------------------------------------------------------


class Tile(NamedTuple):
    """A program's queries and keys, its warps, and the stages of its loads."""

    queries: int
    keys: int
    warps: int
    stages: int


class _Tiles(NamedTuple):
    forward: Tile
    dq: Tile
    dkv: Tile


@functools.cache
def tiles(channels: int, item: int) -> _Tiles:
    """The tiles for heads of ``channels`` elements of ``item`` bytes.

    A program keeps a block of queries (or of keys) and its sums in registers. In the forward and in
    ``dq`` ``keys`` divides ``queries``, in ``dkv`` the other way round. The ``queries`` of ``dkv``
    divide those of ``dq``, and these those of the forward, which stores whole blocks of ``lse``.
    With elements of 2 bytes, the best of 30 tiles for heads of 64 and of 128 channels on an H200,
    causal, 2,048 tokens.
    """
    if item == 4:  # products that are no instructions of their own: larger ones compile for minutes
        return _Tiles(Tile(32, 16, 4, 1), Tile(32, 16, 4, 1), Tile(16, 32, 4, 1))
    if channels <= 64:
        return _Tiles(Tile(64, 64, 4, 3), Tile(64, 64, 4, 3), Tile(32, 64, 4, 2))
    if channels <= 128:
        return _Tiles(Tile(64, 64, 4, 3), Tile(64, 64, 4, 3), Tile(32, 64, 4, 3))
    return _Tiles(Tile(64, 32, 4, 2), Tile(64, 32, 4, 2), Tile(32, 64, 8, 2))


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slopes: torch.Tensor | None, factor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output, and ``lse``; ``factor`` is of the scores."""
    slopes = _of_scores(slopes, factor)
    launch = planned(_forward_launch, q, k, v, slopes, factor)
    if launch is None:
        q, k, v = map(_loadable, (q, k, v))
        launch = planned(_forward_launch, q, k, v, slopes, factor)
    out, lse = outputs(q, *q.shape)
    launch.on(out, lse, q, k, v, slopes)
    return out, lse


def _forward_launch(q, k, v, slopes, factor: float) -> Launch | None:
    """None if the GPU's bulk copies cannot load a block."""
    if not all(map(is_loadable, (q, k, v))):
        return None
    (b, s, h, d), tile = q.shape, tiles(q.shape[3], q.element_size()).forward
    queries, keys = _block(tile.queries, d), _block(tile.keys, d)
    return Launch(
        kernels.forward_kernel,
        (cdiv(s, tile.queries), h, b),
        (*_sizes(q, k), factor * _LOG2_E, d, tile.queries, tile.keys),
        blocks=(queries, None, queries, keys, keys, None),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def backward(
    gradients: tuple[torch.Tensor, ...],
    dout: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    slopes: torch.Tensor | None,
    factor: float,
    table: torch.Tensor | None = None,
) -> None:
    """Write the gradients of ``q``, ``k`` and ``v``.

    With ``table``, ``[s, d / 2, 2]``, the cosines and sines by which neighbouring pairs of channels
    of ``q`` and ``k`` were rotated, those of what they were before.
    """
    slopes = _of_scores(slopes, factor)
    lse = lse.contiguous()  # hooks on saved tensors may return other strides and addresses
    rest = lse, slopes, None if table is None else table.contiguous(), factor, *gradients
    launches = planned(_backward_launches, dout, out, q, k, v, *rest)
    if launches is None:
        dout, out, q, k, v = map(_loadable, (dout, out, q, k, v))
        launches = planned(_backward_launches, dout, out, q, k, v, *rest)
    of_dq, of_dkv = launches
    (dq, dk, dv), table, delta = gradients, rest[2], torch.empty_like(lse)
    of_dq.on(dq, delta, out, dout, lse, q, k, v, slopes, table)
    of_dkv.on(dk, dv, dout, lse, delta, q, k, v, slopes, table)


def _backward_launches(
    dout, out, q, k, v, lse, slopes, table, factor: float, *gradients
) -> tuple[Launch, Launch] | None:
    """Those of ``dq`` and of ``dk`` and ``dv``; None if bulk copies cannot load a block."""
    if not all(map(is_loadable, (dout, out, q, k, v))):
        return None
    b, s, h, d = q.shape
    of_dq, of_dkv = tiles(d, q.element_size())[1:]
    values = *_sizes(q, k), factor * _LOG2_E, factor, d
    queries, keys = _block(of_dq.queries, d), _block(of_dq.keys, d)
    dq_launch = Launch(
        kernels.dq_kernel,
        (cdiv(s, of_dq.queries), h, b),
        (*values, of_dq.queries, of_dq.keys),
        blocks=(queries, None, queries, queries, None, queries, keys, keys, None, None),
        num_warps=of_dq.warps,
        num_stages=of_dq.stages,
    )
    queries, keys = _block(of_dkv.queries, d), _block(of_dkv.keys, d)
    dkv_launch = Launch(
        kernels.dkv_kernel,
        (cdiv(s, of_dkv.keys), k.shape[2], b),
        (*values, of_dkv.queries, of_dkv.keys),
        blocks=(keys, keys, queries, None, None, queries, keys, keys, None, None),
        num_warps=of_dkv.warps,
        num_stages=of_dkv.stages,
    )
    return dq_launch, dkv_launch


def outputs(
    like: torch.Tensor, b: int, s: int, h: int, d: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """What :func:`forward` returns for queries ``[b, s, h, d]`` of this dtype, not written yet.

    Rows of ``lse`` are aligned and have room for whole blocks: to load others under a mask took up
    to 40 % of the instructions of ``dkv``, and registers that it lacks.
    """
    lse = like.new_empty(b, h, _pitch(s, d, like.element_size()), dtype=torch.float32)
    return like.new_empty(b, s, h, d), lse


def _pitch(s: int, d: int, item: int) -> int:
    """Elements of a row of ``lse``."""
    rows = tiles(int(d), item).forward.queries  # torch.compile's symbols cannot be looked up
    return cdiv(s, rows) * rows


def _of_scores(slopes: torch.Tensor | None, factor: float) -> torch.Tensor | None:
    """The slopes of scores that are not multiplied by ``factor`` yet."""
    return None if slopes is None else slopes.float() / factor


def _sizes(q: torch.Tensor, k: torch.Tensor) -> tuple[int, int, int, int]:
    """Tokens of a sequence, elements of a row of ``lse``, heads of queries, how many share keys."""
    _, s, h, d = q.shape
    return s, _pitch(s, d, q.element_size()), h, h // k.shape[2]


def _loadable(x: torch.Tensor) -> torch.Tensor:
    return x if is_loadable(x) else x.clone(memory_format=torch.contiguous_format)


def _block(rows: int, d: int) -> tuple[int, int, int, int]:
    """The shape of so many rows of a head."""
    return 1, rows, 1, d


# --- operators ------------------------------------------------------------------------------------


@operator("causal_attention")
def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slopes: torch.Tensor | None, factor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return forward(q, k, v, slopes, factor)


@_attention.register_fake
def _(q, k, v, slopes, factor):
    return outputs(q, *q.shape)


@gradient_operator("causal_attention_backward", like=(3, 4, 5))
def _attention_backward(
    dout: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    slopes: torch.Tensor | None,
    factor: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    gradients = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
    backward(gradients, dout, out, lse, q, k, v, slopes, factor)
    return gradients


def _save(ctx, inputs, output) -> None:
    q, k, v, slopes, ctx.factor = inputs
    out, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(out, lse, q, k, v, slopes)


@_attention.gradient(_save)
def _(ctx, dout, _):
    gradients = _attention_backward(dout, *ctx.saved_tensors, ctx.factor)
    return *gradients, None, None
