"""Make the READMEs' tables of asv's stored results, as lines. Imports no torch."""

import json
import statistics
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from .._studies.peers import tables
from .._studies.peers.peers_study import EVIDENCE, stored
from .._system.errors import CouldNotRunError
from .._system.process import ROOT
from . import figures

RESULTS = ROOT / "benchmarks" / "results"
MACHINE = "nvidia-h200"
SWEEPS = EVIDENCE / MACHINE
"""What ``sweep`` measured on the machine that the tables are of."""
# Commit -> what it did to the kernel, in the order of the history.
STEPS = Path(__file__).with_name("steps.json")

FULL_CELLS = 504
PATH_MIB = 32
WIDTH = 100


class ReadmeError(CouldNotRunError):
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
        for commit in json.loads(STEPS.read_bytes())
        for path in sorted(directory.glob(f"{commit}*-existing-*.json"))
    ]


def unnamed(directory: Path = RESULTS / MACHINE) -> list[str]:
    """Results of commits that ``steps.json`` does not name: what no table shows."""
    steps = tuple(json.loads(STEPS.read_bytes()))
    names = sorted(path.name for path in directory.glob("*-existing-*.json"))
    return [name for name in names if not name.startswith(steps)]


# --- the first page -------------------------------------------------------------------------------


# Provider -> the experiment that has it, and what it is called.
_BESIDE = {
    "transformer-engine": ("throughput", "TransformerEngine's CUDA kernel"),
    "flash-attention": ("throughput", "flash-attention's Triton kernel, which takes tables"),
    "compile-angles": ("study", "`torch.compile` of the formula with angles"),
}


def summary(of: Sequence[Stored], directory: Path = SWEEPS) -> list[str]:
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
        "benchmarks study peers`):"
    )
    return table(intro, ["", "minimum", "median"], rows)


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
    return table(intro, ["tensor", "cells", *_SPEEDS], rows)


def _gpu() -> dict[str, str]:
    """asv's record of the machine."""
    return json.loads((RESULTS / MACHINE / "machine.json").read_bytes())


def history(of: Sequence[Stored]) -> list[str]:
    """Backward, median share of a copy's speed by size, a row for each step of the kernel."""
    steps = json.loads(STEPS.read_bytes())
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
    return table(intro, ["path", *_SPEEDS], rows)


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
    return table(intro, ["call", "forward", "forward and gradient"], rows)


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


def table(intro: str, titles: Sequence[str], rows: Sequence[str]) -> list[str]:
    return [*wrapped(intro), "", *_head(titles), *rows]


def _head(titles: Sequence[str]) -> list[str]:
    return [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]


def wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)
