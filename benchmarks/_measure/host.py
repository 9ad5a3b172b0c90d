"""Measure what a call costs besides GPU time: host time, compilation, memory, launches, rounding.

Functions for a process that may use the GPU. Answers are keyed by (metric, params): asv's name of
the benchmark and its parameters as strings. An exception in place of an answer says why there is
none: ``NotImplementedError`` for what cannot be had (no GPU, a commit without the feature),
``RuntimeError`` with the traceback for what went wrong.
"""

from collections import ChainMap
from collections.abc import Callable, MutableMapping

from .._subjects.rope import subjects
from .._subjects.rope.forms import BACKWARD, FORWARD
from .._subjects.rope.subjects import Key
from .._system import process, progress
from . import accuracy, cell_outcomes, first_call, host_time, memory_and_launches

Measures = MutableMapping[str, Callable]

REFERENCE_CALLS = {each: f"host.ReferenceCall.{each}" for each in (FORWARD, BACKWARD)}


def _of_step(measure: Callable) -> Callable:
    cell = memory_and_launches.step_cell
    return lambda step, format, dtype, layout: measure(step, cell(format, dtype), layout)


def _of_path_step(measure: Callable) -> Callable:
    return lambda step, path: measure(step, memory_and_launches.path_step_cell(path))


_MEASURES: Measures = {
    subjects.CALL_FORWARD: lambda format: host_time.call(FORWARD, format),
    subjects.CALL_FORWARD_BACKWARD: lambda format: host_time.call(BACKWARD, format),
    subjects.PATH_FORWARD: lambda path: host_time.path_call(FORWARD, path),
    subjects.PATH_FORWARD_BACKWARD: lambda path: host_time.path_call(BACKWARD, path),
    REFERENCE_CALLS[FORWARD]: lambda: host_time.reference_call(FORWARD),
    REFERENCE_CALLS[BACKWARD]: lambda: host_time.reference_call(BACKWARD),
    subjects.PEAK_BYTES: _of_step(memory_and_launches.peak_bytes),
    subjects.LAUNCHES: _of_step(memory_and_launches.launches),
    subjects.ERROR: accuracy.error,
    subjects.PATH_PEAK_BYTES: _of_path_step(memory_and_launches.peak_bytes),
    subjects.PATH_LAUNCHES: _of_path_step(memory_and_launches.launches),
    subjects.PATH_ERROR: accuracy.path_error,
}
"""How each metric is measured; a measure that returns a call is answered with the call's times."""


def answers(*suites: str) -> dict[Key, list[float] | float | Exception]:
    """The answers of asv's classes of ``host``, e.g. "host.Call": host seconds, or exact values."""
    return answers_or_reason(" ".join(suites), subjects.host_keys(*suites))


def exact_facts() -> dict[Key, float | Exception]:
    """All that repeats to the last digit: memory, launches and error."""
    return answers_or_reason("host", subjects.host_keys(*subjects.EXACT))


def all_call_samples() -> tuple[dict[Key, list[float] | Exception], dict[str, list[float]]]:
    """Host seconds of all calls, and by metric those of a reference call, clocked in turns with it.

    Raises
    ------
    RuntimeError
        If a reference call, which is PyTorch's alone, fails where calls do not.
    """
    references: list[Key] = [(metric, ()) for metric in REFERENCE_CALLS.values()]
    found = answers_or_reason("host.Call", subjects.host_keys(*subjects.CALLS) + references)
    samples = {key[0]: found.pop(key) for key in references}
    if not any(isinstance(answer, list) for answer in found.values()):
        return found, {}
    for answer in samples.values():
        if isinstance(answer, Exception):
            raise RuntimeError(f"a reference call failed: {answer}")
    forward, backward = samples.values()
    with_backward = (subjects.CALL_FORWARD_BACKWARD, subjects.PATH_FORWARD_BACKWARD)
    return found, {metric: backward if metric in with_backward else forward for metric, _ in found}


def first_call_samples() -> dict[Key, list[float] | Exception]:
    """Seconds of a process's start: ``IMPORT``, ``COMPILE``, ``WARM_START`` and ``OWN_START``.

    ``first_call.PROCESSES`` samples each, every one of a fresh process.
    """
    keys = subjects.host_keys(subjects.FIRST_CALL)
    reason = _why_no_gpu(subjects.FIRST_CALL)
    found = NotImplementedError(reason) if reason else cell_outcomes.attempt(first_call.samples)
    if isinstance(found, Exception):
        return dict.fromkeys(keys, found)
    return dict(zip(keys, map(list, zip(*found, strict=True)), strict=True))


def warm_start_here() -> dict[Key, list[float] | Exception]:
    """A sample of ``WARM_START`` from this process, which has called nothing yet."""
    return _one_sample(subjects.WARM_START, first_call.answer())


def compile_here() -> dict[Key, list[float] | Exception]:
    """A sample of ``COMPILE`` from this process, which may have called anything.

    Shorter than the first call of a process, because Triton has started.
    """
    return _one_sample(subjects.COMPILE, first_call.compile_seconds())


def _one_sample(metric: str, seconds: float | Exception) -> dict[Key, list[float] | Exception]:
    return {(metric, ()): seconds if isinstance(seconds, Exception) else [seconds]}


def answers_or_reason(title: str, keys: list[Key], *more: Measures) -> dict:
    """Answer in the given order, or say under the title why there is no GPU to ask.

    ``more``: measures beside this module's, which can be pickled.
    """
    reason = _why_no_gpu(title)
    return dict.fromkeys(keys, NotImplementedError(reason)) if reason else _answers(keys, *more)


def _why_no_gpu(title: str) -> str:
    reason = cell_outcomes.why_no_gpu()
    if reason:
        progress.report(f"{title}: n/a, {reason}")
    return reason


def _answers(keys: list[Key], *more: Measures) -> dict:
    """Answer in the given order; after a fault that ends a process's use of the GPU, in another."""
    found: dict = {}
    measures = ChainMap(_MEASURES, *more)
    for metric, params in keys:
        found[metric, params] = cell_outcomes.attempt(measures[metric], *params)
        if cell_outcomes.ends_use(found[metric, params]):
            break
    else:
        found |= host_time.times({key: call for key, call in found.items() if _is_call(call)})
    rest = [key for key in keys if key not in found or _is_call(found[key])]
    found |= _answers_of_fresh_process(rest, *more)
    return {key: found[key] for key in keys}


def _is_call(answer: object) -> bool:
    return isinstance(answer, host_time.EagerCall)


def _answers_of_fresh_process(keys: list[Key], *more: Measures) -> dict:
    if not keys:
        return {}
    found = cell_outcomes.attempt(process.call, _answers, keys, *more)
    return dict.fromkeys(keys, found) if isinstance(found, Exception) else found
