"""``python -m benchmarks sweep``: measure experiments, resumable, on one GPU or all; show them."""

import argparse
import contextlib
import importlib.metadata
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ..._system import checkout, gpu_monitor, suite
from ..._system import machine as _machine
from ..._system.process import ROOT
from ..._system.progress import say
from ..providers import PROVIDERS
from . import gpus, plots, tables
from .experiments import EXPERIMENTS, GRIDS, SHORT_SEQ_LENS, Experiment
from .state import Results, Row, State, SweepError, header, read_experiment, set_aside, write

SCRATCH = ROOT / ".asv" / "sweep"
EVIDENCE = ROOT / "benchmarks" / "evidence" / "sweep"

DONE, BAD, COULD_NOT_RUN = 0, 1, 3
EXPECTED = (SweepError, gpu_monitor.WatchError, gpu_monitor.GpuBusyError, checkout.ArmError)

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
    parser.add_argument(
        "--experiment", choices=EXPERIMENTS, action="append", help="may be repeated; default: all"
    )
    parser.add_argument(
        "--providers", type=_providers, metavar="A,B", help=f"of {', '.join(PROVIDERS)}"
    )
    parser.add_argument("--grid", choices=sorted(GRIDS), default="full", help="default: full")
    parser.add_argument(
        "--gpus", type=_gpus, default=1, metavar="N", help='how many, or "all"; default: 1'
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="default: beside the state, in .asv/sweep"
    )
    parser.add_argument(
        "--ship", action="store_true", help="write to benchmarks/evidence/sweep as well"
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="for GPUs that another measurement uses; default: 0",
    )
    parser.add_argument(
        "--afresh", action="store_true", help="set aside what was measured, and begin anew"
    )
    parser.add_argument(
        "--redraw", type=Path, metavar="DIR", help="measure nothing: show what DIR holds again"
    )


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


def run(**options) -> int:
    """Do what the arguments say; the exit status."""
    wishes = argparse.Namespace(**options)
    try:
        if wishes.redraw:
            return _redraw(wishes)
        return _sweep(wishes)
    except EXPECTED as error:
        print(f"could not run: {error}", file=sys.stderr)
        return COULD_NOT_RUN


# --- measure --------------------------------------------------------------------------------------


def _sweep(wishes: argparse.Namespace) -> int:
    _refuse_partial_shipping(wishes)
    arm = checkout.from_working_tree(ROOT, SCRATCH / "sources")
    if not arm.sha:
        raise SweepError(
            "rope_triton differs from HEAD, under which the results would be filed: commit it"
        )
    machine, _ = _machine.probe()
    directory = SCRATCH / machine["machine"] / arm.sha[:8]
    with _held(wishes, machine) as uuids:
        statuses = []
        for experiment in _chosen(wishes):
            head = header(
                experiment=experiment.name,
                grid=wishes.grid,
                commit=arm.sha,
                machine=machine,
                software=_software(),
                suite=suite.digest(_MEASURING),
                command=_command(wishes, experiment.name),
            )
            path = directory / f"{experiment.name}.jsonl"
            if wishes.afresh and path.exists():
                say(f"set aside: {set_aside(path)}")
            results = _measured(experiment, path, head, uuids)
            statuses.append(_shown(experiment, results, wishes, directory / "output"))
    return max(statuses)


def _refuse_partial_shipping(wishes: argparse.Namespace) -> None:
    if wishes.ship and (wishes.grid != "full" or wishes.providers):
        raise SweepError("what ships is the full grid with every provider: leave the others out")


def _chosen(wishes: argparse.Namespace) -> list[Experiment]:
    """The experiments that were asked for, with the providers that were."""
    grid = GRIDS[wishes.grid]
    chosen = [grid[name] for name in dict.fromkeys(wishes.experiment or EXPERIMENTS)]
    if not wishes.providers:
        return chosen
    kept = [experiment.of(wishes.providers) for experiment in chosen]
    empty = [each.name for each in kept if not each.timings]
    if empty:
        raise SweepError(f"{', '.join(empty)} has none of {', '.join(wishes.providers)}")
    return kept


@contextlib.contextmanager
def _held(wishes: argparse.Namespace, machine: Mapping[str, str]) -> Iterator[list[str]]:
    """UUIDs of the GPUs to measure on, each free and held until the block ends."""
    if machine["gpu"] == "none":
        raise SweepError("no NVIDIA GPU: torch.cuda.is_available() is False")
    uuids = gpu_monitor.gpu_uuids()
    count = wishes.gpus or len(uuids)
    if count > len(uuids):
        raise SweepError(f"--gpus {count}, and CUDA sees {len(uuids)} here")
    with contextlib.ExitStack() as stack:
        for uuid in uuids[:count]:
            stack.enter_context(gpu_monitor.gpu_lock(uuid, wishes.wait))
            gpu_monitor.require_free(uuid)
        yield uuids[:count]


