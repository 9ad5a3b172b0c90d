"""All that the engine knows of what it measures: calls, cells and a subject.

A subject is a module with the names of :class:`Subject`. The engine never imports one: commands
and benchmarks name it, and :func:`load` imports it, in fresh processes too.
"""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from .verdict import metrics
from .verdict.rules import Key

DEFAULT = "benchmarks._subjects"
"""The subject that commands measure unless an option names another."""

FORWARD, BACKWARD = "forward", "backward"


class Unavailable(NotImplementedError):
    """What a cell asks for is not installed here; the message says so in full."""


class Call(Protocol):
    """One call of a function, on inputs and cotangents in tensors of the cell's shape and dtype.

    A method that returns several tensors returns a tuple of them.
    """

    @property
    def cell(self) -> Any: ...
    @property
    def in_place(self) -> bool: ...  # whether it may overwrite its input
    def operand(self, x) -> Any: ...  # the argument of forward, in the memory of x
    def leaf(self, x) -> Any: ...  # the same, requiring a gradient
    def forward(self, operand) -> Any: ...
    def cotangent(self, x) -> Any: ...  # a gradient for the output, in the memory of x
    def split(self, output) -> tuple: ...  # the tensors of an output, or of a gradient

    def check(self, output, x, direction: str) -> None:
        """Raise AssertionError unless that is the output, or the gradient, for ``x``."""

    def exact(self, x, direction: str) -> tuple:
        """The parts of the exact output or gradient for ``x``, float64, as ``split`` has them."""

    def copies(self, x, copy: Callable | None = None) -> Any:
        """Copies of as many bytes as the call moves, the first of them made by ``copy``."""

    def bytes_read(self) -> int: ...  # besides x, such as tables; 0 where that is not known

    def call_through(self, change: Callable) -> None:
        """From now on, call the function with every argument changed by ``change``."""


class Cell(Protocol):
    """A call at one size: one row of an asv benchmark. Hashable, and can be pickled."""

    @property
    def suite(self) -> str: ...  # asv's module
    @property
    def params(self) -> tuple[str, ...]: ...  # asv's parameters as texts
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def deviation(self) -> float: ...  # standard deviation of the input's values
    @property
    def bytes_moved(self) -> int: ...  # the least that a call reads and writes
    @property
    def directions(self) -> tuple[str, ...]: ...
    @property
    def point(self) -> object: ...  # equal in cells that are timed on the same inputs, in turns

    def call(self, device: str) -> Any:
        """A :class:`Call` with constants of its own; on "meta" these have shapes and no values.

        Raises NotImplementedError if the measured version of the package lacks the function.
        """


class Compilation(NamedTuple):
    """Exact values of asv's class ``suite``: what ``cells`` compile to for the GPU ``target``."""

    suite: str
    params: tuple
    target: str
    cells: tuple[Cell, ...]
    direction: str


class Eager(NamedTuple):
    """What is measured of an eager call: host time, memory, launches or error."""

    kind: Literal["seconds", "peak_bytes", "launches", "error"]
    cell: Cell
    direction: str


Countable = tuple[Cell, str] | Callable[[], Callable[[], object]]
"""What is counted of the host: a cell and a direction, or what makes a call without arguments."""


class Subject(Protocol):
    """What is measured: a package, its calls, and how they are named."""

    @property
    def __name__(self) -> str: ...
    @property
    def PACKAGE(self) -> str: ...  # the folder of the repository that a version is
    @property
    def TARGETS(self) -> tuple[str, ...]: ...  # architectures to compile for
    @property
    def TARGET(self) -> str: ...  # the one that is compared in detail where there is no GPU
    @property
    def UNITS(self) -> Mapping[str, metrics.Unit]: ...  # by metric
    @property
    def FAMILIES(self) -> Mapping[str, tuple[str, ...]]: ...  # "gpu", "host": how metrics begin
    def label(self, metric: str, params: tuple[str, ...]) -> tuple[str, str]:
        """A metric and its parameters, each in words; ``params`` is () where it names all cells."""

    def cell(self, suite: str, params: Sequence[str]) -> Cell: ...
    def candidates(self) -> Sequence[Cell]: ...  # what a comparison may time, the best first
    def checked(self, changed: Callable[[str], bool]) -> Sequence[Cell]:
        """What is checked before; ``changed``: whether a file or folder of the package differs."""

    def listed(self) -> Sequence[Sequence[Cell]]: ...  # cells, in groups for processes
    def dense(self) -> Sequence[Sequence[Cell]]: ...  # what users may call besides
    def compilations(self, target: str) -> Sequence[Compilation]: ...
    def variants(self, target: str) -> Sequence[Compilation]: ...  # whose kernels are counted
    def eager(self) -> Mapping[tuple[str, tuple[str, ...]], Eager]: ...  # by metric, parameters
    def host_calls(self) -> Mapping[tuple[str, tuple[str, ...]], Countable]:
        """The calls whose cost on the host is counted, by asv's class and parameters.

        What makes one makes its tensors on the default device.
        """

    def first(self) -> Cell: ...  # the call with which a process begins
    def compiled(self) -> Cell: ...  # a call whose kernel no other compiles


def load(name: str) -> Subject:
    """Import a subject's module, and make its metrics known.

    Raises ModuleNotFoundError if there is none of this name.
    """
    subject: Any = importlib.import_module(name)
    metrics.register(subject.UNITS, subject.FAMILIES, subject.label)
    return subject


def files(subject: Subject) -> list[Path]:
    """The files that a subject consists of: its module, or all of its package."""
    file = Path(str(sys.modules[subject.__name__].__file__))
    package = file.name == "__init__.py"
    below = (path for path in file.parent.rglob("*") if path.suffix in (".py", ".txt"))
    return sorted(below) if package else [file]


def timings(subject: Subject) -> dict[str, set[Key]]:
    """What a comparison may time, by family."""
    calls = subject.eager().items()
    return {
        "gpu": set().union(*map(keys_of, subject.candidates())),
        "host": {Key(*key) for key, eager in calls if eager.kind == "seconds"},
        "start": {Key(name, ()) for name in metrics.STARTS},
    }


def keys_of(cell: Cell) -> frozenset[Key]:
    """The timings of a cell, one a direction."""
    return frozenset(Key(metric(cell, direction), cell.params) for direction in cell.directions)


def metric(cell: Cell, direction: str) -> str:
    """asv's name of a cell's latency."""
    return f"{cell.suite}.{direction.capitalize()}.track_latency"
