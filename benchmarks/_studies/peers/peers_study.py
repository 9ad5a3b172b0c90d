"""The study ``peers``: this package and other libraries, timed on one GPU by experiments."""

import argparse
import contextlib
import functools
import itertools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..._engine.measure import cell_outcomes, inputs, timed_cell
from ..._engine.system import process
from ..._engine.system.process import ROOT
from ..._engine.system.progress import say
from .. import runner
from ..runner import Keep, Notes, Part, Place, StudyError, Task
from . import plots, state, tables, targets
from .experiments import EXPERIMENTS, GRIDS, Experiment, Timing, measured, planned
from .peer_cells import PeerCell
from .providers import PROVIDERS
from .state import Results, Row

EVIDENCE = ROOT / "benchmarks" / "evidence" / "sweep"
"""What ships: a directory for each machine, by asv's name of it."""

# What libraries are called where they are installed: their versions are part of what is measured.
_DISTRIBUTIONS = (
    *("transformer-engine", "flash-attn", "liger-kernel", "flash-linear-attention", "fla-core"),
    # Liger chooses another kernel where CuTe DSL is installed.
    *("quack-kernels", "nvidia-cutlass-dsl"),
    *("transformers", "vllm", "flashinfer-python", "unsloth", "xformers"),
)
# What says how a cell is measured: a change of it is another measurement.
_MEASURING = (
    *("_subjects/**/*.py", "_studies/compiling.py", "_studies/peers/*.py"),
    *(
        f"_engine/measure/{name}.py"
        for name in ("gpu_timer", "roofline", "timed_cell", "inputs", "cell_outcomes")
    ),
)
# For one process: it takes up to half a minute to start with all libraries, and a kill loses its
# work. Timings of various kernels are many, and have to be soon done.
_GROUP_TIMINGS, _VARIOUS_TIMINGS = 36, 2000
_COMPILING = 12  # processes that compile at the same time, at most
_TIMING_SECONDS, _VARIOUS_SECONDS, _COMPILE_SECONDS = 1.0, 0.2, 0.3  # estimates, of each timing


def _parts(options: argparse.Namespace, place: Place) -> list[Part]:
    commit = place.version.sha
    if not commit:
        raise StudyError(
            "rope_triton differs from HEAD, under which the results would be filed: commit it"
        )
    providers = [name for name in options.only if name in PROVIDERS]
    names = [name for name in options.only if name in EXPERIMENTS] or EXPERIMENTS
    parts: list[Part] = []
    for name in dict.fromkeys(names):
        experiment = planned(name, options.grid, commit)
        experiment = experiment.of(providers) if providers else experiment
        if not experiment.timings:
            raise StudyError(f"{name} has none of {', '.join(providers)}")
        words = [f"peers --only {name}"]
        words += [f"--grid {options.grid}"] if options.grid != "full" else []
        words += [f"--only {provider}" for provider in providers]
        header = runner.header_of(state.FORMAT, words, place, _MEASURING, _DISTRIBUTIONS)
        header |= {"experiment": name, "grid": options.grid}
        complete = options.grid == "full" and not providers
        parts.append(_Experiment(experiment, header, complete, place))
    return parts


class _Experiment(Part):
    may_differ = ("grid", "command")  # a row is the same whatever lies beside it

    def __init__(
        self, experiment: Experiment, header: dict, complete: bool, place: Place | None = None
    ):
        self.name, self.header = experiment.name, header
        self.why_not_shipped = "" if complete else "it is not the full grid with every provider"
        self._experiment, self._place = experiment, place

    def tasks(self, entries: list[dict]) -> list[Task]:
        there = state.results_of(self.header, entries).rows
        left = [timing for timing in self._experiment.timings if timing not in there]
        tasks, most, seconds = [], _GROUP_TIMINGS, _TIMING_SECONDS
        if self._experiment.various:
            most, seconds = _VARIOUS_TIMINGS, _VARIOUS_SECONDS
            if left and (place := self._place):
                label = f"compiling {len(left)} timings"
                seconds_ahead = _COMPILE_SECONDS * len(left)
                tasks.append(Task(label, seconds_ahead, lambda _: compile_ahead(left, place.uuid)))
        for group in grouped(left, most):
            label = f"{len(group)} of {len(self._experiment.timings)} timings"
            measure = functools.partial(self._measure, group)
            tasks.append(Task(label, seconds * len(group), measure))
        return tasks

    def _measure(self, timings: Sequence[Timing], keep: Keep) -> None:
        place = self._place
        assert place
        runner.in_processes(
            *(measure, timings, place.uuid),
            place=place,
            keep=lambda rows: keep(*rows),
            failed=lambda timing, why: state.as_json(
                Row(timing, cell_outcomes.Outcome(error=why), place.uuid)
            ),
        )

    def in_order(self, entries: list[dict]) -> list[dict]:
        rows = state.results_of({}, entries).rows
        timings = self._experiment.timings
        return [state.as_json(rows[timing]) for timing in timings if timing in rows]

    def page(self, header: dict, entries: list[dict], drawn: bool) -> list[str]:
        return tables.page(self._experiment, state.results_of(header, entries), drawn)

    def draw(self, header: dict, entries: list[dict], directory: Path) -> None:
        results = state.results_of(header, entries)
        for figure in self._experiment.figures:
            if figure.drawn:
                plots.draw(figure, results, directory)

    def lines(self, header: dict, entries: list[dict]) -> list[str]:
        experiment, results = self._experiment, state.results_of(header, entries)
        lines = [*tables.gain_table(experiment, results)[2:], *tables.reasons(experiment, results)]
        return lines + (targets.summary(experiment, results) if experiment.judged else [])

    def failures(self, header: dict, entries: list[dict]) -> list[str]:
        rows = state.results_of(header, self.in_order(entries)).rows.values()
        return [
            f"{row.status.upper()}: {row.timing.direction} {row.timing.cell}: {row.reason}"
            for row in rows
            if row.status in ("wrong", "failed")
        ][:10]


