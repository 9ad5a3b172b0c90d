"""Say whether main is slower than it was, since which commit, and what each toolchain cost."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import slowdowns
from .asv_fixes import first_revisions
from .changes import rounded
from .timelines import Timeline, timelines

FILE = "slowdowns.json"
SCHEMA = 1

JUDGED_RESULTS = 200
"""Newest results at which a slowdown may be told first: one told before is history."""

SHOWN_CELLS = 5
"""Cells of a finding that the page names; the file has all."""

FEWEST_STEPS = 5
"""Fewest pairs of neighbouring results that say how much a geometric mean moves by itself."""


class _Found(NamedTuple):
    """A slower timing: its row, how much, and in which columns.

    Those are of its last commit before, and of the first and the last with which it got slower.
    """

    row: int
    before: int
    first: int
    last: int
    kind: str
    change: float


def report(conf, repo, benchmarks, graphs, revisions: dict[str, int]) -> dict:
    """Whether main is slower than it was, for every machine that has latencies.

    Parameters
    ----------
    conf, repo, benchmarks, graphs, revisions
        As asv hands them to ``OutputPublisher.publish``.

    Returns
    -------
    dict
        ``machines``: for each its ``status`` ("slower", "not slower" or "too short"), ``told``, the
        same as a sentence, the ``rest`` that is not known, as another, the ``findings``, the
        largest first, and what the ``toolchains`` cost. Changes are relative: 0.02 is 2 % slower.
        Only what JSON can say.
    """
    branch = repo.get_branch_name(conf.branches[0])
    first = first_revisions(conf, repo, revisions, branch)
    hashes = {revision: commit for commit, revision in revisions.items()}

    def dated(commit: str) -> str:
        day = datetime.fromtimestamp(repo.get_date(commit) / 1000, UTC).date()
        return f"{commit[:7]} ({day})"

    def least(line: Timeline) -> np.ndarray:
        names = (timing.name for timing in line.timings)
        return slowdowns.floors(names, conf.regressions_thresholds)

    lines = timelines(benchmarks, graphs, branch, first)
    return {
        "format": "rope-triton slowdowns",
        "schema": SCHEMA,
        "machines": [_machine(line, least(line), hashes, dated) for line in lines],
    }


def write(site: Path, document: Mapping) -> None:
    """Put the report beside the pages, for programs."""
    text = json.dumps(document, indent=1, allow_nan=False)
    (site / FILE).write_text(f"{text}\n", encoding="utf-8")


def for_page(document: Mapping) -> list[dict]:
    """The machines of a report, with the worst cells of each finding only."""
    return [
        machine
        | {"findings": [f | {"cells": f["cells"][:SHOWN_CELLS]} for f in machine["findings"]]}
        for machine in document["machines"]
    ]


def _machine(
    line: Timeline, least: np.ndarray, hashes: Mapping[int, str], dated: Callable[[str], str]
) -> dict:
    numbers = [result.toolchain for result in line.results]
    anew = least > slowdowns.FLOOR
    both = [slowdowns.aligned(x, numbers, line.pairs, anew) for x in (line.own, line.ratio)]
    known = ~np.isnan(both[0]) & ~np.isnan(both[1])
    judged = int((known.sum(axis=1) >= slowdowns.SHORTEST).sum())
    found = [each for rows in _alike(known) for each in _slower(both, known, rows, least)]
    findings = [_finding(line, group, hashes) for group in _groups(found)]
    findings.sort(key=lambda each: -each["count"] * each["change"])
    about = {
        "machine": line.machine,
        "params": line.toolchains[-1],
        "results": len({result.revision for result in line.results}),
        "newest": hashes[line.results[-1].revision],
        "timings": len(line.timings),
        "judged": judged,
        "status": "slower" if findings else "not slower" if judged else "too short",
    }
    return about | {
        "told": _told(about, findings, dated),
        "rest": _rest(about),
        "findings": findings,
        "toolchains": list(_toolchains(line, ~anew, hashes)),
    }


def _alike(known: np.ndarray) -> Iterator[np.ndarray]:
    """The rows that have the same results, together."""
    _, pattern = np.unique(known, axis=0, return_inverse=True)
    for number in range(int(pattern.max(initial=-1)) + 1):
        yield np.flatnonzero(pattern.ravel() == number)


def _slower(
    both: list[np.ndarray], known: np.ndarray, rows: np.ndarray, least: np.ndarray
) -> Iterator[_Found]:
    columns = np.flatnonzero(known[rows[0]])
    own, ratio = (values[np.ix_(rows, columns)] for values in both)
    at = range(max(0, len(columns) - JUDGED_RESULTS), len(columns))
    told = slowdowns.slower(own, ratio, least[rows], at)
    for i in np.flatnonzero(told.any(axis=1)).tolist():
        rise = slowdowns.rise(own[i], ratio[i], at[int(np.flatnonzero(told[i])[-1])])
        if rise is not None:
            ends = rise.first - 1, rise.first, rise.last
            before, first, last = (int(columns[each]) for each in ends)
            yield _Found(int(rows[i]), before, first, last, rise.kind, rise.change)


def _groups(found: list[_Found]) -> Iterator[list[_Found]]:
    """Steps with the same result together, and ramps that have a result in common."""
    group: list[_Found] = []
    for each in sorted(found, key=lambda each: (each.kind, each.first)):
        if group and (each.kind != group[0].kind or each.first > max(f.last for f in group)):
            yield group
            group = []
        group.append(each)
    if group:
        yield group


def _finding(line: Timeline, group: list[_Found], hashes: Mapping[int, str]) -> dict:
    worst = sorted(group, key=lambda each: -each.change)
    ends = {
        "before": min(each.before for each in group),
        "since": min(each.first for each in group),
        "until": max(each.last for each in group),
    }
    return {
        "kind": group[0].kind,
        **{name: hashes[line.results[column].revision] for name, column in ends.items()},
        "count": len(group),
        "change": rounded(math.expm1(np.mean([math.log1p(each.change) for each in group]))),
        "cells": [_cell(line, each.row, each.change) for each in worst],
    }


def _cell(line: Timeline, row: int, change: float) -> dict:
    timing = line.timings[row]
    params = [text.strip("'") for text in timing.params]
    return {"benchmark": timing.benchmark, "params": params, "change": rounded(change)}


def _told(about: Mapping, findings: list[dict], dated: Callable[[str], str]) -> str:
    where, judged = about["machine"], about["judged"]
    of = f"{judged:,} timings on {where}"
    if findings:
        most = findings[0]
        end = f" that ends with {dated(most['until'])}" if most["kind"] == "ramp" else ""
        more = f", and {len(findings) - 1} more, below" if len(findings) > 1 else ""
        how = f"{_percent(most['change'])} in their geometric mean, by a {most['kind']}"
        return (
            f"main is slower than it was, since {dated(most['since'])}: {most['count']:,} of {of} "
            f"by {how}{end}{more}."
        )
    if not judged:
        return (
            f"Too few results on {where} to say whether main is slower than it was: no timing has "
            f"the {slowdowns.SHORTEST} that this takes."
        )
    return f"main is not slower than it was: none of {of}, up to {dated(about['newest'])}."


def _rest(about: Mapping) -> str:
    rest = about["timings"] - about["judged"]
    text = f"{rest:,} more have fewer than the {slowdowns.SHORTEST} results that this takes."
    return text if rest and about["judged"] else ""


def _toolchains(line: Timeline, steady: np.ndarray, hashes: Mapping[int, str]) -> Iterator[dict]:
    """What each toolchain but the first cost against the one before it."""
    numbers = np.array([result.toolchain for result in line.results])
    spread = _spread(line, numbers, steady)
    for new in range(1, len(line.toolchains)):
        exact = [pair for pair in line.pairs if numbers[pair[1]] == new]
        after = int(np.flatnonzero(numbers == new)[0])
        earlier = np.flatnonzero(numbers == new - 1)
        before = int(max([c for c in earlier if c < after], default=earlier[-1]))
        compared = exact or [(before, after)]
        old, now = compared[-1]
        changed = {
            name: [line.toolchains[new - 1].get(name), value]
            for name, value in line.toolchains[new].items()
            if value != line.toolchains[new - 1].get(name)
        }
        changes = np.stack([line.own[:, b] - line.own[:, a] for a, b in compared], axis=1)
        cost = np.where(steady, slowdowns.median(changes), np.nan)
        rows = np.flatnonzero(~np.isnan(cost))
        commits = [hashes[line.results[column].revision] for column in (old, now)]
        about: dict = {"changed": changed, "before": commits[0], "after": commits[1]}
        about |= {"exact": bool(exact), "commits": len(compared), "timings": len(rows)}
        about |= {"cost": None, "interval": None}
        if len(rows):
            mean, worst = float(cost[rows].mean()), int(rows[np.argmax(cost[rows])])
            error = None if spread is None else 1.96 * spread / len(compared) ** 0.5
            ends = None if error is None else [mean - error, mean + error]
            about["cost"] = rounded(math.expm1(mean))
            about["interval"] = ends and [rounded(math.expm1(end)) for end in ends]
            about["worst"] = _cell(line, worst, math.expm1(cost[worst]))
        yield about | {"told": _cost_told(about)}


def _spread(line: Timeline, numbers: np.ndarray, steady: np.ndarray) -> float | None:
    """Standard deviation of the geometric mean from one result to the next, by one toolchain."""
    moves = []
    for column in np.flatnonzero(numbers[1:] == numbers[:-1]).tolist():
        change = (line.own[:, column + 1] - line.own[:, column])[steady]
        if not np.isnan(change).all():
            moves.append(abs(float(np.nanmean(change))))
    return 1.4826 * float(np.median(moves)) if len(moves) >= FEWEST_STEPS else None


def _cost_told(about: Mapping) -> str:
    names = ", ".join(f"{name} {old} → {new}" for name, (old, new) in about["changed"].items())
    if about["cost"] is None:
        return f"{names}: no timing was measured with both, so what it cost is unknown."
    ends = about["interval"]
    interval = f" [{_percent(ends[0])}, {_percent(ends[1])}]" if ends else ""
    worst = about["worst"]
    cell = f"{worst['benchmark'].removesuffix('.track_latency')} {', '.join(worst['params'])}"
    old, new = about["before"][:7], about["after"][:7]
    how = (
        f"measured on {_counted(about['commits'], new)} with both"
        if about["exact"]
        else f"an estimate, as {new} differs from {old} in its code too"
    )
    return (
        f"{names}: {_percent(about['cost'])}{interval} in the geometric mean of "
        f"{about['timings']:,} timings, the worst {_percent(worst['change'])} ({cell}); {how}."
    )


def _counted(commits: int, newest: str) -> str:
    return newest if commits == 1 else f"{commits} commits up to {newest}"


def _percent(change: float) -> str:
    return re.sub("^-", "−", f"{change:+.1%}").replace("%", " %")
