"""The grids: which calls of the package are timed, and why. Imports no torch."""

import itertools
import json
import os
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ..transformer import modules
from ..transformer.modules import ModuleCell
from . import models, surface
from .forms import BACKWARD, FORWARD, HEADS, ITEM_BYTES, PATHS, BaseCell
from .models import ModelCell
from .package_calls import PATH_CALLS, FirstPosition, Rotation
from .surface import SurfaceCell

OWN_BENCHMARKS = r"^(?!peers\.)"
"""asv's pattern for all but the other libraries', which no commit of ours changes."""

GRID_VARIABLE = "ROPE_GRID"
"""Environment variable that names the grid to measure; unset means "full"."""


Grid = Mapping[str, tuple]
"""The values of each field of a cell."""

GRIDS: dict[str, Grid] = {
    # Every power of two from a short prompt to a long context; the head sizes and batches of the
    # models that ship; 1 MB to 4 GB a tensor, so from launch-bound to many times any cache.
    "full": {
        "seq_len": (128, 256, 512, 1024, 2048, 4096, 8192),
        "hidden_size": (64, 128, 256),
        "batch": (1, 2, 4, 8),
        "dtype": ("float32", "float16", "bfloat16"),
        "format": ("sbhd", "bshd"),
    },
    # 48 cells for pull requests: 2 MB (inside any L2) to 537 MB moved, both kinds of batch (an
    # sbhd batch has its own program order), every dtype and format.
    "small": {
        "seq_len": (128, 2048),
        "hidden_size": (64, 128),
        "batch": (1, 4),
        "dtype": ("float32", "float16", "bfloat16"),
        "format": ("sbhd", "bshd"),
    },
}


@dataclass(frozen=True)
class Cell(BaseCell):
    """A call on 64 heads."""

    suite = "rope"
    heads = HEADS
    seq_len: int
    hidden_size: int
    batch: int
    dtype: str
    format: str

    def call(self, device: str) -> Rotation:
        return Rotation(self, device)


PARAM_NAMES = tuple(field.name for field in fields(Cell))


@dataclass(frozen=True)
class ErrorCell(Cell):
    """A call on two heads at positions from ``first`` on, whose error is measured."""

    heads = 2
    first: int
    interleaved: bool

    def call(self, device: str) -> Rotation:
        return FirstPosition(self, device)


# --- the package's other paths --------------------------------------------------------------------

# A rotation in place has no backward pass of its own: its gradient is a new tensor. A copy after
# the backward would say the same as one after the forward.
_FORWARD_ONLY = ("tables-inplace", "then-read")
PATH_BATCH = 4
_START_STEP = 1000
_SHORT_TOKENS, _SHORT_SEQUENCES, _SHORT_OF_TOKENS = 27, 2401, 1 << 16

PATH_GRIDS: dict[str, Grid] = {
    # Inside any L2 (with 8 MiB, programs fill an H200 once), around it and far beyond it. The tiles
    # follow from the bytes of an element, so two dtypes stand for three, and one on a pull request.
    "full": {"path": tuple(PATHS), "mib": (4, 8, 32, 256), "dtype": ("float32", "bfloat16")},
    "small": {"path": tuple(PATHS), "mib": (4, 32, 256), "dtype": ("bfloat16",)},
}


