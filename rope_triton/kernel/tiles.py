"""Choose how much of a tensor one program rotates, from measurements."""

from typing import NamedTuple

import triton


class Tile(NamedTuple):
    """A program's positions, heads and warps."""

    positions: int
    heads: int
    warps: int


_Table = dict[tuple[int, int], Tile]

# By bytes an element and channels a head: the best over all sizes of 13 to 22 tiles, measured on an
# H200 (60 MB of L2) with a cold cache, against a copy, from 1 to 256 MiB.
_TILES: _Table = {
    (2, 32): Tile(4, 16, 2),
    (2, 64): Tile(1, 16, 1),
    (2, 96): Tile(1, 16, 2),
    (2, 128): Tile(1, 8, 2),
    (2, 192): Tile(1, 16, 4),
    (2, 256): Tile(1, 8, 2),
    (4, 32): Tile(1, 16, 1),
    (4, 64): Tile(1, 8, 1),
    (4, 96): Tile(1, 4, 1),
    (4, 128): Tile(1, 8, 2),
    (4, 192): Tile(1, 2, 1),
    (4, 256): Tile(1, 4, 4),
}
# Up to this many MiB, one wave of programs holds the whole tensor, and fewer and deeper threads win
# by 1 to 4 %.
_SMALL: dict[tuple[int, int], tuple[int, Tile]] = {(2, 128): (12, Tile(1, 16, 2))}
# Ready-made cosines and sines leave nothing to compute during a load: 16 elements a thread lost 3
# to 9 % at 16 and 32 MiB, most of it in place.
_READY_MADE: _Table = _TILES | {(4, 128): Tile(1, 4, 2)}
# A program searches for the sequence of its first token and of its last: once if it has one token.
_PACKED: _Table = {
    (2, 32): Tile(2, 16, 1),
    (2, 64): Tile(1, 16, 1),
    (2, 96): Tile(1, 16, 2),
    (2, 128): Tile(1, 8, 2),
    (2, 192): Tile(1, 16, 4),
    (2, 256): Tile(1, 8, 4),
    (4, 32): Tile(1, 16, 1),
    (4, 64): Tile(1, 16, 2),
    (4, 96): Tile(1, 16, 4),
    (4, 128): Tile(1, 16, 4),
    (4, 192): Tile(1, 2, 1),
    (4, 256): Tile(1, 2, 1),
}
# Angles wait for the load of a position: with smaller programs, more of them wait at once.
_MOVED: _Table = _PACKED | {
    (2, 64): Tile(2, 8, 1),
    (4, 64): Tile(2, 4, 1),
    (4, 128): Tile(1, 4, 1),
}
# Each head is contiguous in memory: a program takes few heads, and more positions.
_HEADS_FIRST: _Table = {
    (2, 64): Tile(8, 4, 4),
    (2, 128): Tile(8, 1, 1),
    (2, 256): Tile(4, 1, 1),
    (4, 64): Tile(16, 1, 4),
    (4, 128): Tile(8, 1, 4),
    (4, 256): Tile(2, 1, 1),
}
# The same by angles, where a batch has one head: a program computes sines once for some of them. Of
# MLA's keys, 64 channels in a batch of 8, calls have 0.91 of a copy's speed, and 0.64 one by one.
_SHARED_ANGLES: _Table = {
    (2, 32): Tile(16, 4, 2),
    (2, 64): Tile(4, 4, 1),
    (2, 96): Tile(4, 4, 2),
    (2, 128): Tile(4, 4, 2),
    (2, 192): Tile(4, 4, 4),
    (2, 256): Tile(2, 4, 2),
    (4, 32): Tile(4, 4, 1),
    (4, 64): Tile(2, 4, 1),
    (4, 96): Tile(1, 4, 1),
    (4, 128): Tile(2, 4, 2),
    (4, 192): Tile(1, 2, 1),
    (4, 256): Tile(1, 4, 4),
}


def tile_of(
    size: int,
    item: int,
    n_heads: int,
    channels: int,
    width: int,
    *,
    ready_made: bool = False,
    packed: bool = False,
    moved: bool = False,
    heads_first: bool = False,
) -> Tile:
    """The tile for ``size`` bytes in heads of ``channels`` elements of ``item`` bytes.

    Parameters
    ----------
    width : int
        Channels that have angles.
    ready_made : bool
        Whether the call has cosines and sines instead of angles.
    packed : bool
        Whether a program must search for the sequence of a token.
    moved : bool
        Whether a token's angles are elsewhere than at its own index.
    heads_first : bool
        Whether the heads come before the positions in memory.
    """
    if heads_first:
        tiles = _HEADS_FIRST if ready_made else _SHARED_ANGLES
    elif packed:
        tiles = _PACKED
    elif moved:
        tiles = _MOVED
    else:
        tiles = _READY_MADE if ready_made else _TILES
    padded, width = triton.next_power_of_2(channels), triton.next_power_of_2(width)
    measured = _measured(tiles, item, padded if width < channels else channels)
    tile = tiles[item, measured]
    limit, small = _SMALL.get((item, measured), (0, tile))
    positions, heads, warps = small if tiles is _TILES and size <= limit << 20 else tile
    rows = max(positions * heads * triton.next_power_of_2(measured) // padded, 1)
    if width < measured:
        # Threads divide the angles of a half among them: if those are few, take more positions.
        positions = max(positions, 32 * warps * 2 // width)
    # With few heads, more positions. One head for 2 to 8 of them, to save variants, had 0.7 of a
    # copy's speed at 16 MiB in half precision, where these tiles have 0.84 to 0.96.
    heads = min(triton.next_power_of_2(n_heads), max(rows // positions, 1))
    return Tile(max(rows // heads, 1), heads, warps)


def _measured(tiles: _Table, item: int, channels: int) -> int:
    """The smallest head size of a table with at least so many channels, or its largest."""
    sizes = [size for each, size in tiles if each == item]
    return min((size for size in sizes if size >= channels), default=sizes[-1])
