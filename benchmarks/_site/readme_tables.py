"""Make the tables of the READMEs from stored results, as lines. Imports no torch."""

import json
import statistics
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from .._cells.forms import ITEM_BYTES
from .._peers.sweep import tables
from .._peers.sweep.command import EVIDENCE, stored
from .._peers.sweep.experiments import Experiment, Timing
from .._peers.sweep.state import Results
from .._system.process import ROOT
from . import figures

RESULTS = ROOT / "benchmarks" / "results"
MACHINE = "nvidia-h200"
SIMULATION = ROOT / "benchmarks" / "evidence" / "simulation.json"
# Commit -> what it did to the kernel, in the order of the history.
STEPS = Path(__file__).with_name("steps.json")

SLOWDOWNS = ROOT / "benchmarks" / "evidence" / "slowdowns.json"

FULL_CELLS = 504
PATH_MIB = 32
WIDTH = 100

_Sweeps = Mapping[str, tuple[Experiment, Results]]
"""By name, the experiments that ship."""


class ReadmeError(RuntimeError):
    """A README or results that do not fit together; the message says what is missing."""


class Stored(NamedTuple):
    """A commit's results: benchmark -> parameters -> value."""

    commit: str
    values: dict

    def cells(self, direction: str) -> int:
        return len(self.values.get(f"rope.{direction}.track_copy_ratio", {}))


def results(directory: Path = RESULTS / MACHINE) -> list[Stored]:
    """What ``asv run`` stored of the commits of ``steps.json``, in its order; of no others."""
    return [
        Stored(commit, figures.load_values(path))
        for commit in json.loads(STEPS.read_text())
        for path in sorted(directory.glob(f"{commit}*-existing-*.json"))
    ]


def unnamed(directory: Path = RESULTS / MACHINE) -> list[str]:
    """Results of commits that ``steps.json`` does not name: what no table shows."""
    steps = tuple(json.loads(STEPS.read_text()))
    names = sorted(path.name for path in directory.glob("*-existing-*.json"))
    return [name for name in names if not name.startswith(steps)]


# --- the first page -------------------------------------------------------------------------------


# Provider -> the experiment that has it, and what it is called.
_BESIDE = {
    "transformer-engine": ("throughput", "TransformerEngine's CUDA kernel"),
    "flash-attention": ("throughput", "flash-attention's Triton kernel, which takes tables"),
    "compile-angles": ("study", "`torch.compile` of the formula by angles"),
}


def summary(of: Sequence[Stored], directory: Path = EVIDENCE) -> list[str]:
    """Five rows: beside a copy, beside other libraries.

    Raises
    ------
    ReadmeError
        If what a row shows is not stored.
    """
    newest = _newest_whole(of)
    _, label, _ = (label for _, label in figures.SIZE_CLASSES)
    rows = []
    for direction in figures.DIRECTIONS:
        speed = figures.speeds(newest.values, direction)[label]
        what = f"{direction.lower()}, {label} a tensor: speed as a share of `copy_`'s"
        rows.append(f"| {what} | {speed.least:.3f} | {speed.median:.3f} |")
    sweeps = stored(directory)
    for provider, (name, called) in _BESIDE.items():
        gains = tables.gains_over(*sweeps[name]).get(provider) if name in sweeps else None
        if not gains:
            raise ReadmeError(f"no sweep {name} in {directory} has {provider}")
        numbers = f"{min(gains):.2f} | {statistics.median(gains):.2f}"
        rows.append(f"| speedup over {called} | {numbers} |")
    commits = {sweeps[name][1].header["commit"][:7] for name, _ in _BESIDE.values()}
    sweep = "` and `".join(sorted(commits))
    intro = (
        f"One {_gpu()['gpu']}; beside `copy_` at commit `{newest.commit}` (`python -m benchmarks "
        f"figures {MACHINE} {newest.commit}`), beside other libraries at `{sweep}` (`python -m "
        "benchmarks sweep`):"
    )
    return _table(intro, ["", "minimum", "median"], rows)


# --- asv's results --------------------------------------------------------------------------------

_SPEEDS = ("forward: minimum", "median", "GB/s", "backward: minimum", "median", "GB/s")


