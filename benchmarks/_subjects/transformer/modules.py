"""Calls of ``rope_triton.transformer`` and ``integrations``, to be compared. Imports no torch.

A name has the function, the dtype, its sizes in the order of its class, and its words, e.g.
``linear-bf16-16384x1024x3072-bias``. ``modules.txt`` lists the calls. Names are keys of the
history, so calls are added or left out, and never renamed.
"""

import functools
import random
import types
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..._engine.subject import BACKWARD, FORWARD
from ..calls import BaseCell, listed
from ..module_calls import ModuleCall, stored_elements
from ..rope import integration_calls
from ..rope.names import DTYPES, ITEM_BYTES
from . import transformer_calls

FUNCTIONS = transformer_calls.FUNCTIONS | integration_calls.FUNCTIONS | transformer_calls.COMPOSED
LIST = Path(__file__).with_suffix(".txt")


@dataclass(frozen=True)
class ModuleCell(BaseCell):
    """A call by its name."""

    suite = "modules"
    name: str

    @property
    def function(self) -> str:
        return self.name.partition("-")[0]

    @property
    def params(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def dtype(self) -> str:
        return DTYPES[self.name.split("-")[1]]

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self.name.split("-")[3:])

    @functools.cached_property
    def size(self) -> types.SimpleNamespace:
        """The sizes by name."""
        sizes = map(int, self.name.split("-")[2].split("x"))
        return types.SimpleNamespace(**dict(zip(self._class.sizes, sizes, strict=True)))

    @property
    def _class(self) -> type[ModuleCall]:
        return FUNCTIONS[self.function]

    @property
    def module(self) -> str:
        """The module of the package that has the function."""
        return self._class.module

    def call(self, device: str) -> ModuleCall:
        return self._class(self, device)

    @property
    def directions(self) -> tuple[str, ...]:
        forward_alone = self._class.with_gradients or self._class.in_place
        return (FORWARD,) if forward_alone else (FORWARD, BACKWARD)

    @property
    def _elements(self) -> tuple[int, int]:
        """Of the inputs, and of the results."""
        call, size = self._class, (self.size, self.words)
        return stored_elements(call.operands(*size).values()), stored_elements(call.results(*size))

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


def named(function: str, dtype: str, sizes: Iterable[int], words: Iterable[str]) -> ModuleCell:
    return ModuleCell("-".join([function, dtype, "x".join(map(str, sizes)), *words]))


def parsed(name: str) -> ModuleCell:
    """The call of a name.

    Raises
    ------
    ValueError
        If it is no name.
    """
    cell = ModuleCell(name)
    try:
        call, sizes, words = FUNCTIONS[cell.function], [*vars(cell.size).values()], cell.words
        ordered = words == tuple(word for word in call.words if word in words)
        again = named(cell.function, name.split("-")[1], sizes, words)
        valid = (
            bool(cell.dtype) and ordered and call.exists(words) and min(sizes) > 0 and again == cell
        )
    except (ValueError, KeyError, IndexError):
        valid = False
    if not valid:
        example = "linear-bf16-16384x1024x3072-bias"
        raise ValueError(f"no call of a module has the name {name!r:.80}, e.g. {example!r}")
    return cell


@functools.cache
def listed_calls() -> dict[str, ModuleCell]:
    """The calls of the list, by name, in its order."""
    return listed(LIST, parsed)


def cells() -> list[ModuleCell]:
    """Every call of the list, in the fixed order in which they are measured."""
    return [*listed_calls().values()]


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

    Integrations launch what calls of the rotation do. No heads of 256 channels in float32: of
    attention, their kernels compile for 15 seconds.
    """
    draw = random.Random(seed)
    return [
        _drawn(draw, function, dtype)
        for function in transformer_calls.FUNCTIONS
        for dtype in reversed(DTYPES)  # attention compiles for a second in half precision
        for _ in range(_DRAWN)
    ]


def _drawn(draw: random.Random, function: str, dtype: str) -> ModuleCell:
    call = FUNCTIONS[function]
    while True:
        sizes = {name: draw.choice(_DENSE[name]) for name in call.sizes}
        words = [word for word in call.words if draw.random() < 0.4]
        if call.exists(words) and not (dtype == "fp32" and sizes.get("channels") == 256):
            return named(function, dtype, sizes.values(), words)
