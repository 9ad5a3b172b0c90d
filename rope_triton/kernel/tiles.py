"""Choose how much of a tensor one program rotates, by a rule with few measured constants."""

from typing import NamedTuple

import triton

# Measured on an H200 with a cold cache: 9 kinds of calls in float32 and bfloat16, with heads of 32
# to 256 channels, at 4 and 32 MiB, and ten calls of models. A multiprocessor holds at most 32
# programs, and with less than 2 KiB to load in each they do not keep its memory busy: such calls
# took up to 1.25 times as long.
_THREAD_BYTES = 64
# A program computes sines once for all its heads. More of them are no faster.
_HEADS = 16
# In half precision, of heads of 128 channels and more, whose threads have half as much to load.
_WIDE_HEADS, _WIDE_CHANNELS = 8, 128
# Heads that all programs have room for, over those there are, at most: calls of 3 to 12 heads took
# up to 27 % longer with room for more. A little more room is better than short rows or moved
# positions in programs of fewer heads. In half precision, so few heads share a program anyway.
_MOST_ROOM, _MORE_ROOM, _FEW_HEADS = 1.25, 1.4, 4
_SHORT_ROW = 128  # bytes of a head
# Of heads that are each contiguous in memory: then a program takes more positions instead.
_SHARED_HEADS = 4
_MOST_WARPS = 4


class Tile(NamedTuple):
    """A program's positions, heads and warps."""

    positions: int
    heads: int
    warps: int


def tile_of(
    item: int,
    n_seq: int,
    n_heads: int,
    channels: int,
    width: int,
    *,
    ready_made: bool = False,
    moved: bool = False,
    heads_first: bool = False,
) -> Tile:
    """The tile for ``n_seq`` positions of heads of ``channels`` elements of ``item`` bytes.

    Parameters
    ----------
    width : int
        Channels that have angles.
    ready_made : bool
        Whether the call has cosines and sines instead of angles.
    moved : bool
        Whether a token's angles are elsewhere than at its own index.
    heads_first : bool
        Whether the heads come before the positions in memory.
    """
    count, partial = n_heads, width < channels
    padded, of_angles, n_heads = map(triton.next_power_of_2, (channels, width, n_heads))
    wide = item == 2 and padded >= _WIDE_CHANNELS and (partial or channels == padded)
    thread_bytes, heads, warps = _THREAD_BYTES, _WIDE_HEADS if wide else _HEADS, 1
    many = not partial and _fit(count, heads, _MORE_ROOM)
    short = item * padded <= _SHORT_ROW
    if heads_first and ready_made:
        heads = 1
    elif heads_first:
        heads = _SHARED_HEADS
        warps = 2 if padded > 32 * item else 1
    elif item == 4 and moved and padded <= 128 and (n_seq == 1 or many):
        # Angles wait for the load of a position: in larger programs, more of them wait at once.
        warps = max(padded // 32, 1)
    elif n_seq > 1 and item == 4:
        # But with few heads, or few angles, more of small programs wait beside each other.
        few = 1 if partial or ready_made and padded <= 128 else 2
        heads = _that_fit(count, few if moved else heads, _FEW_HEADS if short else 1)
    elif n_seq > 1:
        heads = _heads_in_half(count, heads, padded, wide, short, partial, ready_made, moved)
    if item == 2 and not heads_first:
        warps = min(max(padded // 64, 1), _MOST_WARPS)
        if wide and ((min(heads, n_heads) < _WIDE_HEADS and not moved) or padded > 256):
            warps //= 2  # few heads share an angle: fewer threads compute it again
        elif wide:
            thread_bytes //= 2
    rows = max(32 * warps * thread_bytes // (item * padded), 1)
    positions = max(rows // heads, 1)
    if of_angles < padded:
        # Threads divide the angles of a half among them: if those are few, take more positions.
        positions = max(positions, 32 * warps * 2 // of_angles)
    if n_seq == 1:  # in decoding: sines of positions that are not there would take their time
        return Tile(1, min(n_heads, rows, _HEADS), warps)
    heads = min(n_heads, max(rows // positions, 1))
    return Tile(max(rows // heads, 1), heads, warps)


def _heads_in_half(
    count: int,
    most: int,
    padded: int,
    wide: bool,
    short: bool,
    partial: bool,
    ready_made: bool,
    moved: bool,
) -> int:
    """Heads of a program in half precision that takes some of ``count``, ``most`` or fewer."""
    if moved and ready_made and not _fit(count, min(most, triton.next_power_of_2(count))):
        if wide and partial:
            most = 1
        elif not wide and padded > _WIDE_CHANNELS:
            most = 2
    sines = not ready_made and (short or (moved and not partial and count <= most))
    if sines or (short and partial) or count <= _FEW_HEADS:
        return most  # what they share is worth more than the room
    return _that_fit(count, most, *((_FEW_HEADS, _MORE_ROOM) if short else ()))


def _that_fit(count: int, most: int, fewest: int = 1, room: float = _MOST_ROOM) -> int:
    """A power of two, ``most`` or less: programs with so many heads fit, or with ``fewest``."""
    while most > fewest and not _fit(count, most, room):
        most //= 2
    return most


def _fit(count: int, heads: int, room: float = _MOST_ROOM) -> bool:
    """Whether programs with so many heads do not have room for many more than there are."""
    return triton.cdiv(count, heads) * heads <= room * count
