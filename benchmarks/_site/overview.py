"""Make the overview's data from asv's graphs. Measures and judges nothing."""

import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from .._engine.system.baseline import commits_since
from .._engine.system.process import ROOT
from . import nightly

REPORTS = ROOT / "benchmarks" / "evidence" / "reports"

DIRECTIONS = ("Forward", "Backward")
SUITES = ("rope", "paths")
METRICS = ("gbps", "copy_ratio", "latency")
CODEGEN = ("registers", "instructions", "spilled_bytes")
CODEGEN_CALL = {
    **{"dtype": "bfloat16", "format": "sbhd", "direction": "forward"},
    **{"hidden_size": "128", "size": "large"},
}
"""The call whose machine code is on the page. asv's pages have all."""

DETAILED_COMMITS = 8
"""Newest measured commits of a line whose changes are on the page."""

LINES_PER_MACHINE = 3
"""Newest lines of a machine on the page. A new driver, torch or triton starts a new line."""

CALLS = {
    "thd": "packed sequences of very unequal lengths",
    "thd-short": "many packed sequences of 27 tokens",
    "qkv": "fused QKV, four heads of queries to one of keys and values",
    "qk": "queries and keys in one launch, 32 heads and 8",
    "tables": "precomputed cos/sin tables",
    "tables-inplace": "the same, in place; forward only",
    "tables-bhsd": "the same for [b, h, s, d], as attention takes it",
    "starts": "a start position for each sequence of a batch of four",
    "partial": "64 of 128 channels rotated, the others copied",
    "head-96": "heads of 96 channels",
    "then-read": "with a copy of its output, against two copies; forward only",
}
"""Each call of ``paths`` in half a line. One without a description is still shown."""

# asv's parameters that tell lines of one machine apart, in the order in which they are shown.
_LABEL = ("driver", "cuda", "torch", "triton", "python", "gpu_id")

Values = Sequence[float | None]
"""A value for each cell in asv's order of the parameters; None where there is none."""


Series = Mapping[int, Sequence[Values]]
"""Revision -> the values of each of its runs; without the revisions that have no value."""
_Lines = Mapping[str, tuple[dict, Series]]
"""A line's identity -> asv's parameters of it, and the values."""
_Key = TypeVar("_Key")


def overview(conf, repo, benchmarks, graphs, revisions: dict[str, int]) -> dict:
    """Everything on the page, of what asv hands to ``OutputPublisher.publish``, as plain JSON.

    ``built``: now; ``nightly``: the last answer of the nightly comparison, or None; ``speed``: for
    each line (one GPU with one set of software), newest first, the values of its newest complete
    commit and the medians of all; ``codegen``: likewise, of machine code; ``commits``: by revision;
    ``reports``: by the head's commit. Times are in milliseconds.
    """
    branch, root = repo.get_branch_name(conf.branches[0]), Path.cwd()  # of asv.conf.json

    def lines(name: str) -> _Lines:
        of_branch = (g for g in graphs.get_graph_group(name) if g.params.get("branch") == branch)
        return {repr(sorted(g.params.items())): (g.params, _series(g)) for g in of_branch}

    speed, codegen = (
        _newest_lines(_speed_lines(lines)),
        _newest_lines(_codegen_lines(lines, _grid(benchmarks, "codegen.Codegen.track_registers"))),
    )
    shown = {revision for line in (*speed, *codegen) for revision in line["all"]}
    commits = _commits(repo, {r: h for h, r in revisions.items() if r in shown})
    for line in (*speed, *codegen):
        newest = commits[line["all"][-1]]["hash"]
        line["measured"] = _measured(Path(conf.results_dir) / line["machine"], newest)
        line["waiting"] = len(commits_since(root, newest, branch))
    return {
        "built": int(1000 * time.time()),
        "nightly": nightly.last(root, branch),
        "commit_url": conf.show_commit_url,
        "reports": _reports(conf.project_url, branch),
        "grid": _grid(benchmarks, "rope.Forward.track_gbps"),
        "paths_grid": {d: _grid(benchmarks, f"paths.{d}.track_gbps") for d in DIRECTIONS},
        "calls": CALLS,
        "speed": speed,
        "codegen": codegen,
        "commits": commits,
    }


