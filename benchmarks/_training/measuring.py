"""Measure the providers in one process of a GPU: they are checked, then take turns.

A step is the forward, the loss and the gradients of all weights; no optimizer. Gradients are new
tensors in each step. All networks of a process share the weights.
"""

import contextlib
import gc
import json
import math
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from .._measure import workload
from .network import Functions, Layer, Network, Weights, random_weights
from .providers import PROVIDERS, reference
from .sizes import ATTENTION, PARTS, STEP, Point

DEVICE, DTYPE = "cuda", "bfloat16"
TURNS = 3
"""Samples of each provider that a process takes."""
SAMPLE_SECONDS = {STEP: 0.4, ATTENTION: 0.1}
_WARM_CALLS, _LEAST_CALLS = 2, 2

BOUND = 0.05
"""Most that an output or a gradient may differ from float32's, as a share of its L2 norm.

Of a layer of 410M on 2048 tokens, by PyTorch on a CPU, rounding to bfloat16 makes up to 0.9 %. A
sine of the wrong sign, or no rotation, changes the gradients of the matrices of queries and keys by
113 % or more.
"""

_BACKENDS = (
    # The first that is part of a kernel's name: cuDNN's own kernels are called "flash", too.
    *(("cudnn", "cuDNN"), ("flash", "flash"), ("fmha", "memory-efficient")),
)
_WORK = ("kernel", "gpu_memcpy", "gpu_memset")  # Kineto's categories


def measured(
    point: Point,
    names: Sequence[str],
    parts: Iterable[str] = PARTS,
    turns: int = TURNS,
    profiled: bool = True,
    note: Callable[[str], object] = lambda name: None,
) -> dict[str, dict]:
    """What the providers take, in this process; plain JSON.

    Parameters
    ----------
    point : Point
        The model and its context.
    names : sequence of str
        The providers, in the order of their turns.
    parts : iterable of str
        Of ``PARTS``.
    turns : int
        How often each takes its turn; every other time in the reverse order.
    profiled : bool
        Whether launches are counted, and the kernels of attention named, by PyTorch's profiler.
    note : callable
        Gets the name of a provider before anything of it is called.

    Returns
    -------
    dict
        Provider -> ``{"parts": {part: {"seconds": [of each turn], "peak_bytes": int}}}``, where
        profiled also ``launches``, an int, and ``sdpa``, the backend of attention, or why there
        are none, ``unprofiled``. A provider that cannot be had, for memory or because it is not
        installed, has ``{"unavailable": why}``, one that failed ``{"error": why}``.

    Raises
    ------
    RuntimeError
        If the GPU is lost to this process. The provider that was noted last is to blame.
    """
    bench, kept, rows = _Bench(point), list(parts), dict[str, dict]()
    calls: dict[str, dict[str, Callable]] = {}
    counts: dict[tuple[str, str], int] = {}

    @contextlib.contextmanager
    def about(name: str) -> Iterator[None]:
        note(name)
        try:
            yield
        except Exception as error:
            if workload.gpu_is_lost():
                raise
            why = "unavailable" if workload.cannot_be_had(error) else "error"
            rows[name] = {why: workload.why_not(error)}
            calls.pop(name, None)
            traceback.clear_frames(error.__traceback__)  # they hold what was allocated
            _free()

    for name in names:
        with about(name):
            network = bench.checked(name, kept)
            calls[name] = {part: bench.call(network, part) for part in kept}
            rows[name] = {"parts": {part: {"seconds": []} for part in kept}}
            for part, call in calls[name].items():
                for _ in range(_WARM_CALLS):
                    call()
                rows[name]["parts"][part]["peak_bytes"] = _peak_bytes(call)
                counts[name, part] = max(
                    _LEAST_CALLS, math.ceil(SAMPLE_SECONDS[part] / _seconds(call, 1))
                )
    for turn in range(turns):
        for part in kept:
            for name in list(calls)[:: 1 if turn % 2 == 0 else -1]:
                with about(name):
                    calls[name][part]()  # finds memory, which another may have had
                    seconds = _seconds(calls[name][part], counts[name, part])
                    rows[name]["parts"][part]["seconds"].append(seconds)
    for name in list(calls) if profiled else ():
        note(name)
        for part in kept:
            found = workload.attempt(_profiled, calls[name][part])
            if isinstance(found, Exception):
                if workload.gpu_is_lost():
                    raise found
                found = {"unprofiled": str(found)}
            rows[name]["parts"][part] |= found
    return {name: rows[name] for name in names}


