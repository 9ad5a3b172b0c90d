"""The grids: which calls of the rotation are timed, and why. Imports no torch."""

import functools
import itertools
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path

from ..calls import listed
from . import names
from .cells import (
    ANGLES,
    MIB,
    PATHS,
    TABLES,
    RopeCell,
    grid_cell,
    model_cell,
    named_cell,
    path_cell,
)
from .models import DECODE, MODELS, TRAINING
from .names import DTYPES, FORMATS, FUNCTIONS, OPTIONS, CallName

OWN_BENCHMARKS = r"^(?!peers\.)"
"""asv's pattern for all but the other libraries', which no commit of ours changes."""

GRID_VARIABLE = "ROPE_GRID"
"""Environment variable that names the grid to measure; unset means "full"."""

Grid = Mapping[str, tuple]
"""The values of each parameter of a suite's cells, in the order of what makes these."""

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
PATH_GRIDS: dict[str, Grid] = {
    # Inside any L2 (with 8 MiB, programs fill an H200 once), around it and far beyond it. The tiles
    # follow from the bytes of an element, so two dtypes stand for three, and one on a pull request.
    "full": {"path": tuple(PATHS), "mib": (4, 8, 32, 256), "dtype": ("float32", "bfloat16")},
    "small": {"path": tuple(PATHS), "mib": (4, 32, 256), "dtype": ("bfloat16",)},
}
MODEL_GRID: Grid = {
    "model": tuple(MODELS),
    "step": (TRAINING, DECODE),
    "takes": (ANGLES, TABLES),
}


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


def with_direction(make: Callable[..., RopeCell], grid: Grid, direction: str) -> Grid:
    """The part of a grid whose cells have this direction."""
    cells = [cell for cell in cells_of(make, grid) if direction in cell.directions]
    columns = zip(*(cell.values for cell in cells), strict=True)
    return {name: tuple(dict.fromkeys(column)) for name, column in zip(grid, columns, strict=True)}


def cells_of(make: Callable[..., RopeCell], grid: Grid) -> list[RopeCell]:
    """Every cell of a grid, in the fixed order in which it is measured."""
    return list(itertools.starmap(make, itertools.product(*grid.values())))


def model_cells() -> list[RopeCell]:
    """Every call of a model."""
    return cells_of(model_cell, MODEL_GRID)


def all_cells(name: str) -> list[RopeCell]:
    """Every cell of the named grid, those of the other paths last."""
    return [*cells_of(grid_cell, GRIDS[name]), *cells_of(path_cell, PATH_GRIDS[name])]


# --- calls of the list ----------------------------------------------------------------------------


@functools.cache
def listed_calls() -> dict[str, CallName]:
    """The calls of ``calls.txt``, by name, in its order.

    Those that models make, and others: any two values of two options meet in one.
    """
    return listed(Path(__file__).with_name("calls.txt"), names.parse)


def largest(name: str) -> RopeCell:
    """A call at the largest of its sizes."""
    return named_cell(name, MIB[names.parse(name).length][-1])


def listed_cells() -> list[RopeCell]:
    """Every call of the list at its sizes, in the fixed order in which they are measured."""
    return [
        named_cell(name, mib) for name, call in listed_calls().items() for mib in MIB[call.length]
    ]


# --- what users may call besides ------------------------------------------------------------------

_HEADS = (1, 2, 3, 8, 64)
_CHANNELS = (32, 48, 64, 80, 96, 112, 128, 160, 192, 256)
_DENSE_MIB = (2**-10, 2**-6, 2**-2, 1, 4, 10, 16, 64)


def dense(seed: int = 0) -> list[RopeCell]:
    """Calls of every function with every dtype, head size and size, the other options at random.

    The same ones each time.
    """
    draw = random.Random(seed)
    chosen = itertools.product(FUNCTIONS, DTYPES, _CHANNELS, _DENSE_MIB)
    return [_drawn(draw, *values) for values in chosen]


def _drawn(draw: random.Random, function: str, dtype: str, channels: int, mib: float):
    while True:
        words = {
            option: draw.choice(values) if draw.random() < 0.4 else ""
            for option, values in OPTIONS.items()
        }
        rotated = draw.choice((channels, channels, channels // 2))
        heads = draw.choice(_HEADS)
        format = draw.choice(FORMATS[function])
        call = names.named(function, format, dtype, heads, channels, rotated=rotated, **words)
        if names.exists(call):
            return named_cell(str(call), min(MIB[call.length]) if call.length else mib)
