"""A comparison, for the terminal and for a pull request. Pure: ``Comparison`` in, text out."""

import textwrap
from collections.abc import Sequence

from .._verdict import rules
from .._verdict.rules import Exact, Timing
from .._verdict.schema import Comparison, Side, from_json, to_json
from . import phrases as words
from .markdown import markdown

__all__ = ["Comparison", "Side", "from_json", "markdown", "terminal", "to_json"]

_ROWS = 12
_COLUMNS = 100
_LABEL = 44


def terminal(comparison: Comparison) -> str:
    """The report for a terminal, at most 100 columns wide."""
    sides = " -> ".join(words.side(side) for side in (comparison.base, comparison.head))
    lines = _wrapped(f"{comparison.answer.upper()}: {words.sentence(comparison)}") + [""]
    lines += _wrapped(sides) + _wrapped(words.setting(comparison)) + [""]
    lines += _remarks("wrong", comparison.wrong)
    lines += _remarks("not measured", comparison.unmeasured)
    worst = words.worst_first(comparison)
    if worst:
        shown = worst[:_ROWS]
        head = f"{'timings, worst first':{_LABEL}} {'base':>9} {'head':>9} {'change':>9}  reading"
        lines += [head, *(_row(timing, comparison) for timing in shown)]
        lines += _left_out(worst[len(shown) :], comparison) + [""]
    for name, family in comparison.families.items():
        lines += _wrapped(words.control(name, family.control))
    for text in _exact_lines(comparison.exact):
        lines += _wrapped(text)
    lines += _remarks("note", comparison.notes) + _remarks("repeated", comparison.disturbed)
    lines += _remarks("machine", list(filter(None, [words.machine(comparison)])))
    lines += [f"again: {words.clean(comparison.reproduce)}"]  # whole, to be copied
    return "\n".join(lines) + "\n"


def _remarks(title: str, texts: Sequence[str]) -> list[str]:
    return [line for text in texts for line in _wrapped(f"{title}: {text}")]


def _row(timing: Timing, comparison: Comparison) -> str:
    state = words.state(timing, comparison)
    ends = words.span(timing.low, timing.high)
    reading = {
        "slower": f"SLOWER {ends}",
        "faster": f"faster {ends}",
        "told": f"no slower than {words.percent(timing.upper)}",
        "untold": f"cannot tell below {words.percent(timing.visible, sign='')}",
    }.get(state, "same code: only noise")
    if not rules.gates(timing):
        reading = f"{words.STATES[state].partition(':')[0]} (shown only)"
    label = words.clip(words.label(timing.subject), _LABEL)
    base, head = words.seconds(timing.base), words.seconds(timing.head)
    return f"{label:{_LABEL}} {base:>9} {head:>9} {words.percent(timing.effect):>9}  {reading}"


def _left_out(timings: Sequence[Timing], comparison: Comparison) -> list[str]:
    counts = words.counts(timings, comparison)
    return _wrapped(f"and {len(timings)} more: {counts}") if timings else []


def _exact_lines(exact: Sequence[Exact]) -> list[str]:
    """Of each exact metric that changed: how many values and how, the worst of them."""
    lines = []
    for metric, each in words.by_metric(exact).items():
        changes, worst = words.changes(each), each[0]
        if changes:
            fails = "FAIL" if worst.answer is rules.Answer.FAIL else "shown only"
            lines.append(
                f"exact, {words.name_of(metric)}: {fails}: {changes} of "
                f"{words.count(len(each), 'value')}; {words.values(worst)} {worst.unit.name} at "
                f"{words.params_of(worst.subject)}"
            )
    if exact and not lines:
        lines = [f"exact: none of {words.count(len(exact), 'value')} changed"]
    return lines


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(words.clean(text), _COLUMNS, subsequent_indent="  ")
