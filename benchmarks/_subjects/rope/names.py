"""The names of calls, e.g. ``qk-thd-bf16-8x96r48-il-starts-sliced``. Imports no torch.

A name has the function, the order of dimensions, the dtype, the heads of each tensor and the
channels of a head, of which the first ``r`` are rotated, and words of :data:`OPTIONS`. Names are
keys of the history, so calls are added or left out, and never renamed.
"""

import functools
import re
from typing import Any, NamedTuple

FUNCTIONS = {
    "angles": "apply_rotary_pos_emb",
    "qk": "apply_qk_rotary_pos_emb",
    "qkv": "apply_fused_qkv_rotary_pos_emb",
    "tables": "apply_rotary_emb",
    "qktables": "apply_qk_rotary_emb",
    "attention": "rotary_embedding",
}
"""Names in a call, and the public functions."""
WITH_ANGLES = ("angles", "qk", "qkv")
PAIRS = ("qk", "qktables")
FORMATS = {
    "angles": ("sbhd", "bshd", "thd"),
    "qk": ("sbhd", "bshd", "thd"),
    "qkv": ("sbhd", "bshd"),
    "tables": ("bshd", "thd"),
    "qktables": ("bshd", "thd"),
    "attention": ("bhsd",),
}
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
# Heads of queries, keys and values in a group of fused QKV, as grouped-query models have them.
QKV_HEADS = (4, 1, 1)
_KEYS_SHARE = 4  # in queries and keys, a head of keys for so many of queries

OPTIONS: dict[str, tuple[str, ...]] = {
    # What each word means; "" is the default, and is not written.
    # Pairs of channels (2i, 2i + 1) instead of (i, i + width / 2).
    "interleaved": ("", "il"),
    # Angles or tables: one for all, for each sequence, for each head, for each of both.
    "tables": ("", "perbatch", "perhead", "pereach"),
    # Precomputed tables in float32 instead of the tensor's dtype.
    "table_dtype": ("", "t32"),
    # Positions: each token's index, a start for each sequence, one offset, one for each token.
    "position": ("", "starts", "offset", "ids"),
    # Context parallelism: the second of two ranks.
    "parallel": ("", "cp"),
    # What is rounded besides the result: the tables; the tables and each product.
    "rounding": ("", "rtables", "reach"),
    "inplace": ("", "inplace"),
    # In memory: contiguous; a head in a longer row, aligned or not; heads before positions; every
    # second channel; all of it one element further.
    "layout": ("", "sliced", "odd", "transposed", "strided", "misaligned"),
    # A token of each sequence; or one sequence that needs more blocks than a grid has.
    "length": ("", "decode", "long"),
}
TAIL = "of"
PACKED = "packed"
_MORE_WORDS = {
    # Words that the list of calls need not combine with all others. In memory: a token's heads in
    # one row, and values after them; heads after channels, and batches before positions.
    **dict.fromkeys((PACKED, "exchanged"), "layout"),
    # Packed sequences: each half of the tokens that are left; many of 27 tokens.
    **dict.fromkeys(("halves", "short"), "length"),
    # Followed by a copy of the output, which is slow if the kernel wrote past L2.
    "thenread": "then",
}
_OPTION_OF = {word: name for name, words in OPTIONS.items() for word in words if word}
_OPTION_OF |= _MORE_WORDS
UNALIGNED = ("odd", "misaligned")
"""Layouts whose rows are aligned to one element."""

_SIZED_ORDER = ("interleaved", "layout", "tables", "parallel", "rounding")
_EXAMPLE, _SIZED_EXAMPLE = "qk-thd-bf16-8x96-il", "bf16-32+8x128r64-il-of192-2x4096"


class CallName(NamedTuple):
    """A way to call a public function.

    ``heads`` of each tensor, of ``channels`` each; the first ``rotated`` have angles. In fused QKV
    they are groups of heads. ``layout`` may also be ``packed``, or ``of192``: the last channels of
    a row of 192. The others are words of :data:`OPTIONS`.
    """

    function: str
    format: str
    dtype: str
    heads: tuple[int, ...]
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
    then: str = ""

    def __str__(self) -> str:
        heads = self.heads[:1] if self.heads == _heads_of(self.function, self.heads) else self.heads
        return "-".join(filter(None, (*self[:2], *self._sizes(heads), *self[6:])))

    def sized(self, batch: int, seq_len: int) -> str:
        """The name of the call with a size: see :func:`parse_sized`."""
        words = (getattr(self, option) for option in _SIZED_ORDER)
        return "-".join(filter(None, (*self._sizes(self.heads), *words, f"{batch}x{seq_len}")))

    def _sizes(self, heads: tuple[int, ...]) -> tuple[str, str]:
        rotated = f"r{self.rotated}" * (self.rotated < self.channels)
        return self.dtype, f"{'+'.join(map(str, heads))}x{self.channels}{rotated}"

    @property
    def with_angles(self) -> bool:
        """Whether the function takes angles, not tables."""
        return self.function in WITH_ANGLES

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[DTYPES[self.dtype]]

    @property
    def head_counts(self) -> tuple[int, ...]:
        """Heads of each tensor that is returned."""
        if self.function == "qkv":
            return tuple(self.heads[0] * count for count in QKV_HEADS)
        return self.heads

    @property
    def token_bytes(self) -> int:
        return sum(self.head_counts) * self.channels * self.item_bytes


