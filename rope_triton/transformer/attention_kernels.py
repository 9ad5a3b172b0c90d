"""Causal attention by blocks, forward and backward, in Triton: GPU code alone.

FlashAttention-2: scores never leave the chip. The forward computes the softmax on the way, the
backward computes it again from ``lse``, the base-2 logarithm of each row's sum of exponentials.
T. Dao, https://arxiv.org/abs/2307.08691, algorithms 1 and 2.

q, k, v and what belongs to them are descriptors of ``[b, s, h, d]``. Rows beyond the end of a
sequence load as zeros and are not stored. ``lse`` and ``delta`` are ``[b, h, pitch]``, float32, and
infinity and 0 in the rest of a block beyond the end: whole blocks of them are loaded and stored.
``scale`` is that of the scores times log2(e), as slopes are; ``factor`` is that without. ``group``
heads of queries share a head of keys and values. Only blocks on the diagonal are masked, in a loop
of their own. With ``table_ptr``, see ``rotate_pairs``, gradients are those before q and k were
rotated.
"""

import triton
import triton.language as tl

from rope_triton.transformer.rotation_kernels import rotate_pairs


@triton.jit
def forward_kernel(
    out,
    lse_ptr,
    q,
    k,
    v,
    slopes_ptr,
    n_seq,
    pitch,
    n_heads,
    group,
    scale,
    D: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """A block of queries of a head, over all keys up to its end."""
    # The last blocks have the most keys: they begin first.
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_Q
    head, batch = tl.program_id(1), tl.program_id(2)
    slope = None if slopes_ptr is None else tl.load(slopes_ptr + head)
    at_q = positions(first, BLOCK_Q)
    queries = load_block(q, batch, first, head, BLOCK_Q, D)
    # float32's lowest: -inf less itself, in a block whose scores are all -inf, would be NaN.
    highest = tl.full([BLOCK_Q], -3.4028234663852886e38, tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    mixed = tl.zeros([BLOCK_Q, D], tl.float32)  # times 2 ** -highest, as total
    for DIAGONAL in tl.static_range(2):
        begin = first if DIAGONAL else 0
        end = tl.minimum(first + BLOCK_Q, n_seq) if DIAGONAL else first
        for key in tl.range(begin, end, BLOCK_K):
            keys = load_block(k, batch, key, head // group, BLOCK_K, D)
            back = positions(key, BLOCK_K)[None, :] - at_q[:, None]
            scores = with_bias(dot(queries, keys.T), back, slope, DIAGONAL)
            higher = tl.maximum(highest, tl.max(scores, 1) * scale)
            weights = tl.math.exp2(scores * scale - higher[:, None])
            shrink = tl.math.exp2(highest - higher)
            total = total * shrink + tl.sum(weights, 1)
            values = load_block(v, batch, key, head // group, BLOCK_K, D)
            mixed = dot(weights.to(values.dtype), values, mixed * shrink[:, None])
            highest = higher
    store_block(out, batch, first, head, mixed / total[:, None])
    lse = tl.where(at_q < n_seq, highest + tl.log2(total), float("inf"))
    tl.store(lse_ptr + (batch * n_heads + head) * pitch + at_q, lse)


@triton.jit
def dq_kernel(
    dq,
    delta_ptr,
    out,
    dout,
    lse_ptr,
    q,
    k,
    v,
    slopes_ptr,
    table_ptr,
    n_seq,
    pitch,
    n_heads,
    group,
    scale,
    factor,
    D: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """The gradient of a block of queries; and delta, the sum of out times dout of each row."""
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_Q
    head, batch = tl.program_id(1), tl.program_id(2)
    slope = None if slopes_ptr is None else tl.load(slopes_ptr + head)
    at_q = positions(first, BLOCK_Q)
    queries = load_block(q, batch, first, head, BLOCK_Q, D)
    douts = load_block(dout, batch, first, head, BLOCK_Q, D)
    outs = load_block(out, batch, first, head, BLOCK_Q, D)
    delta = tl.sum(outs.to(tl.float32) * douts.to(tl.float32), 1)
    row = (batch * n_heads + head) * pitch + at_q
    tl.store(delta_ptr + row, delta)
    lse = tl.load(lse_ptr + row)
    gradient = tl.zeros([BLOCK_Q, D], tl.float32)
    for DIAGONAL in tl.static_range(2):
        begin = first if DIAGONAL else 0
        end = tl.minimum(first + BLOCK_Q, n_seq) if DIAGONAL else first
        for key in tl.range(begin, end, BLOCK_K):
            keys = load_block(k, batch, key, head // group, BLOCK_K, D)
            values = load_block(v, batch, key, head // group, BLOCK_K, D)
            back = positions(key, BLOCK_K)[None, :] - at_q[:, None]
            scores = with_bias(dot(queries, keys.T), back, slope, DIAGONAL)
            weights = tl.math.exp2(scores * scale - lse[:, None])
            dscores = weights * (dot(douts, values.T) - delta[:, None])
            gradient = dot(dscores.to(keys.dtype), keys, gradient)
    gradient *= factor
    if table_ptr is not None:
        gradient = rotate_pairs(gradient, table_ptr, at_q, n_seq, 0, D, D, True)
    store_block(dq, batch, first, head, gradient)


@triton.jit
def dkv_kernel(
    dk,
    dv,
    dout,
    lse_ptr,
    delta_ptr,
    q,
    k,
    v,
    slopes_ptr,
    table_ptr,
    n_seq,
    pitch,
    n_heads,
    group,
    scale,
    factor,
    D: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """The gradients of a block of keys and values, over all queries from its beginning on."""
    first = tl.program_id(0) * BLOCK_K  # the first blocks have the most queries
    kv_head, batch = tl.program_id(1), tl.program_id(2)
    at_k = positions(first, BLOCK_K)
    keys = load_block(k, batch, first, kv_head, BLOCK_K, D)
    values = load_block(v, batch, first, kv_head, BLOCK_K, D)
    dkeys = tl.zeros([BLOCK_K, D], tl.float32)
    dvalues = tl.zeros([BLOCK_K, D], tl.float32)
    for head in tl.range(kv_head * group, kv_head * group + group):
        slope = None if slopes_ptr is None else tl.load(slopes_ptr + head)
        row = (batch * n_heads + head) * pitch
        for DIAGONAL in tl.static_range(1, -1, -1):
            begin = first if DIAGONAL else first + BLOCK_K
            end = tl.minimum(first + BLOCK_K, n_seq) if DIAGONAL else n_seq
            for query in tl.range(begin, end, BLOCK_Q):
                queries = load_block(q, batch, query, head, BLOCK_Q, D)
                douts = load_block(dout, batch, query, head, BLOCK_Q, D)
                at_q = positions(query, BLOCK_Q)
                lse = tl.load(lse_ptr + row + at_q)
                delta = tl.load(delta_ptr + row + at_q)
                # [keys, queries], so that weights and dscores are first factors as they are.
                back = at_k[:, None] - at_q[None, :]
                scores = with_bias(dot(keys, queries.T), back, slope, DIAGONAL)
                weights = tl.math.exp2(scores * scale - lse[None, :])
                dvalues = dot(weights.to(douts.dtype), douts, dvalues)
                dscores = weights * (dot(values, douts.T) - delta[None, :])
                dkeys = dot(dscores.to(queries.dtype), queries, dkeys)
    store_block(dv, batch, first, kv_head, dvalues)
    dkeys *= factor
    if table_ptr is not None:
        dkeys = rotate_pairs(dkeys, table_ptr, at_k, n_seq, 0, D, D, True)
    store_block(dk, batch, first, kv_head, dkeys)


@triton.jit
def with_bias(scores, back, slope, MASKED: tl.constexpr):
    """Scores with ALiBi's bias, and -inf where a key comes after its query.

    back: how many positions a key lies after its query, negative before it.
    """
    if slope is not None:
        scores += slope * back
    if MASKED:
        scores = tl.where(back <= 0, scores, float("-inf"))
    return scores


@triton.jit
def dot(x, y, total=None):
    """x @ y, added to ``total``; float32 without TensorFloat-32, as PyTorch's products."""
    return tl.dot(x, y, total, input_precision="ieee")


@triton.jit
def positions(first, COUNT: tl.constexpr):
    return first + tl.arange(0, COUNT)


@triton.jit
def load_block(tensor, batch, row, head, ROWS: tl.constexpr, D: tl.constexpr):
    return tensor.load([batch, row, head, 0]).reshape(ROWS, D)


@triton.jit
def store_block(tensor, batch, row, head, block):
    block = block.to(tensor.dtype).reshape(1, block.shape[0], 1, block.shape[1])
    tensor.store([batch, row, head, 0], block)
