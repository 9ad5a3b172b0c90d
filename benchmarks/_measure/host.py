"""What a call costs besides its GPU time: host time, compilation, memory, launches, rounding.

Functions for a process that may use the GPU. Answers are keyed by (metric, params): asv's name of
the benchmark and its parameters as strings. Where there is no answer stands the exception that says
why: ``NotImplementedError`` for what cannot be had (no GPU, a commit without the feature),
``RuntimeError`` with the traceback for what went wrong.
"""

import functools
from collections import ChainMap
from collections.abc import Callable, MutableMapping

from .._cells import subjects
from .._cells.forms import BACKWARD, FORWARD
from .._cells.subjects import (
    CALL_FORWARD,
    CALL_FORWARD_BACKWARD,
    ERROR,
    LAUNCHES,
    PATH_ERROR,
    PATH_FORWARD,
    PATH_FORWARD_BACKWARD,
    PATH_LAUNCHES,
    PATH_PEAK_BYTES,
    PEAK_BYTES,
    YARDSTICKS,
    Key,
    call_keys,
    exact_keys,
    first_call_keys,
    path_call_keys,
)
from .._cells.subjects import COMPILE as COMPILE
from .._cells.subjects import OWN_START as OWN_START
from .._cells.subjects import PATH_METRICS as PATH_METRICS
from .._cells.subjects import WARM_START as WARM_START
from .._cells.subjects import keys as _keys
from .._cells.subjects import path_keys as _path_keys
from .._system import process, progress
from . import accuracy, first_call, host_time, memory_and_launches, workload

Measures = MutableMapping[str, Callable]


# --- what is asked for ----------------------------------------------------------------------------


def call_samples() -> dict[Key, list[float] | Exception]:
    """Host seconds of an eager call through the public API, several samples for each key."""
    return _answers_or_reason("host.Call", call_keys())


def path_call_samples() -> dict[Key, list[float] | Exception]:
    """The same of the other paths."""
    return _answers_or_reason("host.PathCall", path_call_keys())


def all_call_samples() -> tuple[dict[Key, list[float] | Exception], dict[str, list[float]]]:
    """Both, and by metric the samples of a yardstick, one for each of theirs: of the same turn.

    Raises
    ------
    RuntimeError
        If a yardstick, which is PyTorch's alone, fails where calls do not.
    """
    yardsticks: list[Key] = [(metric, ()) for metric in YARDSTICKS.values()]
    found = _answers_or_reason("host.Call", [*call_keys(), *path_call_keys(), *yardsticks])
    samples = {key[0]: found.pop(key) for key in yardsticks}
    if not any(isinstance(answer, list) for answer in found.values()):
        return found, {}
    beside: dict[str, list[float]] = {}
    for direction, metrics in _METRICS.items():
        answer = samples[YARDSTICKS[direction]]
        if isinstance(answer, Exception):
            raise RuntimeError(f"a yardstick failed: {answer}")
        beside |= dict.fromkeys(metrics, answer)
    return found, beside


def memory_facts() -> dict[Key, int | Exception]:
    """Peak bytes of a call: see :func:`memory_and_launches.peak_bytes`. Exact."""
    return _answers_or_reason("host.Memory", _keys(PEAK_BYTES, subjects.STEP_PARAMS))


def launch_facts() -> dict[Key, int | Exception]:
    """GPU launches of a call: see :func:`memory_and_launches.launches`. Exact."""
    return _answers_or_reason("host.Launches", _keys(LAUNCHES, subjects.STEP_PARAMS))


def path_memory_facts() -> dict[Key, int | Exception]:
    """Peak bytes of a call of another path, by ``memory_and_launches``. Exact."""
    return _answers_or_reason(
        "host.PathMemory", _path_keys(PATH_PEAK_BYTES, subjects.PATH_STEP_PARAMS)
    )


def path_launch_facts() -> dict[Key, int | Exception]:
    """GPU launches of a call of another path, by ``memory_and_launches``. Exact."""
    return _answers_or_reason(
        "host.PathLaunches", _path_keys(PATH_LAUNCHES, subjects.PATH_STEP_PARAMS)
    )