def speed(of: Sequence[Stored]) -> list[str]:
    """The newest commit with the full grid measured both ways, by the tensor's size."""
    newest = _newest_whole(of)
    forward, backward = (figures.speeds(newest.values, each) for each in figures.DIRECTIONS)
    machine = _gpu()
    intro = (
        f"One {machine['gpu']} (driver {machine['driver']}, torch {machine['torch']}, triton "
        f"{machine['triton']}), commit `{newest.commit}`, the full grid on 64 heads, cold cache. "
        "Speed as a share of `copy_`'s on the same bytes, by the size of the tensor; "
        f"`python -m benchmarks figures {MACHINE} {newest.commit}` prints it from the stored "
        "results, and `asv run` measures it again:"
    )
    rows = [
        f"| {label} | {ours.cells} | {_numbers(ours)} | {_numbers(backward[label])} |"
        for label, ours in forward.items()
    ]
    return _table(intro, ["tensor", "cells", *_SPEEDS], rows)


def _gpu() -> dict[str, str]:
    """asv's record of the machine."""
    return json.loads((RESULTS / MACHINE / "machine.json").read_text())


def history(of: Sequence[Stored]) -> list[str]:
    """Backward, median share of a copy's speed by size, a row for each step of the kernel."""
    steps = json.loads(STEPS.read_text())
    labels = [label for _, label in figures.SIZE_CLASSES]
    rows = []
    for each in of:
        speeds = figures.speeds(each.values, "Backward")
        if each.cells("Backward") == FULL_CELLS:
            numbers = " | ".join(f"{speeds[label].median:.2f}" for label in labels)
            rows.append(f"| `{each.commit}` | {steps[each.commit]} | {numbers} |")
    return [*_head(["commit", "the kernel", *labels]), *rows]


def paths(of: Sequence[Stored]) -> list[str]:
    """The newest commit with results of the other paths."""
    newest = _newest(of, lambda each: bool(figures.path_speeds(each.values, "Forward", PATH_MIB)))
    forward, backward = (
        figures.path_speeds(newest.values, each, PATH_MIB) for each in figures.DIRECTIONS
    )
    (cells,) = {each.cells for each in forward.values()}
    intro = (
        f"Other paths at `{newest.commit}`, from {PATH_MIB} MiB of input on, the same figures of "
        f"{cells} cells each (paths and bytes: [below](#reading-the-figures)):"
    )
    rows = [
        f"| `{path}` | {_numbers(ours)} | "
        + (f"{_numbers(backward[path])} |" if path in backward else "n/a | | |")
        for path, ours in forward.items()
    ]
    return _table(intro, ["path", *_SPEEDS], rows)


# Host times -> what a call is named in the table, by its parameter.
_CALLS = {
    "host.Call": "`apply_rotary_pos_emb`, {}",
    "host.PathCall": "`{}`",
    "peers.Call": "{}",
}


def calls(of: Sequence[Stored]) -> list[str]:
    """What an eager call costs the host, of this package's paths and of other libraries."""
    newest = _newest(of, lambda each: bool(_host_seconds(each, "host.Call")))
    intro = (
        f"What an eager call costs the host at `{newest.commit}`, medians in µs: forward without "
        "autograd, and forward and gradient. The GPU is never waited for (paths: "
        "[below](#reading-the-figures)"
    )
    peers = _host_seconds(newest, "peers.Call")
    intro += f"; from {next(iter(peers))} on: one tensor, by each provider):" if peers else "):"
    rows = [
        f"| {label.format(param)} | {_microseconds(forward)} | {_microseconds(both)} |"
        for suite, label in _CALLS.items()
        for param, (forward, both) in _host_seconds(newest, suite).items()
    ]
    return _table(intro, ["call", "forward", "forward and gradient"], rows)


def _host_seconds(of: Stored, suite: str) -> dict[str, tuple[float | None, float | None]]:
    """Parameter -> seconds of the forward and of forward and gradient, None where n/a."""
    forward = of.values.get(f"{suite}.track_forward", {})
    both = of.values.get(f"{suite}.track_forward_backward", {})
    return {key[0].strip("'"): (forward[key], both.get(key)) for key in forward}


def _microseconds(seconds: float | None) -> str:
    return "n/a" if seconds is None else f"{seconds * 1e6:.1f}"


