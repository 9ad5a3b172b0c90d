"""The part of a tensor that a program rotates."""

from typing import NamedTuple

import triton


class Tile(NamedTuple):
    """A program's positions, heads and warps."""

    positions: int
    heads: int
    warps: int


_Table = dict[tuple[int, int], Tile]

# By bytes an element and channels a head. Measured on an H200 (60 MB of L2), cold cache, against a
# copy, 1 to 256 MiB: of 13 to 22 tiles the one that is best over all sizes.
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
# Up to so many MiB, where one wave of programs holds the whole tensor, fewer and deeper threads
# win by 1 to 4 %.
_SMALL: dict[tuple[int, int], tuple[int, Tile]] = {(2, 128): (12, Tile(1, 16, 2))}
# By cosines and sines that are ready-made, with nothing to compute while memory is waited for, 16
# elements a thread lost 3 to 9 % at 16 and 32 MiB, most of it in place.
_READY_MADE: _Table = _TILES | {(4, 128): Tile(1, 4, 2)}
# A program seeks the packed sequence of its first token and that of its last: of one token, once.
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
# Where angles wait for a position to be loaded: in smaller programs more of them wait at once.
_MOVED: _Table = _PACKED | {
    (2, 64): Tile(2, 8, 1),
    (4, 64): Tile(2, 4, 1),
    (4, 128): Tile(1, 4, 1),
}
# Each head has a memory of its own: a program keeps to few, and takes more positions.
_HEADS_FIRST: _Table = {
    (2, 64): Tile(8, 4, 4),
    (2, 128): Tile(8, 1, 1),
    (2, 256): Tile(4, 1, 1),
    (4, 64): Tile(16, 1, 4),
    (4, 128): Tile(8, 1, 4),
    (4, 256): Tile(2, 1, 1),
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
        Whether cosines and sines are, instead of angles.
    packed : bool
        Whether a token's sequence is to be sought.
    moved : bool
        Whether a token's angles are elsewhere than at its own index.
    heads_first : bool
        Whether the heads come before the positions in memory.
    """
    if heads_first:
        tiles = _HEADS_FIRST
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
        # Threads share out the angles of either half: where those are few, more positions.
        positions = max(positions, 32 * warps * 2 // width)
    # Of few heads, more positions: a tile of one, for 2 to 8 as well to save variants, had 0.7 of a
    # copy's speed at 16 MiB in half precision, where these have 0.84 to 0.96.
    heads = min(triton.next_power_of_2(n_heads), max(rows // positions, 1))
    return Tile(max(rows // heads, 1), heads, warps)


def _measured(tiles: _Table, item: int, channels: int) -> int:
    """The least of a table's head sizes that has as many channels, or its largest."""
    sizes = [size for each, size in tiles if each == item]
    return min((size for size in sizes if size >= channels), default=sizes[-1])
