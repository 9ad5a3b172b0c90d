"""What all cells have in common, and the ways to call the package beside the plain one."""

from typing import ClassVar, NamedTuple, Protocol

FORWARD, BACKWARD = "forward", "backward"
HEADS = 64
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


class Measured(Protocol):
    """What a measurement asks of a cell of any grid."""

    def call(self, freqs): ...
    @property
    def suite(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def format(self) -> str: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def lengths(self) -> tuple[int, ...]: ...
    @property
    def starts(self) -> tuple[int, ...]: ...
    @property
    def positions(self) -> int: ...
    @property
    def bytes_moved(self) -> int: ...


class Timed:
    """What the cells of every grid tell of themselves."""

    suite: ClassVar[str]

    @property
    def directions(self) -> tuple[str, ...]:
        """Those that are timed."""
        return (FORWARD, BACKWARD)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each sequence."""
        raise NotImplementedError

    @property
    def starts(self) -> tuple[int, ...]:
        """Position of the first token of each sequence."""
        return (0,) * len(self.lengths)

    @property
    def positions(self) -> int:
        """Positions that the angles must have."""
        return max(map(sum, zip(self.starts, self.lengths, strict=True)))

    @property
    def metrics(self) -> dict[str, str]:
        """asv's name of the latency in each direction that there is."""
        return {each: f"{self.suite}.{each.capitalize()}.track_latency" for each in self.directions}


PATH_HIDDEN_SIZE = 128


class PathForm(NamedTuple):
    """A way to call the package: the order of the dimensions, and what a token has.

    heads: of fused QKV, groups of heads; channels: of a head, or of such a group; rotated: of a
    head, those that have angles.
    """

    format: str
    heads: int
    channels: int
    rotated: int = PATH_HIDDEN_SIZE


# Of a group of fused QKV, as grouped-query models have them.
QKV_HEADS = (4, 1, 1)
# Heads of queries and of keys, each with a memory of its own.
QK_HEADS = (32, 8)
PATHS = {
    # Packed sequences, of very unequal lengths: each is half of what is left.
    "thd": PathForm("thd", HEADS, PATH_HIDDEN_SIZE),
    # Many short ones: 2401 of 27 tokens, or fewer in proportion. 16 heads, for as many bytes.
    "thd-short": PathForm("thd", 16, PATH_HIDDEN_SIZE),
    "qkv": PathForm("sbhd", 8, sum(QKV_HEADS) * PATH_HIDDEN_SIZE),
    # Queries and keys in one launch. The tensor of such a cell is the memory of both.
    "qk": PathForm("bshd", sum(QK_HEADS), PATH_HIDDEN_SIZE),
    # Ready-made cosines and sines, in the dtype of the tensor.
    "tables": PathForm("bshd", HEADS, PATH_HIDDEN_SIZE),
    "tables-inplace": PathForm("bshd", HEADS, PATH_HIDDEN_SIZE),
    # The same where every head has a memory of its own, as attention takes queries.
    "tables-bhsd": PathForm("bhsd", HEADS, PATH_HIDDEN_SIZE),
    # Each sequence of the batch begins at a position of its own.
    "starts": PathForm("bshd", HEADS, PATH_HIDDEN_SIZE),
    # Half of the channels have angles, the others are copied.
    "partial": PathForm("bshd", HEADS, PATH_HIDDEN_SIZE, rotated=PATH_HIDDEN_SIZE // 2),
    # No power of two.
    "head-96": PathForm("bshd", HEADS, 96, rotated=96),
    # With a copy of the output, as what reads it next: a kernel that writes past L2 is fast alone.
    "then-read": PathForm("sbhd", HEADS, PATH_HIDDEN_SIZE),
}
