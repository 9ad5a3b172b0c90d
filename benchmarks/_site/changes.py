"""What changed from one measured commit to the next: timings beyond their noise, exact counts."""

import math
from collections.abc import Mapping

import numpy as np

from . import slowdowns

EARLIER, FEWEST = 50, 8
"""Most and fewest earlier changes of a cell that say how much it moves by itself."""

Values = Mapping[int, list[float | None]]
"""Revision -> a value a cell, in asv's order of the parameters; None where there is none."""


def timings(series: Values, newest: int, least: np.ndarray | float) -> dict[int, dict]:
    """How the newest commits' latencies differ from those of the measured commit before.

    Parameters
    ----------
    series : mapping
        The latencies.
    newest : int
        How many commits.
    least : array [cells] or float
        Least change of each cell that counts.

    Returns
    -------
    Revision -> ``before``, the revision compared with; the ``median`` of the ``cells``' relative
    changes (0.1: 10 % slower); how many of them were ``judged``, because enough is known of their
    noise, and were ``up`` or ``down`` by more than it; the ``worst`` of those up, and ``at`` which
    index it is, None without any.
    """
    revisions = list(series)[-newest - EARLIER :]
    if len(revisions) < 2:
        return {}
    values = np.array([series[revision] for revision in revisions], float).T
    values[values == 0] = np.nan  # no latency
    moves = values[:, 1:] / values[:, :-1] - 1
    columns = range(moves.shape[1])[-newest:]
    found = {
        revisions[i + 1]: _timings(moves[:, max(0, i - EARLIER) : i + 1], least) for i in columns
    }
    before = dict(zip(revisions[1:], revisions, strict=False))
    return {r: {"before": before[r]} | each for r, each in found.items() if each["cells"]}


def _timings(moves: np.ndarray, least: np.ndarray | float) -> dict:
    """The last of the relative changes [cells, changes], by those before."""
    earlier, now = moves[:, :-1], moves[:, -1]
    known, fence = ~np.isnan(now), fences(earlier, least)
    up, down = now > fence, now < -fence
    worst = int(np.argmax(np.where(up, now, -np.inf))) if up.any() else None
    return {
        "cells": int(known.sum()),
        "judged": int((known & ~np.isnan(fence)).sum()),
        "median": rounded(np.median(now[known])) if known.any() else None,
        "up": int(up.sum()),
        "down": int(down.sum()),
        "worst": None if worst is None else rounded(now[worst]),
        "at": worst,
    }


def fences(earlier: np.ndarray, least: np.ndarray | float) -> np.ndarray:
    """From which size on a change of each cell is no noise, by its earlier ones [cells, changes].

    As far above the third quartile as three times the quartiles are apart, which is rustc-perf's
    rule, and at least what counts at all. NaN where too few are known.
    """
    sizes = np.abs(earlier)
    low, high = (slowdowns.quantile(sizes, share) for share in (0.25, 0.75))
    enough = np.sum(~np.isnan(sizes), axis=1) >= FEWEST
    return np.where(enough, np.fmax(least, high + 3 * (high - low)), np.nan)


def exact(series: Values, newest: int) -> dict[int, dict]:
    """Counts of exact values that went up and down: any difference counts, also from zero."""
    known = list(series)[-newest:]
    return {b: _exact(series[a], series[b]) for a, b in zip(known, known[1:], strict=False)}


def _exact(before: list[float | None], after: list[float | None]) -> dict:
    both = zip(before, after, strict=True)
    pairs = [(o, n) for o, n in both if o is not None and n is not None]
    return {"up": sum(n > o for o, n in pairs), "down": sum(n < o for o, n in pairs)}


def rounded(value: float | None) -> float | None:
    """The value with four digits; None for None, NaN and infinity."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.4g}")
