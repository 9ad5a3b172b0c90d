"""What a call costs besides its GPU time: host time, compilation, memory, launches, rounding.

Functions for a process that may use the GPU. Answers are keyed by (metric, params): asv's name of
the benchmark and its parameters as strings. Where there is no answer stands the exception that says
why: ``NotImplementedError`` for what cannot be had (no GPU, a commit without the feature),
``RuntimeError`` with the traceback for what went wrong.
"""

import gc
import itertools
import time
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, MutableMapping

from . import _calls, _first_call, _process, _progress, _workload
from . import _host_error as _errors
from . import _host_inputs as _inputs
from . import _host_steps as _steps
from ._grid import BACKWARD, FORWARD

Key = tuple[str, tuple[str, ...]]
Measures = MutableMapping[str, Callable]

CALL_FORWARD = "host.Call.track_forward"
CALL_FORWARD_BACKWARD = "host.Call.track_forward_backward"
COMPILE = "host.FirstCall.track_compile"
WARM_START = "host.FirstCall.track_warm_start"
OWN_START = "host.FirstCall.track_own_start"
PEAK_BYTES = "host.Memory.track_peak_bytes"
LAUNCHES = "host.Launches.track_launches"
ERROR = "host.Error.track_error"
PATH_FORWARD = "host.PathCall.track_forward"
PATH_FORWARD_BACKWARD = "host.PathCall.track_forward_backward"
PATH_PEAK_BYTES = "host.PathMemory.track_peak_bytes"
PATH_LAUNCHES = "host.PathLaunches.track_launches"
PATH_ERROR = "host.PathError.track_error"
PATH_METRICS = (*(PATH_FORWARD, PATH_FORWARD_BACKWARD, PATH_PEAK_BYTES, PATH_LAUNCHES, PATH_ERROR),)

_WARM_CALLS, _BLOCKS = 50, 15
# There are many paths, and each says something of the others.
_PATH_BLOCKS = 5
# Two launches each: far from the thousand that fill the queue to the GPU, where a call would wait.
_BLOCK_CALLS = 200


# --- what is asked for ----------------------------------------------------------------------------


def call_samples() -> dict[Key, list[float] | Exception]:
    """Host seconds of an eager call through the public API, ``_BLOCKS`` samples for each key."""
    keys = itertools.product((CALL_FORWARD, CALL_FORWARD_BACKWARD), [(f,) for f in _inputs.FORMATS])
    return _answers_or_reason("host.Call", list(keys))


def path_call_samples() -> dict[Key, list[float] | Exception]:
    """The same of the other paths, ``_PATH_BLOCKS`` samples for each key."""
    keys = _path_keys(PATH_FORWARD, {"path": _inputs.PATHS})
    keys += _path_keys(PATH_FORWARD_BACKWARD, {"path": _inputs.PATHS})
    return _answers_or_reason("host.PathCall", keys)


def memory_facts() -> dict[Key, int | Exception]:
    """Peak bytes of a call: see :func:`_host_steps.peak_bytes`. Exact."""
    return _answers_or_reason("host.Memory", _keys(PEAK_BYTES, _steps.PARAMS))


def launch_facts() -> dict[Key, int | Exception]:
    """GPU launches of a call: see :func:`_host_steps.launches`. Exact."""
    return _answers_or_reason("host.Launches", _keys(LAUNCHES, _steps.PARAMS))


def path_memory_facts() -> dict[Key, int | Exception]:
    """Peak bytes of a call of another path: see :func:`_host_steps.path_peak_bytes`. Exact."""
    return _answers_or_reason("host.PathMemory", _path_keys(PATH_PEAK_BYTES, _steps.PATH_PARAMS))


def path_launch_facts() -> dict[Key, int | Exception]:
    """GPU launches of a call of another path: see :func:`_host_steps.path_launches`. Exact."""
    return _answers_or_reason("host.PathLaunches", _path_keys(PATH_LAUNCHES, _steps.PATH_PARAMS))


def path_error_facts() -> dict[Key, float | Exception]:
    """Error of another path's result: see :func:`_host_error.path_error`. Exact."""
    return _answers_or_reason("host.PathError", _path_keys(PATH_ERROR, _errors.PATH_PARAMS))


