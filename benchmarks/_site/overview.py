"""Make the overview's data from asv's graphs. Measures and judges nothing."""

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from . import slowdowns
from .changes import Values, exact, rounded, timings
from .reports import reports

DIRECTIONS = ("Forward", "Backward")
SUITES = ("rope", "paths")
METRICS = ("gbps", "copy_ratio", "latency")
CODEGEN = ("registers", "instructions", "spilled_bytes")

DETAILED_COMMITS = 8
"""Newest measured commits of a line whose every cell is on the page: it bounds the page's size."""

LINES_PER_MACHINE = 3
"""Newest lines of a machine on the page. A new driver, torch or triton starts a new line."""

CALLS = {
    "thd": "packed sequences of very unequal lengths",
    "thd-short": "many packed sequences of 27 tokens",
    "qkv": "fused QKV, four heads of queries to one of keys and values",
    "qk": "queries and keys in one launch, 32 heads and 8",
    "tables": "ready-made cosines and sines",
    "tables-inplace": "the same, in place; forward only",
    "tables-bhsd": "the same for [b, h, s, d], as attention takes it",
    "starts": "a start position for each sequence of a batch of four",
    "partial": "64 of 128 channels rotated, the others copied",
    "head-96": "heads of 96 channels",
    "then-read": "with a copy of its output, against two copies; forward only",
}
"""Which call each of the other paths is, in half a line. A path without one is still shown."""

# asv's parameters that tell lines of one machine apart, in the order in which they are shown.
_LABEL = ("driver", "cuda", "torch", "triton", "python")


class Series(Values):
    """A graph's values, as asv's pages show them.

    Without the revisions that have no value. The values are worked out when they are asked for: a
    graph of a thousand commits has half a million, and the page shows those of a few.
    """

    def __init__(self, graph):
        kept = (r for r, runs in graph.data_points.items() if any(map(_any_value, runs)))
        self._runs = {revision: graph.data_points[revision] for revision in sorted(kept)}

    def __getitem__(self, revision: int) -> list[float | None]:
        return [_mean(cell) for cell in zip(*self._runs[revision], strict=True)]

    def __iter__(self) -> Iterator[int]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)


_Suite = Mapping[tuple[str, str], Series]
"""Direction and metric -> the values."""


def overview(conf, repo, benchmarks, graphs, revisions: dict[str, int]) -> dict:
    """Everything on the page.

    Parameters
    ----------
    conf, repo, benchmarks, graphs, revisions
        As asv hands them to ``OutputPublisher.publish``.

    Returns
    -------
    dict
        ``speed``: a line each (one GPU with one set of software), newest first, with the cells of
        its newest commits and the medians of all; in it ``paths``, None or the cells of the other
        paths; ``codegen``: likewise, of machine code; ``commits``: by revision; ``reports``: by the
        head's commit. Only what JSON can say.
    """
    branch = repo.get_branch_name(conf.branches[0])

    def lines(name: str) -> dict[str, tuple[dict, Series]]:
        kept = (g for g in graphs.get_graph_group(name) if g.params.get("branch") == branch)
        return {graph_id(g.params): (g.params, Series(g)) for g in kept}

    def least(name: str) -> np.ndarray | float:
        if name not in benchmarks:
            return slowdowns.FLOOR
        cells = itertools.product(*benchmarks[name]["params"])
        names = (slowdowns.name(name, params) for params in cells)
        return slowdowns.floors(names, conf.regressions_thresholds)

    speed = _newest_lines(_speed_lines(lines, functools.cache(least)))
    codegen = _newest_lines(_codegen_lines(lines))
    shown = {revision for line in (*speed, *codegen) for revision in line["all"]}
    return {
        "project": conf.project,
        "commit_url": conf.show_commit_url,
        "reports": reports(conf.project_url, branch),
        "grid": _grid(benchmarks, "rope.Forward.track_gbps"),
        "paths_grid": {d: _grid(benchmarks, f"paths.{d}.track_gbps") for d in DIRECTIONS},
        "calls": CALLS,
        "codegen_grid": _grid(benchmarks, "codegen.Codegen.track_registers"),
        "speed": speed,
        "codegen": codegen,
        "commits": _commits(repo, {r: h for h, r in revisions.items() if r in shown}),
    }


def graph_id(params: dict) -> str:
    """A line's identity: its parameters, whatever their order."""
    return "&".join(f"{key}={params[key]}" for key in sorted(params))


def share_of_copy(ratios: list[float | None]) -> float | None:
    """Median speed as a share of a copy's, from latencies over a copy's; None without any."""
    shares = [1 / ratio for ratio in ratios if ratio]
    return rounded(statistics.median(shares)) if shares else None


