"""What the calls that are looked at are given: the same on every machine."""

import math

from . import _angles, _calls
from ._grid import GRIDS, PATH_GRIDS, Cell, Measured, PathCell

DTYPES, FORMATS = GRIDS["full"]["dtype"], GRIDS["full"]["format"]
# A host does the same for many sequences as for few, and for any number of channels.
_LIKE_OTHERS = ("thd-short", "partial", "head-96", "then-read")
PATHS = tuple(path for path in PATH_GRIDS["full"]["path"] if path not in _LIKE_OTHERS)
DEVICE = "cuda"
# Some 2 us on a GPU: never what a call on the host waits for.
CALL_SEQ_LEN, CALL_HIDDEN_SIZE, CALL_BATCH, CALL_DTYPE = 16, 64, 1, "bfloat16"
CALL_MIB = 1 / 8


def call_cell(format: str) -> Cell:
    """The cell whose call on the host is clocked."""
    return Cell(CALL_SEQ_LEN, CALL_HIDDEN_SIZE, CALL_BATCH, CALL_DTYPE, format)


def path_call_cell(path: str) -> PathCell:
    """The same of another path."""
    return PathCell(path, CALL_MIB, CALL_DTYPE)


def apply(t, freqs, format: str, interleaved: bool = False):
    """The package's rotation of ``t``."""
    from rope_triton import apply_rotary_pos_emb

    return apply_rotary_pos_emb(t, freqs, tensor_format=format, interleaved=interleaved)


def path_call(cell: PathCell):
    """The call of a cell of another path, by angles that are the same on every machine."""
    return _calls.of(cell, freqs_of_cell(cell))


def values(cell: Measured, layout: str = "contiguous"):
    """A tensor of varied values that costs no random numbers.

    A recording that failed leaves torch's generator unusable in its process (torch 2.11), and the
    cells after it must not fail for that.
    """
    import torch

    order = range(len(cell.shape)) if layout == "contiguous" else (1, 0, 3, 2)
    shape = [cell.shape[dim] for dim in order]
    numbers = torch.arange(math.prod(shape), device=DEVICE) % 1021
    return (numbers / 510 - 1).to(getattr(torch, cell.dtype)).view(shape).permute(*order)


def freqs_of_cell(cell: Measured):
    """The angles of a cell's positions as the package takes them, on the GPU."""
    return _angles.of_cell(cell, DEVICE)
