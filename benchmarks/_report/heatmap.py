"""Draw the GPU timings of a comparison as Markdown tables, a symbol for each. Pure."""

import itertools
import math
from collections.abc import Iterable, Mapping

from .._verdict.rules import Key
from .github_markdown import escaped, folded, small
from .grouping import in_order
from .states import State
from .text import name_of

# A larger map has a table for each direction.
_SMALL_MAP = 100
# Places in the map: those of the full grid, and no more than that for any other.
_PLACES = 1500
_EMPTY = "✖️"

# Direction and dtype, which make a column; what makes a row; group and place in a cell.
_Place = tuple[str, str, str, str, str]


def maps(states: Mapping[Key, State]) -> Iterable[str]:
    """A map of the grid, a row a size, and one of the other paths, a row a path.

    Forms of a call differ in ten ways, and models in no order: they have none.
    """
    grid: dict[_Place, State] = {}
    paths: dict[_Place, State] = {}
    for subject, state in states.items():
        match subject.metric.partition(".")[0], subject.params:
            case "rope", (seq_len, hidden, batch, dtype, fmt):
                size = f"{seq_len} × {hidden}"
                grid[name_of(subject.metric), dtype, size, fmt, batch] = state
            case "paths", (path, mib, dtype):
                paths[name_of(subject.metric), dtype, path, "", mib] = state
    blocks = [*_map(grid, "seq_len × hidden", "batch"), *_map(paths, "other paths", "MiB")]
    if blocks:
        yield folded("Map of the GPU timings", "\n\n".join(blocks))


def _map(states: Mapping[_Place, State], rows: str, places: str) -> Iterable[str]:
    if set(states.values()) <= {State.SAME_CODE}:  # the words say it
        return
    axes = [sorted(set(values), key=in_order) for values in zip(*states, strict=True)]
    size = math.prod(map(len, axes))
    if size > _PLACES:
        yield f"No map: the timings are spread over a grid of {size} places."
        return
    found = list(states.values())
    legend = [f"{each.symbol} {each.label}: {found.count(each)}" for each in State if each in found]
    legend += (
        [f"{_EMPTY} not timed on both sides: {size - len(found)}"] if size > len(found) else []
    )
    directions = axes[0][::-1]
    few = size <= _SMALL_MAP
    tables = [
        _table(states, rows, [part, *axes[1:]])
        for part in ([directions] if few else [[direction] for direction in directions])
    ]
    groups = f"; first {', then '.join(axes[3])}" if len(axes[3]) > 1 else ""
    order = small(f"In a cell: {places} {', '.join(axes[4])}{groups}.")
    yield "\n\n".join([" · ".join(legend), *tables, order])


def _table(states: Mapping[_Place, State], rows: str, axes: list[list[str]]) -> str:
    columns = list(itertools.product(*axes[:2]))
    names = [f"{direction}<br>{escaped(dtype)}" for direction, dtype in columns]
    lines = [f"| {rows} | {' | '.join(names)} |", "|--:|" + ":-:|" * len(columns)]
    for row in axes[2]:
        cells = [
            " ".join(
                "".join(_symbol(states, (direction, dtype, row, group, place)) for place in axes[4])
                for group in axes[3]
            )
            for direction, dtype in columns
        ]
        lines.append(f"| {escaped(row)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _symbol(states: Mapping[_Place, State], place: _Place) -> str:
    return states[place].symbol if place in states else _EMPTY
