"""The roofline of a rotation: a copy of the tensor that also reads what the angles or tables take.

A rotation must read its input, write its output, and read each row of angles that it needs once.
Bytes over the GPU's bandwidth are no bound of the time this takes: a transfer of a few megabytes
reaches a fraction of that bandwidth. So these bytes are moved and timed, in one launch, because the
sum of two counts two launches. Whether the rows lie in L2 or in memory makes a difference, and is
as in the calls beside it: all calls of a recording share one table, and between a call and the next
lie the bytes that one call moves. The rows are those of the call's positions, each once, without
padding, and lie one after the other: what a call reads twice, or far apart, is its own cost.

It does no arithmetic and knows no layout, so a call that reaches it waits for nothing but memory.
"""

import functools
from typing import Any

from . import gpu_timer

# Triton looks for its language among the globals of a kernel, and no module here may import it.
tl: Any = None

_BLOCK, _WARPS = 1024, 2
"""Two-byte elements of a program: 2 KB, with two loads of 16 bytes a thread.

Near the best from 1 to 256 MiB for the package's own kernel, on an H200.
"""
_WORD, _STEP = 4, 64  # bytes


def recorded(call, inputs: list, copies: list, stream) -> list[gpu_timer.Recording]:
    """A recording of the roofline on the same inputs; none where a call does not say what it reads.

    It writes to the memory of ``copies``, which ``call.copies`` made of the inputs, so that a cell
    takes no more memory for it.
    """
    import torch

    if not (bytes_read := call.bytes_read()):
        return []
    with torch.cuda.stream(stream):
        table = table_of(bytes_read, inputs[0].device)
    outputs = [copy[0] if isinstance(copy, tuple) else copy for copy in copies]
    pairs = zip(inputs, outputs, strict=True)
    copying = [
        lambda x=x, out=out: call.copies(x, lambda x: copied(x, table, out)) for x, out in pairs
    ]
    return [gpu_timer.Recording(copying, stream, 0)]


def table_of(bytes_read: int, device):
    """As many bytes as a call reads of angles or tables, all 0, for :func:`copied`."""
    import torch

    words = -(-bytes_read // _STEP) * (_STEP // _WORD)
    return torch.zeros(words, dtype=torch.int32, device=device)


def copied(x, table, out):
    """Copy ``x`` to ``out`` and read ``table``, of :func:`table_of`, meanwhile; returns ``out``.

    Both are contiguous and have the same even number of bytes.
    """
    import torch
    import triton

    source, target = (tensor.reshape(-1).view(torch.int16) for tensor in (x, out))
    programs = triton.cdiv(len(source), _BLOCK)
    # A multiple of 16, as the whole table: else Triton would not load 16 bytes at once.
    share = triton.cdiv(triton.cdiv(len(table), programs), 16) * 16
    _kernel()[programs,](
        *(target, source, len(source), table, len(table), share),
        BLOCK=_BLOCK,
        WORDS=triton.next_power_of_2(share),
        num_warps=_WARPS,
    )
    return out


@functools.cache
def _kernel():
    global tl
    import triton
    import triton.language as tl

    @triton.jit
    def copy_and_read(
        out_ptr, x_ptr, n, table_ptr, n_words, share, BLOCK: tl.constexpr, WORDS: tl.constexpr
    ):
        program = tl.program_id(0).to(tl.int64)
        word = tl.arange(0, WORDS)
        place = program * share + word
        mine = (word < share) & (place < n_words)
        words = tl.load(table_ptr + place, mask=mine, other=0, eviction_policy="evict_last")
        at = program * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at, mask=at < n, eviction_policy="evict_last")
        tl.store(out_ptr + at, x, mask=at < n)
        # Never true, which the compiler cannot know: else it would leave out the load.
        tl.store(table_ptr + place, words + 1, mask=words == 1)

    return copy_and_read