def named(function: str, format: str, dtype: str, heads: int, channels: int, **options) -> CallName:
    """A call on a number of heads that says what each tensor has, all channels rotated."""
    rotated = options.pop("rotated", channels)
    return CallName(
        function, format, dtype, _heads_of(function, (heads,)), channels, rotated, **options
    )


def _heads_of(function: str, heads: tuple[int, ...]) -> tuple[int, ...]:
    """The heads of each tensor where a name has only the first's."""
    return (heads[0], max(1, heads[0] // _KEYS_SHARE)) if function in PAIRS else heads[:1]


def exists(call: CallName) -> bool:
    """Whether the public functions can be called so."""
    packed, alone = call.format == "thd", call.function in ("angles", "attention")
    possible = (
        call.format in FORMATS[call.function],
        len(call.heads) == len(_heads_of(call.function, call.heads)) and min(call.heads) > 0,
        0 < call.rotated <= call.channels and call.rotated % 2 == 0,
        not call.table_dtype or not call.with_angles and call.dtype != "fp32",
        not call.tables or call.function != "qkv",
        # Packed sequences have one table for all; a table for each head has no pair of tensors.
        not (packed and call.tables in ("perbatch", "pereach")),
        alone or call.tables not in ("perhead", "pereach"),
        call.position != "starts" or call.function != "attention",
        call.position != "offset" or call.function in ("tables", "qktables"),
        call.position != "ids" or (call.function == "attention" and not call.tables),
        not call.parallel or call.with_angles,
        not call.rounding or call.function != "qkv",
        not call.inplace or (call.function == "tables" and call.layout != "strided"),
        # One position cannot be cut, nor its order in memory be another.
        call.length != "decode" or not (call.parallel or call.layout == "transposed"),
        call.length != "long" or (not packed and call.format != "bhsd"),
        call.length not in ("halves", "short") or packed,
        not call.layout.startswith(TAIL) or int(call.layout.removeprefix(TAIL)) >= call.channels,
    )
    return all(possible)


@functools.lru_cache(maxsize=4096)
def parse(name: str) -> CallName:
    """The call of a name.

    Raises
    ------
    ValueError
        If it is no name, or the functions cannot be called so.
    """
    function, _, words = name.partition("-")
    call = _parsed(function, *words.split("-"))
    if call is None or str(call) != name or not exists(call):
        raise ValueError(f"no call has the name {name!r:.80}, e.g. {_EXAMPLE!r}")
    return call


@functools.lru_cache(maxsize=4096)
def parse_sized(name: str, tables: bool = False) -> tuple[CallName, int, int]:
    """The call of a name with a size, and its sequences and the tokens of each.

    Such a name, e.g. ``bf16-32+8x128r64-il-of192-2x4096``, leaves the function to what the call
    takes, angles or ``tables``, and to its tensors: one, or queries and keys. Batch comes first.
    With one token of each sequence it is a call of decoding, with a position for each.

    Raises
    ------
    ValueError
        If it is no name, or the functions cannot be called so.
    """
    words, _, size = name.rpartition("-")
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", size)
    pair = "qk" * ("+" in words.partition("x")[0])
    function = (f"{pair}tables" if tables else pair or "angles") if match else ""
    call = _parsed(function, "bshd", *words.split("-"))
    if match and call is not None:
        batch, seq_len = map(int, match.groups())
        decodes = seq_len == 1 and not call.tables
        placed = call._replace(position="starts" if decodes else "")
        # Tables know no ranks, so that calls with either have the same name.
        cut = seq_len % 2 == 0 or not call.parallel  # two chunks of each sequence
        if call.sized(batch, seq_len) == name and cut and exists(placed._replace(parallel="")):
            return placed, batch, seq_len
    raise ValueError(f"no call has the name {name!r:.80}, e.g. {_SIZED_EXAMPLE!r}")


def _parsed(function: str, *words: str) -> CallName | None:
    """The call of the words of a name, if it can be read."""
    try:
        format, dtype, size, *options = words
        match = re.fullmatch(r"(\d+(?:\+\d+)?)x(\d+)(?:r(\d+))?", size)
        heads, channels, rotated = match.groups()  # type: ignore[union-attr]
        counts = tuple(map(int, heads.split("+")))
        if function not in FUNCTIONS or dtype not in DTYPES:
            return None
        counts = counts if len(counts) > 1 else _heads_of(function, counts)
        sizes = int(channels), int(rotated or channels)
        call = CallName(function, format, dtype, counts, *sizes)
        words_by_option: dict[str, Any] = {_option(word): word for word in options}
        return call._replace(**words_by_option)
    except (ValueError, KeyError, AttributeError):
        return None


def _option(word: str) -> str:
    return "layout" if re.fullmatch(rf"{TAIL}\d+", word) else _OPTION_OF[word]
