"""The cells of the rotation: a call by its name, and the sequences that it is made on. No torch.

A function makes the cells of each of asv's suites; its parameters are those of the benchmark.
"""

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..._engine.subject import BACKWARD, FORWARD
from ..calls import BaseCell
from . import models, names
from .names import DTYPES, QKV_HEADS, CallName
from .rotation_calls import CP_SIZE, OFFSET, Rotation, stored_elements

HEADS = 64
CONTEXT = 4096
"""The positions that sequences are spread over that are decoded together."""
DTYPE_WORDS = {dtype: word for word, dtype in DTYPES.items()}
ANGLES, TABLES = "angles", "tables"
MIB = {"": (4, 32), "decode": (4,), "long": (128,)}
"""MiB of input at which a call of the list is compiled and timed, by its length."""

_BATCH = 4
_MOST_DECODED = 4096  # sequences
_SHORT_TOKENS, _SHORT_SEQUENCES, _SHORT_OF_TOKENS = 27, 2401, 1 << 16


@dataclass(frozen=True)
class RopeCell(BaseCell):
    """A call of the rotation on some sequences.

    ``suite`` and ``values``, those of the benchmark's parameters, say which: the rest follows.
    """

    suite: str
    values: tuple
    call_name: CallName = field(compare=False, repr=False)
    lengths: tuple[int, ...] = field(compare=False, repr=False)
    """Tokens of each sequence."""
    starts: tuple[int, ...] = field(compare=False, repr=False)
    """Position of the first token of each sequence."""
    directions: tuple[str, ...] = field(default=(FORWARD, BACKWARD), compare=False, repr=False)
    first: int = field(default=0, compare=False, repr=False)
    """The position that the first row of the angles is of."""

    @property
    def params(self) -> tuple[str, ...]:
        return tuple(map(str, self.values))

    @property
    def dtype(self) -> str:
        return DTYPES[self.call_name.dtype]

    def call(self, device: str) -> Rotation:
        return Rotation(self, device)

    @property
    def positions(self) -> int:
        """Positions that the angles must have."""
        share = CP_SIZE if self.call_name.parallel else 1
        ends = zip(self.starts, self.lengths, strict=True)
        return max(start + share * length for start, length in ends)

    @property
    def spans(self) -> set[tuple[int, int]]:
        """First position of a sequence's tokens, and the one after the last, of each sequence."""
        # Of four chunks of a sequence, the second rank of two has the second and the third.
        later = 1 if self.call_name.parallel else 0
        pairs = {*zip(self.starts, self.lengths, strict=True)}
        return {
            (start + later * (length // 2), start + later * (length // 2) + length)
            for start, length in pairs
        }

    @property
    def distinct_positions(self) -> int:
        """Positions that at least one token has."""
        return len(set(itertools.chain.from_iterable(itertools.starmap(range, self.spans))))

    @functools.cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the tensors that are returned."""
        call = self.call_name
        return tuple(self.shape_of(count, call.channels) for count in call.head_counts)

    @functools.cached_property
    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the tensors that the function gets."""
        call = self.call_name
        if call.function == "qkv":
            return (self.shape_of(call.heads[0], sum(QKV_HEADS) * call.channels),)
        return self.shapes

    def shape_of(self, heads: int, channels: int) -> tuple[int, ...]:
        """The shape of a tensor on the cell's sequences."""
        format = self.call_name.format
        if format == "thd":
            return sum(self.lengths), heads, channels
        sizes = {"b": len(self.lengths), "s": self.lengths[0], "h": heads, "d": channels}
        return tuple(sizes[axis] for axis in format)

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the memory in which the tensors lie, which has room for their strides."""
        return (stored_elements(self.shapes, self.call_name.layout),)

    @property
    def bytes_moved(self) -> int:
        """Bytes a call must move: the input once and the output once (not angles or tables)."""
        elements = sum(math.prod(shape) for shape in self.shapes)
        return 2 * elements * self.call_name.item_bytes * (2 if self.call_name.then else 1)


# --- the cells of each suite ----------------------------------------------------------------------


def grid_cell(seq_len: int, hidden_size: int, batch: int, dtype: str, format: str) -> RopeCell:
    """A call on 64 heads."""
    values = seq_len, hidden_size, batch, dtype, format
    call = names.named(ANGLES, format, DTYPE_WORDS[dtype], HEADS, hidden_size)
    return RopeCell("rope", values, call, (seq_len,) * batch, (0,) * batch)


PATHS = {
    # Packed sequences of very unequal lengths, and many short ones; 16 heads, for as many bytes.
    "thd": "angles-thd-bf16-64x128-halves",
    "thd-short": "angles-thd-bf16-16x128-short",
    "qkv": "qkv-sbhd-bf16-8x128",
    "qk": "qk-bshd-bf16-32x128",
    "tables": "tables-bshd-bf16-64x128",
    "tables-inplace": "tables-bshd-bf16-64x128-inplace",
    # The same in the order in which attention takes queries.
    "tables-bhsd": "attention-bhsd-bf16-64x128",
    "starts": "angles-bshd-bf16-64x128-starts",
    "partial": "angles-bshd-bf16-64x128r64",
    "head-96": "angles-bshd-bf16-64x96",
    "then-read": "angles-sbhd-bf16-64x128-thenread",
}
"""Names in asv's history, and the calls, here in bfloat16."""


def path_cell(path: str, mib: float, dtype: str) -> RopeCell:
    """A call of one of ``PATHS`` on about ``mib`` MiB."""
    call = names.parse(PATHS[path])._replace(dtype=DTYPE_WORDS[dtype])
    lengths = _lengths(call, mib)
    starts = _spread(lengths, 1000 if call.position else 0)
    # A rotation in place has no backward pass of its own: its gradient is a new tensor. A copy
    # after the backward would say the same as one after the forward.
    directions = (FORWARD,) if call.inplace or call.then else (FORWARD, BACKWARD)
    return RopeCell("paths", (path, mib, dtype), call, lengths, starts, directions)


def named_cell(name: str, mib: float) -> RopeCell:
    """A call on about ``mib`` MiB of input: those of the list, or any other by its name."""
    call = names.parse(name)
    lengths = _lengths(call, mib)
    step = 8 if call.position in ("starts", "ids") else 0
    first = OFFSET if call.position == "offset" else 0
    starts = tuple(first + index % 4 * step for index in range(len(lengths)))
    return RopeCell("surface", (name, mib), call, lengths, starts)


def model_cell(model: str, step: str, takes: str) -> RopeCell:
    """A model's call in the ``step`` "training" or "decode"; it takes "angles" or "tables"."""
    sizes = sized(models.sized_name(model, step), takes)
    return RopeCell("model_calls", (model, step, takes), **sizes)


def sized(name: str, takes: str) -> dict[str, Any]:
    """A cell's fields for a name with a size: see ``names.parse_sized``.

    ``takes``: "angles" or precomputed "tables".
    """
    call, batch, seq_len = names.parse_sized(name, takes == TABLES)
    lengths = (seq_len,) * batch
    return {
        "call_name": call,
        "lengths": lengths,
        "starts": _spread(lengths, CONTEXT // batch if call.position else 0),
        # Nobody trains by decoding.
        "directions": (FORWARD,) if seq_len == 1 else (FORWARD, BACKWARD),
    }


def eager_cell(name: str, lengths: tuple[int, ...], first: int = 0) -> RopeCell:
    """A call on sequences of these lengths, whose host time, memory, launches or error count."""
    starts = (0,) * len(lengths)
    return RopeCell("host", (name, lengths, first), names.parse(name), lengths, starts, first=first)


# --- sequences ------------------------------------------------------------------------------------


def _lengths(call: CallName, mib: float) -> tuple[int, ...]:
    """Tokens of each sequence, of about ``mib`` MiB of input."""
    tokens = max(1, int(mib * 2**20) // call.token_bytes)
    step = 2 if call.parallel else 1  # each half of a sequence is a chunk
    match call.length:
        case "decode":
            return (1,) * min(tokens, _MOST_DECODED)
        case "long":
            return (tokens // step * step,)
        case "halves":
            return tuple(_halves(tokens))
        case "short":
            return (_SHORT_TOKENS,) * max(1, tokens * _SHORT_SEQUENCES // _SHORT_OF_TOKENS)
    length = max(1, tokens // (_BATCH * step)) * step
    if call.format != "thd":
        return (length,) * _BATCH
    uneven = length // 2 // step * step
    return (length + uneven, length, length, max(step, length - uneven))


def _halves(tokens: int) -> Iterator[int]:
    while tokens:
        yield tokens - tokens // 2
        tokens //= 2


def _spread(lengths: tuple[int, ...], step: int) -> tuple[int, ...]:
    """Positions of as many sequences, each so far from the one before."""
    return tuple(step * index for index in range(len(lengths)))
