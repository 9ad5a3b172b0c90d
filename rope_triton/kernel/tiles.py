"""Choose how much of a tensor one program rotates: two tables of measured rules.

Measured on an H200 with a cold cache: ten calls of models, 9 kinds of calls at 4 and 32 MiB, 1,043
calls of 1 to 16, 32 and 64 heads with every tile that may suit them, and 600 timings of heads
rotated in part and of calls near 8 MiB with fewer threads.
"""

import functools
from typing import NamedTuple

from rope_triton.kernel.launch import cdiv, power_of_2

_MOST_HEADS = 16  # a program computes sines once for all its heads; more of them are no faster
# A program repeats its last head where it has room for more than there are. All programs together
# have room for so many times the heads: with more, calls of 3 to 12 heads took up to 27 % longer.
_ROOM, _MORE_ROOM = 1.25, 1.4
_ANY_ROOM = float("inf")
_FEW_HEADS = 4  # so few share a program whatever its room where rows are short
ONE_WAVE = range(6 << 20, 17 << 19)
"""Bytes that fill an H200 about once: with half the threads such calls take up to 5 % less."""


class Tile(NamedTuple):
    """A program's positions, heads and warps."""

    positions: int
    heads: int
    warps: int


class Call:
    """What the choice of a tile depends on.

    item: bytes of an element. decoding: there is one position. channels: elements of a head, and
    width: those that have angles. tables: cosines and sines instead of angles. shifted: a token's
    angles are elsewhere than at its own index. heads_first: heads come before positions in memory.
    busy: threads have more to do than usual: with angles of each head, channels apart in memory, or
    more roundings. one_wave: not busy, with as many bytes as ``ONE_WAVE`` says.
    """

    def __init__(
        self,
        item: int,
        decoding: bool,
        n_heads: int,
        channels: int,
        width: int,
        *,
        tables: bool = False,
        shifted: bool = False,
        heads_first: bool = False,
        busy: bool,
        one_wave: bool = False,
    ):
        self.item, self.decoding, self.n_heads = item, decoding, n_heads
        self.tables, self.shifted, self.heads_first = tables, shifted, heads_first
        self.busy, self.one_wave = busy, one_wave
        self.plain = not (tables or shifted)
        self.padded, self.angles = map(power_of_2, (channels, width))
        self.partial = width < channels
        self.unpadded = channels == self.padded and width == self.angles
        self.short = item * self.padded <= 128
        self.half = item == 2 and not heads_first
        self.float32 = item == 4 and not heads_first
        # Half as much to load for each thread, if there are no idle threads.
        self.wide = self.half and self.padded >= 128 and (self.partial or channels == self.padded)

    @functools.cached_property
    def waits(self) -> bool:
        """Whether the angles wait for positions in programs as large as possible."""
        full = self.n_heads > _MOST_HEADS or self.fits(_MOST_HEADS, _MORE_ROOM)
        full = self.decoding or (full and not self.partial)
        return self.float32 and self.shifted and self.padded <= 128 and full

    def fits(self, heads: int, room: float = _ROOM) -> bool:
        """Whether programs of so many heads have room for few more than there are."""
        return cdiv(self.n_heads, heads) * heads <= room * self.n_heads


@functools.cache  # calls of most lengths are one
def tile_of(
    item: int, decoding: bool, n_heads: int, channels: int, width: int, **facts: bool
) -> Tile:
    """The tile of a ``Call`` of these arguments."""
    call = Call(item, decoding, n_heads, channels, width, **facts)
    most = power_of_2(call.n_heads)
    heads = _heads(call)
    warps, thread_bytes = _threads(call, min(heads, most))
    rows = max(32 * warps * thread_bytes // (call.item * call.padded), 1)
    if call.decoding:
        # In decoding, sines of positions that are not there would take their time, and so would
        # those that are computed again by threads for which a half has no angle.
        if call.plain:
            warps = min(warps, max(call.angles // 64, 1))
        return Tile(1, min(most, rows, _MOST_HEADS), warps)
    positions = max(rows // heads, 1)
    if call.angles < call.padded:
        # Threads divide the angles of a half among them: if those are few, take more positions.
        positions = max(positions, 32 * warps * 2 // call.angles)
    heads = min(most, max(rows // positions, 1))
    return Tile(rows // heads, heads, warps)


def _heads(c: Call) -> int:
    """Heads of a program, at most."""
    most = 8 if c.wide else _MOST_HEADS
    # With precomputed tables there are no sines to share: small programs wait beside each other.
    beside = c.half and c.shifted and c.tables
    beside = beside and not c.fits(min(most, power_of_2(c.n_heads)))
    rules = (
        # condition, heads, room for heads that are not there
        (c.heads_first and c.tables, 1, _ANY_ROOM),
        (c.heads_first, 4, _ANY_ROOM),  # each contiguous in memory: more positions instead
        (c.waits, most, _ANY_ROOM),
        (c.float32 and c.shifted and c.partial, 1, _ROOM),  # small programs wait beside each other
        (c.float32 and c.shifted and c.tables and c.padded <= 128, 1, _ROOM),
        (c.float32 and c.shifted, 2, _ROOM),
        (c.float32, most, _ROOM),
        (c.decoding, most, _ANY_ROOM),  # a program with few heads takes as long
        (beside and c.wide and c.partial, 1, _ANY_ROOM),
        (beside and not c.wide and c.padded > 128, 2, _ANY_ROOM),
        (c.n_heads <= _FEW_HEADS, most, _ANY_ROOM),
        (c.short and c.tables and not c.partial and c.n_heads <= most, most, _MORE_ROOM),
        (c.short, most, _ANY_ROOM),
        # Their sines are worth more than the room.
        (c.shifted and not c.tables and not c.partial and c.n_heads <= most, most, _ANY_ROOM),
        (True, most, _ROOM),
    )
    heads, room = next(rule[1:] for rule in rules if rule[0])
    while heads > (_FEW_HEADS if c.short else 1) and not c.fits(heads, room):
        heads //= 2
    return heads


def _threads(c: Call, heads: int) -> tuple[int, int]:
    """Warps of a program of so many heads, and bytes that each thread loads.

    A multiprocessor holds at most 32 programs, and with less than 2 KiB to load in each they do not
    keep its memory busy: such calls took up to 1.25 times as long.
    """
    warps = min(max(c.padded // 64, 1), 4)
    fewer = max(warps // 2, 1)  # they compute each angle again less often
    few = heads < 8
    partly = c.partial and c.unpadded and not c.busy
    rules = (
        # condition, warps, bytes
        (c.heads_first and not c.tables and c.padded > 32 * c.item, 2, 64),
        (c.waits, max(c.padded // 32, 1), 64),  # more angles wait at once
        (c.heads_first or c.float32, 1, 64),
        (not c.wide, warps, 64),
        (c.padded > 256, fewer, 64),
        (few and not c.shifted, fewer, 64),
        # Rotated in part, a program of more warps would have several positions, and few heads.
        (not few and partly and c.angles >= (64 if c.plain else c.padded // 2), fewer, 64),
        (c.plain and c.unpadded and c.one_wave, fewer, 64),
        (True, warps, 32),
    )
    return next(rule[1:] for rule in rules if rule[0])
