"""Choose how much of a tensor one program rotates, by a rule with few measured constants.

They were measured on an H200 with a cold cache: ten calls of models, 9 kinds of calls at 4 and
32 MiB, 1,043 calls of 1 to 16, 32 and 64 heads with every tile that may suit them, and 600 timings
of heads rotated in part and of calls near 8 MiB with fewer threads.
"""

from typing import NamedTuple

import triton

# A multiprocessor holds at most 32 programs, and with less than 2 KiB to load in each they do not
# keep its memory busy: such calls took up to 1.25 times as long.
_THREAD_BYTES = 64
_MOST_WARPS = 4
# A program computes sines once for all its heads. More of them are no faster.
_HEADS = 16
# In half precision, of heads of 128 channels and more, whose threads have half as much to load.
_WIDE_HEADS, _WIDE_CHANNELS = 8, 128
# But by angles, in calls of so many bytes, as much as all others: these programs fill an H200 about
# once, and with half as many threads they take up to 5 % less.
_ONE_WAVE = range(6 << 20, 17 << 19)
# Of heads that are each contiguous in memory: then a program takes more positions instead.
_SHARED_HEADS = 4
# Where 5 heads are in programs of 8, these load the last head three times again. So much room, as a
# multiple of the heads there are, all programs have at most: with more, calls of 3 to 12 heads took
# up to 27 % longer.
_MOST_ROOM = 1.25
# Or so much, where programs of fewer heads would cost more: of moved positions in float32, and of
# short rows in half precision.
_MORE_ROOM = 1.4
# So few heads share a program whatever its room, in half precision and where rows are short.
_FEW_HEADS = 4
_SHORT_ROW = 128  # bytes of a head


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
    n_bytes: int,
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
    n_bytes : int
        Bytes of the call's tensors; 0 where threads have more to do than usual: with angles of each
        head, channels apart in memory, or more roundings.
    """
    partial, plain = width < channels, not (ready_made or moved)
    padded, of_angles, most = map(triton.next_power_of_2, (channels, width, n_heads))
    unpadded = channels == padded and width == of_angles
    thread_bytes, warps = _THREAD_BYTES, 1
    if heads_first:
        heads = 1 if ready_made else _SHARED_HEADS
        if not ready_made and padded > 32 * item:
            warps = 2
    elif item == 4:
        heads, warps = _in_float32(n_seq, n_heads, padded, partial, ready_made, moved)
    else:
        wide = padded >= _WIDE_CHANNELS and (partial or channels == padded)
        heads = _WIDE_HEADS if wide else _HEADS
        if n_seq > 1:
            heads = _in_half(n_heads, heads, padded, wide, partial, ready_made, moved)
        warps = min(max(padded // 64, 1), _MOST_WARPS)
        few = min(heads, most) < _WIDE_HEADS
        # Rotated in part, a program would have several positions, and few heads that share angles.
        part = partial and unpadded and n_bytes > 0 and of_angles >= (64 if plain else padded // 2)
        one_wave = plain and unpadded and n_bytes in _ONE_WAVE
        if wide and ((not moved if few else part) or one_wave or padded > 256):
            warps //= 2  # few heads share an angle: fewer threads compute it again
        elif wide:
            thread_bytes //= 2
    rows = max(32 * warps * thread_bytes // (item * padded), 1)
    if n_seq == 1:
        # In decoding, sines of positions that are not there would take their time, and so would
        # those that are computed again by threads for which a half has no angle.
        if plain:
            warps = min(warps, max(of_angles // 64, 1))
        return Tile(1, min(most, rows, _HEADS), warps)
    positions = max(rows // heads, 1)
    if of_angles < padded:
        # Threads divide the angles of a half among them: if those are few, take more positions.
        positions = max(positions, 32 * warps * 2 // of_angles)
    heads = min(most, max(rows // positions, 1))
    return Tile(rows // heads, heads, warps)


def _in_float32(
    n_seq: int, count: int, padded: int, partial: bool, ready_made: bool, moved: bool
) -> tuple[int, int]:
    """Heads of a program, at most, and its warps."""
    full = not partial and (count > _HEADS or _fit(count, _HEADS, _MORE_ROOM))
    if moved and padded <= 128 and (n_seq == 1 or full):
        # Angles wait for the load of a position: in larger programs, more of them wait at once.
        return _HEADS, max(padded // 32, 1)
    most = _HEADS
    if moved:  # where those are not full, small programs wait beside each other
        most = 1 if partial or (ready_made and padded <= 128) else 2
    return _that_fit(count, most, _FEW_HEADS if 4 * padded <= _SHORT_ROW else 1), 1


def _in_half(
    count: int, most: int, padded: int, wide: bool, partial: bool, ready_made: bool, moved: bool
) -> int:
    """Heads of a program in half precision, at most: ``most`` or fewer."""
    if moved and ready_made and not _fit(count, min(most, triton.next_power_of_2(count))):
        # Small programs wait beside each other, and there are no sines to share.
        if wide and partial:
            most = 1
        elif not wide and padded > _WIDE_CHANNELS:
            most = 2
    if count <= _FEW_HEADS:
        return most
    if 2 * padded <= _SHORT_ROW:
        whole = partial or not ready_made or count > _HEADS
        return most if whole else _that_fit(count, most, _FEW_HEADS, _MORE_ROOM)
    if moved and not (ready_made or partial) and count <= most:
        return most  # their sines are worth more than the room
    return _that_fit(count, most)


def _that_fit(count: int, most: int, fewest: int = 1, room: float = _MOST_ROOM) -> int:
    """A power of two, ``most`` or less: programs with so many heads fit, or with ``fewest``."""
    while most > fewest and not _fit(count, most, room):
        most //= 2
    return most


def _fit(count: int, heads: int, room: float = _MOST_ROOM) -> bool:
    """Whether programs of so many heads have room for few more than there are."""
    return triton.cdiv(count, heads) * heads <= room * count
