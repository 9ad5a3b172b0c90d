"""Count the GPU memory and the launches of a step of inference or training. Exact."""

import gc
from collections.abc import Callable

from .._subjects.rope.forms import FORWARD
from .._subjects.rope.grid import AnyCell, Cell, PathCell
from . import graph_nodes, inputs

_SEQ_LEN, _HIDDEN_SIZE, _BATCH = 512, 128, 2
_PATH_MIB, _PATH_DTYPE = 16, "bfloat16"


def step_cell(format: str, dtype: str) -> Cell:
    """The cell of a step."""
    return Cell(_SEQ_LEN, _HIDDEN_SIZE, _BATCH, dtype, format)


def path_step_cell(path: str) -> PathCell:
    """The cell of a step of another path."""
    return PathCell(path, _PATH_MIB, _PATH_DTYPE)


def peak_bytes(step: str, cell: AnyCell, layout: str = "contiguous") -> int:
    """Most GPU memory that a call asks for at any one time, beyond what its caller holds.

    In the step "training" the tensor that is rotated is an intermediate result, as in a model, and
    counts: after the forward it lives on only if the call has saved it. Counts the requests to
    torch's allocator, not the blocks that it hands out, whose sizes depend on what ran before.

    Parameters
    ----------
    step : str
        One of ``subjects.STEPS``.
    cell : Cell or PathCell
        The call.
    layout : str
        One of ``subjects.LAYOUTS``; "transposed": in memory, sequence and batch are exchanged, and
        heads and channels, both of the tensor and of the gradient that comes back.

    Raises
    ------
    RuntimeError
        If torch's allocator keeps no account here.
    """
    import torch

    call = _step_call(step, cell, layout, intermediate=True)
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


def launches(step: str, cell: AnyCell, layout: str = "contiguous") -> int:
    """Kernels, copies and fills that a call asks the GPU for; parameters as :func:`peak_bytes`.

    Counted in a CUDA graph of the call: see :mod:`graph_nodes`.
    """
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call = _step_call(step, cell, layout, intermediate=False)
    return graph_nodes.launches(call, stream)


def _step_call(step: str, cell: AnyCell, layout: str, intermediate: bool) -> Callable:
    """The call as a function without arguments, in training of an intermediate result or not."""
    import torch

    call, x = inputs.call_of(cell), inputs.values(cell, layout)
    if step == FORWARD:
        operand = call.operand(x)
        return lambda: call.forward(operand)
    leaf, cotangent = call.leaf(x), call.cotangent(inputs.values(cell, layout))

    def rotated():  # only the forward can keep a reference to the intermediate result
        return call.forward(_clone(leaf) if intermediate else leaf)

    return lambda: torch.autograd.grad(rotated(), leaf, cotangent)


def _clone(given):
    return tuple(each.clone() for each in given) if isinstance(given, tuple) else given.clone()
