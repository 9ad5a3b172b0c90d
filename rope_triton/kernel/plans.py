"""Plan a call: its grid, and the arguments of its kernel."""

import functools
import math
import operator
from typing import NamedTuple

import torch

from rope_triton.kernel.kernels import rope_kernel, rope_qkv_kernel
from rope_triton.kernel.launch import GRID_LIMIT, Launch, cdiv, is_amd, power_of_2
from rope_triton.kernel.tiles import ONE_WAVE, tile_of

# By layout, of a shape: sizes of batch, sequence and heads; of strides: all, in this order.
_SIZES, _STRIDES = (
    {layout: operator.itemgetter(*map(layout.index, axes)) for layout in ("sbhd", "bshd", "bhsd")}
    for axes in ("bsh", "sbhd")
)
# By kernel, of its arguments by name: those that are no tensors.
_VALUES = {
    kernel.fn: operator.itemgetter(*(x for x in kernel.arg_names if not x.endswith("_ptr")))
    for kernel in (rope_kernel, rope_qkv_kernel)
}


class Options(NamedTuple):
    """What a call asks for besides its tensors; see :func:`rope_triton.apply_rotary_pos_emb`."""

    tensor_format: str
    interleaved: bool
    cp_size: int
    cp_rank: int
    rounding: str = "once"
    transposed: bool = False
    inplace: bool = False


class QkvOptions(NamedTuple):
    """The same for packed queries, keys and values, with the channels of each in a group."""

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


@functools.cache  # to replace fields takes a microsecond
def adjoint(options):
    """The options of the gradient: to rotate back, whose gradient is the rotation; or to join."""
    if isinstance(options, QkvOptions):
        return options._replace(join=not options.join)
    return options._replace(transposed=not options.transposed, inplace=False)


def by_position(table: torch.Tensor) -> torch.Tensor:
    """``[s2, 1, 1, n]`` of a table ``[s2, n]``; any other as it is."""
    return table[:, None, None] if table.dim() == 2 else table


def rotation(out, k_out, t, k, freqs, sin, start_positions, cu_seqlens, options: Options) -> Launch:
    """The launch of ``rope_kernel`` on ``t``, and on ``k`` unless that is None.

    Sequences are packed if there is ``cu_seqlens``.
    """
    freqs = by_position(freqs)
    rotated = freqs.shape[3] if sin is None else 2 * freqs.shape[3]
    call = rotated, freqs, sin, start_positions, cu_seqlens, options
    if k is None:
        tile, layout, t, out = _arranged((t,), (out,), *call)
    else:
        tile, layout, t, k, out, k_out = _arranged((t, k), (out, k_out), *call)
    heads_first = layout == "bhsd"
    n_batch, n_seq, n_heads = _sizes(t, layout)
    k_heads = None if k is None else _sizes(k, layout)[2]
    if k is not None and is_amd():  # Triton cannot choose between pointers to two tensors there
        tile = tile._replace(heads=math.gcd(tile.heads, n_heads))
    arguments = {
        **{"n_seq": n_seq, "n_heads": n_heads, "k_heads": k_heads},
        **_strides("out", out, layout, ("seq", "batch")),
        **_strides("k_out", k_out, layout, ("seq", "batch")),
        "out_head": out.stride(1) if heads_first else None,
        **_strides("t", t, layout),
        **_strides("k", k, layout),
        **{"freqs_seq": freqs.stride(0), "freqs_channel": freqs.stride(3)},
        "freqs_batch": freqs.stride(1) if freqs.shape[1] > 1 else None,
        "freqs_head": freqs.stride(2) if freqs.shape[2] > 1 else None,
        **_position_arguments(freqs, start_positions, cu_seqlens, options),
        **{"D": t.shape[-1], "D_ROT": rotated},
        **{"HEADS_FIRST": heads_first or None, "INPLACE": options.inplace or None},
        "MIXED": None if k is None else n_heads % tile.heads > 0,
        "TRANSPOSED": options.transposed,
        "ROUNDING": None if options.rounding == "once" else options.rounding,
        "PER_TOKEN": (start_positions is not None and start_positions.dim() == 2) or None,
    }
    grid = cdiv(n_heads + (k_heads or 0), tile.heads), n_batch, n_seq
    return _launch(rope_kernel, grid, tile, arguments, layout, options, options.rounding)


