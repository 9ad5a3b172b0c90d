"""Count the GPU memory and the launches of a step of inference or training. Exact."""

import gc

from ..subject import Cell
from . import graph_nodes, inputs


def peak_bytes(cell: Cell, direction: str) -> int:
    """Most GPU memory that a call asks for at any one time, beyond what its caller holds.

    In a backward, which is a step of training, the input is an intermediate result, as in a model,
    and counts: after the forward it lives on only if the call has saved it. Counts the requests to
    torch's allocator, not the blocks that it hands out, whose sizes depend on what ran before.
    Raises RuntimeError if torch's allocator keeps no account here.
    """
    import torch

    call = cell.call(inputs.DEVICE)
    call = inputs.step(call, direction, inputs.values(cell), intermediate=True)
    call()  # compiles
    _wait_for_autograd()
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


def _wait_for_autograd() -> None:
    """Return when autograd's thread of the GPU holds no gradient.

    It lets go of one a little after the caller has got it, and on a busy host later than the caller
    reads how much memory is taken; but before it begins with the next.
    """
    import torch

    x = torch.empty(0, device=inputs.DEVICE, requires_grad=True)
    torch.autograd.backward(x.clone(), x.detach())


def _requested_bytes(when: str) -> int:
    import torch

    return torch.cuda.memory_stats().get(f"requested_bytes.all.{when}", 0)


def launches(cell: Cell, direction: str) -> int:
    """Kernels, copies and fills of a call, or of forward and backward: see :mod:`graph_nodes`."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call = inputs.step(cell.call(inputs.DEVICE), direction, inputs.values(cell))
    return graph_nodes.launches(call, stream)
