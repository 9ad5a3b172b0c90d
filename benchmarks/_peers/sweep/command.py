"""``python -m benchmarks sweep``: measure the experiments, resumable, on any number of GPUs."""

import argparse
import collections
import contextlib
import importlib.metadata
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ..._system import checkout, gpu_monitor, machine, suite
from ..._system.journal import Journal, JournalError
from ..._system.process import ROOT
from ..._system.progress import missing, say
from ..providers import PROVIDERS
from . import gpus, plots, tables
from .experiments import EXPERIMENTS, GRIDS, Experiment
from .state import (
    MAY_DIFFER,
    Results,
    Row,
    SweepError,
    as_json,
    header,
    read_experiment,
    results_of,
    write,
)

SCRATCH = ROOT / ".asv" / "sweep"
EVIDENCE = ROOT / "benchmarks" / "evidence" / "sweep"

DONE, BAD, COULD_NOT_RUN = 0, 1, 3
EXPECTED = (
    *(SweepError, JournalError, checkout.ArmError),
    *(gpu_monitor.WatchError, gpu_monitor.GpuBusyError),
)

# What libraries are called where they are installed: their versions are part of what is measured.
_DISTRIBUTIONS = (
    *("transformer-engine", "flash-attn", "liger-kernel", "flash-linear-attention", "fla-core"),
    *("transformers", "vllm", "unsloth", "xformers"),
)
# What says how a cell is measured: a change of it is another sweep.
_MEASURING = (*("_cells/*.py", "_measure/gpu_timer.py", "_measure/workload.py", "_peers/*.py"),)
_SAY_SECONDS = 10.0