def path_error_facts() -> dict[Key, float | Exception]:
    """Error of another path's result: see :func:`accuracy.path_error`. Exact."""
    return _answers_or_reason("host.PathError", _path_keys(PATH_ERROR, subjects.PATH_ERROR_PARAMS))


def error_facts() -> dict[Key, float | Exception]:
    """Error of the result against float64: see :func:`accuracy.error`. Exact."""
    return _answers_or_reason("host.Error", _keys(ERROR, subjects.ERROR_PARAMS))


def exact_facts() -> dict[Key, float | Exception]:
    """All that repeats to the last digit: memory, launches and error."""
    return _answers_or_reason("host", exact_keys())


def first_call_samples() -> dict[Key, list[float] | Exception]:
    """Seconds of the first call of a process: ``COMPILE``, ``WARM_START`` and ``OWN_START``.

    ``first_call.PROCESSES`` samples each, every one of a fresh process.
    """
    keys = first_call_keys()
    reason = _why_no_gpu("host.FirstCall")
    found = NotImplementedError(reason) if reason else workload.attempt(first_call.samples)
    if isinstance(found, Exception):
        return dict.fromkeys(keys, found)
    return dict(zip(keys, map(list, zip(*found, strict=True)), strict=True))


def first_call_here(metric: str) -> dict[Key, list[float] | Exception]:
    """A sample of ``COMPILE`` or ``WARM_START`` from this process, which has called nothing yet."""
    seconds = first_call.answer()
    return {(metric, ()): seconds if isinstance(seconds, Exception) else [seconds]}


_METRICS = {
    FORWARD: (CALL_FORWARD, PATH_FORWARD),
    BACKWARD: (CALL_FORWARD_BACKWARD, PATH_FORWARD_BACKWARD),
}


def _answers_or_reason(title: str, keys: list[Key], *more: Measures) -> dict:
    reason = _why_no_gpu(title)
    return dict.fromkeys(keys, NotImplementedError(reason)) if reason else _answers(keys, *more)


def _why_no_gpu(title: str) -> str:
    reason = workload.why_no_gpu()
    if reason:
        progress.report(f"{title}: n/a, {reason}")
    return reason


def _answers(keys: list[Key], *more: Measures) -> dict:
    """Answer in the given order; after a fault that ends a process's use of the GPU, in another.

    ``more``: measures beside this module's, which can be pickled. One that returns a call is
    answered with the times of that.
    """
    found: dict = {}
    measures = ChainMap(_MEASURES, *more)
    for metric, params in keys:
        found[metric, params] = workload.attempt(measures[metric], *params)
        if workload.ends_use(found[metric, params]):
            break
    else:
        found |= host_time.times({key: answer for key, answer in found.items() if callable(answer)})
    rest = [key for key in keys if key not in found or callable(found[key])]
    found |= _answers_of_fresh_process(rest, *more)
    return {key: found[key] for key in keys}


def _answers_of_fresh_process(keys: list[Key], *more: Measures) -> dict:
    if not keys:
        return {}
    found = workload.attempt(process.call, _answers, keys, *more)
    return dict.fromkeys(keys, found) if isinstance(found, Exception) else found


_MEASURES: dict[str, Callable] = {
    CALL_FORWARD: functools.partial(host_time.call, FORWARD),
    CALL_FORWARD_BACKWARD: functools.partial(host_time.call, BACKWARD),
    **{YARDSTICKS[each]: functools.partial(host_time.yardstick, each) for each in YARDSTICKS},
    PEAK_BYTES: memory_and_launches.peak_bytes,
    LAUNCHES: memory_and_launches.launches,
    ERROR: accuracy.error,
    PATH_FORWARD: functools.partial(host_time.path_call, FORWARD),
    PATH_FORWARD_BACKWARD: functools.partial(host_time.path_call, BACKWARD),
    PATH_PEAK_BYTES: memory_and_launches.path_peak_bytes,
    PATH_LAUNCHES: memory_and_launches.path_launches,
    PATH_ERROR: accuracy.path_error,
}
