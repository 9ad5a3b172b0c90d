"""Make the inputs of measured calls, the same on every machine."""

import math

from .._subjects.rope.forms import BaseCell

DEVICE = "cuda"


def call_of(cell: BaseCell):
    """The call of a cell, on the GPU."""
    return cell.call(DEVICE)


def values(cell: BaseCell, layout: str = "contiguous"):
    """A tensor of varied values that costs no random numbers.

    A recording that failed leaves torch's generator unusable in its process (torch 2.11), and the
    cells after it must not fail for that.
    """
    import torch

    order = range(len(cell.shape)) if layout == "contiguous" else (1, 0, 3, 2)
    shape = [cell.shape[dim] for dim in order]
    numbers = torch.arange(math.prod(shape), device=DEVICE) % 1021
    return (numbers / 510 - 1).to(getattr(torch, cell.dtype)).view(shape).permute(*order)
