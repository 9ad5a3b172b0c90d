"""Print a comparison in a terminal, at most 100 columns wide. Pure."""

import textwrap
from collections.abc import Iterable

from .._verdict.schema import Comparison
from .states import State, counted
from .text import clean, clip
from .view import Row, View

_ROWS, _COLUMNS, _LABEL = 12, 100, 44


def terminal(comparison: Comparison) -> str:
    """The report for a terminal."""
    seen = View(comparison)
    scope = f" ({seen.scope})" if seen.scope else ""
    lines = [f"{comparison.answer.upper()}{scope}: {seen.sentence}", ""]
    interval = f"{100 * comparison.rules.confidence:g} % interval"
    lines += [
        f"{mean.clock}, geometric mean of {mean.timings}: {mean.change} "
        f"({interval} {mean.interval})"
        for mean in seen.means
    ]
    lines += [" → ".join(seen.sides), seen.setting, ""]
    lines += _remarks("wrong", comparison.wrong)
    lines += _remarks("not measured", comparison.unmeasured)
    if seen.rows:
        head = f"{'timings, worst first':{_LABEL}} {'base':>9} {'head':>9} {'change':>9}  reading"
        lines.append(head)
        lines += map(_line, seen.rows[:_ROWS])
        left = [row.state for row in seen.rows[_ROWS:]]
        lines += [f"and {len(left)} more: {counted(left)}"] if left else []
        lines.append("")
    lines += seen.controls
    changed = [each for each in seen.exact if each.changes]
    lines += [
        f"exact, {each.name}: {'FAIL' if each.fails else 'shown only'}: {each}" for each in changed
    ]
    if seen.exact and not changed:
        lines.append(f"exact: {sum(each.size for each in seen.exact)} values, none changed")
    lines += _remarks("note", seen.notes) + _remarks("discarded", comparison.discarded)
    lines += _remarks("machine", filter(None, [seen.machine]))
    wrapped = [
        part
        for line in lines
        for part in textwrap.wrap(clean(line), _COLUMNS, subsequent_indent="  ") or [""]
    ]
    again = f"again: {clean(comparison.reproduce)}"  # whole, to be copied
    return "\n".join([*wrapped, again]) + "\n"


def _remarks(title: str, texts: Iterable[str]) -> list[str]:
    return [f"{title}: {text}" for text in texts]


def _line(row: Row) -> str:
    readings = {
        State.SLOWER: f"SLOWER {row.interval}",
        State.FASTER: f"faster {row.interval}",
        State.NOT_SLOWER: f"within {row.upper}",
        State.INCONCLUSIVE: f"inconclusive, MDE {row.mde}",
    }
    reading = readings.get(row.state, "same code: only noise")
    label = clip(row.label, _LABEL)
    return f"{label:{_LABEL}} {row.base:>9} {row.head:>9} {row.change:>9}  {reading}"
