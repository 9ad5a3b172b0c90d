"""List what a call asks the GPU for, by a CUDA graph of it.

The graph is the driver's own list of the work, which depends on no profiler's rights or buffers.
"""

import contextlib
import ctypes
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator

KERNEL, COPY, FILL = 0, 1, 2  # CUgraphNodeType
WORK_KINDS = (KERNEL, COPY, FILL)
_DRIVER = "libcuda.so.1"
_SUMMARY_LENGTH = 300


def recorded(call: Callable, stream):
    """A CUDA graph of one call on ``stream``, whose tensors were made there.

    The call is made once before, to compile. One that waits for the GPU, or copies from pageable
    memory, cannot be recorded, and fails here.
    """
    import torch

    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.stream(stream):
        call()
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            call()
    return graph


def launches(call: Callable, stream) -> int:
    """Kernels, copies and fills that a call asks the GPU for; see :func:`recorded`."""
    graph, driver = recorded(call, stream), ctypes.CDLL(_DRIVER)
    kinds = [_kind(node, driver) for node in _nodes(graph.raw_cuda_graph(), driver)]
    return sum(kind in WORK_KINDS for kind in kinds)


def described(call: Callable, stream) -> str:
    """What a call asks the GPU for: a digest of all of it, and a summary for people.

    Two calls have the same text if they launch the same kernels on the same grids, and copy and
    fill as many bytes. A kernel that Triton compiled has no name in it: its name is the author's
    choice, and its machine code is compared elsewhere.
    """
    with _names_of_triton_kernels() as by_triton:
        graph = recorded(call, stream)
    driver = ctypes.CDLL(_DRIVER)
    counts = Counter(
        text
        for node in _nodes(graph.raw_cuda_graph(), driver)
        if (text := _described(node, driver, by_triton))
    )
    text = "; ".join(sorted(f"{count} x {node}" for node, count in counts.items()))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    cut = text if len(text) <= _SUMMARY_LENGTH else f"{text[:_SUMMARY_LENGTH]} ..."
    return f"{digest}: {cut}"


@contextlib.contextmanager
def _names_of_triton_kernels() -> Iterator[set[str]]:
    """The names of the kernels that are launched through Triton meanwhile."""
    import triton

    names: set[str] = set()

    def note(metadata) -> None:
        names.add(metadata.get()["name"])

    hook = triton.knobs.runtime.launch_enter_hook
    hook.add(note)
    try:
        yield names
    finally:
        hook.remove(note)


# --- the CUDA driver's library --------------------------------------------------------------------


def _nodes(graph: int, driver) -> list[ctypes.c_void_p]:
    handle, count = ctypes.c_void_p(graph), ctypes.c_size_t()
    _succeed(driver.cuGraphGetNodes(handle, None, ctypes.byref(count)))
    nodes = (ctypes.c_void_p * count.value)()
    _succeed(driver.cuGraphGetNodes(handle, nodes, ctypes.byref(count)))
    return [ctypes.c_void_p(node) for node in nodes]


def _kind(node: ctypes.c_void_p, driver) -> int:
    kind = ctypes.c_int()
    _succeed(driver.cuGraphNodeGetType(node, ctypes.byref(kind)))
    return kind.value


def _described(node: ctypes.c_void_p, driver, by_triton: set[str]) -> str:
    """A node in words, "" if it is no work."""
    kind = _kind(node, driver)
    if kind == KERNEL:
        kernel = _Kernel()
        _succeed(driver.cuGraphKernelNodeGetParams_v2(node, ctypes.byref(kernel)))
        name = _name(kernel, driver)
        grid, block = ("x".join(map(str, sizes)) for sizes in (kernel.grid, kernel.block))
        shared = f", {kernel.shared_bytes} bytes shared" if kernel.shared_bytes else ""
        named = "Triton kernel" if name in by_triton else f"kernel {name}"
        return f"{named}, grid {grid}, block {block}{shared}"
    if kind == COPY:
        copy = _Copy()
        _succeed(driver.cuGraphMemcpyNodeGetParams(node, ctypes.byref(copy)))
        return f"copy of {'x'.join(map(str, copy.extent))} bytes"
    if kind == FILL:
        fill = _Fill()
        _succeed(driver.cuGraphMemsetNodeGetParams(node, ctypes.byref(fill)))
        return f"fill of {fill.width}x{fill.height} x {fill.element_bytes} bytes"
    return ""


def _name(kernel: "_Kernel", driver) -> str:
    """The function's name, "" where the driver cannot say: before CUDA 12.3."""
    handle, asked = (
        (kernel.function, "cuFuncGetName")
        if kernel.function
        else (kernel.kernel, "cuKernelGetName")
    )
    name = ctypes.c_char_p()
    if not hasattr(driver, asked):
        return ""
    _succeed(getattr(driver, asked)(ctypes.byref(name), ctypes.c_void_p(handle)))
    return (name.value or b"").decode()


def _succeed(status: int) -> None:
    if status:
        raise RuntimeError(f"the CUDA driver could not list a graph's nodes: CUresult {status}")


class _Kernel(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("arguments", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


class _Copy(ctypes.Structure):
    """CUDA_MEMCPY3D: where it copies from, where to, eleven words each, and how much."""

    _fields_ = (("places", ctypes.c_size_t * 22), ("extent", ctypes.c_size_t * 3))


class _Fill(ctypes.Structure):
    """CUDA_MEMSET_NODE_PARAMS."""

    _fields_ = (
        ("target", ctypes.c_uint64),
        ("pitch", ctypes.c_size_t),
        ("value", ctypes.c_uint),
        ("element_bytes", ctypes.c_uint),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )
