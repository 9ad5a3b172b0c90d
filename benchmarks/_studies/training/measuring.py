"""Measure the providers in one process of a GPU: they are checked, then take turns.

A step is the forward, the loss and the gradients of all weights; no optimizer. Gradients are new
tensors in each step. All networks of a process share the weights. A step is launched as users
launch it. Its parts are CUDA graphs: alone they would wait for the host, which in a step is ahead
of the GPU.
"""

import contextlib
import functools
import gc
import json
import math
import tempfile
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..._engine.measure import cell_outcomes, gpu_timer
from .functions import PROVIDERS
from .network import Layer, Network, Weights, in_float32, random_weights
from .sizes import ATTENTION, CAUSAL, CAUSAL_FORWARD, KERNELS, PARTS, PRODUCTS, STEP, Point

DEVICE, DTYPE = "cuda", "bfloat16"
TURNS = 3
"""Samples of each provider that a process takes."""
SAMPLE_SECONDS = {STEP: 0.4, ATTENTION: 0.1} | dict.fromkeys(KERNELS, 0.05)
_WARM_CALLS, _LEAST_CALLS = 2, 2

BOUND = 0.1
"""Most that an output or a gradient may differ from float32's, as a share of its L2 norm.

Of a layer of 410M on 2048 tokens, rounding to bfloat16 makes up to 0.9 % by PyTorch on a CPU, and
5.4 % by Liger's kernels on a GPU. A sine of the wrong sign, or no rotation, changes the gradients
of the matrices of queries and keys by 113 % or more.
"""

# The first that is part of a kernel's name: cuDNN's own kernels are called "flash", too.
_BACKENDS = (
    ("cudnn", "cuDNN"),
    ("flash", "flash"),
    ("fmha", "memory-efficient"),
    ("softmax", "math"),
)
_OWN_ATTENTION = ("forward_kernel", "dq_kernel", "dkv_kernel")
_MATRICES = ("qkv", "out", "gate", "up", "down")  # of a layer
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

    ``names``: in the order of their turns; every other time it is reversed. ``profiled``: whether
    launches are counted, and the kernels of attention named, by PyTorch's profiler. ``note`` gets
    the name of a provider before anything of it is called.

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
    import torch

    # CUDA graphs cannot be recorded on the default stream. On several, autograd would go on adding
    # a leaf's gradients on that of its first backward, where nothing waits for the others.
    own = torch.cuda.stream(torch.cuda.Stream()) if DEVICE == "cuda" else contextlib.nullcontext()
    try:
        with own:
            taking = _Turns(point, names, list(parts), note)
            taking.run(turns, profiled)
            return taking.rows
    finally:
        gc.unfreeze()


class _Turns:
    """Providers that go through the same stages; one that fails in a stage leaves the others.

    ``rows``: the result of each. ``_calls``: by part, what is timed of those that have not failed;
    ``_counts``: how many calls make a sample.
    """

    def __init__(self, point: Point, names: Sequence[str], parts: list[str], note: Callable):
        self.rows: dict[str, dict] = {name: {} for name in names}
        self._point, self._parts, self._note = point, parts, note
        self._inputs = _random_inputs(point)
        self._calls: dict[str, dict[str, Callable]] = {name: {} for name in names}
        self._counts: dict[tuple[str, str], int] = {}

    def run(self, turns: int, profiled: bool) -> None:
        self._stage(self._prepare)
        self._stage(self._record)  # a graph keeps memory, which would count as another's peak
        for turn in range(turns):
            for part in self._parts:
                sample = functools.partial(self._sample, part)
                self._stage(sample, part, backwards=turn % 2 == 1)
        if profiled:
            self._stage(self._profile)

    def _stage(self, step: Callable[[str], None], part: str = "", backwards: bool = False) -> None:
        """Call the step for each provider that has not failed, and has the part, if any."""
        names = [name for name, calls in self._calls.items() if not part or part in calls]
        for name in reversed(names) if backwards else names:
            self._note(name)
            try:
                step(name)
            except Exception as error:
                if cell_outcomes.gpu_is_lost():
                    raise
                self.rows[name] = cell_outcomes.no_figures(error)
                del self._calls[name]
                traceback.clear_frames(error.__traceback__)  # they hold what was allocated
                gc.unfreeze()  # else what this one leaves would stay
                cell_outcomes.clean_up()

    def _prepare(self, name: str) -> None:
        parts = PROVIDERS[name].parts(self._parts)
        network = _checked(name, self._point, self._inputs, parts)
        cell_outcomes.clean_up()  # looking through the libraries' objects took a sixth of a round
        self.rows[name] = {"parts": {part: {"seconds": []} for part in parts}}
        self._calls[name] = {part: _call(network, self._inputs, part) for part in parts}
        for part, call in self._calls[name].items():
            for _ in range(_WARM_CALLS):
                call()
            self.rows[name]["parts"][part]["peak_bytes"] = _peak_bytes(call)

    def _record(self, name: str) -> None:
        for part, call in self._calls[name].items():
            if part != STEP:
                call = self._calls[name][part] = _recorded(call)
            count = math.ceil(SAMPLE_SECONDS[part] / _seconds(call, 1))
            self._counts[name, part] = max(_LEAST_CALLS, count)

    def _sample(self, part: str, name: str) -> None:
        call = self._calls[name][part]
        call()  # finds memory, which another may have had
        seconds = _seconds(call, self._counts[name, part])
        self.rows[name]["parts"][part]["seconds"].append(seconds)

    def _profile(self, name: str) -> None:
        for part, call in self._calls[name].items():
            profile = cell_outcomes.attempt(_profiled, call)
            if cell_outcomes.ends_use(profile):
                raise profile
            if isinstance(profile, Exception):
                profile = {"unprofiled": str(profile)}
            self.rows[name]["parts"][part] |= profile


class _Inputs(NamedTuple):
    """What all providers' parts are called on; tensors of numbers require a gradient.

    ``by_width``: for the products, ``[b, s, width]`` of each width of a layer. ``heads``: queries,
    keys, values and a cotangent, ``[b, s, h, d]``.
    """

    weights: Weights
    x: Any
    cotangent: Any
    by_width: dict[int, Any]
    heads: tuple
    tokens: Any
    targets: Any


def _random_inputs(point: Point) -> _Inputs:
    import torch

    size, dtype = point.shape, getattr(torch, DTYPE)

    def normal(*shape: int):
        drawn = torch.randn(point.batch, point.context, *shape, device=DEVICE)
        return drawn.to(dtype).requires_grad_()

    weights = random_weights(size, dtype, DEVICE)
    matrices = (getattr(weights.layers[0], name) for name in _MATRICES)
    widths = sorted({width for matrix in matrices for width in matrix.shape})
    counts = size.heads, size.kv_heads, size.kv_heads, size.heads
    heads = tuple(normal(count, size.channels) for count in counts)
    x, cotangent = normal(size.width), normal(size.width)
    by_width = {width: normal(width) for width in widths}
    drawn = torch.randint(size.vocabulary, (point.batch, point.context + 1), device=DEVICE)
    tokens, targets = drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()
    return _Inputs(weights, x, cotangent, by_width, heads, tokens, targets)


def _checked(name: str, point: Point, inputs: _Inputs, parts: Sequence[str]) -> Network:
    """The network of a provider; AssertionError unless its parts compute what they should.

    Of a step a layer is checked, and the head with the loss.
    """
    provider, exact = PROVIDERS[name], in_float32(inputs)
    network = Network(provider.functions(), point, inputs.weights, provider.backend)
    reference = Network(provider.reference(), point, exact.weights)
    for results in dict.fromkeys(check for part, check in _CHECKED.items() if part in parts):
        expected = results(reference, exact)
        for what, value in results(network, inputs).items():
            error = relative_error(value, expected[what])
            if not error <= BOUND:  # also of NaN
                message = f"differs from float32's by {error:.2g} of its norm, at most {BOUND:g}"
                raise AssertionError(f"{name}: {what} {message}")
    return network


def _call(network: Network, inputs: _Inputs, part: str) -> Callable[[], object]:
    """What is timed of a part, as a function without arguments."""
    import torch

    if part == STEP:
        leaves = inputs.weights.leaves()
        return lambda: torch.autograd.grad(network.loss(inputs.tokens, inputs.targets), leaves)
    if part == CAUSAL_FORWARD:
        without = [tensor.detach() for tensor in inputs.heads[:3]]
        return lambda: network.causal(*without)
    return lambda: _CHECKED[part](network, inputs)


# Outputs and gradients by name, of a network on inputs.