def share_of_copy(ratios: Values) -> float | None:
    """Median speed as a share of a copy's, from latencies over a copy's; None without any."""
    shares = [1 / ratio for ratio in ratios if ratio]
    return rounded(statistics.median(shares)) if shares else None


def _speed_lines(lines: Callable[[str], _Lines]) -> Iterator[dict]:
    keys = itertools.product(SUITES, DIRECTIONS, METRICS)
    for line, series in _of_lines(lines, {key: "{}.{}.track_{}".format(*key) for key in keys}):
        ratios, newest = {d: series["rope", d, "copy_ratio"] for d in DIRECTIONS}, line["all"][-1]
        has_paths = any(series["paths", d, "copy_ratio"] for d in DIRECTIONS)
        yield line | {
            **_newest_values(series, "rope", newest),
            "paths": _newest_values(series, "paths", newest) if has_paths else None,
            "trend": {
                d: [share_of_copy(values_of(ratios[d], r)) for r in line["all"]] for d in DIRECTIONS
            },
            "changes": {
                f"{name}{d.lower()}": _changes(series[suite, d, "latency"], _median_change)
                for name, suite in {"": "rope", "paths ": "paths"}.items()
                for d in DIRECTIONS
            },
        }


def _codegen_lines(lines: Callable[[str], _Lines], grid: dict) -> Iterator[dict]:
    names = {metric: f"codegen.Codegen.track_{metric}" for metric in CODEGEN}
    for line, series in _of_lines(lines, names):
        yield line | {
            "call": ", ".join(CODEGEN_CALL.values()),
            "counts": {
                m: [_counts(values_of(values, r), grid) for r in line["all"][:-3:-1]]
                for m, values in series.items()
            },
            "changes": {m: _changes(values, _counts_changed) for m, values in series.items()},
        }


def _of_lines(
    lines: Callable[[str], _Lines], names: Mapping[_Key, str]
) -> Iterator[tuple[dict, dict[_Key, Series]]]:
    """What the page says of each line, and the series of these benchmarks; empty without one."""
    by_key = {key: lines(name) for key, name in names.items()}
    for identity in sorted(set().union(*by_key.values())):
        graphs = {key: group[identity] for key, group in by_key.items() if identity in group}
        params = next(iter(graphs.values()))[0]
        series = {key: graphs[key][1] if key in graphs else {} for key in names}
        if revisions := sorted(set().union(*series.values())):
            yield _line(params, revisions), series


def _newest_values(series: Mapping, suite: str, newest: int) -> dict:
    """The values of the newest commit that has both directions: a run may have been cut off."""
    measured = [set(series[suite, d, "copy_ratio"]) for d in DIRECTIONS]
    complete = set.intersection(*measured) or set.union(*measured)
    revision = max(complete, default=newest)
    return {
        "revision": revision,
        "values": {
            d: {m: values_of(series[suite, d, m], revision) for m in ("gbps", "copy_ratio")}
            for d in DIRECTIONS
        },
    }


def _counts(values: Values, grid: dict) -> dict[str, float | None]:
    """Architecture -> the count of ``CODEGEN_CALL``."""
    counts = {}
    for params, count in zip(itertools.product(*grid["values"]), values, strict=False):
        cell = dict(zip(grid["names"], params, strict=True))
        if cell.items() >= CODEGEN_CALL.items():
            counts[cell["target"]] = count
    return counts


def _line(params: dict, revisions: list[int]) -> dict:
    software = ", ".join(
        f"{name} {params[name]}" for name in _LABEL if params.get(name) not in (None, "", "none")
    )
    return {
        "machine": params["machine"],
        "gpu": params["gpu"] if params.get("gpu") not in (None, "", "none") else None,
        "software": software,
        "params": {key: value for key, value in params.items() if key != "branch"},
        "all": revisions,
    }


def _newest_lines(lines: Iterator[dict]) -> list[dict]:
    shown: list[dict] = []
    for line in sorted(lines, key=lambda line: (-line["all"][-1], line["machine"])):
        if sum(other["machine"] == line["machine"] for other in shown) < LINES_PER_MACHINE:
            shown.append(line)
    return shown