def grouped(timings: Sequence[Timing], most: int = _GROUP_TIMINGS) -> Iterator[list[Timing]]:
    """What one process measures: whole points, with all providers."""
    group: list[Timing] = []
    for _, at_point in itertools.groupby(timings, lambda t: (t.direction, t.cell.point)):
        point = list(at_point)
        if group and len(group + point) > most:
            yield group
            group = []
        group += point
    if group:
        yield group


def measure(timings: Sequence[Timing], alone: bool, notes: Notes, uuid: str) -> None:
    """In a fresh process: note the row of each timing as soon as it is there."""
    done = itertools.count(1)

    def finished(direction: str, cell: PeerCell, outcome: cell_outcomes.Outcome) -> None:
        notes.row(state.as_json(Row(Timing(direction, cell), outcome, uuid)))
        if alone and (following := next(done)) < len(timings):
            notes.begin(following)

    if alone:
        notes.begin(0)
    for direction, group in itertools.groupby(timings, lambda timing: timing.direction):
        cells = [timing.cell for timing in group]
        finish = functools.partial(finished, direction)
        cell_outcomes.measure_cells(cells, direction, finish, together=not alone)


def compile_ahead(timings: Sequence[Timing], uuid: str) -> None:
    """Make every call once, in processes side by side: what they compile, the caches then have.

    A kernel takes longer to compile than to time, and a process that times compiles one at a time.
    """
    cells = {timing.cell: timing.direction for timing in timings}  # the backward makes both calls
    count = max(1, min(_COMPILING, len(os.sched_getaffinity(0)) - 2, len(cells) // 8))
    jobs = [list(cells.items())[first::count] for first in range(count)]
    environment = {"CUDA_VISIBLE_DEVICES": uuid}
    with ThreadPoolExecutor(count) as pool:
        calls = [pool.submit(process.call, call_once, job, env=environment) for job in jobs]
        for error in filter(None, (call.exception() for call in calls)):
            say(f"not all is compiled: {error}")  # what is left is compiled where it is timed


def call_once(cells: Sequence[tuple[PeerCell, str]]) -> None:
    """In a fresh process: make every call once; what fails will fail again where it is timed."""
    for cell, direction in cells:
        with contextlib.suppress(Exception):
            call = cell.call(inputs.DEVICE)
            next(timed_cell.calls(call, direction, [inputs.random(cell)]))()


# --- files ----------------------------------------------------------------------------------------


def stored(directory: Path) -> dict[str, tuple[Experiment, Results]]:
    """By name, the experiments that a directory holds."""
    paths = {name: directory / f"{name}.jsonl" for name in EXPERIMENTS}
    return {name: state.read_experiment(path) for name, path in paths.items() if path.exists()}


def _stored_part(header: dict, entries: list[dict]) -> Part:
    rows = state.results_of(header, entries).rows
    name, grid = header["experiment"], header["grid"]
    planned_now = planned(name, "full", header["commit"]).timings
    complete = grid == "full" and set(planned_now) <= set(rows)
    return _Experiment(measured(name, grid, rows), header, complete)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    grid = "cells to measure; default: full"
    parser.add_argument("--grid", choices=sorted(GRIDS), default="full", help=grid)


STUDY = runner.Study(
    about="speed of this package beside other libraries",
    description="""\
Measure this package and other libraries, and write each experiment as JSON lines, Markdown, PNG and
SVG. A library that is not installed is n/a.""",
    names=lambda: (*EXPERIMENTS, *PROVIDERS),
    parts=_parts,
    evidence=lambda machine: EVIDENCE / machine,
    format=state.FORMAT,
    stored=_stored_part,
    add_arguments=_add_arguments,
)
