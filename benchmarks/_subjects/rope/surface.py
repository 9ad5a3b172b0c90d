"""The surface: forms in which the public functions can be called. Imports no torch.

A form's name says all of it, e.g. ``qk-thd-bf16-8x96r48-il-starts-sliced``. ``surface.txt`` lists
the forms that are compiled and compared: any two values of two options meet in one of them. A name
is a key of the history, so forms are added or left out, and never renamed.
"""

import functools
import itertools
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from .forms import QKV_HEADS, BaseCell, listed
from .surface_calls import BY_ANGLES, CP_SIZE, FUNCTIONS, OFFSET, SurfaceCall, stored_elements

LIST = Path(__file__).with_suffix(".txt")

FORMATS = {
    "angles": ("sbhd", "bshd", "thd"),
    "qk": ("sbhd", "bshd", "thd"),
    "qkv": ("sbhd", "bshd"),
    "tables": ("bshd", "thd"),
    "qktables": ("bshd", "thd"),
    "attention": ("bhsd",),
}
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
PAIRS = ("qk", "qktables")
KEYS_SHARE = 4  # in queries and keys, a head of keys for so many of queries

OPTIONS: dict[str, tuple[str, ...]] = {
    # What each word of a name means; "" is the default, and is not written.
    # Pairs of channels (2i, 2i + 1) instead of (i, i + width / 2).
    "interleaved": ("", "il"),
    # Angles or tables: one for all, for each sequence, for each head, for each of both.
    "tables": ("", "perbatch", "perhead", "pereach"),
    # Ready-made tables in float32 instead of the tensor's dtype.
    "table_dtype": ("", "t32"),
    # Positions: each token's index, a start for each sequence, one offset, one for each token.
    "position": ("", "starts", "offset", "ids"),
    # Context parallelism: the second of two ranks.
    "parallel": ("", "cp"),
    "rounding": ("", "rtables", "reach"),
    "inplace": ("", "inplace"),
    # In memory: contiguous; a head in a longer row, aligned or not; heads before positions; every
    # second channel; all of it one element further.
    "layout": ("", "sliced", "odd", "transposed", "strided", "misaligned"),
    # A token of each sequence; or one sequence that needs more blocks than a grid has.
    "length": ("", "decode", "long"),
}
_START_STEP, _BATCH = 8, 4
_MOST_DECODED = 4096  # sequences
_SIZES = {"": (4, 32), "decode": (4,), "long": (128,)}
"""MiB of input at which a form is compiled and timed, by its length."""


