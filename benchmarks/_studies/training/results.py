"""Rounds to figures, and figures to Markdown and JSON. Imports no torch.

A round is a fresh process, in which the providers take turns: see ``measuring.measured``.
"""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..._engine.system import journal
from .. import pages
from .functions import PROVIDERS
from .sizes import (
    ATTENTION,
    CAUSAL,
    CAUSAL_FORWARD,
    PARTS,
    PEAK_FLOPS,
    POINTS,
    PRODUCTS,
    STEP,
    Point,
)

FORMAT = "rope-triton training step"
CONFIDENCE = 0.95
TITLES = {
    STEP: "A step: forward, loss and gradients",
    ATTENTION: "An attention sublayer: projections, RoPE and attention, forward and backward",
    PRODUCTS: "The products of a layer, and the gradients of both factors",
    CAUSAL_FORWARD: "Causal attention alone, forward",
    CAUSAL: "Causal attention alone, forward and backward",
}
_COLUMNS = ("provider", "ms", "tokens/s", "MFU", "peak GiB", "launches", "attention", "RoPE adds")


class Interval(NamedTuple):
    """The pseudomedian of the rounds, and bounds of its 95 % interval, None with too few rounds."""

    estimate: float
    low: float | None
    high: float | None


class Figure(NamedTuple):
    """A part by a provider: its figures, or why there are none.

    ``status``: "measured", "n/a" or "failed". ``seconds``: the median of the rounds' medians.
    ``mfu``: the share of ``PEAK_FLOPS``. ``rope``: what RoPE adds to the time; 0.01 is 1 %.
    """

    provider: str
    part: str
    status: str
    why: str = ""
    seconds: float = 0.0
    rounds: int = 0
    tokens_per_second: float = 0.0
    mfu: float | None = None
    peak_bytes: int = 0
    launches: int | None = None
    sdpa: str = ""
    rope: Interval | None = None


def figures(point: Point, gpu: str, rounds: Sequence[dict]) -> list[Figure]:
    """All figures of a point on a GPU, from the rows that ``measuring.measured`` returned."""
    names = list(dict.fromkeys(name for rows in rounds for name in rows))
    return [
        _figure(point, gpu, part, name, rounds)
        for part in PARTS
        for name in names
        if part in PROVIDERS[name].parts([part])
    ]


def _figure(point: Point, gpu: str, part: str, name: str, rounds: Sequence[dict]) -> Figure:
    for rows in rounds:
        for key, status in (("error", "failed"), ("unavailable", "n/a")):
            if key in rows[name]:
                return Figure(name, part, status, pages.last_line(rows[name][key]))
    of_rounds = [rows[name]["parts"][part] for rows in rounds]
    profiled, peak = of_rounds[0], PEAK_FLOPS.get(gpu)
    seconds = statistics.median(statistics.median(row["seconds"]) for row in of_rounds)
    return Figure(
        name,
        part,
        "measured",
        why=pages.last_line(profiled.get("unprofiled", "")),
        seconds=seconds,
        rounds=len(of_rounds),
        tokens_per_second=point.shape.tokens / seconds,
        mfu=point.flops(part) / seconds / peak if peak else None,
        peak_bytes=max(row["peak_bytes"] for row in of_rounds),
        launches=profiled.get("launches"),
        sdpa=profiled.get("sdpa", ""),
        rope=interval([shares(name, part, rows) for rows in rounds]),
    )


def shares(name: str, part: str, rows: dict) -> list[float]:
    """RoPE's share in each turn of a round; empty without the provider that lacks RoPE."""
    return [ratio - 1 for ratio in ratios(name, PROVIDERS[name].without_rope, part, rows)]


def ratios(name: str, other: str, part: str, rows: dict) -> list[float]:
    """A provider's time over another's in each turn of a round; empty where either has none."""
    if any("parts" not in rows.get(provider, {}) for provider in (name, other)):
        return []
    seconds, others = (rows[provider]["parts"][part]["seconds"] for provider in (name, other))
    return [one / another for one, another in zip(seconds, others, strict=True)]


