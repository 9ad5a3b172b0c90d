"""``python -m benchmarks sweep``: measure the experiments on one GPU, and show them."""

import argparse
import contextlib
import itertools
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from ..._measure import cell_outcomes, timed_cell
from ..._system import checkout, gpu_monitor, machine, process, suite
from ..._system.arguments import some_seconds
from ..._system.journal import Journal
from ..._system.process import ROOT
from ..._system.progress import PROGRESS_VARIABLE, missing, say
from ..cells import AnyCell
from ..providers import PROVIDERS
from . import goals, plots, state, tables
from .experiments import EXPERIMENTS, GRIDS, Experiment, Timing, planned
from .state import Results, Row, SweepError

SCRATCH = ROOT / ".asv" / "sweep"
EVIDENCE = ROOT / "benchmarks" / "evidence" / "sweep"
"""What ships: a directory for each machine, by asv's name of it."""

DONE, BAD = 0, 1
# What libraries are called where they are installed: their versions are part of what is measured.
_DISTRIBUTIONS = (
    *("transformer-engine", "flash-attn", "liger-kernel", "flash-linear-attention", "fla-core"),
    # Liger chooses another kernel where CuTe DSL is installed.
    *("quack-kernels", "nvidia-cutlass-dsl"),
    *("transformers", "vllm", "flashinfer-python", "unsloth", "xformers"),
)
# What says how a cell is measured: a change of it is another sweep.
_MEASURING = (
    *("_subjects/**/*.py", "_peers/*.py"),
    *(f"_measure/{of}.py" for of in ("gpu_timer", "roofline", "timed_cell", "cell_outcomes")),
)
# For one process: it takes up to half a minute to start with all libraries, and a kill loses its
# work. Timings of various kernels are many, and have to be soon done.
_GROUP_TIMINGS, _VARIOUS_TIMINGS = 36, 2000
_COMPILING = 12  # processes that compile at the same time, at most