def _software() -> dict[str, str]:
    """Versions of the libraries that are installed."""
    found = {}
    for name in _DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _command(wishes: argparse.Namespace, experiment: str) -> str:
    words = ["python -m benchmarks sweep", f"--experiment {experiment}"]
    words += [f"--grid {wishes.grid}"] if wishes.grid != "full" else []
    words += [f"--providers {','.join(wishes.providers)}"] if wishes.providers else []
    words += [f"--gpus {wishes.gpus or 'all'}"] if wishes.gpus != 1 else []
    return " ".join(words)


def _measured(experiment: Experiment, path: Path, head: dict, uuids: Sequence[str]) -> Results:
    """What the state holds when everything is measured."""
    model = head["machine"]["gpu"]
    with State(path, head) as state:
        asked = experiment.timings
        known = sum(timing in state.results.rows for timing in asked)
        if known:
            say(f"{experiment.name}: {known} of {len(asked)} timings are known, from {path}")
        progress = _Progress(experiment.name, len(asked), known)

        def keep(row: Row) -> None:
            state.add(row)
            progress.tell(row)

        hands = [
            [timing for timing in hand if timing not in state.results.rows]
            for hand in gpus.dealt(asked, len(uuids))
        ]
        gpus.measure(hands, uuids, keep, model)
        if experiment.name == "milliseconds":
            _check(state, uuids[0])
        state.results.header |= {key: head[key] for key in ("grid", "command")}
        return state.results


def _check(state: State, uuid: str) -> None:
    """Is the package's result close to PyTorch's?"""
    lengths = [n for n in SHORT_SEQ_LENS if n not in {key[0] for key in state.results.checks}]
    if not lengths:
        return
    try:
        with gpus.Worker(uuid) as worker:
            found = list(worker.answers({"check": lengths}))
    except gpus.ProcessLost as error:
        raise SweepError(f"the results could not be compared with PyTorch's: {error}") from error
    for answer in found:
        if "check" in answer:
            state.add_check(answer["check"])


class _Progress:
    """Says from time to time how far a sweep is."""

    def __init__(self, name: str, total: int, known: int, clock: Callable = time.monotonic):
        self._name, self._total, self._known = name, total, known
        self._clock, self._start, self._said = clock, clock(), clock()
        self._states: dict[str, int] = {}

    def tell(self, row: Row) -> None:
        self._states[row.status] = self._states.get(row.status, 0) + 1
        new = sum(self._states.values())
        done, now = self._known + new, self._clock()
        if done < self._total and now - self._said < _SAY_SECONDS:
            return
        self._said = now
        seconds = now - self._start
        left = (self._total - done) * seconds / new
        states = ", ".join(f"{count} {status}" for status, count in self._states.items())
        say(
            f"{self._name}: {done} of {self._total} timings in {seconds:.0f} s, about {left:.0f} s "
            f"left ({states})"
        )


# --- show -----------------------------------------------------------------------------------------


def _shown(
    experiment: Experiment, results: Results, wishes: argparse.Namespace, usual: Path
) -> int:
    """Write the files of an experiment; the status that its results deserve."""
    directories = [wishes.output or usual, *([EVIDENCE] if wishes.ship else [])]
    for directory in directories:
        publish(experiment, results, directory)
    for line in tables.gain_table(experiment, results)[2:]:
        print(line)
    print(f"{experiment.name}: {directories[-1]}")
    shown = [results.rows[timing] for timing in experiment.timings if timing in results.rows]
    bad = [row for row in shown if row.status in ("wrong", "failed")]
    for row in bad[:10]:
        print(f"{row.status.upper()}: {row.timing.direction} {row.timing.cell}: {row.reason}")
    if experiment.name == "milliseconds" and not tables.promise_is_kept(results):
        print("WRONG: the result is not close to PyTorch's, or was not compared with it")
        return BAD
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
    except plots.PlotError as error:
        say(f"n/a: {error}; then: python -m benchmarks sweep --redraw {directory}")
        drawn = False
    page = tables.as_markdown(experiment, results, PROVIDERS, drawn)
    (directory / f"{experiment.name}.md").write_text(page)


def stored(directory: Path) -> dict[str, tuple[Experiment, Results]]:
    """The experiments that a directory holds, with the providers that were measured."""
    found = {}
    for name in EXPERIMENTS:
        path = directory / f"{name}.jsonl"
        if path.exists():
            found[name] = read_experiment(path, name)
    return found


def _redraw(wishes: argparse.Namespace) -> int:
    found = stored(wishes.redraw)
    chosen = [name for name in wishes.experiment or EXPERIMENTS if name in found]
    if not chosen:
        raise SweepError(f"{wishes.redraw} holds none of {wishes.experiment or list(EXPERIMENTS)}")
    if wishes.ship:
        _refuse_shipping_part(found, chosen)
    return max(_shown(*found[name], wishes, wishes.redraw) for name in chosen)


def _refuse_shipping_part(found: Mapping, chosen: Sequence[str]) -> None:
    for name in chosen:
        experiment, results = found[name]
        whole = GRIDS["full"][name]
        if results.header["grid"] != "full" or set(whole.timings) - set(results.rows):
            raise SweepError(f"what ships is the full grid with every provider; {name} is not")
