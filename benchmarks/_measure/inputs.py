"""What the calls that are looked at are given: the same on every machine."""

import math

from .._cells import angles
from .._cells.forms import Measured
from .._cells.grid import PathCell

DEVICE = "cuda"


def apply(t, freqs, format: str, interleaved: bool = False):
    """The package's rotation of ``t``."""
    from rope_triton import apply_rotary_pos_emb

    return apply_rotary_pos_emb(t, freqs, tensor_format=format, interleaved=interleaved)


def path_call(cell: PathCell):
    """The call of a cell of another path, by angles that are the same on every machine."""
    return cell.call(freqs_of_cell(cell))


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
    return angles.of_cell(cell, DEVICE)
