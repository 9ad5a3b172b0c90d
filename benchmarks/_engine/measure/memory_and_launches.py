"""Count the GPU memory and the launches of a step of inference or training. Exact."""

import gc
from collections.abc import Callable

from ..subject import FORWARD, Cell
from . import graph_nodes, inputs


def peak_bytes(cell: Cell, direction: str) -> int:
    """Most GPU memory that a call asks for at any one time, beyond what its caller holds.

    In a backward, which is a step of training, the input is an intermediate result, as in a model,
    and counts: after the forward it lives on only if the call has saved it. Counts the requests to
    torch's allocator, not the blocks that it hands out, whose sizes depend on what ran before.

    Parameters
    ----------
    cell : Cell
        The call.
    direction : str
        ``FORWARD``, or ``BACKWARD`` for forward and backward.

    Raises
    ------
    RuntimeError
        If torch's allocator keeps no account here.
    """
    import torch

    call = _step(cell, direction, intermediate=True)
    call()  # compiles
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = _requested_bytes("current")
    if not before:
        raise RuntimeError(
            "torch's CUDA allocator counts no requested bytes: unset PYTORCH_NO_CUDA_MEMORY_CACHING"
            " and any other backend in PYTORCH_CUDA_ALLOC_CONF"
        )
    call()
    return _requested_bytes("peak") - before


def _requested_bytes(when: str) -> int:
    import torch

    return torch.cuda.memory_stats().get(f"requested_bytes.all.{when}", 0)


def launches(cell: Cell, direction: str) -> int:
    """Kernels, copies and fills that a call asks the GPU for; parameters as :func:`peak_bytes`.

    Counted in a CUDA graph of the call: see :mod:`graph_nodes`.
    """
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call = _step(cell, direction, intermediate=False)
    return graph_nodes.launches(call, stream)


def _step(cell: Cell, direction: str, intermediate: bool) -> Callable:
    """The call as a function without arguments, in training of an intermediate result or not."""
    import torch

    call, x = cell.call(inputs.DEVICE), inputs.values(cell)
    if direction == FORWARD:
        operand = call.operand(x)
        return lambda: call.forward(operand)
    leaf, cotangent = call.leaf(x), call.cotangent(inputs.values(cell))

    def forward():  # it alone can keep a reference to the intermediate result
        return call.forward(_clone(leaf) if intermediate else leaf)

    return lambda: torch.autograd.grad(forward(), leaf, cotangent)


def _clone(leaf):
    return tuple(part.clone() for part in leaf) if isinstance(leaf, tuple) else leaf.clone()