def _speed_lines(lines: Callable, least: Callable) -> Iterator[dict]:
    keys = itertools.product(SUITES, DIRECTIONS, METRICS)
    found = {(s, d, m): lines(f"{s}.{d}.track_{m}") for s, d, m in keys}
    identities = sorted(set().union(*found.values()))
    for identity in identities:
        at = {key: group[identity] for key, group in found.items() if identity in group}
        params = next(iter(at.values()))[0]
        series = {key: values for key, (_, values) in at.items()}
        every = sorted(set().union(*series.values()))
        if every:
            grid, paths = (_of_suite(series, suite) for suite in SUITES)
            trend = {d: _trend(grid.get((d, "copy_ratio"), {}), every) for d in DIRECTIONS}
            others = _cells("paths", paths, least) if any(paths.values()) else None
            cells = _cells("rope", grid, least)
            yield _line(params, every) | cells | {"trend": trend, "paths": others}


def _of_suite(series: dict[tuple[str, str, str], Series], suite: str) -> _Suite:
    return {(d, metric): values for (s, d, metric), values in series.items() if s == suite}


def _cells(suite: str, series: _Suite, least: Callable) -> dict:
    """Every cell of the newest commits, and what changed in them."""
    nothing: Values = {}

    def found(direction: str, metric: str) -> Values:
        return series.get((direction, metric), nothing)

    def newest(values: Values) -> dict[int, list[float | None]]:
        return {revision: values[revision] for revision in list(values)[-DETAILED_COMMITS:]}

    return {
        "values": {
            direction: {m: newest(found(direction, m)) for m in ("gbps", "copy_ratio")}
            for direction in DIRECTIONS
        },
        "changes": {
            d: timings(found(d, "latency"), DETAILED_COMMITS, least(f"{suite}.{d}.track_latency"))
            for d in DIRECTIONS
        },
    }


def _trend(ratios: Values, every: list[int]) -> list[float | None]:
    return [share_of_copy(ratios.get(revision, [])) for revision in every]


def _codegen_lines(lines: Callable) -> Iterator[dict]:
    found = {metric: lines(f"codegen.Codegen.track_{metric}") for metric in CODEGEN}
    for identity in sorted(set.intersection(*map(set, found.values()))):
        params = found[CODEGEN[0]][identity][0]
        series = {metric: group[identity][1] for metric, group in found.items()}
        every = sorted(set().union(*series.values()))
        if every:
            kept = every[-DETAILED_COMMITS:]
            yield _line(params, every) | {
                "values": {m: {r: s[r] for r in kept if r in s} for m, s in series.items()},
                "changes": {m: exact(s, DETAILED_COMMITS) for m, s in series.items()},
            }


def _line(params: dict, every: list[int]) -> dict:
    software = ", ".join(
        f"{name} {params[name]}" for name in _LABEL if params.get(name) not in (None, "", "none")
    )
    return {
        "machine": params["machine"],
        "gpu": params["gpu"] if params.get("gpu") not in (None, "", "none") else None,
        "software": software,
        "params": {key: value for key, value in params.items() if key != "branch"},
        "all": every,
    }


def _newest_lines(lines: Iterator[dict]) -> list[dict]:
    kept: list[dict] = []
    count: dict[str, int] = {}
    for line in sorted(lines, key=lambda line: (-line["all"][-1], line["machine"])):
        count[line["machine"]] = count.get(line["machine"], 0) + 1
        if count[line["machine"]] <= LINES_PER_MACHINE:
            kept.append(line)
    return kept


def _any_value(run: list[float | None]) -> bool:
    return any(value is not None and math.isfinite(value) for value in run)


def _mean(runs: tuple[float | None, ...]) -> float | None:
    """A cell's value where a commit was measured more than once, as on asv's pages."""
    known = [value for value in runs if value is not None and math.isfinite(value)]
    return rounded(statistics.fmean(known)) if known else None


def _grid(benchmarks, name: str) -> dict:
    """Names and values of a benchmark's parameters, asv's quotes taken off; empty without it."""
    if name not in benchmarks:
        return {"names": [], "values": []}
    benchmark = benchmarks[name]
    values = [[text.strip("'") for text in texts] for texts in benchmark["params"]]
    return {"names": benchmark["param_names"], "values": values}


def _commits(repo, hashes: dict[int, str]) -> dict[int, dict]:
    if not hashes:
        return {}
    shown = "--format=%H%x00%ct%x00%s"
    log = repo._run_git(["log", "--no-walk=unsorted", shown, *hashes.values()])
    # Not splitlines(), which splits at what a subject may have, such as a form feed.
    records = (line.split("\0", 2) for line in log.strip("\n").split("\n"))
    found = {commit: {"time": int(time), "subject": subject} for commit, time, subject in records}
    return {revision: {"hash": commit, **found[commit]} for revision, commit in hashes.items()}
