"""Which calls of the package are as fast as they are to be, beside the best of other kernels.

- With precomputed tables, a call takes no longer than the fastest of ``RIVALS``: at most 1 % more,
  or 5 % below 4 MB moved, where places in memory move a call by as much.
- With angles it reaches 0.96 of its speed, 0.90 below 16 MB moved. If the roofline is slower than
  that, a copy that reads the angles too, it is held to the roofline.
- One head with a batch, whose sequences share the angles, is as fast as many: 0.95 of a copy, or
  of the roofline where that is slower. The angles of one head of two sequences are a third of all
  bytes in half precision, and a copy reads none.

A rival counts where it does as much. Liger's kernel does less in two kinds of calls: it works in
place, so channels without angles stay where they are, and where a call has positions, it gets each
token's row of the tables, gathered before the timing.
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from ..._subjects.rope.names import UNALIGNED
from .. import pages
from .experiments import COPY, OURS, OURS_BY_TABLES, RIVALS, Experiment, Timing
from .peer_cells import PeerCell
from .state import Results, Row

WITH_TABLES, WITH_ANGLES, ONE_HEAD = "with tables", "with angles", "one head"
GOALS = (WITH_TABLES, WITH_ANGLES, ONE_HEAD)
_SMALL_BYTES, _LARGE_BYTES = 4e6, 16e6  # moved
_WORST = 5
_LIGER, _ROOFLINE = "liger", "roofline"


class Judgement(NamedTuple):
    """Speed over that of ``beside``, which is to be ``least`` or more."""

    goal: str
    ratio: float
    least: float
    beside: str

    @property
    def held(self) -> bool:
        return self.ratio >= self.least


class Point(NamedTuple):
    """A call in one direction, and what is judged of it.

    ``timing`` is the package's, with angles. ``rivals`` are those that count and were measured.
    """

    timing: Timing
    judgements: tuple[Judgement, ...]
    unaligned: bool
    rivals: tuple[str, ...]

    @property
    def megabytes(self) -> float:
        return self.timing.cell.bytes_moved / 1e6

    @property
    def title(self) -> str:
        _, *name = self.timing.cell.values
        return f"{' '.join(name)}, {self.timing.direction}"


def points(experiment: Experiment, results: Results) -> list[Point]:
    """Every call of the experiment, in its order, with what could be judged."""
    own = (timing for timing in experiment.timings if timing.cell.provider == OURS)
    return [_point(timing, results) for timing in own]


def _point(timing: Timing, results: Results) -> Point:
    cell = timing.cell

    def row(provider: str) -> Row | None:
        there = results.rows.get(timing._replace(cell=cell.by(provider)))
        return there if there and there.status == "measured" else None

    does_less = cell.call_name.rotated < cell.call_name.channels or bool(cell.call_name.position)
    counted = [name for name in RIVALS if name != _LIGER or not does_less]
    seconds = {name: measured.seconds for name in counted if (measured := row(name))}
    judgements = tuple(_judgements(cell, row(OURS), row(OURS_BY_TABLES), seconds))
    unaligned = cell.call_name.layout in UNALIGNED and cell.call_name.item_bytes == 2
    return Point(timing, judgements, unaligned, tuple(seconds))


def _judgements(
    cell: PeerCell, ours: Row | None, by_tables: Row | None, seconds: dict[str, float]
) -> Iterator[Judgement]:
    moved, best = cell.bytes_moved, min(seconds, key=seconds.__getitem__, default="")
    if by_tables and best:
        least = 1 / (1.05 if moved < _SMALL_BYTES else 1.01)
        yield Judgement(WITH_TABLES, seconds[best] / by_tables.seconds, least, best)
    if ours:
        least = 0.96 if moved >= _LARGE_BYTES else 0.90
        ratios = {best: seconds[best] / ours.seconds} if best else {}
        if ratios := ratios | _beside_roofline(ours):
            yield _judged(WITH_ANGLES, ratios, least)
    shared = (
        cell.call_name.head_counts == (1,) and len(cell.lengths) > 1 and not cell.call_name.tables
    )
    if ours and shared and not cell.call_name.position:
        yield _judged(ONE_HEAD, {COPY: ours.share} | _beside_roofline(ours), 0.95)


def _beside_roofline(ours: Row) -> dict[str, float]:
    return {_ROOFLINE: ours.share_of_roofline} if ours.share_of_roofline else {}


def _judged(goal: str, ratios: dict[str, float], least: float) -> Judgement:
    """Beside the slowest in ``ratios``: its name -> the package's speed over its speed."""
    beside = max(ratios, key=ratios.__getitem__)
    return Judgement(goal, ratios[beside], least, beside)


def held(experiment: Experiment, results: Results) -> dict[str, str]:
    """By goal, how many timings hold it, of how many that are judged: "79 of 81"."""
    judged, counts = _judged_of(points(experiment, results)), {}
    for goal in GOALS:
        answers = [one.held for _, one in judged if one.goal == goal]
        counts[goal] = f"{sum(answers)} of {len(answers)}"
    return counts


def _judged_of(every: list[Point]) -> list[tuple[Point, Judgement]]:
    return [(point, one) for point in every if not point.unaligned for one in point.judgements]


def summary(experiment: Experiment, results: Results) -> list[str]:
    """What holds, in a sentence, and the calls that are farthest from their targets."""
    every = points(experiment, results)
    counts = [f"{goal} {count}" for goal, count in held(experiment, results).items()]
    unaligned = sum(point.unaligned for point in every)
    text = f"Hold their goals: {', '.join(counts)}; {unaligned} aligned to 2 bytes are not judged."
    measured = Counter(name for point in every for name in point.rivals)
    beside = ", ".join(f"{name} in {measured[name] or 'none'}" for name in RIVALS)
    text += f" Of {len(every)} timings, rivals count: {beside}."
    worst = sorted(_judged_of(every), key=lambda pair: pair[1].ratio / pair[1].least)[:_WORST]
    rows = (
        (
            *(point.title, f"{one.goal}, beside {one.beside}", f"{point.megabytes:.1f}"),
            *(f"{one.ratio:.3f}", f"{one.least:.3f}"),
        )
        for point, one in worst
    )
    columns = ("farthest", "goal", "MB moved", "ratio", "at least")
    return [text, "", *pages.table(columns, rows)]


def page(experiment: Experiment, results: Results) -> list[str]:
    about = (__doc__ or "").partition("\n\n")[2].strip().replace("``RIVALS``", ", ".join(RIVALS))
    lines = ["## Goals", "", *about.splitlines(), "", *summary(experiment, results), ""]
    rows = []
    for point in points(experiment, results):
        texts = {judgement.goal: _written(judgement, point) for judgement in point.judgements}
        cells = (texts.get(goal, "") for goal in GOALS)
        rows.append((point.title, f"{point.megabytes:.1f}", *cells))
    return [*lines, *pages.table(("call", "MB moved", *GOALS), rows)]


def _written(judgement: Judgement, point: Point) -> str:
    text = f"{judgement.ratio:.3f}"
    if not judgement.held:
        text = f"({text})" if point.unaligned else f"**{text}**"
    return f"{text} {judgement.beside}"