def error_facts() -> dict[Key, float | Exception]:
    """Error of the result against float64: see :func:`_host_error.error`. Exact."""
    return _answers_or_reason("host.Error", _keys(ERROR, _errors.PARAMS))


def exact_facts() -> dict[Key, float | Exception]:
    """All that repeats to the last digit: memory, launches and error."""
    steps = [key for metric in (PEAK_BYTES, LAUNCHES) for key in _keys(metric, _steps.PARAMS)]
    steps += _keys(ERROR, _errors.PARAMS)
    for metric in (PATH_PEAK_BYTES, PATH_LAUNCHES):
        steps += _path_keys(metric, _steps.PATH_PARAMS)
    return _answers_or_reason("host", steps + _path_keys(PATH_ERROR, _errors.PATH_PARAMS))


def first_call_samples() -> dict[Key, list[float] | Exception]:
    """Seconds of the first call of a process: ``COMPILE``, ``WARM_START`` and ``OWN_START``.

    ``_first_call.PROCESSES`` samples each, every one of a fresh process.
    """
    keys = [(metric, ()) for metric in (COMPILE, WARM_START, OWN_START)]
    reason = _why_no_gpu("host.FirstCall")
    found = NotImplementedError(reason) if reason else _workload.attempt(_first_call.samples)
    if isinstance(found, Exception):
        return dict.fromkeys(keys, found)
    return dict(zip(keys, map(list, zip(*found, strict=True)), strict=True))


def first_call_here(metric: str) -> dict[Key, list[float] | Exception]:
    """A sample of ``COMPILE`` or ``WARM_START`` from this process, which has called nothing yet."""
    seconds = _first_call.answer()
    return {(metric, ()): seconds if isinstance(seconds, Exception) else [seconds]}


def _keys(metric: str, params: Mapping[str, Iterable]) -> list[Key]:
    return [(metric, tuple(map(str, values))) for values in itertools.product(*params.values())]


def _path_keys(metric: str, params: Mapping[str, Iterable]) -> list[Key]:
    """Those of a path that has no backward pass only of its forward."""
    axis = list(params).index("path")
    return [
        (metric, values)
        for metric, values in _keys(metric, params)
        if _has_backward(values[axis]) or not _needs_backward(metric, values)
    ]


def _has_backward(path: str) -> bool:
    return BACKWARD in _inputs.path_call_cell(path).directions


def _needs_backward(metric: str, params: tuple[str, ...]) -> bool:
    return metric == PATH_FORWARD_BACKWARD or BACKWARD in params or _steps.TRAINING in params


def _answers_or_reason(title: str, keys: list[Key], *more: Measures) -> dict:
    reason = _why_no_gpu(title)
    return dict.fromkeys(keys, NotImplementedError(reason)) if reason else _answers(keys, *more)


def _why_no_gpu(title: str) -> str:
    reason = _workload.why_no_gpu()
    if reason:
        _progress.report(f"{title}: n/a, {reason}")
    return reason


def _answers(keys: list[Key], *more: Measures) -> dict:
    """Answer in the given order; after a fault that ends a process's use of the GPU, in another.

    ``more``: measures beside this module's, which can be pickled.
    """
    found, measures = {}, ChainMap(_MEASURES, *more)
    for count, (metric, params) in enumerate(keys, 1):
        found[metric, params] = _workload.attempt(measures[metric], *params)
        if isinstance(found[metric, params], RuntimeError) and _workload.gpu_is_lost():
            return found | _answers_of_fresh_process(keys[count:], *more)
    return found


def _answers_of_fresh_process(keys: list[Key], *more: Measures) -> dict:
    if not keys:
        return {}
    found = _workload.attempt(_process.call, _answers, keys, *more)
    return dict.fromkeys(keys, found) if isinstance(found, Exception) else found


# --- host time ------------------------------------------------------------------------------------