_DESCRIPTION = """\
Measure experiments and write each as CSV, Markdown, PNG and SVG. A killed run goes on from what it
has when it is started again. Exit status: 0 done, 1 a provider was wrong or failed, 3 could not
run. A library that is not installed is n/a."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--experiment", choices=EXPERIMENTS, action="append", help="may be repeated; default: all")
    add("--providers", type=_providers, metavar="A,B", help=f"of {', '.join(PROVIDERS)}")
    add("--grid", choices=sorted(GRIDS), default="full", help="default: full")
    add("--gpus", type=_gpus, default=1, metavar="N", help='how many, or "all"; default: 1')
    add("--output", type=Path, metavar="DIR", help="default: beside the state, in .asv/sweep")
    add("--ship", action="store_true", help="write to benchmarks/evidence/sweep as well")
    waits = "for GPUs that another measurement uses; default: 0"
    add("--wait", type=float, default=0.0, metavar="SECONDS", help=waits)
    add("--afresh", action="store_true", help="rename what was measured, and begin anew")
    add("--redraw", type=Path, metavar="DIR", help="measure nothing: show what DIR holds again")


def _providers(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in PROVIDERS]
    if unknown:
        raise argparse.ArgumentTypeError(f"providers are {', '.join(PROVIDERS)}, got {unknown}")
    return names


def _gpus(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f'a number above 0 or "all" is needed, got {text!r}')
    return int(text)


def run(**given) -> int:
    """Do what the arguments say; the exit status."""
    options = argparse.Namespace(**given)
    try:
        return _redraw(options) if options.redraw else _sweep(options)
    except EXPECTED as error:
        print(f"could not run: {error}", file=sys.stderr)
        return COULD_NOT_RUN


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
    directory = SCRATCH / record["machine"] / version.sha[:8]
    with _held(options, record) as uuids:
        statuses = []
        for experiment in _chosen(options):
            head = header(
                experiment=experiment.name,
                grid=options.grid,
                commit=version.sha,
                machine=record,
                software=_software(),
                suite=suite.digest(_MEASURING),
                command=_command(options, experiment.name),
            )
            path = directory / f"{experiment.name}.jsonl"
            if options.afresh and path.exists():
                aside = path.with_suffix(f".{time.time_ns()}.jsonl")
                say(f"renamed to {path.rename(aside)}")
            results = _measured(experiment, path, head, uuids)
            statuses.append(_shown(experiment, results, options, directory / "output"))
    return max(statuses)


def _chosen(options: argparse.Namespace) -> list[Experiment]:
    """The experiments that were asked for, with the providers that were."""
    names = dict.fromkeys(options.experiment or EXPERIMENTS)
    chosen = [GRIDS[options.grid][name] for name in names]
    if not options.providers:
        return chosen
    kept = [experiment.of(options.providers) for experiment in chosen]
    empty = [each.name for each in kept if not each.timings]
    if empty:
        raise SweepError(f"{', '.join(empty)} has none of {', '.join(options.providers)}")
    return kept


@contextlib.contextmanager
def _held(options: argparse.Namespace, record: Mapping[str, str]) -> Iterator[list[str]]:
    """UUIDs of the GPUs to measure on, each free and held until the block ends."""
    if record["gpu"] == "none":
        raise SweepError("no NVIDIA GPU: torch.cuda.is_available() is False")
    uuids = gpu_monitor.gpu_uuids()
    count = options.gpus or len(uuids)
    if count > len(uuids):
        raise SweepError(f"--gpus {count}, and CUDA sees {len(uuids)} here")
    with contextlib.ExitStack() as stack:
        for uuid in uuids[:count]:
            stack.enter_context(gpu_monitor.gpu_lock(uuid, options.wait))
            gpu_monitor.require_free(uuid)
        yield uuids[:count]


def _software() -> dict[str, str]:
    """Versions of the libraries that are installed."""
    found = {}
    for name in _DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _command(options: argparse.Namespace, experiment: str) -> str:
    words = ["python -m benchmarks sweep", f"--experiment {experiment}"]
    words += [f"--grid {options.grid}"] if options.grid != "full" else []
    words += [f"--providers {','.join(options.providers)}"] if options.providers else []
    words += [f"--gpus {options.gpus or 'all'}"] if options.gpus != 1 else []
    return " ".join(words)


def _measured(experiment: Experiment, path: Path, head: dict, uuids: Sequence[str]) -> Results:
    """What the journal holds when everything is measured."""
    with Journal(path, head, may_differ=MAY_DIFFER) as journal:
        shown = journal.header | {key: head[key] for key in MAY_DIFFER}
        results = results_of(path, shown, journal.entries)
        left = [timing for timing in experiment.timings if timing not in results.rows]
        total = len(experiment.timings)
        if len(left) < total:
            say(f"{experiment.name}: {total - len(left)} of {total} timings are known, from {path}")
        progress = _Progress(experiment.name, total, total - len(left))

        def keep(row: Row) -> None:
            journal.append(as_json(row))
            results.rows[row.timing] = row
            progress.tell(row)

        gpus.measure(left, uuids, keep, head["machine"]["gpu"])
        return results


class _Progress:
    """Says from time to time how far a sweep is."""

    def __init__(self, name: str, total: int, known: int, clock: Callable = time.monotonic):
        self._name, self._total, self._known = name, total, known
        self._clock, self._start, self._said = clock, clock(), clock()
        self._states: collections.Counter[str] = collections.Counter()

    def tell(self, row: Row) -> None:
        self._states[row.status] += 1
        new = self._states.total()
        done, now = self._known + new, self._clock()
        if done < self._total and now - self._said < _SAY_SECONDS:
            return
        self._said, seconds = now, now - self._start
        states = ", ".join(f"{count} {status}" for status, count in self._states.items())
        say(
            f"{self._name}: {done} of {self._total} timings in {seconds:.0f} s, about "
            f"{(self._total - done) * seconds / new:.0f} s left ({states})"
        )


# --- show -----------------------------------------------------------------------------------------


def _shown(
    experiment: Experiment, results: Results, options: argparse.Namespace, usual: Path
) -> int:
    """Write the files of an experiment; the status that its results deserve."""
    directories = [options.output or usual, *([EVIDENCE] if options.ship else [])]
    for directory in directories:
        publish(experiment, results, directory)
    for line in tables.gain_table(experiment, results)[2:]:
        print(line)
    print(f"{experiment.name}: {directories[-1]}")
    shown = [results.rows[timing] for timing in experiment.timings if timing in results.rows]
    bad = [row for row in shown if row.status in ("wrong", "failed")]
    for row in bad[:10]:
        print(f"{row.status.upper()}: {row.timing.direction} {row.timing.cell}: {row.reason}")
    return BAD if bad or len(shown) < len(experiment.timings) else DONE


def publish(experiment: Experiment, results: Results, directory: Path) -> None:
    """Write an experiment's rows, CSV, Markdown and, if matplotlib is here, plots."""
    directory.mkdir(parents=True, exist_ok=True)
    write(directory / f"{experiment.name}.jsonl", results, experiment.timings)
    (directory / f"{experiment.name}.csv").write_text(tables.as_csv(experiment, results))
    drawn = True
    try:
        for figure in experiment.figures:
            plots.draw(figure, results, directory)
    except ModuleNotFoundError as error:
        if (how := missing(error)) is None:
            raise
        say(f"no plots: {how}; then: python -m benchmarks sweep --redraw {directory}")
        drawn = False
    page = tables.as_markdown(experiment, results, drawn)
    (directory / f"{experiment.name}.md").write_text(page)


def stored(directory: Path) -> dict[str, tuple[Experiment, Results]]:
    """The experiments that a directory holds, with the providers that were measured."""
    paths = {name: directory / f"{name}.jsonl" for name in EXPERIMENTS}
    return {name: read_experiment(path, name) for name, path in paths.items() if path.exists()}


def _redraw(options: argparse.Namespace) -> int:
    found = stored(options.redraw)
    chosen = [name for name in options.experiment or EXPERIMENTS if name in found]
    if not chosen:
        asked = options.experiment or list(EXPERIMENTS)
        raise SweepError(f"{options.redraw} holds none of {asked}")
    for name in chosen if options.ship else ():
        results = found[name][1]
        whole = results.header["grid"] == "full" and not (
            set(GRIDS["full"][name].timings) - set(results.rows)
        )
        if not whole:
            raise SweepError(f"what ships is the full grid with every provider; {name} is not")
    return max(_shown(*found[name], options, options.redraw) for name in chosen)
