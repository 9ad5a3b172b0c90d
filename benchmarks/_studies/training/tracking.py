"""What asv tracks: the providers that this package changes, at a few points, in one process."""

from collections.abc import Iterable
from typing import NamedTuple

from ..._engine.measure import cell_outcomes
from ..._engine.system import progress
from . import measuring, results
from .functions import OURS
from .sizes import POINTS

TURNS = 7


class Answer(NamedTuple):
    """Of a part by a provider: seconds of each turn, and RoPE's share in each, where it has RoPE.

    ``launches``: None where the profiler has no rights.
    """

    seconds: tuple[float, ...]
    peak_bytes: int
    launches: int | None
    rope_shares: tuple[float, ...] = ()


def answers(part: str, points: Iterable[str]) -> dict[tuple[str, str], Answer | Exception]:
    """By point and provider, or why there is none.

    ``NotImplementedError`` for what cannot be had here or at this commit, ``RuntimeError`` with the
    traceback for what went wrong.
    """
    by_point: dict[tuple[str, str], Answer | Exception] = {}
    reason = cell_outcomes.why_no_gpu()
    if reason:
        progress.report(f"training_step, {part}: n/a, {reason}")
    for point in points:
        rows = (
            NotImplementedError(reason)
            if reason
            else cell_outcomes.attempt(measuring.measured, POINTS[point], OURS, (part,), TURNS)
        )
        by_point |= {(point, name): _answer(name, part, rows) for name in OURS}
    return by_point


def _answer(name: str, part: str, rows: dict | Exception) -> Answer | Exception:
    if isinstance(rows, Exception):
        return rows
    row = rows[name]
    if "parts" not in row:
        kind = NotImplementedError if "unavailable" in row else RuntimeError
        return kind(*row.values())
    one = row["parts"][part]
    shares = tuple(results.shares(name, part, rows) or ())
    return Answer(tuple(one["seconds"]), one["peak_bytes"], one.get("launches"), shares)
