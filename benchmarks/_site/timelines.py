"""Put asv's graphs of latencies into one table a machine, whatever torch and Triton measured them.

asv begins a new line with every new driver, torch or Triton. Here a result is of a commit and of a
toolchain, which is all that tells two lines of a machine apart.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .._subjects import cell as cell_of
from . import slowdowns
from .overview import DIRECTIONS, SUITES, Series, graph_id


class Timing(NamedTuple):
    """A cell of a benchmark: asv's name, the cell's position in its results, asv's parameters."""

    benchmark: str
    at: int
    params: tuple[str, ...]

    @property
    def name(self) -> str:
        """As ``asv.conf.json`` matches it."""
        return slowdowns.name(self.benchmark, self.params)


class Result(NamedTuple):
    """One column: a commit's revision, and the position of the toolchain that measured it."""

    revision: int
    toolchain: int


class Timeline(NamedTuple):
    """All latencies of a machine, natural logarithms [timings, results]; NaN where not measured.

    ``ratio`` is over the median copy of as many bytes in the same run. Toolchains have asv's
    parameters of a line, and are in the order in which they appeared.
    """

    machine: str
    toolchains: list[dict]
    results: list[Result]
    timings: list[Timing]
    own: np.ndarray
    ratio: np.ndarray

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Columns of one commit by two toolchains in a row, the earlier toolchain first."""
        at = {result: column for column, result in enumerate(self.results)}
        found = ((at.get(Result(r, number - 1)), column) for (r, number), column in at.items())
        return [(old, new) for old, new in found if old is not None]


def timelines(
    benchmarks, graphs, branch: str, first: Callable[[str], int | None]
) -> Iterator[Timeline]:
    """A table for each machine that has measured latencies.

    Parameters
    ----------
    benchmarks, graphs
        As asv hands them to ``OutputPublisher.publish``.
    branch : str
        asv's name of the branch.
    first : callable
        A timing's name -> the first revision that counts, None where no slowdown does.
    """
    machines: dict[str, dict[str, dict]] = {}  # -> line -> benchmark -> both values
    params: dict[str, dict] = {}
    for suite, direction in itertools.product(SUITES, DIRECTIONS):
        name = f"{suite}.{direction}.track_"
        ratios = {graph_id(g.params): g for g in graphs.get_graph_group(f"{name}copy_ratio")}
        for graph in graphs.get_graph_group(f"{name}latency"):
            line = graph_id(graph.params)
            if graph.params.get("branch") == branch and line in ratios:
                values = Series(graph), Series(ratios[line])
                lines = machines.setdefault(graph.params["machine"], {})
                lines.setdefault(line, {})[f"{name}latency"] = values
                params[line] = {k: v for k, v in graph.params.items() if k != "branch"}
    for machine, lines in sorted(machines.items()):
        ordered = sorted(lines, key=lambda line: min(_revisions(lines[line]), default=0))
        tables = [lines[line] for line in ordered]
        if any(map(_revisions, tables)):
            yield _timeline(machine, [params[line] for line in ordered], tables, benchmarks, first)


def _revisions(line: Mapping) -> set[int]:
    return set().union(*(latency for latency, _ in line.values()))


def _timeline(
    machine: str, toolchains: list[dict], lines: list[dict], benchmarks, first: Callable
) -> Timeline:
    results = sorted(
        Result(revision, number)
        for number, line in enumerate(lines)
        for revision in _revisions(line)
    )
    revisions = np.array([result.revision for result in results])
    timings: list[Timing] = []
    own, copies = [], []
    for name in sorted(set().union(*lines)):
        products = itertools.product(*benchmarks[name]["params"])
        cells = [Timing(name, at, params) for at, params in enumerate(products)]
        both = [line.get(name, ({}, {})) for line in lines]
        latency, ratio = (_table([b[i] for b in both], results, len(cells)) for i in (0, 1))
        begins = [first(cell.name) for cell in cells]
        begin = np.array([np.inf if revision is None else revision for revision in begins])
        timings += cells
        own.append(np.where(revisions >= begin[:, None], latency, np.nan))
        copies.append(latency - ratio)
    rows = np.concatenate(own)
    reference = references(timings, np.concatenate(copies))
    return Timeline(machine, toolchains, results, timings, rows, rows - reference)


def _table(lines: Sequence[Mapping], results: Sequence[Result], cells: int) -> np.ndarray:
    """Natural logarithms [cells, results] of what each line has of a benchmark."""
    nothing = [None] * cells
    columns = [lines[number].get(revision, nothing) for revision, number in results]
    values = np.array(columns, float).T
    return np.log(values, where=values > 0, out=np.full_like(values, np.nan))


def references(timings: Sequence[Timing], copies: np.ndarray) -> np.ndarray:
    """Each timing's copy [timings, results] as the median of those of as many bytes in its run."""
    groups: dict[tuple, list[int]] = {}
    for row, timing in enumerate(timings):
        cell = cell_of(timing.benchmark, timing.params)
        key = timing.benchmark, getattr(cell, "path", None), cell.bytes_moved
        groups.setdefault(key, []).append(row)
    shared = np.empty_like(copies)
    for group in groups.values():
        shared[group] = slowdowns.median(copies[group].T)
    return shared
