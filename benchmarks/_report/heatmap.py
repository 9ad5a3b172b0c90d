"""The whole grid of a comparison at once, for Markdown: a symbol a timing. Pure."""

import collections
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from .._verdict.schema import Comparison
from . import phrases as words
from .github_markdown import escaped, folded, small
from .grouping import in_order

# Told apart by shape and brightness too, on a light and on a dark page.
SYMBOLS = {
    "slower": "🟥",
    "noise": "🟪",
    "untold": "🟨",
    "told": "⬜",
    "faster": "🔵",
    "same code": "▫️",
}
# More timings than this make a map that is folded away.
_SMALL_MAP = 100
# Places in the map: those of the full grid, and no more than that for any other.
_PLACES = 1500
_EMPTY = "✖️"


def grid_map(comparison: Comparison) -> Iterable[str]:
    """The whole grid, a symbol a timing: a row a size, a column a direction and dtype."""
    states: dict[tuple[str, ...], str] = {
        (match[1], *t.subject.params): words.state(t, comparison)
        for t in comparison.timings
        if (match := words.ROPE.fullmatch(t.subject.metric)) and len(t.subject.params) == 5
    }
    if set(states.values()) <= {"same code"}:  # the words say it
        return
    places = math.prod(len(_axis(states, axis)) for axis in range(6))
    if places > _PLACES:
        yield f"No map: the timings are spread over a grid of {places} places."
        return
    few = places <= _SMALL_MAP
    directions = sorted({key[0] for key in states}, reverse=True)
    parts = [directions] if few else [[direction] for direction in directions]
    order = (
        f"In a cell: {', then '.join(_axis(states, 5))}, each with batch "
        f"{', '.join(_axis(states, 3))}."
    )
    maps = [_map_table(part, states) for part in parts]
    text = "\n\n".join([_legend(states, places), *maps, small(order)])
    yield text if few else folded(f"Map of all {len(states)} GPU timings", text)


def path_map(comparison: Comparison) -> Iterable[str]:
    """The timings of the other paths: a row a path, a column a direction and dtype."""
    states: dict[tuple[str, ...], str] = {
        (match[1], *t.subject.params): words.state(t, comparison)
        for t in comparison.timings
        if (match := words.PATHS.fullmatch(t.subject.metric)) and len(t.subject.params) == 3
    }
    if set(states.values()) <= {"same code"}:
        return
    places = math.prod(len(_axis(states, axis)) for axis in range(4))
    if places > _PLACES:
        yield f"No map of the other paths: their timings are spread over {places} places."
        return
    order = f"In a cell: {', '.join(_axis(states, 2))} MiB; {_EMPTY} is not timed."
    yield "\n\n".join([_path_table(states), small(order)])


def _path_table(states: Mapping[tuple[str, ...], str]) -> str:
    directions = sorted(_axis(states, 0), reverse=True)
    columns = list(itertools.product(directions, _axis(states, 3)))
    names = [f"{direction}<br>{escaped(dtype)}" for direction, dtype in columns]
    lines = [f"| other paths | {' | '.join(names)} |", "|:--|" + ":-:|" * len(columns)]
    for path in _axis(states, 1):
        cells = [
            "".join(
                SYMBOLS[states[key]] if key in states else _EMPTY
                for mib in _axis(states, 2)
                for key in [(direction, path, mib, dtype)]
            )
            for direction, dtype in columns
        ]
        lines.append(f"| {escaped(path)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _legend(states: Mapping[tuple[str, ...], str], places: int) -> str:
    counts = collections.Counter(states.values())
    shown = [
        f"{SYMBOLS[state]} {escaped(said.partition(':')[0])}: {counts[state]}"
        for state, said in words.STATES.items()
        if counts[state]
    ]
    if places > len(states):
        shown.append(f"{_EMPTY} not timed on both sides: {places - len(states)}")
    return " · ".join(shown)


def _axis(states: Iterable[tuple[str, ...]], axis: int) -> list[str]:
    return sorted({key[axis] for key in states}, key=in_order)


def _map_table(directions: Sequence[str], states: Mapping[tuple[str, ...], str]) -> str:
    dtypes, batches, formats = (_axis(states, axis) for axis in (4, 3, 5))
    columns = [(direction, dtype) for direction in directions for dtype in dtypes]
    names = [f"{direction}<br>{escaped(dtype)}" for direction, dtype in columns]
    lines = [f"| seq_len × hidden | {' | '.join(names)} |", "|--:|" + ":-:|" * len(columns)]
    for seq_len, hidden in itertools.product(_axis(states, 1), _axis(states, 2)):
        cells = [
            " ".join(
                "".join(
                    SYMBOLS[states[key]] if key in states else _EMPTY
                    for batch in batches
                    for key in [(direction, seq_len, hidden, batch, dtype, fmt)]
                )
                for fmt in formats
            )
            for direction, dtype in columns
        ]
        lines.append(f"| {escaped(f'{seq_len} × {hidden}')} | {' | '.join(cells)} |")
    return "\n".join(lines)
