"""Outcomes of cells: the samples of each, n/a or what went wrong, whatever the others do."""

import contextlib
import gc
import itertools
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..subject import Cell, Unavailable
from ..system import process, progress
from . import gpu_timer, timed_cell

_Cell = TypeVar("_Cell", bound=Cell)


@dataclass(frozen=True)
class Outcome:
    """The samples of a cell, or why there are none.

    ``latency`` and ``copy`` are paired samples in seconds per call, of the cell and of ``copy_`` of
    the same bytes. ``roofline``, which pairs with the first of them, is of a copy that reads what
    the call does besides; empty where that is not known. ``unavailable`` says why the cell cannot
    be measured here (n/a), ``error`` what went wrong.
    """

    latency: tuple[float, ...] = ()
    copy: tuple[float, ...] = ()
    unavailable: str = ""
    error: str = ""
    roofline: tuple[float, ...] = ()


def measure_cells(
    cells: Sequence[_Cell],
    direction: str,
    finished: Callable[[_Cell, Outcome], object] = lambda cell, outcome: None,
    together: bool = True,
) -> dict[_Cell, Outcome]:
    """Measure cells of one suite in the given order in this process; a bad cell costs only itself.

    After a fault that ends a process's use of the GPU, a fresh process measures the other cells.
    ``finished`` is called for each cell as soon as its outcome is known here. ``together``: whether
    consecutive cells of one point take turns; one that fails there is measured again, alone.
    """
    reason = why_no_gpu()
    if reason:
        for suite in dict.fromkeys(cell.suite for cell in cells):
            progress.report(f"{suite}.{direction.capitalize()}: n/a, {reason}")
        return _all_finished(dict.fromkeys(cells, Outcome(unavailable=reason)), finished)
    gpu_timer.warm_up()
    outcomes: dict[_Cell, Outcome] = {}
    start = time.monotonic()
    ahead: dict[_Cell, Outcome] = {}
    points = _points(cells) if together else {}
    for count, cell in enumerate(cells, 1):
        if cell in points:
            ahead = _together(points[cell], direction)
            clean_up()
            if gpu_is_lost():  # whose fault it is shows where each is alone
                rest = _measure_in_fresh_process(cells[count - 1 :], direction)
                return outcomes | _all_finished(rest, finished)
        outcomes[cell] = ahead.get(cell) or _outcome(cell, direction)
        finished(cell, outcomes[cell])
        if count % 12 == 0 or count == len(cells):
            seconds = time.monotonic() - start
            done = f"{count}/{len(cells)} cells, {seconds:.0f} s"
            progress.report(f"{cell.suite} {direction}: {done}")
        if outcomes[cell].error and gpu_is_lost():
            rest = _measure_in_fresh_process(cells[count:], direction)
            return outcomes | _all_finished(rest, finished)
    return outcomes


def _all_finished(outcomes: dict[_Cell, Outcome], finished: Callable) -> dict[_Cell, Outcome]:
    for cell, outcome in outcomes.items():
        finished(cell, outcome)
    return outcomes


def gpu_is_lost() -> bool:
    """Whether a fault, e.g. an illegal address, fails every later GPU call of this process."""
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def ends_use(answer) -> bool:
    """Whether an answer of :func:`attempt` is a fault that ended the process's use of the GPU."""
    return isinstance(answer, RuntimeError) and gpu_is_lost()


def _measure_in_fresh_process(cells: Sequence[_Cell], direction: str) -> dict[_Cell, Outcome]:
    try:
        return process.call(_after_fault, cells, direction, seconds=None)
    except RuntimeError as error:
        problem = f"after another cell's fault: {error}"
        return dict.fromkeys(cells, Outcome(error=problem))


def _after_fault(cells: Sequence[_Cell], direction: str) -> dict[_Cell, Outcome]:
    """Outcomes in a fresh process. A GPU that was there and is gone is an error, not n/a."""
    if reason := why_no_gpu():
        return dict.fromkeys(cells, Outcome(error=f"after another cell's fault: {reason}"))
    return measure_cells(cells, direction, together=False)


def why_no_gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        return "no NVIDIA GPU: torch.cuda.is_available() is False"
    return ""


def require_gpu() -> None:
    """Raise Unavailable, which says why, where there is no GPU."""
    if reason := why_no_gpu():
        raise Unavailable(reason)


def _points(cells: Sequence[_Cell]) -> dict[_Cell, list[_Cell]]:
    """The cells of each point that has several, and room for them in memory, by the first."""
    by_point = itertools.groupby(cells, lambda cell: cell.point)
    groups = itertools.chain.from_iterable(timed_cell.groups(list(same)) for _, same in by_point)
    return {group[0]: group for group in groups if len(group) > 1}


def _together(cells: Sequence[_Cell], direction: str) -> dict[_Cell, Outcome]:
    """The outcomes of cells of one point whose calls took turns: of those that are right.

    What is wrong with the others shows where they are measured alone; it may be their company.
    """
    timed: dict[_Cell, timed_cell.TimedCell] = {}
    outcomes = {}
    for cell in cells:
        with contextlib.suppress(Exception):
            beside = next(iter(timed.values()), None)
            timed[cell] = timed_cell.TimedCell(cell, (direction,), copies=True, beside=beside)
    with contextlib.suppress(Exception):
        timed_cell.sample(list(timed.values()), gpu_timer.SAMPLES, gpu_timer.SAMPLE_SECONDS)
        for cell, recorded in timed.items():
            with contextlib.suppress(Exception):
                outcomes[cell] = _measured(recorded.checked())
    return outcomes


def _measured(samples: Sequence[Sequence[float]]) -> Outcome:
    latency, copy, *more = map(tuple, samples)
    return Outcome(latency, copy, roofline=more[0] if more else ())


def clean_up() -> None:
    """Leave memory as if nothing had been measured."""
    import torch

    gc.collect()
    # What is left is the libraries', and stays: looking through it after each cell takes 0.1 s.
    gc.freeze()
    with contextlib.suppress(RuntimeError):  # of a GPU that is lost, see gpu_is_lost
        torch.cuda.empty_cache()


def _outcome(cell: Cell, direction: str) -> Outcome:
    try:
        return _measured(timed_cell.checked_samples(cell, (direction,), copies=True))
    except Exception as error:
        return Outcome(**no_figures(error))
    finally:
        clean_up()


def cannot_be_had(error: Exception) -> bool:
    """Whether the error means n/a here or at this commit, rather than a failure."""
    import torch

    if isinstance(error, ModuleNotFoundError):  # the package is not installed: no commit's property
        return False
    return isinstance(error, (NotImplementedError, ImportError, torch.cuda.OutOfMemoryError))


def why_not(error: Exception) -> str:
    """Why there is no figure: a line if it cannot be had, else the traceback."""
    if not cannot_be_had(error):
        return "".join(traceback.format_exception(error))
    if isinstance(error, Unavailable):
        return str(error)
    if isinstance(error, (NotImplementedError, ImportError)):
        return f"this commit cannot: {error}"
    return f"does not fit in the GPU's memory: {error}"


def no_figures(error: Exception) -> dict[str, Any]:
    """``unavailable``, why there is no figure here or at this commit, or ``error``, what failed."""
    return {"unavailable" if cannot_be_had(error) else "error": why_not(error)}


def attempt(function: Callable, *args):
    """The function's result, or an exception that pickles in place of the one it raised.

    ``NotImplementedError`` for what cannot be had, else ``RuntimeError`` with the traceback.
    """
    try:
        return function(*args)
    except Exception as error:
        kind = NotImplementedError if cannot_be_had(error) else RuntimeError
        return kind(why_not(error))
