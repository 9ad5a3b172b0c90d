"""Print a comparison as a comment on a pull request, in GitHub's Markdown. Pure.

The first lines are all that a reviewer needs: the answer, the mean changes, what got slower, what
was not measured, what to do next. All else is folded away. No table is wider than a comment, 780
pixels.
"""

import html
import re
from collections.abc import Iterable, Sequence

from ..verdict.rules import MAX_ROUNDS, Answer
from ..verdict.schema import Comparison
from .github_markdown import code, escaped, folded, number
from .states import State
from .text import clean, clip
from .view import FAILS, Row, View

# GitHub takes 65,536 characters in a comment.
_BYTES = 60_000
_HEADLINE = {Answer.PASS: "✅ PASS", Answer.FAIL: "❌ FAIL", Answer.CANNOT_TELL: "🟡 CANNOT TELL"}
_REMARKS, _URGENT = 6, 3
_EXACT_ROWS = 40
_ALL_TIMINGS_BYTES = 10_000
_MORE_MINUTES = 60
_LIST = re.compile(r"^([-+\s]|\d+[.)](?!\S))+")
_ACCEPTING = "blob/main/.github/CONTRIBUTING.md#accepting-a-slowdown"
_HOW_TO_READ = (
    "Base, head: medians over the rounds. Change: Hodges-Lehmann estimate over the rounds; it need "
    "not equal head/base of the medians. Floor: no smaller effect counts. "
    "MDE: minimum detectable effect, the smallest slowdown that fails 9 times in 10. Same "
    "machine code: any difference is noise. A name such as qk-bshd-bf16-32x128-decode is a call: "
    "its function, layout, dtype, heads x channels, options."
)


def markdown(comparison: Comparison, url: str = "") -> str:
    """The report for a pull request, in GitHub's Markdown, below 60 kB.

    Whatever was given by others (names of branches, notes, parameters) is escaped: it can neither
    format, link nor mention. ``url``: the repository's page, trusted, for links to the commits.
    """
    view = View(comparison)
    sentence = clip(view.sentence[0].upper() + view.sentence[1:], 1000)
    blocks = [
        f"## {_HEADLINE[comparison.answer]}{f' ({view.scope})' if view.scope else ''}",
        f"**{escaped(sentence)}**",
        *_summary(view, comparison),
        *_remarks("Wrong on the head", view.wrong),
        *_remarks("Not measured", view.unmeasured),
        _next(view, comparison, url),
        f"{_commits(view, comparison, url)} · {escaped(view.setting)}",
        *_checks(view),
        *_changed(view),
        *_measured(view, comparison),
    ]
    text = _fitting(blocks, _BYTES - _ALL_TIMINGS_BYTES)
    return text + _all_timings(view, _BYTES - len(text.encode()))


def _summary(view: View, comparison: Comparison) -> Iterable[str]:
    """The mean changes, the slowest timings and the fastest."""
    rows = [[_label(mean.words), "", "", mean.change, mean.interval] for mean in view.means]
    for what, row in view.headlines():
        name = f"{row.state.symbol} {_label(f'{what}: {row.label}')}"
        rows.append([name, row.base, row.head, row.change, row.interval])
    if rows:
        interval = f"{100 * comparison.rules.confidence:g} % interval"
        cells = [[name, *map(number, numbers)] for name, *numbers in rows]
        yield _table(["", "base", "head", "change", interval], "--:", cells)


def _next(view: View, comparison: Comparison, url: str) -> str:
    """What to do after this answer."""
    again = code(comparison.reproduce, 400)
    if comparison.answer is Answer.PASS and view.scope:
        timed = code(comparison.reproduce.replace(" --exact-only", ""), 400)
        return f"Next: measure its speed on a machine with a GPU: {timed}"
    if comparison.answer is Answer.PASS:
        return f"Next: nothing. To measure it again: {again}"
    if comparison.answer is Answer.FAIL:
        page = "CONTRIBUTING.md"
        accept = f"accept it: [{page}]({url}/{_ACCEPTING})" if url else f"see {page}"
        do = "correct the head" if comparison.wrong else f"fix it, or {accept}"
        return f"Next: {do}. To measure it again: {again}"
    if comparison.unmeasured or not comparison.rounds:
        return f"Next: settle what was not measured, then measure it again: {again}"
    judged = comparison.rounds - comparison.extension
    if judged >= MAX_ROUNDS:
        return f"Next: these are all rounds that can be judged; on a quieter machine: {again}"
    rounds = min(2 * judged, MAX_ROUNDS)
    same = re.sub(r" --(rounds|budget) \S+", "", comparison.reproduce)
    more = code(f"{same} --rounds {rounds} --budget {_MORE_MINUTES}", 400)
    return f"Next: measure more rounds, on a machine with nothing else to do: {more}"


