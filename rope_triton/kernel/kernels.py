"""The kernels: each program rotates some heads of some tokens, in any order and strides."""

import triton
import triton.language as tl

from rope_triton.kernel.rotation import load_pass_through, rotate_rows, store_pass_through


@triton.jit(
    do_not_specialize=[
        *("n_seq", "n_heads", "k_heads", "n_table", "n_sequences", "cp_size", "cp_rank")
    ]
)
def rope_kernel(
    out_ptr,
    k_out_ptr,
    t_ptr,
    k_ptr,
    freqs_ptr,
    sin_ptr,
    start_ptr,
    cu_seqlens_ptr,
    n_seq,
    n_heads,
    k_heads,
    out_seq,
    out_batch,
    k_out_seq,
    k_out_batch,
    t_seq,
    t_batch,
    t_head,
    t_channel,
    k_seq,
    k_batch,
    k_head,
    k_channel,
    freqs_seq,
    freqs_channel,
    freqs_batch,
    freqs_head,
    across,
    n_table,
    n_sequences,
    cp_size,
    cp_rank,
    out_head,
    D: tl.constexpr,
    D_ROT: tl.constexpr,
    BATCH_FIRST: tl.constexpr,
    HEADS_FIRST: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    INPLACE: tl.constexpr,
    MIXED: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    ROUNDING: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """out = R(freqs) t, or its transpose (the gradient), on the first D_ROT of D channels.

    t is ``[seq, batch, heads, D]`` in any order and with any strides (in elements); out is
    contiguous in the channels, and in the heads if out_head, their stride, is None. R maps the pair
    (x1, x2) to (x1 cos a1 - x2 sin a1, x2 cos a2 + x1 sin a2), with a1 and a2 the angles at the two
    channels of the pair: equal in most models, but not by contract. With sin_ptr, freqs holds the
    cosine and sin_ptr the sine of one angle for each pair. INPLACE writes to t, which then is
    contiguous in the channels, and not to out. With k_ptr, keys of other heads and strides are
    rotated beside the queries t: the heads are those of t, then those of k. MIXED: a program may
    have heads of both.

    The grid is (head blocks, batch, sequence blocks), or with the last two exchanged where the
    batch comes first, or (sequence blocks, head blocks, batch) where the heads come before the
    sequence: programs follow the output's memory. Packed sequences (cu_seqlens_ptr) are one
    sequence of tokens. A grid that is too large for CUDA has one dimension instead, and across is
    the number of its head blocks.

    An argument that is None compiles to nothing: across; start_ptr, cu_seqlens_ptr and cp_size,
    without which a token's angles are at its own index; freqs_batch and freqs_head, without which
    all of a batch and all heads share them. start_ptr has the position of each sequence's start,
    or with PER_TOKEN of every token, ``[batch, seq]``. ROUNDING says what is rounded besides the
    result: None, "tables" (cosines and sines, to the dtype of t) or "each" (products too).
    """
    batch, block, head = program_coords(
        cu_seqlens_ptr, n_seq, across, BATCH_FIRST, HEADS_FIRST, BLOCK_S
    )
    seq = (block * BLOCK_S + tl.arange(0, BLOCK_S))[:, None, None]
    store_mask = None
    if INPLACE:  # a program that repeats a row may read it rotated, and must not write it
        inside = head * BLOCK_H + tl.arange(0, BLOCK_H) < n_heads
        store_mask = (seq < n_seq) & inside[None, :, None]
    # Positions and heads past the end repeat the last one: same address, same value, no masks.
    seq = tl.minimum(seq, n_seq - 1).to(tl.int64)
    if k_ptr is None:
        heads = head_block(head, n_heads, BLOCK_H)
        t_row = t_ptr + seq * t_seq + batch * t_batch + heads * t_head
        out_row = out_ptr + seq * out_seq + batch * out_batch
        out_row += heads * (D if out_head is None else out_head)
        channel = t_channel
    else:
        heads = tl.minimum(head * BLOCK_H + tl.arange(0, BLOCK_H), n_heads + k_heads - 1)
        heads = heads[None, :, None]
        of_t = heads < n_heads if MIXED else head * BLOCK_H < n_heads
        heads = (heads - tl.where(of_t, 0, n_heads)).to(tl.int64)
        if MIXED:
            # Pointers to tokens are chosen, not strides: the compiler would find those by an index
            # into the arguments, which takes so long that it computes the sines before it loads t.
            t_row, k_row = (
                t_ptr + batch * t_batch + seq * t_seq,
                k_ptr + batch * k_batch + seq * k_seq,
            )
            t_row = tl.where(of_t, t_row, k_row) + heads * tl.where(of_t, t_head, k_head)
            channel = tl.where(of_t, t_channel, k_channel)
            out_row = out_ptr + batch * out_batch + seq * out_seq
            k_row = k_out_ptr + batch * k_out_batch + seq * k_out_seq
            out_row = tl.where(of_t, out_row, k_row) + heads * D
        elif of_t:  # one code for both tensors, which only loads other arguments
            t_row = t_ptr + batch * t_batch + seq * t_seq + heads * t_head
            out_row = out_ptr + batch * out_batch + seq * out_seq + heads * D
            channel = t_channel
        else:
            t_row = k_ptr + batch * k_batch + seq * k_seq + heads * k_head
            out_row = k_out_ptr + batch * k_out_batch + seq * k_out_seq + heads * D
            channel = k_channel
    if INPLACE:
        out_row = t_row

    cu_seqlens = cu_seqlens_ptr, n_sequences, block * BLOCK_S
    position_args = n_seq, n_table, start_ptr, PER_TOKEN, cu_seqlens, cp_size, cp_rank
    first_angle = 0
    if freqs_batch is not None:
        first_angle += batch * freqs_batch
    if freqs_head is not None:
        first_angle += heads * freqs_head
    freqs = freqs_ptr, sin_ptr, first_angle, freqs_seq, freqs_channel
    written: tl.constexpr = D_ROT if INPLACE else D
    options: tl.constexpr = (written, D_ROT, INTERLEAVED, TRANSPOSED, ROUNDING)
    rotate_rows(out_row, t_row, channel, store_mask, freqs, seq, batch, position_args, options)


@triton.jit(do_not_specialize=["n_seq", "n_groups", "n_table", "cp_size", "cp_rank"])
def rope_qkv_kernel(
    qkv_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    q_freqs_ptr,
    k_freqs_ptr,
    start_ptr,
    n_seq,
    n_groups,
    qkv_seq,
    qkv_batch,
    qkv_group,
    qkv_channel,
    q_seq,
    q_batch,
    q_head,
    q_channel,
    k_seq,
    k_batch,
    k_head,
    k_channel,
    v_seq,
    v_batch,
    v_head,
    v_channel,
    q_freqs_seq,
    q_freqs_channel,
    k_freqs_seq,
    k_freqs_channel,
    across,
    n_table,
    cp_size,
    cp_rank,
    Q: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    D: tl.constexpr,
    D_ROT: tl.constexpr,
    BATCH_FIRST: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    JOIN: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """q, k, v = R(q_freqs) qkv[q], R(k_freqs) qkv[k], qkv[v]; with JOIN the transpose, into qkv.

    qkv is ``[seq, batch, n_groups, Q + K + V, D]``: in each group Q heads of queries, then K of
    keys, then V of values; q is ``[seq, batch, n_groups * Q, D]``, k and v likewise. Any strides,
    but what is written is contiguous in the channels. The grid is that of rope_kernel, its head
    blocks those of q, then of k, then of v.
    """
    batch, block, head = program_coords(None, n_seq, across, BATCH_FIRST, None, BLOCK_S)
    seq = block * BLOCK_S + tl.arange(0, BLOCK_S)
    seq = tl.minimum(seq, n_seq - 1)[:, None, None].to(tl.int64)
    qkv = qkv_ptr + seq * qkv_seq + batch * qkv_batch, qkv_group, qkv_channel
    q = q_ptr + seq * q_seq + batch * q_batch, q_head, q_channel
    k = k_ptr + seq * k_seq + batch * k_batch, k_head, k_channel
    v = v_ptr + seq * v_seq + batch * v_batch, v_head, v_channel
    q_freqs = q_freqs_ptr, None, 0, q_freqs_seq, q_freqs_channel
    k_freqs = k_freqs_ptr, None, 0, k_freqs_seq, k_freqs_channel
    position_args = n_seq, n_table, start_ptr, None, (None, None, None), cp_size, cp_rank

    q_blocks, k_blocks = tl.cdiv(n_groups * Q, BLOCK_H), tl.cdiv(n_groups * K, BLOCK_H)
    if head < q_blocks:
        heads = head_block(head, n_groups * Q, BLOCK_H)
        rotate_part(
            qkv, 0, Q, q, heads, q_freqs, seq, batch, position_args, D, D_ROT, INTERLEAVED, JOIN
        )
    elif head < q_blocks + k_blocks:
        heads = head_block(head - q_blocks, n_groups * K, BLOCK_H)
        rotate_part(
            qkv, Q, K, k, heads, k_freqs, seq, batch, position_args, D, D_ROT, INTERLEAVED, JOIN
        )
    else:
        heads = head_block(head - q_blocks - k_blocks, n_groups * V, BLOCK_H)
        rotate_part(
            qkv, Q + K, V, v, heads, None, seq, batch, position_args, D, 0, INTERLEAVED, JOIN
        )


@triton.jit
def program_coords(
    cu_seqlens_ptr,
    n_seq,
    across,
    BATCH_FIRST: tl.constexpr,
    HEADS_FIRST: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """This program's index in the batch, its block of the sequence and its block of heads."""
    z, y, x = tl.program_id(2), tl.program_id(1), tl.program_id(0)
    if across is not None:  # x is all three, because only it can exceed 65,535
        blocks = tl.cdiv(n_seq, BLOCK_S)
        if HEADS_FIRST:
            width, height = blocks, across
        elif BATCH_FIRST or cu_seqlens_ptr is not None:
            width, height = across, blocks
        else:
            width, height = across, tl.num_programs(0) // (across * blocks)
        x, y, z = x % width, x // width % height, x // width // height
    if cu_seqlens_ptr is not None:
        return 0, y, x
    elif HEADS_FIRST:
        return z.to(tl.int64), x, y
    elif BATCH_FIRST:
        return z.to(tl.int64), y, x
    else:
        return y.to(tl.int64), z, x


@triton.jit
def head_block(block, n_heads, BLOCK_H: tl.constexpr):
    """``[1, BLOCK_H, 1]`` heads of a block; past the end, again the last: no masks."""
    heads = tl.minimum(block * BLOCK_H + tl.arange(0, BLOCK_H), n_heads - 1)
    return heads[None, :, None].to(tl.int64)


@triton.jit
def rotate_part(
    qkv,
    BEFORE: tl.constexpr,
    COUNT: tl.constexpr,
    part,
    heads,
    freqs,
    seq,
    batch,
    position_args,
    D: tl.constexpr,
    D_ROT: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    JOIN: tl.constexpr,
):
    """Rotate heads of a part, COUNT in every group of qkv and BEFORE others before them.

    From qkv to the part, or with JOIN the other way; both are pointers to tokens and the strides
    of groups or heads and of channels.
    """
    token, stride, channel = part
    qkv_token, qkv_group, qkv_channel = qkv
    row = token + heads * stride
    qkv_row = heads // COUNT * qkv_group + (BEFORE + heads % COUNT) * D * qkv_channel + qkv_token
    out, x = (qkv_row, row) if JOIN else (row, qkv_row)
    x_channel = channel if JOIN else qkv_channel
    if D_ROT > 0:
        options: tl.constexpr = (D, D_ROT, INTERLEAVED, JOIN, None)
        rotate_rows(out, x, x_channel, None, freqs, seq, batch, position_args, options)
    else:
        store_pass_through(out, load_pass_through(x, x_channel, 0, D), 0, D)
