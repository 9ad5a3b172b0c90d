"""Calls of ``rope_triton.transformer`` and ``integrations``, to be compared. Imports no torch.

A form's name says all of it: the function, the dtype, its sizes in the order of its class, and its
words, e.g. ``linear-bf16-16384x1024x3072-bias``. ``modules.txt`` lists the forms. A name is a key
of the history, so forms are added or left out, and never renamed.
"""

import functools
import random
import types
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..._subject import BACKWARD, FORWARD
from ..calls import BaseCell, listed
from ..module_calls import ModuleCall, stored_elements
from ..rope import integration_calls
from ..rope.names import DTYPES, ITEM_BYTES
from . import transformer_calls

FUNCTIONS = transformer_calls.FUNCTIONS | integration_calls.FUNCTIONS | transformer_calls.COMPOSED
LIST = Path(__file__).with_suffix(".txt")


class ModuleForm(NamedTuple):
    """A call: a name of ``FUNCTIONS``, its sizes and its words."""

    function: str
    dtype: str
    sizes: tuple[int, ...]
    words: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        size = "x".join(map(str, self.sizes))
        return "-".join([self.function, self.dtype, size, *self.words])


def parsed(name: str) -> ModuleForm:
    """The form of a name.

    Raises
    ------
    ValueError
        If it is no name.
    """
    try:
        function, dtype, sizes, *words = name.split("-")
        form = ModuleForm(function, dtype, tuple(map(int, sizes.split("x"))), tuple(words))
        of = FUNCTIONS[function]
        sized = dtype in DTYPES and len(form.sizes) == len(of.sizes) and min(form.sizes) > 0
        ordered = words == [word for word in of.words if word in words]
        known = sized and ordered and of.exists(words) and form.name == name
    except (ValueError, KeyError):
        known = False
    if not known:
        example = "linear-bf16-16384x1024x3072-bias"
        raise ValueError(f"no call of a module has the name {name!r:.80}, e.g. {example!r}")
    return form


@functools.cache
def forms() -> dict[str, ModuleForm]:
    """The forms of the list, by name, in its order."""
    return listed(LIST, parsed)


@dataclass(frozen=True)
class ModuleCell(BaseCell):
    """A call in one of the forms."""

    suite = "modules"
    form: str

    @property
    def of(self) -> ModuleForm:
        return _parsed(self.form)

    @property
    def _class(self) -> type[ModuleCall]:
        return FUNCTIONS[self.of.function]

    @property
    def module(self) -> str:
        """The module of the package that has the function."""
        return self._class.module

    def call(self, device: str) -> ModuleCall:
        return self._class(self, device)

    @property
    def directions(self) -> tuple[str, ...]:
        of = self._class
        return (FORWARD,) if of.with_gradients or of.in_place else (FORWARD, BACKWARD)

    @property
    def dtype(self) -> str:
        return DTYPES[self.of.dtype]

    @functools.cached_property
    def size(self) -> types.SimpleNamespace:
        """The sizes by name."""
        return types.SimpleNamespace(**dict(zip(self._class.sizes, self.of.sizes, strict=True)))

    @property
    def positions(self) -> int:
        return getattr(self.size, "tokens", 1)

    @property
    def hidden_size(self) -> int:
        return getattr(self.size, "channels", 2)

    @property
    def _elements(self) -> tuple[int, int]:
        """Of the inputs, and of the results."""
        shapes = (
            of(self.size, self.of.words) for of in (self._class.operands, self._class.results)
        )
        operands, results = map(stored_elements, shapes)
        return operands, results

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the memory in which the inputs lie, or the gradients of the results."""
        return (max(self._elements),)

    @property
    def bytes_moved(self) -> int:
        """Bytes of the inputs and the results; a call may move more."""
        return sum(self._elements) * ITEM_BYTES[self.dtype]

    @property
    def deviation(self) -> float:
        # Sums of products are near 1.
        return getattr(self.size, "inner", 1) ** -0.25


_parsed = functools.lru_cache(maxsize=4096)(parsed)


def cells() -> list[ModuleCell]:
    """Every form, in the fixed order in which they are measured."""
    return [ModuleCell(name) for name in forms()]


# --- what users may call besides ------------------------------------------------------------------

_DENSE: dict[str, tuple[int, ...]] = {
    "batch": (1, 4),
    "tokens": (100, 1024),
    "heads": (8,),
    "kv_heads": (1, 2, 8),
    "channels": (16, 32, 64, 128, 256),
    "rows": (100, 4096),
    "inner": (100, 1024, 4096),
    "columns": (100, 1000, 1024, 2048, 4096, 16384),
    "vocabulary": (1000, 32000, 50257),
}
_DRAWN = 12  # of every function with every dtype


def dense(seed: int = 0) -> list[ModuleCell]:
    """Calls of the transformer with every dtype, sizes and words at random; the same each time.

    Integrations launch what calls of the surface do. No heads of 256 channels in float32: of
    attention, their kernels compile for 15 seconds.
    """
    draw = random.Random(seed)
    return [
        ModuleCell(_drawn(draw, function, dtype).name)
        for function in transformer_calls.FUNCTIONS
        for dtype in reversed(DTYPES)  # attention compiles for a second in half precision
        for _ in range(_DRAWN)
    ]


def _drawn(draw: random.Random, function: str, dtype: str) -> ModuleForm:
    of = FUNCTIONS[function]
    while True:
        sizes = {name: draw.choice(_DENSE[name]) for name in of.sizes}
        words = tuple(word for word in of.words if draw.random() < 0.4)
        if of.exists(words) and not (dtype == "fp32" and sizes.get("channels") == 256):
            return ModuleForm(function, dtype, tuple(sizes.values()), words)