def _commits(view: View, comparison: Comparison, url: str) -> str:
    """The versions, with links to those that are commits and to all that is between."""
    shas = [comparison.base.sha, comparison.head.sha]
    base, head = (
        f"[{code(name)}]({url}/commit/{sha})" if url and sha else code(name)
        for name, sha in zip(view.sides, shas, strict=True)
    )
    between = f" ([base...head]({url}/compare/{'...'.join(shas)}))" if url and all(shas) else ""
    return f"{base} → {head}{between}"


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


def _bullets(texts: Sequence[str], most: int = _REMARKS) -> list[str]:
    # A text in a list could open another, with a bullet or a number of its own.
    bare = [clip(_LIST.sub("", clean(text)), 300) for text in texts[:most]]
    left = len(texts) - len(bare)
    more = [f"and {left} more; the JSON has all"] if left else []
    return [f"- {escaped(text)}" for text in bare + more]


def _remarks(title: str, texts: Sequence[str]) -> Iterable[str]:
    if texts:
        yield "\n".join([f"{title}:", "", *_bullets(texts, _URGENT)])


def _checks(view: View) -> Iterable[str]:
    rows = [
        [check.symbol, number(check.name), "<br>".join(map(escaped, check.results))]
        for check in view.checks
    ]
    if rows:
        title = " · ".join(f"{check.symbol} {check.name}" for check in view.checks)
        yield folded(title, _table(["", "check", "result"], ":--", rows))


def _label(text: str) -> str:
    return escaped(text).replace(" × ", "&nbsp;×&nbsp;")


def _changed(view: View) -> Iterable[str]:
    """The exact values that changed."""
    if not view.changed:
        return
    most = max(3, _EXACT_ROWS // len(view.changed))
    rows, shown = [], 0
    for values in view.changed:
        alike: dict[tuple[str, str], list[str]] = {}
        for value in values:
            name = f"{FAILS} " * value.fails + escaped(value.name)
            alike.setdefault((name, escaped(value.values)), []).append(value.where)
        for (name, change), (first, *more) in list(alike.items())[:most]:
            place = f"{first}{f' and {len(more)} more' if more else ''}"
            rows.append([name, change, escaped(place)])
            shown += 1 + len(more)
    left = sum(map(len, view.changed)) - shown
    table = _table(["", "base → head", "where"], ":--", rows)
    rest = f"\n\n{left} more changed; the JSON has all." if left else ""
    yield folded("Exact values that changed, worst first", table + rest)


def _measured(view: View, comparison: Comparison) -> Iterable[str]:
    """Notes, how far to trust it, by which command and where."""
    lines = [*_bullets(view.notes), *(f"- {escaped(text)}" for text in view.controls)]
    lines += _bullets([f"Discarded: {text}" for text in comparison.discarded])
    lines += ["", _HOW_TO_READ] if view.controls else []
    lines += ["", f"{code(comparison.reproduce, 400)} <sub>{escaped(view.machine)}</sub>"]
    yield folded("Notes, how it was measured, and how to read it", "\n".join(lines))


def _all_timings(view: View, budget: int) -> str:
    """Every timing, as far as the budget of bytes goes."""
    if not view.rows:
        return ""
    budget -= 600  # for all around them
    text, size = "", 0
    for row in view.rows:
        line = _line(row)
        if len((text + line).encode()) > budget:
            break
        text, size = text + line, size + 1
    left = len(view.rows) - size
    end = f"\n\n{left} of {len(view.rows)} timings are left out here; the JSON has all."
    head = "timing, base → head, change (its interval), MDE if inconclusive\n"
    pre = f"<pre>\n{head}{text}</pre>{end if left else ''}"
    return "\n" + folded("All timings, worst first", pre)


def _line(row: Row) -> str:
    change = f"{row.change} ({row.interval.removesuffix(' %')})"
    cells = [f"{row.state.symbol} {row.label}", _arrow(row.base, row.head), change]
    cells += [row.mde] if row.state is State.INCONCLUSIVE else []
    return html.escape("  ".join(cells)) + "\n"


def _arrow(base: str, head: str) -> str:
    """ "3.1 → 3.2 µs"."""
    value, _, unit = base.rpartition(" ")
    return f"{value} → {head}" if unit == head.rpartition(" ")[2] else f"{base} → {head}"
