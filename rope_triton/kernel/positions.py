"""Find a token's row in the table: packed sequences, offsets, context parallelism, in Triton."""

import triton
import triton.language as tl


@triton.jit
def unpack(token, n_tokens, cu_seqlens, cp_size):
    """Each packed token's sequence, its index there and the length there, on this rank.

    A token in no sequence gets an index below 0 or beyond the length.
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
    """The last sequence that begins no later than a token: sequences may be empty.

    Each step waits for a load, so it compares many starts at once to need few steps.
    """
    # No global: Triton's name for a kernel in its cache would depend on which kernel came first.
    SEARCHED: tl.constexpr = 32
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
    """A value of cu_seqlens on this rank, which has one part in cp_size of every sequence."""
    value = tl.load(ptr).to(tl.int64)
    return value if cp_size is None else value // cp_size


@triton.jit
def position(seq, batch, n_seq, n_table, start_ptr, PER_TOKEN: tl.constexpr, cp_size, cp_rank):
    """Each token's row of the table, and whether both the token and the row exist.

    Of n_seq positions a context-parallel rank holds the chunks cp_rank and, as many from the end,
    2 cp_size - 1 - cp_rank of the 2 cp_size that the sequence is cut into.
    """
    valid = (seq >= 0) & (seq < n_seq)
    row = seq
    if cp_size is not None:
        chunk = n_seq // 2
        row += chunk * tl.where(seq < chunk, cp_rank, 2 * cp_size - 2 - cp_rank)
    if PER_TOKEN:
        row = tl.load(start_ptr + batch * n_seq + seq).to(tl.int64)
    elif start_ptr is not None:
        row += tl.load(start_ptr + batch)
    return row, valid & (row >= 0) & (row < n_table)