class Form(NamedTuple):
    """A way to call a public function.

    ``heads`` of ``channels`` each; the first ``rotated`` have angles. In fused QKV a head is a
    group of heads, in queries and keys it is one of queries. The others are words of ``OPTIONS``.
    """

    function: str
    format: str
    dtype: str
    heads: int
    channels: int
    rotated: int
    interleaved: str = ""
    tables: str = ""
    table_dtype: str = ""
    position: str = ""
    parallel: str = ""
    rounding: str = ""
    inplace: str = ""
    layout: str = ""
    length: str = ""

    @property
    def name(self) -> str:
        size = f"{self.heads}x{self.channels}"
        size += f"r{self.rotated}" * (self.rotated < self.channels)
        words = self.function, self.format, self.dtype, size, *self[6:]
        return "-".join(filter(None, words))

    @property
    def item_bytes(self) -> int:
        return 4 if self.dtype == "fp32" else 2

    @property
    def head_counts(self) -> tuple[int, ...]:
        """Heads of each tensor that is returned."""
        if self.function == "qkv":
            return tuple(self.heads * count for count in QKV_HEADS)
        if self.function in PAIRS:
            return self.heads, max(1, self.heads // KEYS_SHARE)
        return (self.heads,)

    @property
    def token_bytes(self) -> int:
        return sum(self.head_counts) * self.channels * self.item_bytes


def exists(form: Form) -> bool:
    """Whether the public functions can be called in this form."""
    by_angles, packed = form.function in BY_ANGLES, form.format == "thd"
    alone = form.function in ("angles", "attention")
    possible = (
        form.format in FORMATS[form.function],
        0 < form.rotated <= form.channels and form.rotated % 2 == 0,
        not form.table_dtype or not by_angles and form.dtype != "fp32",
        not form.tables or form.function != "qkv",
        # Packed sequences have one table for all; a table for each head has no pair of tensors.
        not (packed and form.tables in ("perbatch", "pereach")),
        alone or form.tables not in ("perhead", "pereach"),
        form.position != "starts" or form.function != "attention",
        form.position != "offset" or form.function in ("tables", "qktables"),
        form.position != "ids" or (form.function == "attention" and not form.tables),
        not form.parallel or by_angles,
        not form.rounding or form.function != "qkv",
        not form.inplace or (form.function == "tables" and form.layout != "strided"),
        # One position cannot be cut, nor its order in memory be another.
        form.length != "decode" or not (form.parallel or form.layout == "transposed"),
        form.length != "long" or (not packed and form.format != "bhsd"),
    )
    return all(possible)


def parsed(name: str) -> Form:
    """The form of a name.

    Raises
    ------
    ValueError
        If it is no name, or the functions cannot be called so.
    """
    words = name.split("-")
    try:
        function, format, dtype, size = words[:4]
        heads, _, channels = size.partition("x")
        channels, _, rotated = channels.partition("r")
        meant = {word: option for option, values in OPTIONS.items() for word in values if word}
        given = {meant[word]: word for word in words[4:]}
        form = Form(
            *(function, format, dtype), int(heads), int(channels), int(rotated or channels), **given
        )
        known = function in FUNCTIONS and dtype in DTYPES and form.name == name
    except (ValueError, KeyError):
        known = False
    if not known or not exists(form):
        raise ValueError(f"no form of a call has the name {name!r:.80}, e.g. 'qk-thd-bf16-8x96-il'")
    return form


@functools.cache
def forms() -> dict[str, Form]:
    """The forms of the list, by name, in its order."""
    return listed(LIST, parsed)


class FormCell(BaseCell):
    """A call in a form. A subclass says in which, and on which sequences."""

    @property
    def of(self) -> Form:
        raise NotImplementedError

    @property
    def head_counts(self) -> tuple[int, ...]:
        """Heads of each tensor that is returned."""
        return self.of.head_counts

    def call(self, device: str) -> SurfaceCall:
        return SurfaceCall(self, device)

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return DTYPES[self.of.dtype]

    @property
    def format(self) -> str:  # type: ignore[override]
        return self.of.format

    @property
    def hidden_size(self) -> int:  # type: ignore[override]
        return self.of.rotated

    @property
    def positions(self) -> int:
        whole = CP_SIZE if self.of.parallel else 1
        return max(
            start + whole * length for start, length in zip(self.starts, self.lengths, strict=True)
        )

    @property
    def spans(self) -> set[tuple[int, int]]:
        # Of four chunks of the whole, the second rank of two has the second and the third.
        move = {span: (span[1] - span[0]) // 2 * bool(self.of.parallel) for span in super().spans}
        return {(first + by, last + by) for (first, last), by in move.items()}

    @functools.cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the tensors that are returned."""
        return tuple(self._shape(count, self.of.channels) for count in self.head_counts)

    @functools.cached_property
    def given_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the tensors that the function gets."""
        form = self.of
        if form.function == "qkv":
            return (self._shape(form.heads, sum(QKV_HEADS) * form.channels),)
        return self.shapes

    def _shape(self, heads: int, channels: int) -> tuple[int, ...]:
        if self.format == "thd":
            return sum(self.lengths), heads, channels
        sizes = {"b": len(self.lengths), "s": self.lengths[0], "h": heads, "d": channels}
        return tuple(sizes[axis] for axis in self.format)

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the memory in which the tensors lie, which has room for their strides."""
        return (stored_elements(self.shapes, self.of.layout),)

    @property
    def bytes_moved(self) -> int:
        elements = sum(math.prod(shape) for shape in self.shapes)
        return 2 * elements * self.of.item_bytes


@dataclass(frozen=True)
class SurfaceCell(FormCell):
    """A call in one of the forms on about ``mib`` MiB of input."""

    suite = "surface"
    form: str
    mib: float

    @property
    def of(self) -> Form:
        return _parsed(self.form)

    @functools.cached_property
    def lengths(self) -> tuple[int, ...]:
        form = self.of
        tokens = max(1, int(self.mib * 2**20) // form.token_bytes)
        if form.length == "decode":
            return (1,) * min(tokens, _MOST_DECODED)
        step = 2 if form.parallel else 1  # each half of a sequence is a chunk
        if form.length == "long":
            return (tokens // step * step,)
        each = max(1, tokens // (_BATCH * step)) * step
        if form.format != "thd":
            return (each,) * _BATCH
        uneven = each // 2 // step * step
        return (each + uneven, each, each, max(step, each - uneven))

    @property
    def starts(self) -> tuple[int, ...]:
        moved = self.of.position in ("starts", "ids")
        first = OFFSET if self.of.position == "offset" else 0
        return tuple(first + index % 4 * _START_STEP * moved for index in range(len(self.lengths)))


_parsed = functools.lru_cache(maxsize=4096)(parsed)


def largest(name: str) -> SurfaceCell:
    """A form at the largest of its sizes."""
    return SurfaceCell(name, _SIZES[_parsed(name).length][-1])


def cells() -> list[SurfaceCell]:
    """Every form at each of its sizes, in the fixed order in which they are measured."""
    return [SurfaceCell(name, mib) for name, form in forms().items() for mib in _SIZES[form.length]]


# --- what users may call besides ------------------------------------------------------------------

_HEADS = (1, 2, 3, 8, 64)
_CHANNELS = (32, 48, 64, 80, 96, 112, 128, 160, 192, 256)
_DENSE_MIB = (2**-10, 2**-6, 2**-2, 1, 4, 10, 16, 64)


def dense(seed: int = 0) -> list[SurfaceCell]:
    """Calls of every function with every dtype, head size and size, the other options at random.

    The same ones each time.
    """
    draw = random.Random(seed)
    chosen = itertools.product(FUNCTIONS, DTYPES, _CHANNELS, _DENSE_MIB)
    return [_drawn(draw, *each) for each in chosen]


def _drawn(draw: random.Random, function: str, dtype: str, channels: int, mib: float):
    while True:
        words = {
            option: draw.choice(values) if draw.random() < 0.4 else ""
            for option, values in OPTIONS.items()
        }
        rotated = draw.choice((channels, channels, channels // 2))
        heads = draw.choice(_HEADS)
        format = draw.choice(FORMATS[function])
        form = Form(function, format, dtype, heads, channels, rotated, **words)
        if exists(form):
            return SurfaceCell(form.name, min(_SIZES[form.length]) if form.length else mib)
