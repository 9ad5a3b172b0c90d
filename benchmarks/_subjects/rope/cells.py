"""The cells of the rotation: a call by its name, and the sequences that it is made on. No torch."""

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from ..._engine.subject import FORWARD
from ..calls import BaseCell
from . import models, names
from .models import DECODE
from .names import DTYPES, QKV_HEADS, CallName
from .rotation_calls import CP_SIZE, OFFSET, Rotation, stored_elements

HEADS = 64
DECODED, CONTEXT = 64, 4096
"""Sequences that are decoded together, and the positions that they are spread over."""
DTYPE_WORDS = {dtype: word for word, dtype in DTYPES.items()}
ANGLES, TABLES = "angles", "tables"
MIB = {"": (4, 32), "decode": (4,), "long": (128,)}
"""MiB of input at which a call of the list is compiled and timed, by its length."""

_BATCH = 4
_MOST_DECODED = 4096  # sequences
_SHORT_TOKENS, _SHORT_SEQUENCES, _SHORT_OF_TOKENS = 27, 2401, 1 << 16


class RopeCell(BaseCell):
    """A call of the rotation. A subclass says which, and on which sequences; it has a ``dtype``."""

    first = 0
    """The position that the first row of the angles is of."""
    lengths: tuple[int, ...]
    """Tokens of each sequence."""

    @property
    def call_name(self) -> CallName:
        raise NotImplementedError

    def call(self, device: str) -> Rotation:
        return Rotation(self, device)

    @property
    def starts(self) -> tuple[int, ...]:
        """Position of the first token of each sequence."""
        return (0,) * len(self.lengths)

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


class NamedCell(RopeCell):
    """A cell whose call's name has its dtype."""

    @property
    def dtype(self) -> str:
        return DTYPES[self.call_name.dtype]


# --- the cells of asv's benchmarks: their fields are its parameters -------------------------------


@dataclass(frozen=True)
class Cell(RopeCell):
    """A call on 64 heads."""

    suite = "rope"
    seq_len: int
    hidden_size: int
    batch: int
    dtype: str
    format: str

    @property
    def call_name(self) -> CallName:
        return names.named(ANGLES, self.format, DTYPE_WORDS[self.dtype], HEADS, self.hidden_size)

    @property
    def lengths(self) -> tuple[int, ...]:  # type: ignore[override]
        return (self.seq_len,) * self.batch


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


@dataclass(frozen=True)
class PathCell(RopeCell):
    """A call of one of ``PATHS`` on about ``mib`` MiB."""

    suite = "paths"
    path: str
    mib: float
    dtype: str

    @property
    def call_name(self) -> CallName:
        return names.parse(PATHS[self.path])._replace(dtype=DTYPE_WORDS[self.dtype])

    @property
    def directions(self) -> tuple[str, ...]:
        # A rotation in place has no backward pass of its own: its gradient is a new tensor. A copy
        # after the backward would say the same as one after the forward.
        call = self.call_name
        return (FORWARD,) if call.inplace or call.then else super().directions

    @functools.cached_property
    def lengths(self) -> tuple[int, ...]:  # type: ignore[override]
        return _lengths(self.call_name, self.mib)

    @property
    def starts(self) -> tuple[int, ...]:
        step = 1000 if self.call_name.position else 0
        return tuple(index * step for index in range(len(self.lengths)))


@dataclass(frozen=True)
class ListedCell(NamedCell):
    """A call on about ``mib`` MiB of input: those of the list, or any other by its name."""

    suite = "surface"
    name: str
    mib: float

    @property
    def call_name(self) -> CallName:
        return names.parse(self.name)

    @functools.cached_property
    def lengths(self) -> tuple[int, ...]:  # type: ignore[override]
        return _lengths(self.call_name, self.mib)

    @property
    def starts(self) -> tuple[int, ...]:
        step = 8 if self.call_name.position in ("starts", "ids") else 0
        first = OFFSET if self.call_name.position == "offset" else 0
        return tuple(first + index % 4 * step for index in range(len(self.lengths)))


class SizedCell(NamedCell):
    """A call whose name has its size, ``sized_name``; see ``names.parse_sized``. Batch first.

    ``takes``: "angles" or precomputed "tables".
    """

    sized_name: str
    takes: str

    @property
    def _parsed(self) -> tuple[CallName, int, int]:
        return names.parse_sized(self.sized_name, self.takes == TABLES)

    @property
    def call_name(self) -> CallName:
        return self._parsed[0]

    @property
    def decodes(self) -> bool:
        """Whether each sequence has one token, at a position of its own."""
        return self._parsed[2] == 1

    @property
    def directions(self) -> tuple[str, ...]:
        return (FORWARD,) if self.decodes else super().directions

    @property
    def lengths(self) -> tuple[int, ...]:  # type: ignore[override]
        _, batch, seq_len = self._parsed
        return (seq_len,) * batch

    @property
    def starts(self) -> tuple[int, ...]:
        count = len(self.lengths)
        step = CONTEXT // count if self.call_name.position else 0
        return tuple(index * step for index in range(count))


class BaseModelCell(SizedCell):
    """A model's call in the ``step`` "training" or "decode"."""

    model: str
    step: str

    @property
    def sized_name(self) -> str:  # type: ignore[override]
        name = models.MODELS[self.model]
        return f"{name.rpartition('-')[0]}-{DECODED}x1" if self.step == DECODE else name


@dataclass(frozen=True)
class ModelCell(BaseModelCell):
    """This package's call."""

    suite = "model_calls"
    model: str
    step: str
    takes: str


@dataclass(frozen=True)
class EagerCell(NamedCell):
    """A call on sequences of these lengths, whose host time, memory, launches or error count."""

    suite = "host"
    name: str
    lengths: tuple[int, ...]
    first: int = 0

    @property
    def call_name(self) -> CallName:
        return names.parse(self.name)


# --- the lengths of sequences ---------------------------------------------------------------------


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