def _newest_whole(of: Sequence[Stored]) -> Stored:
    """The newest commit with the full grid measured both ways."""
    return _newest(of, lambda each: all(each.cells(d) == FULL_CELLS for d in figures.DIRECTIONS))


def _newest(of: Sequence[Stored], has: Callable[[Stored], bool]) -> Stored:
    found = next(filter(has, reversed(of)), None)
    if found is None:
        raise ReadmeError(f"no result in {RESULTS / MACHINE} has what a table of the README shows")
    return found


def _numbers(speed: figures.Speed) -> str:
    return f"{speed.least:.3f} | {speed.median:.3f} | {speed.gbps:.0f}"


def _table(intro: str, titles: Sequence[str], rows: Sequence[str]) -> list[str]:
    return [*_wrapped(intro), "", *_head(titles), *rows]


def _head(titles: Sequence[str]) -> list[str]:
    return [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


# --- the simulation of slowdowns ------------------------------------------------------------------


def slowdowns(path: Path = SLOWDOWNS) -> list[str]:
    """How often there is a false alarm, and how many slowdowns are found."""
    document = json.loads(path.read_text())
    kinds = document["kinds"]
    intro = (
        f"Simulated by `{document['command']}`, without a GPU: sites of {document['timings']:,} "
        f"latencies and {document['results']} results, judged with each of them. What was found "
        "within five commits of having 2 %, where every timing slows down on its own; in brackets "
        "also those named as the step or ramp that they are, with their commits:"
    )
    rows = []
    for name, runs in document["scenarios"].items():
        wrong = f"{sum(map(bool, runs['alarms']))} of {len(runs['alarms'])}"
        rows.append(f"| {name} | {wrong} | {' | '.join(_found(runs[kind]) for kind in kinds)} |")
    return _table(intro, ["history", "sites with a false alarm", *kinds.values()], rows)


def _found(sites: list[list[int]]) -> str:
    timings, in_time, _, named = map(sum, zip(*sites, strict=True))
    return f"{in_time / timings:.1%} ({named / timings:.1%})".replace("%", " %")


# --- the sweep ------------------------------------------------------------------------------------


def peers(directory: Path = EVIDENCE) -> list[str]:
    """The package beside other libraries, from the sweep that ships; nothing where none does."""
    found = stored(directory)
    if not found:
        return []
    throughput = _throughput(*found["throughput"]) if "throughput" in found else []
    return [*throughput, *_gains(found), "", *_compiled(found)]


def _throughput(experiment: Experiment, measured: Results) -> list[str]:
    machine, commit, command = tables.source(measured.header)
    where = "evidence/sweep"
    text = (
        f"Beside other libraries, on the same buffers and by the same clock: {machine}, {commit} "
        f"(`{command}`; [all of it]({where}/throughput.md)). Median GB/s from "
        f"{tables.SETTLED_SEQ_LEN} tokens on, 64 heads of 128, float16, beside what the "
        "seed published of an RTX 2070 Super:"
    )
    pictures = [
        f"[![{each.title}]({where}/{each.name}.png)]({where}/{experiment.name}.md)"
        for each in (experiment.figures[0], experiment.figures[-1])
    ]
    seeds = tables.seed_table(experiment, measured)[2:]
    return [*_wrapped(text), "", *seeds, "", *pictures, ""]


def _gains(found: _Sweeps) -> list[str]:
    """Speedup over each other provider in each experiment, and where it is slower."""
    gains = {name: tables.gains_over(*each) for name, each in found.items()}
    providers = dict.fromkeys(p for of in gains.values() for p, values in of.items() if values)
    commits = {name: results.header["commit"][:8] for name, (_, results) in found.items()}
    differ = len(set(commits.values())) > 1
    where = ", ".join(
        f"[{name}](evidence/sweep/{name}.md)" + f" at `{commit}`" * differ
        for name, commit in commits.items()
    )
    text = (
        "Speedup over each provider: minimum, median (number of timings in which the provider is "
        f"faster), in {where}; the same command with `--experiment`:"
    )
    titles = [f"{name}, of {max(map(len, of.values()))}" for name, of in gains.items()]
    rows = [
        f"| {provider} | {' | '.join(_gain(of.get(provider, [])) for of in gains.values())} |"
        for provider in providers
    ]
    return _table(text, ["provider", *titles], rows)


_BY_COMPILER = {
    "compile": "torch.compile with ready-made tables and static shapes",
    "compile-angles": "the same by angles, which is what the package computes",
}
_PRECISIONS = {"half precision": 2, "float32": 4}  # bytes an element


def _compiled(found: _Sweeps) -> list[str]:
    """Speedup over torch.compile in all experiments together, by channels of a head."""
    timings = [timing for experiment, _ in found.values() for timing in experiment.timings]
    measured = {timing.cell.provider for timing in timings}
    over = {name: about for name, about in _BY_COMPILER.items() if name in measured}
    columns = [(name, precision) for name in over for precision in _PRECISIONS]
    rows = []
    for size in sorted({timing.cell.hidden_size for timing in timings}):
        gains = (_gain(_over_compiled(found, *column, size)) for column in columns)
        rows.append(f"| {size} | {' | '.join(gains)} |")
    names = ", and ".join(f"`{name}`, {about}" for name, about in over.items())
    titles = [f"`{name}`, {precision}" for name, precision in columns]
    return _table(f"Over {names}, in all experiments together:", ["channels a head", *titles], rows)


def _over_compiled(found: _Sweeps, provider: str, precision: str, hidden_size: int) -> list[float]:
    def counts(timing: Timing) -> bool:
        asked = hidden_size, _PRECISIONS[precision]
        return (timing.cell.hidden_size, ITEM_BYTES[timing.cell.dtype]) == asked

    every = (tables.gains_over(*each, counts).get(provider, []) for each in found.values())
    return [gain for gains in every for gain in gains]


def _gain(values: Sequence[float]) -> str:
    if not values:
        return ""
    faster = sum(value < 1 for value in values)
    text = f"{min(values):.2f}, {statistics.median(values):.2f}"
    return f"{text} ({faster})" if faster else text


# --- the simulated verdict ------------------------------------------------------------------------

# Title -> the figure of a model.
_FIGURES = {
    "fails": "fails",
    "cannot tell, first look": "cannot tell, first look",
    "cannot tell": "cannot tell",
    "interval": "intervals hold the truth",
    "+1 % fails": "+1 % fails",
    "+1 % passes": "+1 % passes",
    "+2 % fails": "+2 % fails",
    "+5 % fails": "+5 % fails",
    "MDE fails": "MDE fails",
    "one changed: passes": "one changed, +1 % passes",
    "eight: pass": "eight changed, +1 % pass",
    "host +5 % fails": "a host call, +5 % fails",
}
_OF_THE_SAME = ("fails", "cannot tell, first look", "cannot tell")


def simulation(path: Path = SIMULATION) -> list[str]:
    """A row for each kind of noise, former figures and today's."""
    stored = json.loads(path.read_text())
    runs = dict(stored["runs"])
    today = runs.pop("today")
    ((former, before),) = runs.items()
    rows = []
    for model, what in stored["noise"].items():
        figures = [run[model]["figures"] for run in (before, today)]
        cells = {title: _shares(figures, name) for title, name in _FIGURES.items()}
        if model in stored["unlike"]:
            cells |= dict.fromkeys(_OF_THE_SAME, "")
            cells["fails"] = f"(passes {_shares(figures, 'passes')})"
        rows.append(f"| {what} | {' | '.join(cells.values())} |")
    intro = f"In %, by `{former}` → today; `{stored['command']}` simulates it again, without a GPU:"
    return _table(intro, ["noise", *_FIGURES], rows)


def _shares(figures: Sequence[Mapping[str, float]], name: str) -> str:
    """Former and today's percent; one where they read the same."""
    texts = [f"{100 * each[name]:.3g}" for each in figures]
    return " → ".join(dict.fromkeys(texts))


TABLES: dict[str, Callable[[list[Stored]], list[str]]] = {
    **{"summary": summary, "speed": speed, "history": history, "paths": paths, "calls": calls},
    "peers": lambda _: peers(),
    "slowdowns": lambda _: slowdowns(),
    "simulation": lambda _: simulation(),
}

PAGES = {
    ROOT / "README.md": ("summary",),
    ROOT / "benchmarks" / "README.md": (
        "speed",
        "history",
        "paths",
        "calls",
        "peers",
        "simulation",
        "slowdowns",
    ),
}
"""Which page has which tables."""