def interval(rounds: Sequence[Sequence[float]]) -> Interval | None:
    """Of the medians of each round's turns; None if a round has no turns."""
    import numpy as np

    from ..._engine.verdict import signed_rank

    if not all(rounds):
        return None
    medians = [statistics.median(turns) for turns in rounds]
    averages = signed_rank.walsh_averages(np.array(medians)[:, None])
    estimate = signed_rank.estimate(averages).item()
    try:
        low, high = signed_rank.bounds(averages, len(rounds), (1 - CONFIDENCE) / 2)
    except ValueError:  # too few rounds
        return Interval(estimate, None, None)
    return Interval(estimate, low.item(), high.item())


# --- shown ----------------------------------------------------------------------------------------


def page(header: dict[str, Any], measured: Sequence[Figure]) -> Iterator[str]:
    about = f"bfloat16, {header['batch']} sequences"
    yield from pages.head(f"A training step: {header['point']}", header, about)
    yield from tables(measured)
    yield from _notes(measured)


def tables(measured: Sequence[Figure]) -> Iterator[str]:
    """A table of each part: a row for each provider."""
    for part in dict.fromkeys(figure.part for figure in measured):
        yield from ("", f"## {TITLES[part]}", "")
        rows = ((f"`{one.provider}`", *_cells(one)) for one in measured if one.part == part)
        yield from pages.table(_COLUMNS, rows)


def _cells(figure: Figure) -> Iterable[str]:
    if figure.status != "measured":
        return (figure.status, *[""] * 6)
    return (
        f"{figure.seconds * 1e3:.2f}",
        f"{figure.tokens_per_second:,.0f}",
        "n/a" if figure.mfu is None else f"{figure.mfu:.1%}",
        f"{figure.peak_bytes / 2**30:.2f}",
        "n/a" if figure.launches is None else str(figure.launches),
        figure.sdpa if figure.launches is not None else "n/a",
        written(figure.rope),
    )


def written(result: Interval | None, form: str = "+.2%") -> str:
    """The estimate with its interval, each in this format; "" for none."""
    if result is None:
        return ""
    bounds = "too few rounds for an interval"
    if result.low is not None and result.high is not None:
        bounds = f"{result.low:{form}} to {result.high:{form}}"
    return f"{result.estimate:{form}} ({bounds})"


def _notes(measured: Sequence[Figure]) -> Iterator[str]:
    rounds = max((figure.rounds for figure in measured), default=0)
    text = (
        f"{rounds} rounds, each a fresh process in which the providers take turns. RoPE adds: over "
        "the same without RoPE, paired, with the 95 % interval. Peak: of tensors, weights and "
        "gradients included. MFU: the model's operations, without what attention computes again."
    )
    yield from ("", text, "")
    for name in dict.fromkeys(figure.provider for figure in measured):
        yield f"- `{name}`: {PROVIDERS[name].about}"
    why = dict.fromkeys(
        (figure.provider, figure.status, figure.why) for figure in measured if figure.why
    )
    if why:
        yield from ("", "## Not measured", "")
    for provider, status, reason in why:
        what = "launches and the backend of attention" if status == "measured" else status
        yield f"- `{provider}`, {what}: {pages.quoted(reason)}"


# --- stored ---------------------------------------------------------------------------------------


class Stored(NamedTuple):
    """What was measured of a point: the journal's header, the rows of each round, all figures."""

    header: dict[str, Any]
    rounds: list[dict]
    figures: list[Figure]

    def timed(self, part: str) -> dict[str, Figure]:
        """By provider, the figures of a part that have a time."""
        return {
            figure.provider: figure
            for figure in self.figures
            if figure.part == part and figure.status == "measured"
        }


def read(path: Path) -> Stored:
    """A point of the evidence."""
    header, *entries = journal.read(path)
    return Stored(header, [entry["rows"] for entry in entries], of_entries(header, entries))


def of_entries(header: dict[str, Any], entries: Iterable[dict]) -> list[Figure]:
    """The figures of what a journal holds: a header, and an entry for each round."""
    point, gpu = POINTS[header["point"]], header["machine"]["gpu"]
    return figures(point, gpu, [entry["rows"] for entry in entries])