@dataclass(frozen=True)
class PathCell(BaseCell):
    """A call of one of ``PATHS`` on about ``mib`` MiB."""

    suite = "paths"
    path: str
    mib: float
    dtype: str

    def call(self, device: str) -> Rotation:
        return PATH_CALLS[self.path](self, device)

    @property
    def directions(self) -> tuple[str, ...]:
        return (FORWARD,) if self.path in _FORWARD_ONLY else (FORWARD, BACKWARD)

    @property
    def format(self) -> str:  # type: ignore[override]
        return PATHS[self.path].format

    @property
    def hidden_size(self) -> int:  # type: ignore[override]
        return PATHS[self.path].rotated

    @property
    def lengths(self) -> tuple[int, ...]:
        path = PATHS[self.path]
        token_bytes = path.heads * path.channels * ITEM_BYTES[self.dtype]
        tokens = int(self.mib * 2**20) // token_bytes
        if self.path == "thd":
            return tuple(_halves(tokens))
        if self.path == "thd-short":
            return (_SHORT_TOKENS,) * max(1, tokens * _SHORT_SEQUENCES // _SHORT_OF_TOKENS)
        return (tokens // PATH_BATCH,) * PATH_BATCH

    @property
    def starts(self) -> tuple[int, ...]:
        step = _START_STEP if self.path == "starts" else 0
        return tuple(index * step for index in range(len(self.lengths)))

    @property
    def shape(self) -> tuple[int, ...]:
        path = PATHS[self.path]
        batch, seq_len = len(self.lengths), self.lengths[0]
        if path.format == "bhsd":
            return batch, path.heads, seq_len, path.channels
        leading = {"thd": (sum(self.lengths),), "sbhd": (seq_len, batch), "bshd": (batch, seq_len)}
        return (*leading[path.format], path.heads, path.channels)

    @property
    def bytes_moved(self) -> int:
        return super().bytes_moved * (2 if self.path == "then-read" else 1)


PATH_PARAM_NAMES = tuple(field.name for field in fields(PathCell))

AnyCell = Cell | PathCell | SurfaceCell | ModelCell | ModuleCell


def _halves(tokens: int) -> Iterator[int]:
    while tokens:
        yield tokens - tokens // 2
        tokens //= 2


# --- which are measured ---------------------------------------------------------------------------


def active(grids: Mapping[str, Grid]) -> Grid:
    """The one of these grids that the environment names.

    Raises
    ------
    ValueError
        If ``ROPE_GRID`` names no grid.
    """
    name = os.environ.get(GRID_VARIABLE, "full")
    if name not in grids:
        raise ValueError(f"{GRID_VARIABLE} must be one of {sorted(grids)}, got {name!r}")
    return grids[name]


def active_paths(direction: str) -> Grid:
    """The grid of the paths with this direction that the environment names; see :func:`active`."""
    grid = active(PATH_GRIDS)
    have = {cell.path for cell in path_cells(grid) if direction in cell.directions}
    return {**grid, "path": tuple(path for path in grid["path"] if path in have)}


def cells(grid: Grid) -> list[Cell]:
    """Every cell of a grid, in the fixed order in which it is measured."""
    return [Cell(*each) for each in itertools.product(*(grid[name] for name in PARAM_NAMES))]


def path_cells(grid: Grid) -> list[PathCell]:
    """Every cell of a grid of paths, in the fixed order in which it is measured."""
    values = itertools.product(*(grid[name] for name in PATH_PARAM_NAMES))
    return [PathCell(*each) for each in values]


def all_cells(name: str) -> list[AnyCell]:
    """Every cell of the named grid, those of the other paths last."""
    return [*cells(GRIDS[name]), *path_cells(PATH_GRIDS[name])]


def candidates() -> list[AnyCell]:
    """All that a comparison may time, the most telling first: the full grid comes last."""
    largest_first = sorted(surface.cells(), key=lambda cell: -cell.mib)
    forms: list[AnyCell] = [*largest_first, *modules.cells()]
    return list(dict.fromkeys([*all_cells("small"), *models.cells(), *forms, *all_cells("full")]))


def checked_cells() -> list[AnyCell]:
    """The cells whose output is checked before anything is timed, each form at one size."""
    forms = {cell.form: cell for cell in reversed(surface.cells())}
    return [*all_cells("small"), *models.cells(), *forms.values(), *modules.cells()]


def form_cell(name: str) -> SurfaceCell | ModuleCell:
    """The cell of a form whose machine code is tracked: at the largest of its sizes."""
    return ModuleCell(name) if name in modules.forms() else surface.largest(name)


def subject_params(cell: BaseCell) -> tuple[str, ...]:
    """A cell's parameters as asv's texts, without quotes."""
    return tuple(str(getattr(cell, field.name)) for field in fields(cell))  # type: ignore[arg-type]


def cell_of(metric: str, params: Sequence[str]) -> AnyCell:
    """The cell that a benchmark measures for these parameters, asv's texts, with quotes or without.

    Raises
    ------
    ValueError
        If the benchmark is not one of cells, or its parameters are others.
    """
    kinds = {kind.suite: kind for kind in typing.get_args(AnyCell)}
    kind: Any = kinds.get(metric.partition(".")[0])
    if kind is None or len(params) != len(fields(kind)):
        raise ValueError(f"no cell has the benchmark {metric!r} and the parameters {params}")
    texts = zip(fields(kind), params, strict=True)
    return kind(*(_PARSERS[field.type](text) for field, text in texts))


_PARSERS: dict = {int: int, float: json.loads, str: lambda text: text.strip("'")}
