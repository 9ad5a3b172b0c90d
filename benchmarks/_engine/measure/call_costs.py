"""Measure what a call costs besides GPU time: host time, memory, launches, error and first calls.

Functions for a process that may use the GPU. Answers are keyed by (metric, params): asv's name of
the benchmark and its parameters as strings. An exception in place of an answer says why there is
none: ``NotImplementedError`` for what cannot be had (no GPU, a version without the feature),
``RuntimeError`` with the traceback for what went wrong.
"""

from collections.abc import Callable, Mapping

from ..subject import Eager, Subject
from ..system import process, progress
from ..verdict.metrics import COMPILE, STARTS, WARM_START
from . import accuracy, cell_outcomes, first_call, host_time, memory_and_launches

Key = tuple[str, tuple[str, ...]]
_MEASURES: dict[str, Callable] = {
    "seconds": host_time.eager_call,
    "peak_bytes": memory_and_launches.peak_bytes,
    "launches": memory_and_launches.launches,
    "error": accuracy.error,
}


def exact_facts(subject: Subject) -> dict[Key, float | Exception]:
    """All of a subject's eager calls that repeats to the last digit: memory, launches and error."""
    asked = subject.eager()
    return answers("exact", {key: asked[key] for key in asked if asked[key].kind != "seconds"})


def first_call_samples(subject: Subject) -> dict[Key, list[float] | Exception]:
    """Seconds of a process's start: ``IMPORT``, ``COMPILE``, ``WARM_START`` and ``OWN_START``.

    ``first_call.PROCESSES`` samples each, every one of a fresh process.
    """
    keys: list[Key] = [(metric, ()) for metric in STARTS]
    if reason := _why_no_gpu("host.FirstCall"):
        return dict.fromkeys(keys, NotImplementedError(reason))
    rows = cell_outcomes.attempt(first_call.samples, subject)
    if isinstance(rows, Exception):
        return dict.fromkeys(keys, rows)
    return dict(zip(keys, map(list, zip(*rows, strict=True)), strict=True))


def warm_start_here(subject: Subject) -> dict[Key, list[float] | Exception]:
    """A sample of ``WARM_START`` from this process, which has called nothing yet."""
    return _one_sample(WARM_START, first_call.answer(subject.__name__))


def compile_here(subject: Subject) -> dict[Key, list[float] | Exception]:
    """A sample of ``COMPILE`` from this process, which may have called anything.

    Shorter than the first call of a process, because Triton has started.
    """
    seconds = cell_outcomes.attempt(first_call.compile_seconds, subject)
    return _one_sample(COMPILE, seconds)


def _one_sample(metric: str, seconds: float | Exception) -> dict[Key, list[float] | Exception]:
    return {(metric, ()): seconds if isinstance(seconds, Exception) else [seconds]}


def answers(title: str, asked: Mapping[Key, Eager]) -> dict:
    """Answer in this order: host seconds, or exact values.

    Without a GPU, say so under the title, and give that as the reason.
    """
    reason = _why_no_gpu(title)
    return dict.fromkeys(asked, NotImplementedError(reason)) if reason else _answers(asked)


def _why_no_gpu(title: str) -> str:
    reason = cell_outcomes.why_no_gpu()
    if reason:
        progress.report(f"{title}: n/a, {reason}")
    return reason


def _answers(asked: Mapping[Key, Eager]) -> dict:
    """Answer in this order; after a fault that ends a process's use of the GPU, in another."""
    results: dict = {}
    for key, eager in asked.items():
        results[key] = cell_outcomes.attempt(_measured, eager)
        if cell_outcomes.ends_use(results[key]):
            break
    else:
        calls = {key: result for key, result in results.items() if _is_call(result)}
        results |= host_time.times(calls)
    rest = {key: asked[key] for key in asked if key not in results or _is_call(results[key])}
    results |= _answers_of_fresh_process(rest)
    return {key: results[key] for key in asked}


def _measured(eager: Eager):
    return _MEASURES[eager.kind](eager.cell, eager.direction)


def _is_call(answer: object) -> bool:
    return isinstance(answer, host_time.EagerCall)


def _answers_of_fresh_process(asked: Mapping[Key, Eager]) -> dict:
    if not asked:
        return {}
    results = cell_outcomes.attempt(process.call, _answers, asked)
    return dict.fromkeys(asked, results) if isinstance(results, Exception) else results
