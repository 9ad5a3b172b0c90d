"""Print a comparison as a comment on a pull request, in GitHub's Markdown. Pure.

Read from the top: the answer, a line for each thing that was looked at, what moved most, what it
compiles to, a map of the grid. All else is folded away.
"""

import collections
import html
from collections.abc import Iterable, Sequence

from .._verdict.rules import Answer
from .._verdict.schema import Comparison
from .exact import Summary
from .github_markdown import code, escaped, folded, number, small
from .heatmap import maps
from .states import State, counted
from .text import clean, clip
from .view import FAILS, MOST_LINES, Row, View

# GitHub takes 65,536 characters in a comment.
_BYTES = 60_000
_HEADLINE = {Answer.PASS: "✅ PASS", Answer.FAIL: "❌ FAIL", Answer.CANNOT_TELL: "🟡 CANNOT TELL"}
_REMARKS = 6
_EXACT_ROWS = 40
_ALL_TIMINGS_BYTES = 10_000
_HOW_TO_READ = (
    "Base, head: medians over the rounds. Change: the middle of the changes of the rounds, their "
    "pseudomedian (in reports without a geometric mean, their mean), which under noise is not that "
    "of the medians. Floor: the noise floor; no smaller effect counts. "
    "MDE: the minimum detectable effect, the smallest slowdown that fails 9 times in 10. Same "
    "machine code: any difference is noise."
)


def markdown(comparison: Comparison) -> str:
    """The report for a pull request, in GitHub's Markdown, below 60 kB.

    Whatever was given by others (names of branches, notes, parameters) is escaped: it can neither
    format, link nor mention.
    """
    seen = View(comparison)
    sentence = clip(seen.sentence[0].upper() + seen.sentence[1:], 1000)
    quiet = "To tell, on a machine with nothing else to do, with more `--rounds`:"
    again = quiet if comparison.answer is Answer.CANNOT_TELL else "Run it yourself:"
    blocks = [
        f"## {_HEADLINE[comparison.answer]}",
        f"**{escaped(sentence)}**",
        *_bulleted(seen.means),
        f"{' → '.join(map(code, seen.sides))} · {escaped(seen.setting)}",
        *_remarks("Wrong on the head", comparison.wrong),
        *_remarks("Not measured", comparison.unmeasured),
        *_checks(seen),
        *_moved(seen, comparison),
        *maps(seen.states),
        *_compiled(seen),
        *_remarks("Notes", comparison.notes),
        f"{again} {code(comparison.reproduce, 400)}",
        *map(small, filter(None, [seen.machine])),
        *_measured(seen, comparison.discarded),
        *_changed(seen),
    ]
    text = _fitting(blocks, _BYTES - _ALL_TIMINGS_BYTES)
    return text + _all_timings(seen, _BYTES - len(text.encode()))


def _fitting(blocks: Sequence[str], budget: int) -> str:
    """The blocks as one text; a block too long for it is replaced by a line that says so."""
    text = ""
    for block in blocks:
        fits = len((text + block).encode()) < budget
        text += f"{block if fits else '_A part that is too long is left out here._'}\n\n"
    return text.rstrip("\n") + "\n"