_DESCRIPTION = """\
Measure this package and other libraries on the first GPU that CUDA_VISIBLE_DEVICES shows, and write
each experiment as JSON lines, Markdown, PNG and SVG. If a run was stopped, the same command resumes
it. A library that is not installed is n/a. Exit status: 0 done, 1 a provider was wrong or failed,
3 could not run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add(
        "--experiment",
        choices=EXPERIMENTS,
        action="append",
        help="what to measure; may be repeated; default: all",
    )
    add(
        "--providers",
        type=_providers,
        metavar="A,B",
        help=f"some of {', '.join(PROVIDERS)}; default: all",
    )
    add("--grid", choices=sorted(GRIDS), default="full", help="cells to measure; default: full")
    add("--output", type=Path, metavar="DIR", help="where to write; default: in .asv/sweep")
    add("--ship", action="store_true", help="also write to benchmarks/evidence/sweep/MACHINE")
    waits = "how long to wait for a GPU that another measurement uses; default: 0"
    add("--wait", type=some_seconds, default=0.0, metavar="SECONDS", help=waits)
    add("--afresh", action="store_true", help="rename what was measured before, and start again")
    add("--redraw", type=Path, metavar="DIR", help="measure nothing; redraw what DIR holds")


def _providers(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in PROVIDERS]
    if unknown:
        raise argparse.ArgumentTypeError(f"providers are {', '.join(PROVIDERS)}, got {unknown}")
    return names


def run(**given) -> int:
    """Do what the arguments say; the exit status."""
    options = argparse.Namespace(**given)
    return _redraw(options) if options.redraw else _sweep(options)


# --- measure --------------------------------------------------------------------------------------


def _sweep(options: argparse.Namespace) -> int:
    if options.ship and (options.grid != "full" or options.providers):
        raise SweepError("what ships is the full grid with every provider: leave the others out")
    version = checkout.from_working_tree(ROOT, SCRATCH / "sources")
    if not version.sha:
        raise SweepError(
            "rope_triton differs from HEAD, under which the results would be filed: commit it"
        )
    record, _ = machine.probe()
    if record["gpu"] == "none":
        raise SweepError("no NVIDIA GPU: torch.cuda.is_available() is False")
    directory = SCRATCH / record["machine"] / version.sha[:8]
    uuid, statuses = gpu_monitor.gpu_uuid(), []
    with gpu_monitor.gpu_lock(uuid, options.wait):
        gpu_monitor.require_free(uuid)
        for experiment in _chosen(options, version.sha):
            head = state.header(
                experiment=experiment.name,
                grid=options.grid,
                commit=version.sha,
                machine=record,
                software=machine.versions(_DISTRIBUTIONS),
                suite=suite.digest(_MEASURING),
                command=_command(options, experiment.name),
            )
            path = directory / f"{experiment.name}.jsonl"
            if options.afresh and path.exists():
                aside = path.with_suffix(f".{time.time_ns()}.jsonl")
                say(f"renamed to {path.rename(aside)}")
            results = _measured(experiment, path, head, uuid)
            statuses.append(_shown(experiment, results, options, directory / "output"))
    return max(statuses)


def _chosen(options: argparse.Namespace, commit: str) -> list[Experiment]:
    """The experiments that were asked for, with the providers that were."""
    names = dict.fromkeys(options.experiment or EXPERIMENTS)
    chosen = [planned(name, options.grid, commit) for name in names]
    if not options.providers:
        return chosen
    kept = [each.of(options.providers) for each in chosen]
    empty = [each.name for each in kept if not each.timings]
    if empty:
        raise SweepError(f"{', '.join(empty)} has none of {', '.join(options.providers)}")
    return kept


def _command(options: argparse.Namespace, experiment: str) -> str:
    words = ["python -m benchmarks sweep", f"--experiment {experiment}"]
    words += [f"--grid {options.grid}"] if options.grid != "full" else []
    words += [f"--providers {','.join(options.providers)}"] if options.providers else []
    return " ".join(words)


def _measured(experiment: Experiment, path: Path, head: dict, uuid: str) -> Results:
    """What the journal holds when everything is measured."""
    with Journal(path, head, may_differ=state.MAY_DIFFER) as journal:
        shown = journal.header | {key: head[key] for key in state.MAY_DIFFER}
        results = state.results_of(path, shown, journal.entries)

        def keep(rows: Sequence[Row]) -> None:
            journal.append(*map(state.as_json, rows))
            results.rows.update((row.timing, row) for row in rows)

        left = [timing for timing in experiment.timings if timing not in results.rows]
        total, new, start = len(experiment.timings), 0, time.monotonic()
        if known := total - len(left):
            say(f"{experiment.name}: {known} of {total} timings are known, from {path}")
        if experiment.various and left:
            compile_ahead(left, uuid)
        for group in grouped(left, _VARIOUS_TIMINGS if experiment.various else _GROUP_TIMINGS):
            measure(group, uuid, head["machine"]["gpu"], keep)
            new, seconds = new + len(group), time.monotonic() - start
            states = Counter(results.rows[timing].status for timing in left[:new])
            say(
                f"{experiment.name}: {known + new} of {total} timings in {seconds:.0f} s, about "
                f"{(len(left) - new) * seconds / new:.0f} s left "
                f"({', '.join(f'{count} {status}' for status, count in states.items())})"
            )
        return results


def grouped(timings: Sequence[Timing], most: int = _GROUP_TIMINGS) -> Iterator[list[Timing]]:
    """What is measured by one process each: whole points, with all providers."""
    group: list[Timing] = []
    for _, found in itertools.groupby(timings, lambda t: (t.direction, t.cell.point)):
        point = list(found)
        if group and len(group + point) > most:
            yield group
            group = []
        group += point
    if group:
        yield group


def measure(
    timings: Sequence[Timing], uuid: str, model: str, keep: Callable[[Sequence[Row]], object]
) -> None:
    """Measure timings in a fresh process; one that ends early costs one timing.

    After that each timing is alone, so that it is known which is to blame. ``keep`` is called with
    the rows of each process when it ends, also where Ctrl-C ends it.

    Raises
    ------
    SweepError
        If a process cannot be started, or finds another GPU than the one it was given.
    """
    left, together = list(timings), True
    environment = {"CUDA_VISIBLE_DEVICES": uuid, PROGRESS_VARIABLE: os.devnull}
    while left:
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch, "rows.jsonl")
            lost = None
            try:
                process.call(_work, left, uuid, model, file, together, env=environment)
            except RuntimeError as error:
                lost = error
            finally:
                text = file.read_text(encoding="utf-8") if file.exists() else ""
                whole = text[: text.rfind("\n") + 1].splitlines()
                rows = [state.from_json(json.loads(line)) for line in whole]
                keep(rows)
            if lost and not file.exists():
                raise SweepError(f"no process can measure on {uuid}: {lost}") from lost
        if not rows and not together:  # else the next process begins with what may be to blame
            status, _, output = str(lost).partition("\n")
            failed = cell_outcomes.Outcome(error=f"{status}\n{output[-2000:]}")
            rows = [Row(left[0], failed, uuid)]
            keep(rows)
        left, together = left[len(rows) :], together and not lost


def _work(timings: Sequence[Timing], uuid: str, model: str, file: Path, together: bool) -> None:
    """In a fresh process that sees one GPU: add each cell's row to the file as it is known."""
    if reason := machine.why_another_gpu(uuid, model):
        raise SweepError(reason)
    with file.open("w", encoding="utf-8") as rows:

        def finished(direction: str, cell: AnyCell, outcome: cell_outcomes.Outcome) -> None:
            content = state.as_json(Row(Timing(direction, cell), outcome, uuid))
            rows.write(json.dumps(content, allow_nan=False) + "\n")
            rows.flush()

        for direction, found in itertools.groupby(timings, lambda timing: timing.direction):
            cells = [timing.cell for timing in found]
            cell_outcomes.measure_cells(cells, direction, partial(finished, direction), together)


