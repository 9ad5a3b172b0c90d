"""The part of a tensor that a program rotates, and how it passes the caches."""

from typing import NamedTuple

import triton

_Shape = tuple[int, int, int]  # positions, heads and warps of a program
_Table = dict[tuple[int, int], tuple[list[tuple[int, _Shape]], _Shape]]

# By bytes an element and channels a head: up to how many MiB a tensor is read and written as a
# stream that leaves L2 first, with which tile, and the tile of larger tensors. Measured on an H200
# (60 MB of L2), cold cache, against a copy, 2 to 268 MB: 64, 128 and 256 channels in this table the
# best of 6 to 9 tiles under 3 cache policies in both formats, else of some 30 tiles under 2. Where
# one wave of programs holds the whole tensor, fewer and deeper threads win; beyond it, more and
# shallower ones.
_TILES: _Table = {
    (2, 32): ([(12, (4, 16, 1))], (4, 16, 1)),
    (2, 64): ([(48, (2, 8, 2))], (2, 8, 2)),
    (2, 96): ([(12, (1, 16, 2))], (1, 16, 2)),
    (2, 128): ([(12, (1, 16, 2))], (1, 8, 2)),
    (2, 192): ([(12, (1, 16, 2))], (1, 16, 2)),
    (2, 256): ([(12, (1, 8, 2))], (1, 8, 4)),
    (4, 32): ([(24, (2, 16, 1))], (4, 8, 2)),
    (4, 64): ([(24, (1, 16, 1))], (4, 4, 2)),
    (4, 96): ([(24, (2, 8, 4))], (1, 8, 2)),
    (4, 128): ([(24, (1, 16, 2))], (1, 4, 1)),
    (4, 192): ([(24, (1, 8, 4))], (1, 4, 2)),
    (4, 256): ([(24, (1, 4, 4))], (1, 4, 4)),
}
# Where a position's angles lie takes loads that wait for each other: few positions a program, so
# that more programs wait at once.
_LOOKED_UP: _Table = {
    (2, 32): ([(8, (2, 16, 1)), (12, (4, 16, 1))], (2, 16, 1)),
    (2, 64): ([(8, (1, 16, 1)), (12, (2, 16, 1)), (48, (1, 16, 1))], (1, 16, 1)),
    (2, 96): ([(12, (1, 8, 1))], (1, 16, 2)),
    (2, 128): ([(8, (1, 8, 2)), (12, (1, 16, 1))], (1, 8, 2)),
    (2, 192): ([(8, (1, 8, 4))], (1, 16, 4)),
    (2, 256): ([(8, (1, 8, 4)), (12, (1, 16, 2))], (1, 8, 4)),
    (4, 32): ([(8, (1, 16, 1)), (24, (8, 4, 1)), (48, (1, 16, 1))], (1, 16, 1)),
    (4, 64): ([(8, (1, 16, 2)), (24, (1, 16, 1))], (1, 16, 2)),
    (4, 96): ([(8, (1, 16, 4)), (24, (2, 8, 1))], (2, 2, 1)),
    (4, 128): ([(8, (1, 16, 4)), (24, (2, 4, 1))], (2, 2, 1)),
    (4, 192): ([(8, (1, 2, 1)), (24, (1, 8, 1))], (1, 2, 1)),
    (4, 256): ([(8, (1, 2, 1)), (24, (2, 4, 2))], (1, 2, 1)),
}
# Each head has a memory of its own: beyond L2, a program keeps to few, and takes more positions.
_HEADS_FIRST: _Table = {
    (2, 64): ([(48, (8, 8, 2))], (8, 4, 2)),
    (2, 96): ([(12, (4, 8, 2))], (8, 1, 2)),
    (2, 128): ([(12, (2, 8, 2))], (8, 1, 2)),
    (2, 256): ([(12, (2, 8, 2))], (8, 1, 4)),
    (4, 32): ([(48, (4, 8, 1))], (8, 2, 1)),
    (4, 64): ([(24, (4, 4, 2))], (8, 1, 1)),
    (4, 128): ([(24, (4, 8, 4))], (4, 1, 1)),
    (4, 256): ([(24, (2, 2, 1))], (2, 1, 1)),
}


class Tile(NamedTuple):
    """Whether the tensor is a stream that leaves L2 first, and a program's positions, heads and
    warps.
    """

    stream: bool
    positions: int
    heads: int
    warps: int


def tile_of(
    size: int,
    item: int,
    n_heads: int,
    channels: int,
    width: int,
    *,
    looked_up: bool = False,
    heads_first: bool = False,
) -> Tile:
    """The tile for ``size`` bytes in heads of ``channels`` elements of ``item`` bytes.

    Parameters
    ----------
    width : int
        Channels that have angles.
    looked_up : bool
        Whether a token's angles are elsewhere than at its own index.
    heads_first : bool
        Whether the heads come before the positions in memory.
    """
    tiles = _HEADS_FIRST if heads_first else _LOOKED_UP if looked_up else _TILES
    padded, width = triton.next_power_of_2(channels), triton.next_power_of_2(width)
    measured = _measured(tiles, item, padded if width < channels else channels)
    streams, large = tiles[item, measured]
    fits = [tile for mib, tile in streams if size <= mib << 20]
    positions, heads, warps = fits[0] if fits else large
    rows = max(positions * heads * triton.next_power_of_2(measured) // padded, 1)
    if width < measured:
        # Threads share out the angles of either half: where those are few, more positions.
        positions = max(positions, 32 * warps * 2 // width)
    heads = min(triton.next_power_of_2(n_heads), max(rows // positions, 1))
    return Tile(bool(fits), max(rows // heads, 1), heads, warps)


def _measured(tiles: _Table, item: int, channels: int) -> int:
    """The least of a table's head sizes that has as many channels, or its largest."""
    sizes = [size for each, size in tiles if each == item]
    return min((size for size in sizes if size >= channels), default=sizes[-1])
