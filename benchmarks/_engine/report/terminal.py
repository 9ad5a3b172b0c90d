"""Print a comparison in a terminal, at most 100 columns wide. Pure."""

import textwrap
from collections.abc import Iterable

from ..verdict.schema import Comparison
from .states import State, counted
from .text import clean, clip
from .view import Row, View

_ROWS, _COLUMNS, _LABEL = 12, 100, 44


def terminal(comparison: Comparison) -> str:
    """The report for a terminal."""
    view = View(comparison)
    scope = f" ({view.scope})" if view.scope else ""
    lines = [f"{comparison.answer.upper()}{scope}: {view.sentence}", ""]
    interval = f"{100 * comparison.rules.confidence:g} % interval"
    lines += [f"{mean.words}: {mean.change} ({interval} {mean.interval})" for mean in view.means]
    lines += [" → ".join(view.sides), view.setting, ""]
    lines += _remarks("wrong", view.wrong)
    lines += _remarks("not measured", view.unmeasured)
    if view.rows:
        head = f"{'timings, worst first':{_LABEL}} {'base':>9} {'head':>9} {'change':>9}  result"
        lines.append(head)
        lines += map(_line, view.rows[:_ROWS])
        left = [row.state for row in view.rows[_ROWS:]]
        lines += [f"and {len(left)} more: {counted(left)}"] if left else []
        lines.append("")
    lines += view.controls
    changed = [summary for summary in view.exact if summary.changes]
    lines += [f"{one.name} ({'FAIL' if one.fails else 'informational'}): {one}" for one in changed]
    if view.exact and not changed:
        lines.append(f"exact: {sum(one.size for one in view.exact)} values, none changed")
    lines += _remarks("note", view.notes) + _remarks("discarded", comparison.discarded)
    lines += _remarks("machine", filter(None, [view.machine]))
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
    results = {
        State.SLOWER: f"SLOWER {row.interval}",
        State.FASTER: f"faster {row.interval}",
        State.NOT_SLOWER: f"within {row.upper}",
        State.INCONCLUSIVE: f"inconclusive, MDE {row.mde}",
    }
    result = results.get(row.state, "same code: only noise")
    label = clip(row.label, _LABEL)
    return f"{label:{_LABEL}} {row.base:>9} {row.head:>9} {row.change:>9}  {result}"