def compile_ahead(timings: Sequence[Timing], uuid: str) -> None:
    """Make every call once, in processes side by side: what they compile, the caches then have.

    A kernel takes longer to compile than to time, and a process that times compiles one at a time.
    """
    cells = {timing.cell: timing.direction for timing in timings}  # the backward makes both calls
    count = max(1, min(_COMPILING, len(os.sched_getaffinity(0)) - 2, len(cells) // 8))
    jobs = [list(cells.items())[first::count] for first in range(count)]
    say(f"calls of {len(cells)} cells are compiled by {count} processes")
    environment = {"CUDA_VISIBLE_DEVICES": uuid}
    with ThreadPoolExecutor(count) as pool:
        ended = [pool.submit(process.call, _call_each, job, env=environment) for job in jobs]
        for error in filter(None, (each.exception() for each in ended)):
            say(f"not all is compiled: {error}")  # what is left is compiled where it is timed


def _call_each(cells: Sequence[tuple[AnyCell, str]]) -> None:
    """In a fresh process: make every call once; what fails will fail again where it is timed."""
    for cell, direction in cells:
        with contextlib.suppress(Exception):
            call = timed_cell.call_of(cell)
            next(timed_cell.calls(call, direction, [timed_cell.random_tensor(cell)]))()


# --- show -----------------------------------------------------------------------------------------


def _shown(
    experiment: Experiment, results: Results, options: argparse.Namespace, usual: Path
) -> int:
    """Write the files of an experiment; the status that its results deserve."""
    directories = [options.output or usual]
    if options.ship:
        directories.append(EVIDENCE / results.header["machine"]["machine"])
    for directory in directories:
        publish(experiment, results, directory)
    for line in tables.gain_table(experiment, results)[2:]:
        print(line)
    for provider, why in tables.without_a_speed(experiment, results).items():
        print(f"{provider}: nothing measured: {why[:200]}")
    if experiment.judged:
        print(*goals.summary(experiment, results), sep="\n")
    print(f"{experiment.name}: {directories[-1]}")
    shown = [results.rows[timing] for timing in experiment.timings if timing in results.rows]
    bad = [row for row in shown if row.status in ("wrong", "failed")]
    for row in bad[:10]:
        print(f"{row.status.upper()}: {row.timing.direction} {row.timing.cell}: {row.reason}")
    return BAD if bad or len(shown) < len(experiment.timings) else DONE


def publish(experiment: Experiment, results: Results, directory: Path) -> None:
    """Write an experiment's rows, Markdown and, if matplotlib is here, plots."""
    directory.mkdir(parents=True, exist_ok=True)
    state.write(directory / f"{experiment.name}.jsonl", results, experiment.timings)
    drawn = True
    try:
        for figure in experiment.figures:
            if figure.drawn:
                plots.draw(figure, results, directory)
    except ModuleNotFoundError as error:
        if (how := missing(error)) is None:
            raise
        say(f"no plots: {how}; then: python -m benchmarks sweep --redraw {directory}")
        drawn = False
    page = tables.as_markdown(experiment, results, drawn)
    (directory / f"{experiment.name}.md").write_text(page, encoding="utf-8")


def stored(directory: Path) -> dict[str, tuple[Experiment, Results]]:
    """The experiments that a directory holds, with the providers that were measured."""
    paths = {name: directory / f"{name}.jsonl" for name in EXPERIMENTS}
    return {
        name: state.read_experiment(path, name) for name, path in paths.items() if path.exists()
    }


def _redraw(options: argparse.Namespace) -> int:
    found = stored(options.redraw)
    chosen = [name for name in options.experiment or EXPERIMENTS if name in found]
    if not chosen:
        asked = options.experiment or list(EXPERIMENTS)
        raise SweepError(f"{options.redraw} holds none of {asked}")
    for name in chosen if options.ship else ():
        results = found[name][1]
        whole = results.header["grid"] == "full" and not (
            set(planned(name, "full", results.header["commit"]).timings) - set(results.rows)
        )
        if not whole:
            raise SweepError(f"what ships is the full grid with every provider; {name} is not")
    return max(_shown(*found[name], options, options.redraw) for name in chosen)
