"""From the form of a call to grids and the kernels' arguments."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton

from rope_triton.launch import Part
from rope_triton.tiles import tile_of

# What the kernel rounds beside the result; of nothing, it is not told.
_ROUNDINGS = {"once": None, "tables": "tables", "each": "each"}
# CUDA's limit for the second and third dimension of a grid.
_GRID_LIMIT = 65535


class Options(NamedTuple):
    """What a call asks for, beside its tensors; see :func:`rope_triton.apply_rotary_pos_emb`."""

    tensor_format: str
    interleaved: bool
    cp_size: int
    cp_rank: int
    rounding: str = "once"
    transposed: bool = False
    inplace: bool = False


class QkvOptions(NamedTuple):
    """The same for packed queries, keys and values: the channels of a group of them besides."""

    tensor_format: str
    interleaved: bool
    cp_size: int
    cp_rank: int
    q_channels: int
    k_channels: int
    v_channels: int
    join: bool = False

    @property
    def channels(self) -> tuple[int, int, int]:
        """Channels of queries, keys and values in a group; the last is the size of a head."""
        return self.q_channels, self.k_channels, self.v_channels

    @property
    def counts(self) -> tuple[int, int, int]:
        """Heads of queries, keys and values in a group."""
        width = self.v_channels
        return self.q_channels // width, self.k_channels // width, 1


def by_position(table: torch.Tensor) -> torch.Tensor:
    """``[s2, 1, 1, n]`` of a table ``[s2, n]``; any other as it is."""
    return table[:, None, None] if table.dim() == 2 else table


def rotation(out, t, freqs, sin, start_positions, cu_seqlens, options: Options) -> Iterator[Part]:
    """The launches of ``rope_kernel``; cu_seqlens only for packed sequences."""
    freqs = by_position(freqs)
    packed, parallel = cu_seqlens is not None, options.cp_size > 1
    moved = packed or parallel or start_positions is not None
    n_batch, n_seq, n_heads, *strides = _axes(t, options.tensor_format)
    *out_strides, out_head = _axes(out, options.tensor_format)[3:]
    rotated = freqs.shape[3] if sin is None else 2 * freqs.shape[3]
    heads_first = options.tensor_format == "bhsd"
    sizes = t.nbytes, t.element_size(), n_heads, t.shape[-1], rotated
    tile = tile_of(
        *sizes, ready_made=sin is not None, packed=packed, moved=moved, heads_first=heads_first
    )
    dim = None if packed else options.tensor_format.index("b")
    dims = dim, dim, *[1 if freqs.shape[1] > 1 else None] * 2, 0, None
    heads, blocks = triton.cdiv(n_heads, tile.heads), triton.cdiv(n_seq, tile.positions)
    for grid, begin, first in _grids(heads, blocks, n_batch, options.tensor_format):
        numbers = (
            *(n_seq, n_heads, *out_strides, *strides, t.stride(-1)),
            *(freqs.stride(0), freqs.stride(3)),
            *(freqs.stride(i) if freqs.shape[i] > 1 else None for i in (1, 2)),
            *(first, freqs.shape[0] if moved else None),
            cu_seqlens.shape[0] - 1 if packed else None,
            *((options.cp_size, options.cp_rank) if parallel else (None, None)),
            *(out_head if heads_first else None, t.shape[-1], rotated),
            *(options.tensor_format == "bshd", heads_first or None),
            *(options.interleaved, options.transposed, options.inplace or None),
            (start_positions is not None and start_positions.dim() == 2) or None,
            *(_ROUNDINGS[options.rounding], tile.positions, tile.heads),
        )
        yield Part(grid, begin, dims, numbers, _compile_options(tile, options.rounding))


def qk_rotation(
    q_out, k_out, q, k, freqs, sin, start_positions, cu_seqlens, options: Options
) -> Iterator[Part]:
    """The launches of ``rope_qk_kernel``."""
    freqs = by_position(freqs)
    packed, parallel = cu_seqlens is not None, options.cp_size > 1
    moved = packed or parallel or start_positions is not None
    n_batch, n_seq, q_heads, *q_strides = _axes(q, options.tensor_format)
    k_heads, *k_strides = _axes(k, options.tensor_format)[2:]
    out_strides = [s for x in (q_out, k_out) for s in _axes(x, options.tensor_format)[3:5]]
    rotated = freqs.shape[3] if sin is None else 2 * freqs.shape[3]
    few = min(q_heads, k_heads) or max(q_heads, k_heads)  # one of them may have none
    sizes = q.nbytes + k.nbytes, q.element_size(), few, q.shape[-1], rotated
    tile = tile_of(*sizes, ready_made=sin is not None, packed=packed, moved=moved)
    dim = None if packed else options.tensor_format.index("b")
    dims = *[dim] * 4, *[1 if freqs.shape[1] > 1 else None] * 2, 0, None
    heads = triton.cdiv(q_heads, tile.heads) + triton.cdiv(k_heads, tile.heads)
    blocks = triton.cdiv(n_seq, tile.positions)
    for grid, begin, first in _grids(heads, blocks, n_batch, options.tensor_format):
        numbers = (
            *(n_seq, q_heads, k_heads, *out_strides),
            *(*q_strides, q.stride(-1), *k_strides, k.stride(-1)),
            *(freqs.stride(0), freqs.stride(3), freqs.stride(1) if freqs.shape[1] > 1 else None),
            *(first, freqs.shape[0] if moved else None),
            cu_seqlens.shape[0] - 1 if packed else None,
            *((options.cp_size, options.cp_rank) if parallel else (None, None)),
            *(q.shape[-1], rotated, options.tensor_format == "bshd"),
            *(options.interleaved, options.transposed, _ROUNDINGS[options.rounding]),
            *(tile.positions, tile.heads),
        )
        yield Part(grid, begin, dims, numbers, _compile_options(tile, options.rounding))


def qkv_rotation(
    qkv, q, k, v, q_freqs, k_freqs, start_positions, options: QkvOptions
) -> Iterator[Part]:
    """The launches of ``rope_qkv_kernel``."""
    counts = options.counts
    n_batch, n_seq, n_groups, *strides = _axes(qkv, options.tensor_format)
    width = options.v_channels
    parallel = options.cp_size > 1
    moved = parallel or start_positions is not None
    strides.append(qkv.stride(3))
    for part in (q, k, v):
        strides += [*_axes(part, options.tensor_format)[3:], part.stride(3)]
    sizes = qkv.nbytes, qkv.element_size(), n_groups * min(counts), width, q_freqs.shape[3]
    tile = tile_of(*sizes, moved=moved)
    heads = sum(triton.cdiv(n_groups * count, tile.heads) for count in counts)
    blocks = triton.cdiv(n_seq, tile.positions)
    dim = options.tensor_format.index("b")
    for grid, begin, first in _grids(heads, blocks, n_batch, options.tensor_format):
        numbers = (
            *(n_seq, n_groups, *strides),
            *(freqs.stride(i) for freqs in (q_freqs, k_freqs) for i in (0, 3)),
            *(first, q_freqs.shape[0] if moved else None),
            *((options.cp_size, options.cp_rank) if parallel else (None, None)),
            *(*counts, width, q_freqs.shape[3], options.tensor_format == "bshd"),
            *(options.interleaved, options.join, tile.positions, tile.heads),
        )
        dims = *[dim] * 4, None, None, 0
        yield Part(grid, begin, dims, numbers, _compile_options(tile))


def _axes(t, tensor_format):
    """Sizes of batch, sequence and heads, and strides of sequence, batch and heads."""
    if tensor_format == "thd":  # packed: one sequence, as far as the grid goes
        return 1, t.shape[0], t.shape[1], t.stride(0), 0, t.stride(1)
    batch, seq, head = map(tensor_format.index, "bsh")
    sizes = t.shape[batch], t.shape[seq], t.shape[head]
    return *sizes, t.stride(seq), t.stride(batch), t.stride(head)


def _grids(heads, blocks, n_batch, tensor_format):
    """One grid, or several where CUDA's ends, each with its first of the batch and first block."""
    if tensor_format == "thd":  # both dimensions for the blocks
        rows = triton.cdiv(blocks, _GRID_LIMIT)
        yield (heads, triton.cdiv(blocks, rows), rows), 0, None
        return
    for begin in range(0, n_batch, _GRID_LIMIT):
        batch = min(n_batch - begin, _GRID_LIMIT)
        if tensor_format == "bhsd":
            yield (blocks, heads, batch), begin, None
            continue
        for first in range(0, blocks, _GRID_LIMIT):
            rows = min(blocks - first, _GRID_LIMIT), batch
            grid = heads, *(rows if tensor_format == "bshd" else rows[::-1])
            yield grid, begin, first if blocks > _GRID_LIMIT else None


def _compile_options(tile, rounding="once"):
    """``"each"`` forbids a multiplication and an addition in one instruction, which rounds once."""
    separate = {"enable_fp_fusion": False} if rounding == "each" else {}
    return {"num_warps": tile.warps, **separate}