class _Bench:
    """Weights, tokens and cotangents of a point, which all its providers share."""

    def __init__(self, point: Point):
        import torch

        size, dtype = point.shape, getattr(torch, DTYPE)
        self._point = point
        self._weights = random_weights(size, dtype, DEVICE)
        shape = point.batch, point.context
        drawn = torch.randint(size.vocabulary, (shape[0], shape[1] + 1), device=DEVICE)
        self._tokens, self._targets = drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()
        self._x, self._cotangent = (
            torch.randn(*shape, size.width, device=DEVICE).to(dtype) for _ in range(2)
        )
        self._x.requires_grad_()

    def checked(self, name: str, parts: Sequence[str]) -> Network:
        """The network of a provider, whose parts compute what they should.

        Of a step a layer is checked, and the head with the loss.

        Raises
        ------
        Unavailable
            If the provider is not installed.
        AssertionError
            If an output or a gradient differs from float32's by more than ``BOUND``.
        """
        provider = PROVIDERS[name]
        network = Network(provider.functions(), self._point, self._weights, provider.backend)
        found = self._results(parts, network, self._weights, self._x, self._cotangent)
        expected = self._expected(parts, reference(provider))
        for given, exact in zip(found, expected, strict=True):
            for what, value in given.items():
                error = relative_error(value, exact[what])
                if not error <= BOUND:  # also of NaN
                    said = f"differs from float32's by {error:.2g} of its norm, at most {BOUND:g}"
                    raise AssertionError(f"{name}: {what} {said}")
        del found, expected
        _free()
        return network

    def call(self, network: Network, part: str) -> Callable[[], object]:
        """What is timed of a part, as a function without arguments."""
        import torch

        if part == ATTENTION:
            return lambda: _attention(network, self._weights.layers[0], self._x, self._cotangent)
        leaves = self._weights.leaves()
        return lambda: torch.autograd.grad(network.loss(self._tokens, self._targets), leaves)

    def _expected(self, parts, functions: Functions) -> Iterator[dict]:
        exact = self._weights.in_float32()
        network = Network(functions, self._point, exact)
        x = self._x.detach().float().requires_grad_()
        return self._results(parts, network, exact, x, self._cotangent.float())

    def _results(self, parts, network, weights: Weights, x, cotangent) -> Iterator[dict]:
        """Outputs and gradients of what the parts are made of, by name."""
        import torch

        given = weights.layers[0], x, cotangent
        if ATTENTION in parts:
            yield _attention(network, *given)
        if STEP in parts:
            yield _through("layer", network.layer, Layer._fields, *given, network.tables)
            leaves = {"head.x": x, "head.norm": weights.norm, "head.head": weights.head}
            loss = network.head(weights.norm, weights.head, x, self._targets)
            gradients = torch.autograd.grad(loss, list(leaves.values()))
            yield {"loss": loss} | dict(zip(leaves, gradients, strict=True))


def _attention(network: Network, weights: Layer, x, cotangent) -> dict:
    used = ("q", "k", "v", "out")
    return _through("attention", network.attention, used, weights, x, cotangent, network.tables)


def _through(
    name: str, function: Callable, used: Sequence[str], weights: Layer, x, cotangent, tables
) -> dict:
    """The output of a layer's function, and the gradients of ``x`` and of the weights it used."""
    import torch

    out = function(weights, x, tables)
    leaves = {f"{name}.x": x} | {f"{name}.{each}": getattr(weights, each) for each in used}
    gradients = torch.autograd.grad(out, list(leaves.values()), cotangent)
    return {f"{name}.output": out} | dict(zip(leaves, gradients, strict=True))


def relative_error(found, expected) -> float:
    """The L2 norm of the difference, as a share of the expected one's."""
    difference = found.detach().float() - expected.detach().float()
    return (difference.norm() / expected.detach().float().norm()).item()


def _seconds(call: Callable, count: int) -> float:
    """Seconds of a call, the mean of so many in a row; what the GPU waits for the host counts."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3 / count


def _peak_bytes(call: Callable) -> int:
    """The most GPU memory that tensors take during a call, weights included."""
    import torch

    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def _profiled(call: Callable) -> dict:
    """Launches of a call, and the backend of its attention; or why they cannot be had."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with tempfile.TemporaryDirectory() as scratch:
        trace = Path(scratch, "trace.json")
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            call()
            torch.cuda.synchronize()
        profiler.export_chrome_trace(str(trace))
        return summary(json.loads(trace.read_text())["traceEvents"])


def summary(events: Iterable[dict]) -> dict:
    """What a profile of one call says, from the events of its Chrome trace."""
    work = [event for event in events if event.get("cat") in _WORK]
    kernels = [event["name"].lower() for event in work if event["cat"] == "kernel"]
    if not kernels:
        return {"unprofiled": "PyTorch's profiler saw no kernel: it needs CUPTI's rights"}
    found = dict.fromkeys(
        next((backend for part, backend in _BACKENDS if part in kernel), "") for kernel in kernels
    )
    return {"launches": len(work), "sdpa": " and ".join(filter(None, found)) or "math"}


def _free() -> None:
    import torch

    gc.collect()
    torch.cuda.empty_cache()
