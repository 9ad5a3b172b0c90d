"""The kernel: one program rotates some heads of some tokens, in any order and strides."""

import triton
import triton.language as tl

# Beginnings of packed sequences that a step of the search for a token compares.
SEARCHED: tl.constexpr = tl.constexpr(32)


@triton.jit(
    do_not_specialize=["n_seq", "n_heads", "first", "n_table", "n_sequences", "cp_size", "cp_rank"]
)
def rope_kernel(
    out_ptr,
    t_ptr,
    freqs_ptr,
    sin_ptr,
    start_ptr,
    cu_seqlens_ptr,
    n_seq,
    n_heads,
    out_seq,
    out_batch,
    t_seq,
    t_batch,
    t_head,
    t_channel,
    freqs_seq,
    freqs_channel,
    freqs_batch,
    freqs_head,
    first,
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
    EACH: tl.constexpr,
    ROUNDING: tl.constexpr,
    STREAM: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """out = R(freqs) t, or its transpose (the gradient), on the first D_ROT of D channels.

    t is ``[seq, batch, heads, D]`` in any order and with any strides (in elements); out is
    contiguous in the channels, and in the heads if out_head, their stride, is None. R maps the pair
    (x1, x2) to (x1 cos a1 - x2 sin a1, x2 cos a2 + x1 sin a2), with a1 and a2 the angles at the two
    channels of the pair: equal in most models, but not by contract. With sin_ptr, freqs holds the
    cosine and sin_ptr the sine of one angle for each pair. INPLACE writes to t, which then is
    contiguous in the channels, and not to out.

    The grid is (head blocks, batch, sequence blocks), or with the last two exchanged where the
    batch comes first, or (sequence blocks, head blocks, batch) where the heads come before the
    sequence: programs follow the output's memory. Packed sequences (cu_seqlens_ptr) are one
    sequence of tokens, whose blocks take both dimensions.

    Where first, the block to begin with, start_ptr, cu_seqlens_ptr, cp_size, freqs_batch or
    freqs_head is None, what it asks for is not compiled: a token's angles are at its own index, and
    all of a batch and all heads have the same. With EACH, start_ptr has a position for each token,
    ``[batch, seq]``, else one for each sequence. What is rounded beside the result is ROUNDING:
    None, "tables" (cosines and sines, to the dtype of t) or "each" (products too).
    """
    batch, block, head = place(cu_seqlens_ptr, BATCH_FIRST, HEADS_FIRST)
    if first is not None:
        block += first
    seq = (block * BLOCK_S + tl.arange(0, BLOCK_S))[:, None, None]
    mine = None
    if INPLACE:  # what repeats a row may find it rotated already: it must not write
        inside = head * BLOCK_H + tl.arange(0, BLOCK_H) < n_heads
        mine = (seq < n_seq) & inside[None, :, None]
    # Positions and heads past the end repeat the last one: same address, same value, no masks.
    seq = tl.minimum(seq, n_seq - 1).to(tl.int64)
    heads = head_block(head, n_heads, BLOCK_H)
    t_row = t_ptr + seq * t_seq + batch * t_batch + heads * t_head
    out_row = out_ptr + seq * out_seq + batch * out_batch
    out_row += heads * (D if out_head is None else out_head)
    if INPLACE:
        out_row = t_row

    cu_seqlens = cu_seqlens_ptr, n_sequences, block * BLOCK_S
    where = n_seq, n_table, start_ptr, EACH, cu_seqlens, cp_size, cp_rank
    first_angle = 0
    if freqs_batch is not None:
        first_angle += batch * freqs_batch
    if freqs_head is not None:
        first_angle += heads * freqs_head
    freqs = freqs_ptr, sin_ptr, first_angle, freqs_seq, freqs_channel
    written: tl.constexpr = D_ROT if INPLACE else D
    options: tl.constexpr = (written, D_ROT, INTERLEAVED, TRANSPOSED, STREAM, ROUNDING)
    rotate_rows(out_row, t_row, t_channel, mine, freqs, seq, batch, where, options)


@triton.jit(
    do_not_specialize=[
        *("n_seq", "q_heads", "k_heads", "first", "n_table", "n_sequences", "cp_size", "cp_rank")
    ]
)
def rope_qk_kernel(
    q_out_ptr,
    k_out_ptr,
    q_ptr,
    k_ptr,
    freqs_ptr,
    sin_ptr,
    start_ptr,
    cu_seqlens_ptr,
    n_seq,
    q_heads,
    k_heads,
    q_out_seq,
    q_out_batch,
    k_out_seq,
    k_out_batch,
    q_seq,
    q_batch,
    q_head,
    q_channel,
    k_seq,
    k_batch,
    k_head,
    k_channel,
    freqs_seq,
    freqs_channel,
    freqs_batch,
    first,
    n_table,
    n_sequences,
    cp_size,
    cp_rank,
    D: tl.constexpr,
    D_ROT: tl.constexpr,
    BATCH_FIRST: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    ROUNDING: tl.constexpr,
    STREAM: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """rope_kernel for two tensors that differ in heads and strides: head blocks of q, then of k."""
    batch, block, head = place(cu_seqlens_ptr, BATCH_FIRST, None)
    if first is not None:
        block += first
    seq = block * BLOCK_S + tl.arange(0, BLOCK_S)
    seq = tl.minimum(seq, n_seq - 1)[:, None, None].to(tl.int64)
    cu_seqlens = cu_seqlens_ptr, n_sequences, block * BLOCK_S
    where = n_seq, n_table, start_ptr, None, cu_seqlens, cp_size, cp_rank
    first_angle = 0
    if freqs_batch is not None:
        first_angle += batch * freqs_batch
    freqs = freqs_ptr, sin_ptr, first_angle, freqs_seq, freqs_channel
    options: tl.constexpr = (D, D_ROT, INTERLEAVED, TRANSPOSED, STREAM, ROUNDING)
    q_blocks = tl.cdiv(q_heads, BLOCK_H)
    if head < q_blocks:
        heads = head_block(head, q_heads, BLOCK_H)
        x = q_ptr + seq * q_seq + batch * q_batch + heads * q_head
        out = q_out_ptr + seq * q_out_seq + batch * q_out_batch + heads * D
        rotate_rows(out, x, q_channel, None, freqs, seq, batch, where, options)
    else:
        heads = head_block(head - q_blocks, k_heads, BLOCK_H)
        x = k_ptr + seq * k_seq + batch * k_batch + heads * k_head
        out = k_out_ptr + seq * k_out_seq + batch * k_out_batch + heads * D
        rotate_rows(out, x, k_channel, None, freqs, seq, batch, where, options)


@triton.jit(do_not_specialize=["n_seq", "n_groups", "first", "n_table", "cp_size", "cp_rank"])
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
    first,
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
    STREAM: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """q, k, v = R(q_freqs) qkv[q], R(k_freqs) qkv[k], qkv[v]; with JOIN the transpose, into qkv.

    qkv is ``[seq, batch, n_groups, Q + K + V, D]``: in each group Q heads of queries, then K of
    keys, then V of values; q is ``[seq, batch, n_groups * Q, D]``, k and v likewise. Any strides,
    but what is written is contiguous in the channels. The grid is that of rope_kernel, its head
    blocks those of q, then of k, then of v.
    """
    batch, block, head = place(None, BATCH_FIRST, None)
    if first is not None:
        block += first
    seq = block * BLOCK_S + tl.arange(0, BLOCK_S)
    seq = tl.minimum(seq, n_seq - 1)[:, None, None].to(tl.int64)
    qkv = qkv_ptr + seq * qkv_seq + batch * qkv_batch, qkv_group, qkv_channel
    q = q_ptr + seq * q_seq + batch * q_batch, q_head, q_channel
    k = k_ptr + seq * k_seq + batch * k_batch, k_head, k_channel
    v = v_ptr + seq * v_seq + batch * v_batch, v_head, v_channel
    q_freqs = q_freqs_ptr, None, 0, q_freqs_seq, q_freqs_channel
    k_freqs = k_freqs_ptr, None, 0, k_freqs_seq, k_freqs_channel
    where = n_seq, n_table, start_ptr, None, (None, None, None), cp_size, cp_rank

    q_blocks, k_blocks = tl.cdiv(n_groups * Q, BLOCK_H), tl.cdiv(n_groups * K, BLOCK_H)
    if head < q_blocks:
        heads = head_block(head, n_groups * Q, BLOCK_H)
        rotate_part(
            qkv, 0, Q, q, heads, q_freqs, seq, batch, where, D, D_ROT, INTERLEAVED, JOIN, STREAM
        )
    elif head < q_blocks + k_blocks:
        heads = head_block(head - q_blocks, n_groups * K, BLOCK_H)
        rotate_part(
            qkv, Q, K, k, heads, k_freqs, seq, batch, where, D, D_ROT, INTERLEAVED, JOIN, STREAM
        )
    else:
        heads = head_block(head - q_blocks - k_blocks, n_groups * V, BLOCK_H)
        rotate_part(
            qkv, Q + K, V, v, heads, None, seq, batch, where, D, 0, INTERLEAVED, JOIN, STREAM
        )


@triton.jit
def place(cu_seqlens_ptr, BATCH_FIRST: tl.constexpr, HEADS_FIRST: tl.constexpr):
    """This program's index in the batch, its block of the sequence and its block of heads."""
    if cu_seqlens_ptr is not None:
        return 0, tl.program_id(2) * tl.num_programs(1) + tl.program_id(1), tl.program_id(0)
    elif HEADS_FIRST:
        return tl.program_id(2).to(tl.int64), tl.program_id(0), tl.program_id(1)
    elif BATCH_FIRST:
        return tl.program_id(2).to(tl.int64), tl.program_id(1), tl.program_id(0)
    else:
        return tl.program_id(1).to(tl.int64), tl.program_id(2), tl.program_id(0)


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
    where,
    D: tl.constexpr,
    D_ROT: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    JOIN: tl.constexpr,
    STREAM: tl.constexpr,
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
        options: tl.constexpr = (D, D_ROT, INTERLEAVED, JOIN, STREAM, None)
        rotate_rows(out, x, x_channel, None, freqs, seq, batch, where, options)
    else:
        store_rest(out, load_rest(x, x_channel, 0, D, STREAM), 0, D, STREAM)


@triton.jit
def rotate_rows(
    out_row,
    t_row,
    t_channel,
    mine,
    freqs,
    seq,
    batch,
    where,
    OPTIONS: tl.constexpr,
):
    """Rotate the first D_ROT of D channels of rows by the angles of their tokens, copy the rest.

    out_row and t_row point to the first channels, ``[BLOCK_S, BLOCK_H, 1]``; seq, the tokens of the
    sequences or of the packed whole, is ``[BLOCK_S, 1, 1]``, and batch is one number. Rows that are
    not mine are left alone; mine is None where out is not t.
    """
    D: tl.constexpr = OPTIONS[0]
    D_ROT: tl.constexpr = OPTIONS[1]
    INTERLEAVED: tl.constexpr = OPTIONS[2]
    TRANSPOSED: tl.constexpr = OPTIONS[3]
    STREAM: tl.constexpr = OPTIONS[4]
    ROUNDING: tl.constexpr = OPTIONS[5]
    READ: tl.constexpr = reading(STREAM)
    n_seq, n_table, start_ptr, each, cu_seqlens, cp_size, cp_rank = where
    if D_ROT < D:  # before anything is written: no load overtakes a store
        rest = load_rest(t_row, t_channel, D_ROT, D, STREAM)
    if start_ptr is None and cu_seqlens[0] is None and cp_size is None:
        # The angles come first: cos and sin are computed while t is still on its way.
        a1, a2 = load_angles(freqs, seq, None, D_ROT, INTERLEAVED)
        x1, x2 = load_pairs(t_row, t_channel, D_ROT, INTERLEAVED, READ)
    else:
        # t comes first: where the angles are takes loads that wait for each other.
        x1, x2 = load_pairs(t_row, t_channel, D_ROT, INTERLEAVED, READ)
        if cu_seqlens[0] is not None:
            batch, seq, n_seq = unpack(seq, n_seq, cu_seqlens, cp_size)
        row, known = position(seq, batch, n_seq, n_table, start_ptr, each, cp_size, cp_rank)
        a1, a2 = load_angles(freqs, row, known, D_ROT, INTERLEAVED)
    if freqs[1] is None:
        s1, c1 = sincos(a1)
        s2, c2 = sincos(a2)
    else:
        s1, c1, s2, c2 = a2, a1, a2, a1
    if ROUNDING is not None:
        s1, c1 = s1.to(x1.dtype).to(tl.float32), c1.to(x1.dtype).to(tl.float32)
        s2, c2 = s2.to(x1.dtype).to(tl.float32), c2.to(x1.dtype).to(tl.float32)
    if TRANSPOSED:
        y1 = product(x1, c1, ROUNDING) + product(x2, s2, ROUNDING)
        y2 = product(x2, c2, ROUNDING) - product(x1, s1, ROUNDING)
    else:
        y1 = product(x1, c1, ROUNDING) - product(x2, s1, ROUNDING)
        y2 = product(x2, c2, ROUNDING) + product(x1, s2, ROUNDING)
    if mine is not None:
        tl.debug_barrier()  # threads that have a value in common have all read it
    store_pairs(out_row, y1, y2, mine, D_ROT, INTERLEAVED, writing(STREAM))
    if D_ROT < D:
        store_rest(out_row, rest, D_ROT, D, STREAM)


@triton.jit
def product(x, factor, ROUNDING: tl.constexpr):
    """x times factor in float32, rounded to the dtype of x where each operation is.

    Which of two products the sum takes unrounded, as one fma, is left to the compiler: spelled out,
    the order of its instructions changes, and a call of 128 x 64 in half precision took 4 to 10 %
    longer on an H200.
    """
    y = x * factor
    if ROUNDING == "each":
        y = y.to(x.dtype).to(tl.float32)
    return y


@triton.jit
def load_rest(row, stride, FIRST: tl.constexpr, D: tl.constexpr, STREAM: tl.constexpr):
    """The channels of rows from FIRST on."""
    k = FIRST + channels(triton.next_power_of_2(D - FIRST))
    return load(row + k * stride, k < D, reading(STREAM))


@triton.jit
def store_rest(row, rest, FIRST: tl.constexpr, D: tl.constexpr, STREAM: tl.constexpr):
    """Store what :func:`load_rest` loads, to rows that are contiguous in the channels."""
    k = FIRST + channels(triton.next_power_of_2(D - FIRST))
    tl.store(row + k, rest, mask=k < D, cache_modifier=writing(STREAM))


@triton.constexpr_function
def reading(stream):
    """Cache modifier and eviction policy of t, of which nothing is read twice.

    It need not stay in L1, nor, as a stream, in L2.
    """
    return ("", "evict_first") if stream else (".cg", "")


@triton.constexpr_function
def writing(stream):
    """Cache modifier of the output."""
    return ".cs" if stream else ""


@triton.jit
def unpack(token, n_tokens, cu_seqlens, cp_size):
    """Sequence of each packed token of a program, its index there and the length there, as this
    rank has them.

    A token that is in none gets an index below 0 or beyond the length.
    """
    cu_seqlens_ptr, n_sequences, first = cu_seqlens
    BLOCK_S: tl.constexpr = token.shape[0]
    sequence = find(first, cu_seqlens_ptr, n_sequences, cp_size)
    if BLOCK_S > 1:  # most programs are within one sequence: the loop does not run
        last = tl.minimum(first + BLOCK_S, n_tokens) - 1
        size = find(last, cu_seqlens_ptr, n_sequences, cp_size) - sequence + 1
        sequence += tl.zeros_like(token)
        while size > 1:
            half = size // 2
            begin = boundary(cu_seqlens_ptr + sequence + half, cp_size)
            sequence = tl.where(begin <= token, sequence + half, sequence)
            size -= half
    begin = boundary(cu_seqlens_ptr + sequence, cp_size)
    end = boundary(cu_seqlens_ptr + sequence + 1, cp_size)
    return sequence, token - begin, end - begin


@triton.jit
def find(token, cu_seqlens_ptr, n_sequences, cp_size):
    """The last sequence that begins no later than one token: sequences may be empty.

    A search of few steps, as each waits for a load: SEARCHED beginnings at once.
    """
    sequence = 0
    size = n_sequences
    while size > 1:
        step = tl.cdiv(size, SEARCHED)
        ahead = tl.arange(0, SEARCHED) * step
        begin = boundary(cu_seqlens_ptr + sequence + tl.minimum(ahead, size - 1), cp_size)
        before = tl.sum(((begin <= token) & (ahead < size)).to(tl.int32))
        skipped = tl.maximum(before - 1, 0) * step
        sequence += skipped
        size = tl.minimum(step, size - skipped)
    return sequence


@triton.jit
def boundary(ptr, cp_size):
    """A value of cu_seqlens, on this rank: of every sequence it has one part in cp_size."""
    value = tl.load(ptr).to(tl.int64)
    return value if cp_size is None else value // cp_size


@triton.jit
def position(seq, batch, n_seq, n_table, start_ptr, EACH: tl.constexpr, cp_size, cp_rank):
    """Row of the table of angles for each token, and whether the token and the table have it.

    Of n_seq positions a context-parallel rank holds the chunks cp_rank and, as many from the end,
    2 cp_size - 1 - cp_rank of the 2 cp_size that the whole sequence is cut into.
    """
    known = (seq >= 0) & (seq < n_seq)
    row = seq
    if cp_size is not None:
        chunk = n_seq // 2
        row += chunk * tl.where(seq < chunk, cp_rank, 2 * cp_size - 2 - cp_rank)
    if EACH:
        row = tl.load(start_ptr + batch * n_seq + seq).to(tl.int64)
    elif start_ptr is not None:
        row += tl.load(start_ptr + batch)
    return row, known & (row >= 0) & (row < n_table)


@triton.jit
def channels(n: tl.constexpr):
    """``[1, 1, n]`` channel indices; 64 bits, as the channels may be the outermost in memory."""
    return tl.arange(0, n)[None, None, :].to(tl.int64)


@triton.jit
def load(ptr, mask, READ: tl.constexpr):
    """tl.load with READ's cache modifier and eviction policy."""
    return tl.load(ptr, mask=mask, other=0.0, cache_modifier=READ[0], eviction_policy=READ[1])


@triton.jit
def load_angles(freqs, row, known, D_ROT: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Angles at both channels of each pair, or cosines and sines, in float32.

    Those of the angle 0, which turn nothing, in rows that are not known.
    """
    freqs_ptr, sin_ptr, first, stride, channel = freqs
    at = first + row * stride
    if sin_ptr is None:
        a1, a2 = load_pairs(freqs_ptr + at, channel, D_ROT, INTERLEAVED, ("", ""), known)
    else:
        k = channels(triton.next_power_of_2(D_ROT // 2))
        mask = k < D_ROT // 2 if known is None else known & (k < D_ROT // 2)
        a1 = load(freqs_ptr + at + k * channel, mask, ("", ""))
        a2 = load(sin_ptr + at + k * channel, mask, ("", ""))
        if known is not None:
            a1 = tl.where(known, a1.to(tl.float32), 1.0)
    return a1.to(tl.float32), a2.to(tl.float32)


@triton.jit
def load_pairs(
    row,
    stride,
    D_ROT: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    READ: tl.constexpr,
    known=None,
):
    """First and second members of the channel pairs of rows, each ``[.., .., >= D_ROT / 2]``.

    0 in rows that are not known.
    """
    BLOCK: tl.constexpr = triton.next_power_of_2(D_ROT // 2)
    if INTERLEAVED:
        k = channels(2 * BLOCK)
        mask = k < D_ROT if known is None else known & (k < D_ROT)
        x = load(row + k * stride, mask, READ)
        return tl.split(tl.reshape(x, (x.shape[0], x.shape[1], BLOCK, 2)))
    else:
        k = channels(BLOCK)
        mask = k < D_ROT // 2 if known is None else known & (k < D_ROT // 2)
        first = load(row + k * stride, mask, READ)
        second = load(row + (k + D_ROT // 2) * stride, mask, READ)
        return first, second


@triton.jit
def store_pairs(
    row, first, second, mine, D_ROT: tl.constexpr, INTERLEAVED: tl.constexpr, WRITE: tl.constexpr
):
    """Store what :func:`load_pairs` loads, to rows that are contiguous in the channels."""
    BLOCK: tl.constexpr = triton.next_power_of_2(D_ROT // 2)
    if INTERLEAVED:
        k = channels(2 * BLOCK)
        mask = k < D_ROT if mine is None else mine & (k < D_ROT)
        y = tl.reshape(tl.join(first, second), (first.shape[0], first.shape[1], 2 * BLOCK))
        tl.store(row + k, y, mask=mask, cache_modifier=WRITE)
    else:
        k = channels(BLOCK)
        mask = k < D_ROT // 2 if mine is None else mine & (k < D_ROT // 2)
        tl.store(row + k, first, mask=mask, cache_modifier=WRITE)
        tl.store(row + k + D_ROT // 2, second, mask=mask, cache_modifier=WRITE)


@triton.jit
def sincos(x):
    """sin and cos of float32 angles up to 2^24, within 2e-7 of float64 where fma is exact.

    Quarter turns are removed by a three-term Cody-Waite reduction, pi/2 = P1 - P2 - P3 in float32,
    in two steps: multiples of 4096 first, so that both counts stay exact and are rounded by adding
    1.5 * 2^23. Short polynomials follow (coefficients of Cephes' sinf and cosf). Against libdevice
    this keeps angles of any length on one path, and runs on AMD and in the interpreter.
    """
    TURNS: tl.constexpr = 0.6366197723675814
    ROUND: tl.constexpr = 12582912.0
    P1: tl.constexpr = 1.5707963705062866
    P2: tl.constexpr = 4.371138828673793e-08
    P3: tl.constexpr = 1.7151245100058819e-15
    coarse = (tl.fma(x, TURNS / 4096, ROUND) - ROUND) * 4096.0
    r = tl.fma(coarse, -P1, x)
    shifted = tl.fma(tl.fma(coarse, P2, r), TURNS, ROUND)
    fine = shifted - ROUND
    turns = coarse + fine
    r = tl.fma(turns, P3, tl.fma(turns, P2, tl.fma(fine, -P1, r)))

    z = r * r
    sin = tl.fma(tl.fma(z, -1.9515295891e-4, 8.3321608736e-3), z, -1.6666654611e-1)
    sin = tl.fma(sin * z, r, r)
    cos = tl.fma(tl.fma(z, 2.443315711809948e-5, -1.388731625493765e-3), z, 4.166664568298827e-2)
    cos = tl.fma(cos * z, z, tl.fma(z, -0.5, 1.0))

    # The lowest bits of the rounded count are the quadrant, which swaps and negates.
    quadrant = shifted.to(tl.int32, bitcast=True)
    odd = (quadrant & 1) == 1
    return (
        flip_sign(tl.where(odd, cos, sin), quadrant),
        flip_sign(tl.where(odd, sin, cos), quadrant + 1),
    )


@triton.jit
def flip_sign(x, quadrant):
    """Negate x where bit 1 of quadrant is set."""
    return (x.to(tl.int32, bitcast=True) ^ ((quadrant & 2) << 30)).to(tl.float32, bitcast=True)
