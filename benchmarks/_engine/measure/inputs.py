"""Inputs of measured calls, and the gradients that they ask for."""

import math
from collections.abc import Callable

from ..subject import FORWARD, Call, Cell

DEVICE = "cuda"


def values(cell: Cell):
    """A tensor of varied values that costs no random numbers, the same on every machine.

    A recording that failed leaves torch's generator unusable in its process (torch 2.11), and the
    cells after it must not fail for that.
    """
    import torch

    numbers = torch.arange(math.prod(cell.shape), device=DEVICE) % 1021
    return (numbers / 510 - 1).to(getattr(torch, cell.dtype)).view(cell.shape)


def random(cell: Cell):
    """A tensor of normally distributed values, as large as the cell's calls take them."""
    import torch

    x = torch.randn(cell.shape, device=DEVICE, dtype=getattr(torch, cell.dtype))
    return x if cell.deviation == 1 else x.mul_(cell.deviation)


def step(call: Call, direction: str, x, intermediate: bool = False) -> Callable[[], object]:
    """A call on ``x`` as a function without arguments; in the backward, forward and gradient.

    ``x`` holds the input, or in the backward the cotangents. ``intermediate``: whether a backward's
    input is an intermediate result, as in a model, to which only the call keeps a reference.
    """
    import torch

    if direction == FORWARD:
        operand = call.operand(x)
        return lambda: call.forward(operand)
    leaf, cotangent = call.leaf(values(call.cell)), call.cotangent(x)

    def forward_backward():
        gradients = torch.autograd.grad(call.forward(leaf), leaf, cotangent)
        return gradients if isinstance(leaf, tuple) else gradients[0]

    def of_intermediate():
        return torch.autograd.grad(call.forward(_clone(leaf)), leaf, cotangent)

    return of_intermediate if intermediate else forward_backward


def _clone(leaf):
    return tuple(part.clone() for part in leaf) if isinstance(leaf, tuple) else leaf.clone()


def gradient(output, leaf, cotangent):
    """The gradient of a call's leaf, a tensor or tuple as that is; the output's graph is kept."""
    import torch

    gradients = torch.autograd.grad(output, leaf, cotangent, retain_graph=True)
    return gradients if isinstance(leaf, tuple) else gradients[0]