def _table(head: Sequence[str], align: str, rows: Iterable[Sequence[str]]) -> str:
    """``align``: how the columns after the first are aligned."""
    lines = [head, [":--", *[align] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _bullets(texts: Sequence[str]) -> list[str]:
    # A text in a list could open another with a bullet of its own.
    bare = [clip(clean(text).lstrip("-+ "), 200) for text in texts[:_REMARKS]]
    left = len(texts) - len(bare)
    more = [f"and {left} more; the JSON has all"] if left else []
    return [f"- {escaped(text)}" for text in bare + more]


def _remarks(title: str, texts: Sequence[str]) -> Iterable[str]:
    if texts:
        yield "\n".join([f"{title}:", "", *_bullets(texts)])


def _bulleted(texts: Sequence[str]) -> Iterable[str]:
    if texts:
        yield "\n".join(_bullets(texts))


def _checks(seen: View) -> Iterable[str]:
    rows = [
        [each.symbol, number(each.name), "<br>".join(map(escaped, each.findings))]
        for each in seen.checks
    ]
    if rows:
        yield _table(["", "looked at", "found"], ":--", rows)


def _moved(seen: View, comparison: Comparison) -> Iterable[str]:
    """What moved most."""
    failed = comparison.answer is Answer.FAIL
    shown: list[Row] = []
    for row in seen.groups:
        # A failure hides what is not slower. Host times of that kind are in the table above.
        hidden = row.state is State.NOT_SLOWER and (failed or not row.is_of_gpu)
        full = [each.state for each in shown].count(row.state) == row.state.most_rows
        if not hidden and not full:
            shown.append(row)
    if not shown:
        return
    interval = f"{100 * comparison.rules.confidence:g} % interval"
    head = ["timings, worst first", "base", "head", "change", interval, "floor", "MDE"]
    yield _table(head, "--:", map(_cells, shown))
    left = collections.Counter(row.state for row in seen.rows)
    left -= collections.Counter(row.state for row in shown for _ in range(row.size))
    if left:
        yield escaped(f"Not in this table: {counted(left.elements())}.")


def _cells(row: Row) -> list[str]:
    label = f"{row.size} timings: {row.label}" if row.size > 1 else row.label
    numbers = map(number, (row.base, row.head, row.change, row.interval, row.floor, row.mde))
    base, head, change, *rest = numbers
    named = f"{row.state.symbol} {escaped(label).replace(' × ', '&nbsp;×&nbsp;')}"
    return [named, base, head, f"**{change}**", *rest]


def _compiled(seen: View) -> Iterable[str]:
    """How the figures of the machine code changed, on each architecture where some did."""
    names = list(dict.fromkeys(name for rows in seen.compiled.values() for name in rows))
    if names:
        rows = [
            [escaped(arch), *(_compiled_cell(by_name.get(name)) for name in names)]
            for arch, by_name in list(seen.compiled.items())[:MOST_LINES]
        ]
        yield _table(["machine code", *map(escaped, names)], ":--", rows)


def _compiled_cell(figures: Summary | None) -> str:
    if figures is None or not figures.changes:
        return "same"
    fails = f"{FAILS} " if figures.fails else ""
    return f"{fails}{number(figures.changes)}<br>{number(figures.values)}"


def _changed(seen: View) -> Iterable[str]:
    """The exact values that changed."""
    if not seen.changed:
        return
    most = max(3, _EXACT_ROWS // len(seen.changed))
    rows = [
        [f"{FAILS} " * each.fails + escaped(each.name), escaped(each.values), escaped(each.where)]
        for values in seen.changed
        for each in values[:most]
    ]
    left = sum(map(len, seen.changed)) - len(rows)
    table = _table(["exact value", "base → head", "where"], ":--", rows)
    rest = f"\n\n{left} more changed; the JSON has all." if left else ""
    yield folded("Exact values that changed, worst first", table + rest)


def _measured(seen: View, discarded: Sequence[str]) -> Iterable[str]:
    """How far to trust it: what the versions say of themselves, and what was repeated."""
    if seen.controls:
        lines = [f"- {escaped(text)}" for text in seen.controls]
        lines += _bullets([f"Discarded: {text}" for text in discarded])
        yield folded(
            "How it was measured, and how to read it", "\n".join([*lines, "", _HOW_TO_READ])
        )


def _all_timings(seen: View, budget: int) -> str:
    """Every timing, in groups where a line each is too much; says what is left out."""
    if not seen.rows:
        return ""
    budget -= 600  # for all around them
    rows, title = seen.rows, "All timings, worst first"
    lines = [_line(row, row.label) for row in rows]
    if sum(len(line.encode()) for line in lines) >= budget:
        rows, title = seen.groups, f"{title}, those that moved alike together"
        lines = [_line(row, f"{row.size}: {row.label}") for row in rows]
    text, left = "", len(seen.rows)
    for row, line in zip(rows, lines, strict=True):
        if len((text + line).encode()) > budget:
            break
        text, left = text + line, left - row.size
    end = f"\n\n{left} of {len(seen.rows)} timings are left out here; the JSON has all."
    head = "timing | base | head | change | interval | MDE\n"
    return "\n" + folded(title, f"<pre>\n{head}{text}</pre>{end if left else ''}")


def _line(row: Row, label: str) -> str:
    cells = (label, row.base, row.head, row.change, row.interval, row.mde)
    return html.escape(f"{row.state.symbol} {' | '.join(cells)}") + "\n"
