"""The cells that are measured, why these, and the bytes each must move. Imports no torch."""

import itertools
import os
from dataclasses import dataclass, fields
from typing import TypedDict

HEADS = 64
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

GRID_VARIABLE = "ROPE_GRID"
"""Environment variable that names the grid to measure; unset means "full"."""


class Grid(TypedDict):
    """The values of each field of :class:`Cell`."""

    seq_len: tuple[int, ...]
    hidden_size: tuple[int, ...]
    batch: tuple[int, ...]
    dtype: tuple[str, ...]
    format: tuple[str, ...]


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
class Cell:
    """One point of the grid: a RoPE call on 64 heads, forward or backward."""

    seq_len: int
    hidden_size: int
    batch: int
    dtype: str
    format: str

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the tensor that is rotated, in the order of ``format``."""
        leading = (self.seq_len, self.batch)
        return (*(leading if self.format == "sbhd" else leading[::-1]), HEADS, self.hidden_size)

    @property
    def bytes_moved(self) -> int:
        """Bytes a call must move: the input once and the output once (not the angles)."""
        elements = self.seq_len * self.batch * HEADS * self.hidden_size
        return 2 * elements * ITEM_BYTES[self.dtype]


PARAM_NAMES = tuple(field.name for field in fields(Cell))


def active_grid() -> Grid:
    """The grid that the environment names.

    Raises
    ------
    ValueError
        If ``ROPE_GRID`` names no grid.
    """
    name = os.environ.get(GRID_VARIABLE, "full")
    if name not in GRIDS:
        raise ValueError(f"{GRID_VARIABLE} must be one of {sorted(GRIDS)}, got {name!r}")
    return GRIDS[name]


def cells(grid: Grid) -> list[Cell]:
    """Every cell of a grid, in the fixed order in which it is measured."""
    values = itertools.product(
        grid["seq_len"], grid["hidden_size"], grid["batch"], grid["dtype"], grid["format"]
    )
    return [Cell(*each) for each in values]