def _arranged(
    inputs, outputs, rotated, freqs, sin, start_positions, cu_seqlens, options: Options
) -> tuple:
    """What :func:`_as_one_if_wider` returns, of tensors whose heads share programs."""
    facts = {
        "tables": sin is not None,
        "shifted": _is_shifted(start_positions, cu_seqlens, options),
        **_load(*inputs, freqs=freqs, rounding=options.rounding),
    }

    def find(layout, *tensors):
        t, n_heads = tensors[0], sum(_sizes(x, layout)[2] for x in tensors[: len(inputs)])
        sizes = t.element_size(), _sizes(t, layout)[1] == 1, n_heads, t.shape[-1], rotated
        return tile_of(*sizes, **facts, heads_first=layout == "bhsd")

    layout = options.tensor_format
    shared = sin is start_positions is cu_seqlens is None and freqs.shape[1:3] == (1, 1)
    if len(inputs) > 1:  # the kernel writes heads side by side: all of them are in "sbhd" alone
        shared = shared and layout == "sbhd"
    return _as_one_if_wider(find, shared, layout, *inputs, *outputs)


def _load(*tensors, freqs, rounding):
    """What threads have to do, as :class:`rope_triton.kernel.tiles.Call` has it."""
    busy = freqs.shape[2] > 1 or rounding == "each" or any(t.stride(-1) > 1 for t in tensors)
    return {"busy": busy, "one_wave": not busy and sum(t.nbytes for t in tensors) in ONE_WAVE}


def _as_one_if_wider(find, shared, layout, *tensors):
    """The tile that ``find`` gives, the layout and the tensors.

    Where sequences share their angles, they become one if a program then has more heads: it
    computes the sines of a position once for all of them.
    """
    tile = find(layout, *tensors)
    if shared and (as_one := _as_one_sequence(layout, *tensors)):
        wider = find(*as_one)
        if wider.heads > tile.heads:
            return wider, *as_one
    return tile, layout, *tensors


def _as_one_sequence(layout, *tensors):
    """A layout, and views in which the heads of all sequences are heads of one; or None.

    These heads lie side by side, "sbhd", or are one of each sequence in turn, "bhsd".
    """
    order = "sbhd" if layout == "sbhd" or _sizes(tensors[0], layout)[1] == 1 else "bhsd"
    views = []
    for x in tensors:
        n_batch, n_seq, n_heads = _sizes(x, layout)
        seq, batch, head, channel = _STRIDES[layout](x.stride())
        if n_heads > 1 and batch != n_heads * head:
            return None
        heads, apart = n_batch * n_heads, batch if n_heads == 1 else head
        if order == "sbhd":
            view = x.as_strided((n_seq, 1, heads, x.shape[-1]), (seq, 0, apart, channel))
        else:
            view = x.as_strided((1, heads, n_seq, x.shape[-1]), (0, apart, seq, channel))
        views.append(view)
    return order, *views


def _shared_heads(counts: tuple[int, int, int], n_seq: int) -> int:
    """Heads of a program of queries, of keys or of values, which have so many heads.

    All programs together have room for a fifth more heads than there are, at most. With as many as
    the fewest of the counts, 32 heads of queries beside one of keys took 1.4 times as long.
    """
    most, total = max(counts), sum(counts)
    if n_seq == 1:  # in decoding a program with few heads takes as long
        return most
    heads = power_of_2(min(counts))
    while 2 * heads <= most:
        if 2 * heads * _blocks(counts, 2 * heads) * 5 > total * 6:
            break
        heads *= 2
    return heads


def _blocks(counts: tuple[int, int, int], heads: int) -> int:
    """Programs side by side; none has heads of two tensors."""
    return sum(cdiv(count, heads) for count in counts)