def call_seconds(metric: str, format: str) -> list[float]:
    """Host seconds of a call on a tensor so small that the GPU is never waited for.

    Parameters
    ----------
    metric : str
        ``CALL_FORWARD``: of a tensor without gradient; ``CALL_FORWARD_BACKWARD``: forward, and the
        gradient by ``torch.autograd.grad``.
    format : str
        One of ``_inputs.FORMATS``.

    Raises
    ------
    AssertionError
        If the call's result is wrong.
    """
    import torch

    from rope_triton import apply_rotary_pos_emb

    cell = _inputs.call_cell(format)
    freqs = _inputs.freqs_of_cell(cell)
    x, t = _inputs.values(cell), _inputs.values(cell).requires_grad_()

    def forward():
        return apply_rotary_pos_emb(x, freqs, tensor_format=format)

    def forward_backward():
        output = apply_rotary_pos_emb(t, freqs, tensor_format=format)
        return torch.autograd.grad(output, t, x)[0]

    alone = metric == CALL_FORWARD
    call, direction = (forward, FORWARD) if alone else (forward_backward, BACKWARD)
    _calls.check(call(), x, _calls.of(cell, freqs), direction)
    return _host_seconds(call, _BLOCKS)


def path_call_seconds(metric: str, path: str) -> list[float]:
    """The same of a call of one of ``_inputs.PATHS``.

    Parameters
    ----------
    metric : str
        ``PATH_FORWARD`` or ``PATH_FORWARD_BACKWARD``, as for :func:`call_seconds`.
    path : str
        One of ``_inputs.PATHS``.

    Raises
    ------
    AssertionError
        If the call's result is wrong.
    """
    call = _inputs.path_call(_inputs.path_call_cell(path))
    return eager_seconds(call, FORWARD if metric == PATH_FORWARD else BACKWARD, _PATH_BLOCKS)


def eager_seconds(call, direction: str, blocks: int) -> list[float]:
    """Host seconds of a call of any suite, forward or forward and backward, a sample a block.

    Raises
    ------
    AssertionError
        If the call's result is wrong.
    """
    x = _inputs.values(call.cell)
    rotate = _rotation(call, direction, x)
    _workload.check_once(call, direction, rotate, x)
    return _host_seconds(rotate, blocks)


def _rotation(call, direction: str, x) -> Callable:
    """Forward of ``x``, or forward and the gradient for the cotangent ``x``."""
    import torch

    operand, cotangent = call.operand(x), call.cotangent(x)
    if direction == FORWARD:
        return lambda: call.forward(operand)
    leaf = call.leaf(_inputs.values(call.cell))

    def forward_backward():
        gradients = torch.autograd.grad(call.forward(leaf), leaf, cotangent)
        return gradients if isinstance(leaf, tuple) else gradients[0]

    return forward_backward


def _host_seconds(call: Callable, blocks: int) -> list[float]:
    """Host seconds a call, a sample for each block of calls; no garbage collection meanwhile."""
    import torch

    for _ in range(_WARM_CALLS):
        call()
    samples, collecting = [], gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for _ in range(blocks):
            torch.cuda.synchronize()  # every block finds the queue empty, and does not wait for it
            start = time.perf_counter()
            for _ in range(_BLOCK_CALLS):
                call()
            samples.append((time.perf_counter() - start) / _BLOCK_CALLS)
        torch.cuda.synchronize()
    finally:
        if collecting:
            gc.enable()
    return samples


_MEASURES: dict[str, Callable] = {
    CALL_FORWARD: lambda format: call_seconds(CALL_FORWARD, format),
    CALL_FORWARD_BACKWARD: lambda format: call_seconds(CALL_FORWARD_BACKWARD, format),
    PEAK_BYTES: _steps.peak_bytes,
    LAUNCHES: _steps.launches,
    ERROR: _errors.error,
    PATH_FORWARD: lambda path: path_call_seconds(PATH_FORWARD, path),
    PATH_FORWARD_BACKWARD: lambda path: path_call_seconds(PATH_FORWARD_BACKWARD, path),
    PATH_PEAK_BYTES: _steps.path_peak_bytes,
    PATH_LAUNCHES: _steps.path_launches,
    PATH_ERROR: _errors.path_error,
}
