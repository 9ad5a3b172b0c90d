"""What a step asks of a GPU: memory and launches. Exact."""

import ctypes
import gc
from collections import Counter
from collections.abc import Callable

from .._cells.forms import FORWARD
from .._cells.grid import Cell, PathCell
from . import inputs

_SEQ_LEN, _HIDDEN_SIZE, _BATCH = 512, 128, 2
_PATH_MIB, _PATH_DTYPE = 16, "bfloat16"


def peak_bytes(step: str, format: str, dtype: str, layout: str) -> int:
    """Most GPU memory that a call asks for at any one time, beyond what its caller holds.

    In the step "training" the tensor that is rotated is an intermediate result, as in a model, and
    counts: after the forward it lives on only if the call has saved it. Counts what is asked of
    torch's allocator, not the blocks that it hands out, whose sizes depend on what ran before.

    Parameters
    ----------
    step, format, dtype, layout : str
        Values of ``PARAMS``; "transposed": in memory, sequence and batch are exchanged, and
        heads and channels, both of the tensor and of the gradient that comes back.

    Raises
    ------
    RuntimeError
        If torch's allocator keeps no account here.
    """
    return _peak_bytes(_step_call(step, format, dtype, layout, intermediate=True))


def path_peak_bytes(step: str, path: str) -> int:
    """The same of a call of another path, on contiguous tensors.

    Parameters
    ----------
    step, path : str
        Values of ``PATH_PARAMS``.

    Raises
    ------
    RuntimeError
        If torch's allocator keeps no account here.
    """
    return _peak_bytes(_path_step_call(step, path, intermediate=True))


def _peak_bytes(call: Callable) -> int:
    import torch

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


def launches(step: str, format: str, dtype: str, layout: str) -> int:
    """Kernels, copies and fills that a call asks the GPU for.

    Counted in a CUDA graph of the call: the driver's own list of the work, which depends on no
    profiler's rights or buffers. A call that waits for the GPU, or copies from pageable memory,
    cannot be recorded, and fails here.

    Parameters
    ----------
    step, format, dtype, layout : str
        As for :func:`peak_bytes`.
    """
    return _launches(lambda: _step_call(step, format, dtype, layout, intermediate=False))


def path_launches(step: str, path: str) -> int:
    """The same of a call of another path, on contiguous tensors.

    Parameters
    ----------
    step, path : str
        Values of ``PATH_PARAMS``.
    """
    return _launches(lambda: _path_step_call(step, path, intermediate=False))


def _launches(make_call: Callable[[], Callable]) -> int:
    """``make_call`` is called on the stream that the call is recorded on."""
    import torch

    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.stream(stream):
        call = make_call()
        call()  # compiles
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            call()
    kinds = Counter(_node_kinds(graph.raw_cuda_graph(), ctypes.CDLL("libcuda.so.1")))
    return sum(kinds[kind] for kind in _WORK_KINDS)


_WORK_KINDS = (0, 1, 2)  # CUgraphNodeType: kernel, memcpy, memset


def _node_kinds(graph: int, driver) -> list[int]:
    """The type of every node of a CUDA graph, by the CUDA driver's library."""
    handle, count = ctypes.c_void_p(graph), ctypes.c_size_t()
    _succeed(driver.cuGraphGetNodes(handle, None, ctypes.byref(count)))
    nodes = (ctypes.c_void_p * count.value)()
    _succeed(driver.cuGraphGetNodes(handle, nodes, ctypes.byref(count)))
    kinds = [ctypes.c_int() for _ in nodes]
    for node, kind in zip(nodes, kinds, strict=True):
        _succeed(driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)))
    return [kind.value for kind in kinds]


def _succeed(status: int) -> None:
    if status:
        raise RuntimeError(f"the CUDA driver could not list a graph's nodes: CUresult {status}")


def _step_call(step: str, format: str, dtype: str, layout: str, intermediate: bool) -> Callable:
    """The call as a function without arguments, of an intermediate result in training or not."""
    cell = Cell(_SEQ_LEN, _HIDDEN_SIZE, _BATCH, dtype, format)
    freqs = inputs.freqs_of_cell(cell)

    def rotate(x):
        return inputs.apply(x, freqs, format)

    x = inputs.values(cell, layout)
    if step == FORWARD:
        return lambda: rotate(x)
    cotangent = inputs.values(cell, layout)
    return _training_call(rotate, x.requires_grad_(), cotangent, intermediate)


def _path_step_call(step: str, path: str, intermediate: bool) -> Callable:
    cell = PathCell(path, _PATH_MIB, _PATH_DTYPE)
    call, x = inputs.path_call(cell), inputs.values(cell)
    if step == FORWARD:
        operand = call.operand(x)
        return lambda: call.forward(operand)
    cotangent = call.cotangent(inputs.values(cell))
    return _training_call(call.forward, call.leaf(x), cotangent, intermediate)


def _training_call(rotate: Callable, leaf, cotangent, intermediate: bool) -> Callable:
    rotated = (lambda: _clone(leaf)) if intermediate else lambda: leaf
    return lambda: _training(rotate, rotated, leaf, cotangent)


def _clone(given):
    return tuple(each.clone() for each in given) if isinstance(given, tuple) else given.clone()


def _training(rotate: Callable, rotated: Callable, leaf, cotangent):
    """Forward and backward; of what ``rotated`` returns, only the forward can keep a reference."""
    import torch

    return torch.autograd.grad(rotate(rotated()), leaf, cotangent)