def qkv_rotation(qkv, q, k, v, q_freqs, k_freqs, start_positions, options: QkvOptions) -> Launch:
    """The launch of ``rope_qkv_kernel``."""
    counts, width, layout = options.counts, options.v_channels, options.tensor_format

    def all_heads(n_groups):
        return tuple(n_groups * count for count in counts)

    facts = {
        "shifted": _is_shifted(start_positions, None, options),
        **_load(qkv, freqs=q_freqs, rounding="once"),
    }

    def find(layout, qkv, *_):
        _, n_seq, n_groups = _sizes(qkv, layout)
        n_heads = _shared_heads(all_heads(n_groups), n_seq)
        sizes = qkv.element_size(), n_seq == 1, n_heads, width, q_freqs.shape[3]
        return tile_of(*sizes, **facts)

    shared = start_positions is None and layout == "sbhd"  # as of queries and keys
    tile, layout, qkv, q, k, v = _as_one_if_wider(find, shared, layout, qkv, q, k, v)
    n_batch, n_seq, n_groups = _sizes(qkv, layout)
    positions = _position_arguments(q_freqs, start_positions, None, options)
    del positions["n_sequences"]  # no packed sequences here
    arguments = {
        **{"n_seq": n_seq, "n_groups": n_groups},
        **_strides("qkv", qkv, layout, ("seq", "batch", "group", "channel")),
        **_strides("q", q, layout),
        **_strides("k", k, layout),
        **_strides("v", v, layout),
        **{"q_freqs_seq": q_freqs.stride(0), "q_freqs_channel": q_freqs.stride(3)},
        **{"k_freqs_seq": k_freqs.stride(0), "k_freqs_channel": k_freqs.stride(3)},
        **positions,
        **{"Q": counts[0], "K": counts[1], "V": counts[2]},
        **{"D": width, "D_ROT": q_freqs.shape[3], "JOIN": options.join},
    }
    heads = _blocks(all_heads(n_groups), tile.heads)
    grid = heads, n_batch, n_seq
    return _launch(rope_qkv_kernel, grid, tile, arguments, layout, options)


def _sizes(t, layout):
    """Sizes of batch, sequence and heads; packed sequences are one sequence of all tokens."""
    if layout == "thd":
        return 1, *t.shape[:2]
    return _SIZES[layout](t.shape)


def _strides(name, t, layout, axes=("seq", "batch", "head", "channel")):
    """The strides of the first of these axes, by the name of the kernel's argument.

    None of a tensor that is None.
    """
    if t is None:
        strides: tuple = (None,) * len(axes)
    elif layout == "thd":
        seq, head, channel = t.stride()
        strides = seq, 0, head, channel
    else:
        strides = _STRIDES[layout](t.stride())
    return dict(zip(map(f"{name}_".__add__, axes), strides, strict=False))


def _is_shifted(start_positions, cu_seqlens, options):
    """Whether a token's angles are elsewhere than at its own index."""
    return start_positions is not None or cu_seqlens is not None or options.cp_size > 1


def _position_arguments(freqs, start_positions, cu_seqlens, options):
    """What the kernel needs to find the rows of tokens; None for what the call does not use."""
    parallel = options.cp_size > 1
    return {
        "n_table": freqs.shape[0] if _is_shifted(start_positions, cu_seqlens, options) else None,
        "n_sequences": None if cu_seqlens is None else cu_seqlens.shape[0] - 1,
        "cp_size": options.cp_size if parallel else None,
        "cp_rank": options.cp_rank if parallel else None,
    }


def _launch(kernel, blocks, tile, arguments, layout, options, rounding="once") -> Launch:
    """The launch for blocks of heads, the batch and positions; ``arguments`` by name."""
    heads, n_batch, n_seq = blocks
    seq_blocks = cdiv(n_seq, tile.positions)
    grids = {"bhsd": (seq_blocks, heads, n_batch), "sbhd": (heads, n_batch, seq_blocks)}
    grid = grids.get(layout, (heads, seq_blocks, n_batch))
    is_large = max(grid[1:]) > GRID_LIMIT
    arguments |= {
        **{"across": heads if is_large else None, "BATCH_FIRST": layout == "bshd"},
        **{"INTERLEAVED": options.interleaved},
        **{"BLOCK_S": tile.positions, "BLOCK_H": tile.heads},
    }
    compile_options = {"num_warps": tile.warps}
    if rounding == "each":  # a fused multiply-add rounds once, not twice
        compile_options["enable_fp_fusion"] = False
    values = _VALUES[kernel.fn](arguments)
    grid = (math.prod(grid), 1, 1) if is_large else grid
    return Launch(kernel, grid, values, **compile_options)
