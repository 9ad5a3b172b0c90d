"""``python -m benchmarks figures``: read a stored asv result, and print its figures. No torch."""

import argparse
import itertools
import json
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from .._engine.system.errors import CouldNotRunError
from .._engine.system.process import ROOT
from .._engine.system.progress import say
from .._engine.system.repository import GitError, git_text
from .._subjects import cell as cell_of
from . import asv_fixes

RESULTS = ROOT / asv_fixes.RESULTS
_STORED = 10  # commits that a message names
DIRECTIONS = ("Forward", "Backward")
_HEADLINE_CALL = ["float16", "sbhd", "forward", "128"]  # without the architecture and the size
SIZE_CLASSES = ((16_000_000, "below 16 MB"), (256_000_000, "16 to 256 MB"), (float("inf"), "above"))


class Result:
    """A result of asv, read once.

    Raises ValueError if the file is no result of asv.
    """

    def __init__(self, path: Path):
        self.path, self._content = path, json.loads(path.read_bytes())
        kinds = {"date": int, "result_columns": list, "results": dict}
        if not isinstance(self._content, dict) or any(
            not isinstance(self._content.get(key), kind) for key, kind in kinds.items()
        ):
            raise ValueError("it is no result of asv")
        self.date: int = self._content["date"]
        """Of the commit, in asv's milliseconds."""
        self.machine, self.commit = path.parent.name, path.name[:8]
        self.triton: str | None = self._content.get("params", {}).get("triton")

    @property
    def values(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Benchmark -> parameters (asv's texts) -> value, without what is n/a or failed."""
        tables = {}
        for name, row in self._content["results"].items():
            entry = dict(zip(self._content["result_columns"], row, strict=False))
            cells = zip(itertools.product(*entry["params"]), entry["result"] or [], strict=False)
            tables[name] = {
                cell: value
                for cell, value in cells
                if isinstance(value, (int, float)) and value == value
            }
        return tables


class Speed(NamedTuple):
    """Some cells: their number, speed as a share of a copy's (minimum, median), median GB/s."""

    cells: int
    least: float
    median: float
    gbps: float


def speeds(values: dict, direction: str) -> dict[str, Speed]:
    """Speed by the size of the tensor, for "Forward" or "Backward"; empty classes are left out."""

    def size_class(*params: str) -> str:
        tensor = cell_of("rope", params).bytes_moved / 2
        return next(label for upper, label in SIZE_CLASSES if tensor < upper)

    by_class = _speeds(values, "rope", direction, size_class)
    return {label: by_class[label] for _, label in SIZE_CLASSES if label in by_class}


def path_speeds(values: dict, direction: str, least_mib: float = 0) -> dict[str, Speed]:
    """Speed of the package's other paths, from cells of at least this many MiB."""
    return _speeds(
        *(values, "paths", direction),
        lambda path, mib, dtype: path if float(mib) >= least_mib else None,
    )


def _speeds(
    values: dict, suite: str, direction: str, group: Callable[..., str | None]
) -> dict[str, Speed]:
    """Speed of each group of cells; ``group``: a cell's group, if any, by its parameters."""
    metrics = (f"{suite}.{direction}.track_{name}" for name in ("copy_ratio", "gbps"))
    ratios, rates = (values.get(metric, {}) for metric in metrics)
    groups: dict[str, list] = {}
    for key in ratios:
        if label := group(*(text.strip("'") for text in key)):
            groups.setdefault(label, []).append(key)
    return {label: _speed(keys, ratios, rates) for label, keys in groups.items()}


def _speed(keys: list, ratios: dict, rates: dict) -> Speed:
    shares = [1 / ratios[key] for key in keys]
    gbps = statistics.median(rates[key] for key in keys)
    return Speed(len(keys), min(shares), statistics.median(shares), gbps)


def speed_table(values: dict) -> list[str]:
    """Copy ratio and GB/s by direction: a line for each class of sizes, path and kind of step.

    Those of a step, training or decoding, are of the calls that models make in it.
    """
    groups = {
        "tensors {}": speeds,
        "{}": path_speeds,
        "models, {}": lambda values, direction: _speeds(
            values, "model_calls", direction, lambda model, step, takes: step
        ),
    }
    rows = {
        (direction, f"{title.format(label):20}"): speed
        for title, speeds_of in groups.items()
        for direction in DIRECTIONS
        for label, speed in speeds_of(values, direction).items()
    }
    return [
        f"{direction:8}  {title}  {speed.cells:4} cells  "
        f"speed of a copy: min {speed.least:.3f}, median {speed.median:.3f}  "
        f"median {speed.gbps:5.0f} GB/s"
        for (direction, title), speed in rows.items()
    ]


def codegen_table(values: dict) -> list[str]:
    """Registers, instructions and spills of a large float16 forward, one line an architecture.

    Results of version 1 of the benchmark have no size: theirs are those of a small call.
    """
    registers = values.get("codegen.Codegen.track_registers", {})
    instructions = values.get("codegen.Codegen.track_instructions", {})
    spilled = values.get("codegen.Codegen.track_spilled_bytes", {})
    lines = []
    for key in registers:
        target, *call = (text.strip("'") for text in key)
        if call in (_HEADLINE_CALL, [*_HEADLINE_CALL, "large"]):
            lines.append(
                f"{target:8} float16 sbhd forward, hidden 128: {registers[key]:3.0f} registers, "
                f"{instructions[key]:4.0f} instructions, {spilled[key]:.0f} bytes spilled"
            )
    return lines


_BESIDE = {
    **{f"rope.{d}.track_latency": f"{d.lower()} latency" for d in DIRECTIONS},
    "codegen.Codegen.track_instructions": "instructions",
    "codegen.Codegen.track_registers": "registers",
}


def beside(values: dict, before: dict) -> str:
    """What changed since another result: geometric means of what both have, "" if nothing."""
    changes = []
    for name, label in _BESIDE.items():
        now, then = values.get(name, {}), before.get(name, {})
        if ratios := [now[key] / then[key] for key in now.keys() & then.keys()]:
            change = 100 * (statistics.geometric_mean(ratios) - 1)
            changes.append(f"{label} {change:+.1f} % in {len(ratios)} cells")
    return ", ".join(changes)


# --- python -m benchmarks figures -----------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print the figures of a stored result."
    parser.add_argument(
        "machine",
        nargs="?",
        help="name of a directory in .asv/results; default: the one with the newest result",
    )
    parser.add_argument(
        "commit", nargs="?", help="a commit that was measured there; default: the newest one"
    )


def run(machine: str | None, commit: str | None) -> int:
    """Print the figures of one commit on one machine."""
    results = RESULTS
    try:
        asv_fixes.fill_results(ROOT)
    except OSError as error:
        results = ROOT / asv_fixes.SHIPPED
        say(f"{RESULTS} cannot be written ({error.strerror}): these are the results that ship")
    everything = _newest_first(results.glob("*/*-*.json"))
    stored = [result for result in everything if machine in (None, result.machine)]
    if not stored:
        machines = sorted({result.machine for result in everything})
        there = f"there are those of {', '.join(machines)}" if machines else f"{results} has none"
        raise CouldNotRunError(
            f"no results of a machine{f' {machine!r}' if machine else ''}: {there}"
        )
    newest, sha = stored[0].machine, stored[0].commit
    if commit is not None:
        sha = _measured(commit, list(dict.fromkeys(result.commit for result in stored)))[:8]
    say(f"machine {newest}, commit {sha}")
    of_machine = [result for result in stored if result.machine == newest]
    for result in sorted(of_machine, key=lambda result: result.path):
        if result.commit == sha:
            _show(result, of_machine)
    return 0


def show(path: Path) -> None:
    """Print the figures of a result, and how they differ from those stored before it."""
    stored = _newest_first(path.parent.glob("*-*.json"))
    _show(next(result for result in stored if result.path == path), stored)


def _show(result: Result, newest_first: list[Result]) -> None:
    values = result.values
    lines = [*speed_table(values), *codegen_table(values)]
    for older in newest_first[newest_first.index(result) + 1 :]:
        if older.commit == result.commit or older.triton != result.triton:
            continue
        if line := beside(values, older.values):
            lines.append(f"beside commit {older.commit}, stored before: {line}")
            break
    print(
        *lines or [f"{result.path} has no figures of speed or machine code"], sep="\n", flush=True
    )


def _newest_first(paths: Iterable[Path]) -> list[Result]:
    """The results by the dates of their commits; what cannot be read is named and left out."""
    results = []
    for path in paths:
        try:
            results.append(Result(path))
        except (ValueError, OSError) as error:
            say(f"left out, as it is damaged: {path} ({error}); delete it, and measure it again")
    return sorted(results, key=lambda result: (result.date, result.path), reverse=True)


def _measured(commit: str, stored: list[str]) -> str:
    """The full SHA of a commit among those that are stored, the newest first."""
    git("rev-parse", "--git-dir")
    more = f" and {len(stored) - _STORED} older ones" if len(stored) > _STORED else ""
    there = f"stored, from the newest, are {', '.join(stored[:_STORED])}{more}"
    words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    try:
        sha = git_text(ROOT, *words)
    except GitError:
        raise CouldNotRunError(
            f"{commit!r} is no commit of the repository {ROOT}; {there}"
        ) from None
    if sha[:8] not in stored:
        raise CouldNotRunError(f"no result of commit {sha[:8]}; {there}")
    return sha


def git(*arguments: str) -> str:
    """What git prints; where it fails, the command ends and says why."""
    try:
        return git_text(ROOT, *arguments)
    except GitError as error:
        raise CouldNotRunError(
            f"{error}\nresults are filed under a commit: measure in a clone, {ROOT} is none that "
            "git can read"
        ) from None
