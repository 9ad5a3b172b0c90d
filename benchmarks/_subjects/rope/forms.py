"""The base class of all cells, and the package's other paths: all calls but the plain one."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, NamedTuple

FORWARD, BACKWARD = "forward", "backward"
HEADS = 64
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


class BaseCell:
    """A point of a grid: what is called, and on what. A subclass is a frozen dataclass.

    Its fields are its benchmark's parameters. ``hidden_size``: channels of a head that are rotated.
    """

    suite: ClassVar[str]
    seq_len: int
    batch: int
    heads: int
    hidden_size: int
    dtype: str
    format: str

    def call(self, device: str):
        """The call that is measured, with its constants on a device."""
        raise NotImplementedError

    @property
    def params(self) -> tuple[str, ...]:
        """Its fields as asv's texts, without quotes."""
        return tuple(str(getattr(self, field.name)) for field in dataclasses.fields(self))  # type: ignore[arg-type]

    @property
    def point(self):
        """What cells have in common that are measured on the same inputs, beside one copy."""
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor that is rotated, in the order of ``format``."""
        leading = (self.seq_len, self.batch)
        ordered = leading if self.format == "sbhd" else leading[::-1]
        return (*ordered, self.heads, self.hidden_size)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each sequence."""
        return (self.seq_len,) * self.batch

    @property
    def starts(self) -> tuple[int, ...]:
        """Position of the first token of each sequence."""
        return (0,) * len(self.lengths)

    @property
    def positions(self) -> int:
        """Positions that the angles must have."""
        return max(map(sum, zip(self.starts, self.lengths, strict=True)))

    @property
    def spans(self) -> set[tuple[int, int]]:
        """First position of a sequence's tokens, and the one after the last, of each sequence."""
        spans = zip(self.starts, self.lengths, strict=True)
        return {(start, start + length) for start, length in spans}

    @property
    def distinct_positions(self) -> int:
        """Positions that at least one token has."""
        count = end = 0
        for first, last in sorted(self.spans):
            count += max(0, last - max(first, end))
            end = max(end, last)
        return count

    @property
    def deviation(self) -> float:
        """Standard deviation of the input's values."""
        return 1.0

    @property
    def bytes_moved(self) -> int:
        """Bytes a call must move: the input once and the output once (not angles or tables)."""
        return 2 * math.prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def directions(self) -> tuple[str, ...]:
        """The directions that are timed."""
        return (FORWARD, BACKWARD)

    @property
    def metrics(self) -> dict[str, str]:
        """asv's name of the latency in each direction that there is."""
        return {each: f"{self.suite}.{each.capitalize()}.track_latency" for each in self.directions}


def listed(file: Path, parsed: Callable) -> dict:
    """The forms that a file names, a line each, by name, in its order."""
    lines = file.read_text(encoding="utf-8").split("\n")
    return {name: parsed(name) for name in lines if name and not name.startswith("#")}


PATH_HIDDEN_SIZE = 128


class PathForm(NamedTuple):
    """A way to call the package: the order of the dimensions, and the size of a token.

    ``heads`` of ``channels`` each; the first ``rotated`` have angles. In fused QKV a head is a
    group of heads.
    """

    format: str
    heads: int
    channels: int
    rotated: int = PATH_HIDDEN_SIZE


# Queries, keys and values in a group of fused QKV, as grouped-query models have them.
QKV_HEADS = (4, 1, 1)
# Heads of queries and of keys, in two tensors.
QK_HEADS = (32, 8)
PATHS = {
    # Packed sequences of very unequal lengths: each is half of the tokens that are left.
    "thd": PathForm("thd", HEADS, PATH_HIDDEN_SIZE),
    # Many short sequences: 2401 of 27 tokens, or fewer in proportion. 16 heads, for as many bytes.
    "thd-short": PathForm("thd", 16, PATH_HIDDEN_SIZE),
    "qkv": PathForm("sbhd", 8, sum(QKV_HEADS) * PATH_HIDDEN_SIZE),
    # Queries and keys in one launch; the cell's tensor is the memory of both.
    "qk": PathForm("bshd", sum(QK_HEADS), PATH_HIDDEN_SIZE),
    # Ready-made cosines and sines, in the dtype of the tensor.
    "tables": PathForm("bshd", HEADS, PATH_HIDDEN_SIZE),
    "tables-inplace": PathForm("bshd", HEADS, PATH_HIDDEN_SIZE),
    # The same in the order in which attention takes queries.
    "tables-bhsd": PathForm("bhsd", HEADS, PATH_HIDDEN_SIZE),
    # Each sequence of the batch begins at a position of its own.
    "starts": PathForm("bshd", HEADS, PATH_HIDDEN_SIZE),
    # Half of the channels have angles, the others are copied.
    "partial": PathForm("bshd", HEADS, PATH_HIDDEN_SIZE, rotated=PATH_HIDDEN_SIZE // 2),
    # A head size that is no power of two.
    "head-96": PathForm("bshd", HEADS, 96, rotated=96),
    # Followed by a copy of the output, which is slow if the kernel wrote past L2.
    "then-read": PathForm("sbhd", HEADS, PATH_HIDDEN_SIZE),
}
