"""The base classes of all cells and calls of this package: see ``subject``."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._engine.measure.inputs import gradient as gradient
from .._engine.subject import metric

if TYPE_CHECKING:
    from .._engine.subject import Cell
else:
    Cell = object  # whose properties would be defaults of a dataclass's fields


class BaseCell(Cell):
    """A call at one size. A subclass is a frozen dataclass."""

    @property
    def deviation(self) -> float:
        """Standard deviation of the input's values."""
        return 1.0

    @property
    def metrics(self) -> dict[str, str]:
        """asv's name of the latency, by direction."""
        return {direction: metric(self, direction) for direction in self.directions}

    @property
    def point(self) -> object:
        """What cells have in common that are measured on the same inputs, beside one copy."""
        return self


class Call:
    """A call of a function of the package, and what is right: see ``subject.Call``.

    A subclass says which function, its arguments, and what they return. NotImplementedError says
    that the measured commit lacks the function. One that lacks an argument refuses when called.
    """

    # Whether it may overwrite its input.
    in_place: Any = False

    def __init__(self, cell):
        self.cell = cell
        self._function = self._public()

    def _public(self):
        try:
            return self._find()
        except ModuleNotFoundError:
            raise
        except ImportError as error:  # of a name; the package's path says nothing
            reason = str(error).removesuffix(f" ({error.path})")
            raise NotImplementedError(reason) from None

    def _find(self):
        raise NotImplementedError

    def call_through(self, change: Callable) -> None:
        """From now on, call the package's function with every argument changed by ``change``."""
        function = self._function
        self._function = lambda *args, **options: function(
            *map(change, args), **{name: change(value) for name, value in options.items()}
        )

    def copies(self, x, copy: Callable | None = None):
        """Copies of as many bytes, which ``forward`` is compared with.

        ``copy``: what makes the first of them, of a contiguous tensor; default: ``clone``.
        """
        return copy(x) if copy else x.clone()

    def bytes_read(self) -> int:
        """Bytes that a call reads besides, such as tables, each once; 0 where that is not known."""
        return 0


def leaves(parts: tuple) -> tuple:
    """The same tensors, requiring gradients."""
    return tuple(part.detach().requires_grad_() for part in parts)


def listed(file: Path, parse: Callable) -> dict:
    """The calls that a file names, a line each, by name, in its order."""
    lines = file.read_text(encoding="utf-8").split("\n")
    return {name: parse(name) for name in lines if name and not name.startswith("#")}