def _layer_and_head(network: Network, inputs: _Inputs) -> dict:
    def both(weights, x, tables):
        normed, result = network.layer(weights, x, x, tables)
        return normed + result

    results = _through("layer", both, Layer._fields, inputs, network.tables)
    weights, x = inputs.weights, inputs.x
    leaves = {"head.x": x, "head.norm": weights.norm, "head.head": weights.head}
    loss = network.head(weights.head, network.norm(x, weights.norm), inputs.targets)
    return results | _with_gradients("loss", loss, leaves)


def _attention(network: Network, inputs: _Inputs) -> dict:
    return _through("attention", network.attention, ("qkv", "out"), inputs, network.tables)


def _through(name: str, function: Callable, used: Sequence[str], inputs: _Inputs, tables) -> dict:
    """The output of a layer's function, and the gradients of ``x`` and of the weights it used."""
    weights = inputs.weights.layers[0]
    leaves = {f"{name}.{weight}": getattr(weights, weight) for weight in used}
    leaves = {f"{name}.x": inputs.x} | leaves
    out = function(weights, inputs.x, tables)
    return _with_gradients(f"{name}.output", out, leaves, inputs.cotangent)


def _products(network: Network, inputs: _Inputs) -> dict:
    """Each matrix of a layer: the product, and the gradients of both factors."""
    results: dict = {}
    for name in _MATRICES:
        weight = getattr(inputs.weights.layers[0], name)
        x, cotangent = (inputs.by_width[width] for width in reversed(weight.shape))
        leaves = {f"{name}.x": x, f"{name}.weight": weight}
        out = network.linear(x, weight)
        results |= _with_gradients(f"{name}.output", out, leaves, cotangent)
    return results


def _causal(network: Network, inputs: _Inputs) -> dict:
    *qkv, cotangent = inputs.heads
    leaves = dict(zip("qkv", qkv, strict=True))
    return _with_gradients("output", network.causal(*qkv), leaves, cotangent)


def _with_gradients(name: str, out, leaves: dict, cotangent=None) -> dict:
    import torch

    cotangent = None if cotangent is None else cotangent.detach()
    gradients = torch.autograd.grad(out, list(leaves.values()), cotangent)
    return {name: out} | dict(zip(leaves, gradients, strict=True))


_CHECKED = {
    **{ATTENTION: _attention, PRODUCTS: _products, CAUSAL: _causal, CAUSAL_FORWARD: _causal},
    STEP: _layer_and_head,
}


def relative_error(actual, expected) -> float:
    """The L2 norm of the difference, as a share of the expected one's."""
    difference = actual.detach().float() - expected.detach().float()
    return (difference.norm() / expected.detach().float().norm()).item()


def _seconds(call: Callable, count: int) -> float:
    """The mean of so many calls in a row, with the GPU's waits for the host."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3 / count


def _recorded(call: Callable) -> Callable[[], object]:
    """What makes the same GPU work again, without the host's."""
    import torch

    return gpu_timer.Recording([call], torch.cuda.current_stream()).replay


def _peak_bytes(call: Callable) -> int:
    import torch

    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def _profiled(call: Callable) -> dict:
    import torch
    from torch.profiler import ProfilerActivity, profile

    with tempfile.TemporaryDirectory() as scratch:
        trace = Path(scratch, "trace.json")
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            call()
            torch.cuda.synchronize()
        profiler.export_chrome_trace(str(trace))
        return summary(json.loads(trace.read_bytes())["traceEvents"])


def summary(events: Iterable[dict]) -> dict:
    """What a profile of one call says, from the events of its Chrome trace."""
    work = [event for event in events if event.get("cat") in _WORK]
    kernels = [event["name"].lower() for event in work if event["cat"] == "kernel"]
    if not kernels:
        return {"unprofiled": "PyTorch's profiler saw no kernel: it needs CUPTI's rights"}
    return {"launches": len(work), "sdpa": _attention_of(kernels)}


def _attention_of(kernels: list[str]) -> str:
    """What computed attention; "" if there was none. Of the math backend the softmax tells."""
    backends = {next((which for part, which in _BACKENDS if part in name), "") for name in kernels}
    backends |= {"this package"} if not {*kernels}.isdisjoint(_OWN_ATTENTION) else set()
    fused = sorted(backends - {"", "math"})
    return " and ".join(fused) or ("math" if "math" in backends else "")