def _changes(series: Series, change: Callable) -> dict[int, dict]:
    """What changed in the newest commits against the measured commit before, ``before``."""
    newest = list(series)[-DETAILED_COMMITS - 1 :]
    changes = {
        after: {"before": before} | change(values_of(series, before), values_of(series, after))
        for before, after in itertools.pairwise(newest)
    }
    return {revision: step for revision, step in changes.items() if step["cells"]}


def _median_change(before: Values, after: Values) -> dict:
    """The median of the cells' relative changes: 0.1 is 10 % slower."""
    changes = [new / old - 1 for old, new in _pairs(before, after) if old]
    median = rounded(statistics.median(changes)) if changes else None
    return {"cells": len(changes), "median": median}


def _counts_changed(before: Values, after: Values) -> dict:
    """How many exact values went up and down: any difference counts."""
    pairs = _pairs(before, after)
    return {
        "cells": len(pairs),
        "up": sum(new > old for old, new in pairs),
        "down": sum(new < old for old, new in pairs),
    }


def _pairs(before: Values, after: Values) -> list[tuple[float, float]]:
    pairs = zip(before, after, strict=True)
    return [(old, new) for old, new in pairs if old is not None and new is not None]


def rounded(value: float | None) -> float | None:
    """The value with four digits; None for None, NaN and infinity."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.4g}")


def _any_value(run: Values) -> bool:
    return any(value is not None and math.isfinite(value) for value in run)


def _series(graph) -> Series:
    points = sorted(graph.data_points.items())
    return {revision: runs for revision, runs in points if any(map(_any_value, runs))}


def values_of(series: Series, revision: int) -> Values:
    """The means of a commit's runs, as on asv's pages; empty where it was not measured.

    They are made when they are asked for: a graph of a thousand commits has half a million.
    """
    return [_mean(cell) for cell in zip(*series.get(revision, []), strict=True)]


def _mean(runs: tuple[float | None, ...]) -> float | None:
    values = [value for value in runs if value is not None and math.isfinite(value)]
    return rounded(statistics.fmean(values)) if values else None


def _measured(machine: Path, commit: str) -> int | None:
    """When the last benchmark of a commit was started; asv keeps no other time of a run."""
    started = [
        row[result["result_columns"].index("started_at")]
        for path in machine.glob(f"{commit[:8]}-*.json")
        for result in [json.loads(path.read_bytes())]
        for row in result["results"].values()
    ]
    return max((time for time in started if time), default=None)


def _grid(benchmarks, name: str) -> dict:
    """Names and values of a benchmark's parameters, asv's quotes taken off; empty without it."""
    if name not in benchmarks:
        return {"names": [], "values": []}
    benchmark = benchmarks[name]
    values = [[text.strip("'") for text in texts] for texts in benchmark["params"]]
    return {"names": benchmark["param_names"], "values": values}


def _reports(project_url: str, branch: str) -> dict[str, list[dict]]:
    """The head's commit -> its stored comparisons: the base, the answer, and their address."""
    by_head: dict[str, list[dict]] = {}
    for path in sorted(REPORTS.rglob("*.json")):
        report = json.loads(path.read_bytes())
        text = path.with_suffix(".md").relative_to(ROOT).as_posix()
        about = {"base": report["base"]["sha"], "answer": report["answer"]}
        about["url"] = f"{project_url}/blob/{branch}/{text}"
        by_head.setdefault(report["head"]["sha"], []).append(about)
    return by_head


def _commits(repo, hashes: dict[int, str]) -> dict[int, dict]:
    if not hashes:
        return {}
    log = repo._run_git(["log", "--no-walk=unsorted", "--format=%H%x00%ct%x00%s", *hashes.values()])
    # Not splitlines(), which splits at what a subject may have, such as a form feed.
    records = (line.split("\0", 2) for line in log.strip("\n").split("\n"))
    commits = {h: {"time": 1000 * int(t), "subject": subject} for h, t, subject in records}
    return {revision: {"hash": commit, **commits[commit]} for revision, commit in hashes.items()}
