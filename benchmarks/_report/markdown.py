"""A comparison as a comment on a pull request, in GitHub's Markdown. Pure.

Read from the top: the answer, a line for each thing that was looked at, what moved most, what it
compiles to, a map of the grid. All else is folded away.
"""

import html
from collections.abc import Iterable, Sequence, Set

from .._verdict import rules
from .._verdict.rules import Answer, Exact, Family, Subject, Timing
from .._verdict.schema import Comparison
from . import phrases as words
from .github_markdown import code, escaped, folded, number, small
from .grouping import Group, grouped
from .heatmap import SYMBOLS, grid_map, path_map

# GitHub takes 65,536 characters in a comment.
_BYTES = 60_000
_HEADLINE = {Answer.PASS: "✅ PASS", Answer.FAIL: "❌ FAIL", Answer.CANNOT_TELL: "🟡 CANNOT TELL"}
# Of the groups in each state, how many rows the table has at most.
_ROWS = {"slower": 8, "noise": 3, "untold": 6, "told": 2, "faster": 3}
_REMARKS = 6
_EXACT_ROWS = 40
_LINES = 12
_ALL_TIMINGS_BYTES = 10_000
_CALL = "codegen.Codegen.track_"
_ERRS = ("host.Error.", "host.PathError.")
_ALLOCATES_OR_LAUNCHES = (
    *("host.Memory.", "host.PathMemory.", "host.Launches.", "host.PathLaunches."),
)
_FAILS, _FINE, _SHOWN, _UNKNOWN, _NOT_DONE = "❌", "✅", "ℹ️", "🟡", "⚪"


def markdown(comparison: Comparison) -> str:
    """The report for a pull request, in GitHub's Markdown, below 60 kB.

    Whatever was given by others (names of branches, notes, parameters) is escaped: it can neither
    format, link nor mention.
    """
    sides = " → ".join(code(words.side(side)) for side in (comparison.base, comparison.head))
    sentence = words.sentence(comparison)
    blocks = [
        f"## {_HEADLINE[comparison.answer]}",
        f"**{escaped(words.clip(sentence[0].upper() + sentence[1:], 1000))}**",
        f"{sides} · {escaped(words.setting(comparison))}",
        *_remarks("Wrong on the head", comparison.wrong),
        *_remarks("Not measured", comparison.unmeasured),
        *_glance(comparison),
        *_moved(comparison),
        *grid_map(comparison),
        *path_map(comparison),
        *_compiled(comparison.exact),
        *_remarks("Notes", comparison.notes),
        f"{_again(comparison.answer)} {code(comparison.reproduce, 400)}",
        *map(small, filter(None, [words.machine(comparison)])),
        *_measured(comparison),
        *_exact_values(comparison.exact),
    ]
    text = _fitting(blocks, _BYTES - _ALL_TIMINGS_BYTES)
    return text + _all_timings(comparison, _BYTES - len(text.encode()))


def _fitting(blocks: Sequence[str], budget: int) -> str:
    """The blocks as a text; what is too long for it is said to be left out."""
    text = ""
    for block in blocks:
        fits = len((text + block).encode()) < budget
        text += f"{block if fits else '_A part that is too long is left out here._'}\n\n"
    return text.rstrip("\n") + "\n"


def _again(answer: Answer) -> str:
    if answer is Answer.CANNOT_TELL:
        return "To tell, on a machine with nothing else to do, with more `--rounds`:"
    return "Run it yourself:"


# At a glance: a line for each thing that was looked at.


def _glance(comparison: Comparison) -> Iterable[str]:
    rows = [
        *_correctness(comparison),
        *_clock("GPU time", comparison, "gpu"),
        *_clock("host time of a call", comparison, "host"),
        *_clock("first call", comparison, "start"),
        *_exact_row("memory, launches", comparison, _ALLOCATES_OR_LAUNCHES),
        *_machine_code(comparison),
        *_lost(comparison),
    ]
    if rows:
        lines = [f"| {symbol} | {number(name)} | {says} |" for symbol, name, says in rows]
        yield "\n".join(["| | looked at | found |", "|:-:|:--|:--|", *lines])


def _correctness(comparison: Comparison) -> Iterable[tuple[str, str, str]]:
    error = [each for each in comparison.exact if each.subject.metric.startswith(_ERRS)]
    checked = error or "gpu" in comparison.families
    failed = any(each.answer is Answer.FAIL for each in error)
    if comparison.wrong:
        says = f"{words.count(len(comparison.wrong), 'check')} failed on the head, see above"
    elif checked:
        says = "the head's outputs pass their checks"
    elif not comparison.exact and comparison.same_sources:
        return
    else:
        says = "outputs were not checked: that needs a GPU"
    if error:
        says += f"; error against float64: {_changes(error)}"
    symbol = _FAILS if comparison.wrong or failed else _FINE if checked else _NOT_DONE
    yield symbol, "correctness", escaped(says)


def _clock(what: str, comparison: Comparison, name: str) -> Iterable[tuple[str, str, str]]:
    family = comparison.families.get(name)
    if family is None:
        return
    own = set(family.timings)
    ordered = [timing for timing in words.worst_first(comparison) if timing in own]
    states = {words.state(timing, comparison) for timing in ordered}
    says = words.counts(ordered, comparison)
    if "told" in states:
        told = [t.upper for t in ordered if words.state(t, comparison) == "told"]
        says = says.replace("no slower", f"no slower than {words.percent(max(told))}")
    visible = sorted(timing.visible for timing in ordered)[len(ordered) // 2]
    seen = f"could see {words.percent(visible, sign='')} (median)"
    lines = [f"{says}; {seen}" if all(map(rules.gates, ordered)) else f"{says}; shown only"]
    if name == "gpu" and comparison.untimed:
        lines += [f"{len(comparison.untimed)} not timed: same machine code"]
    if name != "gpu":
        groups = sorted(grouped(ordered), key=lambda each: each.axes)
        lines += [_brief(group) for group in groups[:_LINES]]
    identical = comparison.identical if name == "gpu" else frozenset()
    yield _clock_symbol(family, comparison, identical), what, "<br>".join(map(escaped, lines))


def _brief(group: Group) -> str:
    """ "Call forward (bshd) 42.4 -> 44.5 µs, +4.37 %"."""
    sides = f"{_range(group, 'base')} → {_range(group, 'head')}"
    return f"{words.group_label(group, {})} {sides}, {_effects(group)}"


def _clock_symbol(family: Family, comparison: Comparison, identical: Set[Subject]) -> str:
    if not any(map(rules.gates, family.timings)):
        return _SHOWN
    states = {words.state(timing, comparison) for timing in family.timings}
    open_ = rules.too_inconclusive(family.timings, identical)
    if "slower" in states:
        return _FAILS
    return _UNKNOWN if "noise" in states or open_ or family.control.failed else _FINE


def _exact_row(what: str, comparison: Comparison, prefixes: tuple[str, ...]):
    chosen = [each for each in comparison.exact if each.subject.metric.startswith(prefixes)]
    if chosen:
        metrics = words.by_metric(chosen)
        changed = [
            f"{words.name_of(metric)}: {_changes(each)}"
            for metric, each in metrics.items()
            if words.changes(each)
        ]
        says = "; ".join(changed) or f"{words.count(len(chosen), 'value')}, none changed"
        yield _exact_symbol(chosen), what, escaped(says)


def _exact_symbol(exact: Sequence[Exact]) -> str:
    if any(each.answer is Answer.FAIL for each in exact):
        return _FAILS
    return _SHOWN if any(each.change != "none" for each in exact) else _FINE


def _changes(exact: Sequence[Exact]) -> str:
    """How many of a metric's values changed, and the worst of them."""
    ordered = sorted(exact, key=words.rank)
    changes, worst = words.changes(ordered), ordered[0]
    if not changes:
        return f"{words.count(len(ordered), 'value')}, none changed"
    of = f"{changes} of {words.count(len(ordered), 'value')}"
    return f"{of}, {words.values(worst, '→')} {worst.unit.name} {words.params_of(worst.subject)}"


def _machine_code(comparison: Comparison) -> Iterable[tuple[str, str, str]]:
    code = [each for each in comparison.exact if each.subject.metric.startswith("codegen.")]
    if not code:
        return
    archs = _architectures(code)
    changed = [arch for arch, each in archs.items() if words.changes(each)]
    same = [arch for arch in archs if arch not in changed]
    says = [f"changed on {', '.join(changed[:_LINES])}"] if changed else []
    says += [f"the same figures on {', '.join(same[:_LINES])}"] if same else []
    gpu = comparison.families.get("gpu")
    if gpu and comparison.identical:
        of = len(gpu.timings) + len(comparison.untimed)
        says += [f"{len(comparison.identical)} of {of} timings run the very same code"]
    yield _exact_symbol(code), "machine code", escaped("; ".join(says))


def _architectures(exact: Iterable[Exact]) -> dict[str, list[Exact]]:
    archs: dict[str, list[Exact]] = {}
    for each in exact:
        arch = next(iter(each.subject.params), "no architecture")
        archs.setdefault(words.clean(arch), []).append(each)
    return archs


def _lost(comparison: Comparison) -> Iterable[tuple[str, str, str]]:
    """Timings that only one side has."""
    lost = [each for each in comparison.exact if not each.unit.exact]
    if lost:
        example = words.label(sorted(lost, key=words.rank)[0].subject)
        yield (
            _exact_symbol(lost),
            "timings of one side",
            escaped(f"{words.changes(lost)}: {example}"),
        )


# What moved most.


def _moved(comparison: Comparison) -> Iterable[str]:
    worst = [timing for timing in words.worst_first(comparison) if rules.gates(timing)]
    rows, shown = [], set()
    known = words.everything(comparison.timings)
    for state, most in _ROWS.items():
        ours = [timing for timing in worst if words.state(timing, comparison) == state]
        if state == "told":  # the host's are all in the table above
            ours = [timing for timing in ours if words.PASS.fullmatch(timing.subject.metric)]
            most = 0 if comparison.answer is Answer.FAIL else most
        for group in _sorted(grouped(ours), state)[:most]:
            rows.append(_moved_row(group, state, known))
            shown |= {timing.subject for timing in group.timings}
    if not rows:
        return
    interval = f"{100 * comparison.rules.confidence:g} % interval"
    head = [
        f"| timings, worst first | base | head | change | {interval} | floor | could&nbsp;see |",
        "|:--|--:|--:|--:|--:|--:|--:|",
    ]
    yield "\n".join([*head, *rows])
    left = [timing for timing in worst if timing.subject not in shown]
    if left:
        yield escaped(f"Not in this table: {words.counts(left, comparison)}.")


def _sorted(groups: Sequence[Group], state: str) -> list[Group]:
    if state == "faster":
        return sorted(groups, key=lambda group: min(t.effect for t in group.timings))
    if state in ("slower", "noise"):
        return sorted(groups, key=lambda group: -group.worst.effect)
    return sorted(groups, key=lambda group: -max(timing.upper for timing in group.timings))


def _moved_row(group: Group, state: str, known: dict[int, frozenset[str]]) -> str:
    label, timings = words.group_label(group, known), group.timings
    if len(timings) > 1:
        label = f"{len(timings)} timings: {label}"
    label = escaped(label).replace(" × ", "&nbsp;×&nbsp;")
    interval = words.span(min(t.low for t in timings), max(t.high for t in timings))
    cells = [
        f"{SYMBOLS[state]} {label}",
        number(_range(group, "base")),
        number(_range(group, "head")),
        f"**{number(_effects(group))}**",
        number(interval),
        number(words.percent(max(timing.floor for timing in timings), sign="")),
        number(words.percent(max(timing.visible for timing in timings), sign="")),
    ]
    return f"| {' | '.join(cells)} |"


def _range(group: Group, side: str) -> str:
    """The group's seconds, as one number where they hardly differ."""
    seconds = sorted(getattr(timing, side) for timing in group.timings)
    low, high = seconds[0], seconds[-1]
    if high < 1.03 * low:
        return words.seconds(seconds[len(seconds) // 2])
    ends = words.seconds(low, 3), words.seconds(high, 3)
    same_unit = ends[0].split()[1] == ends[1].split()[1]
    return f"{ends[0].split()[0] if same_unit else ends[0]} to {ends[1]}"


def _effects(group: Group) -> str:
    effects = [timing.effect for timing in group.timings]
    return words.span(min(effects), max(effects))


# What it compiles to.


def _compiled(exact: Iterable[Exact]) -> Iterable[str]:
    """Of each architecture on which a figure of the machine code changed, how."""
    code = [each for each in exact if each.subject.metric.startswith(_CALL)]
    changed = [each for each in code if each.change != "none"]
    if not changed:
        return
    metrics = list(words.by_metric(changed))
    archs = _architectures(code)
    names = [metric.removeprefix(_CALL).replace("_", " ") for metric in metrics]
    lines = [f"| machine code | {' | '.join(map(escaped, names))} |"]
    lines.append("|:--|" + ":--|" * len(metrics))
    for arch, values in list(archs.items())[:_LINES]:
        each = words.by_metric(values)
        if words.changes(values):
            cells = [_compiled_cell(each.get(metric, [])) for metric in metrics]
            lines.append(f"| {escaped(arch)} | {' | '.join(cells)} |")
    yield "\n".join(lines)


def _compiled_cell(values: Sequence[Exact]) -> str:
    changes = words.changes(values)
    if not changes:
        return "same"
    fails = f"{_FAILS} " if values[0].answer is Answer.FAIL else ""
    extreme = "worst" if values[0].change in ("missing", "worse") else "most"
    extreme += f" {words.values(values[0], '→')}"
    return f"{fails}{number(changes)}<br>{number(extreme)}"


def _exact_values(exact: Iterable[Exact]) -> Iterable[str]:
    changed = {
        metric: each for metric, each in words.by_metric(exact).items() if words.changes(each)
    }
    lines, left = [], 0
    for metric, each in changed.items():
        values = [one for one in each if one.change != "none"]
        most = max(3, _EXACT_ROWS // len(changed))
        left += len(values[most:])
        for one in values[:most]:
            fails = f"{_FAILS} " if one.answer is Answer.FAIL else ""
            says = f"{words.values(one, '→')} {one.unit.name}"
            where = words.params_of(one.subject)
            cells = map(escaped, (words.name_of(metric), says, where))
            lines.append(f"| {fails}{' | '.join(cells)} |")
    if lines:
        table = "\n".join(["| exact value | base → head | where |", "|:--|:--|:--|", *lines])
        rest = f"\n\n{left} more changed; the JSON has all." if left else ""
        yield folded("Exact values that changed, worst first", table + rest)


# The rest.


def _remarks(title: str, texts: Sequence[str]) -> Iterable[str]:
    # A text in a list could open another with a bullet of its own.
    bare = [words.clip(words.clean(text).lstrip("-+ "), 200) for text in texts[:_REMARKS]]
    lines = [f"- {escaped(text)}" for text in bare]
    if len(texts) > _REMARKS:
        lines.append(f"- and {len(texts) - _REMARKS} more; the JSON has all")
    if lines:
        yield "\n".join([f"{title}:", "", *lines])


def _measured(comparison: Comparison) -> Iterable[str]:
    """How far to trust it: what the versions say of themselves, and what had to be repeated."""
    lines = [f"- {escaped(words.control(*each))}" for each in _controls(comparison)]
    if not lines:
        return
    lines += [
        f"- Repeated: {escaped(words.clip(text, 200))}" for text in comparison.disturbed[:_REMARKS]
    ]
    if len(comparison.disturbed) > _REMARKS:
        lines.append(f"- and {len(comparison.disturbed) - _REMARKS} more were repeated")
    lines += [
        "",
        "Base, head: medians over the rounds. Change: the mean of the rounds' own changes, which "
        "in noise is not that of the medians. Floor: the noise floor, no smaller effect counts. "
        "Could see: the smallest slowdown that would have failed, 9 times in 10. Same machine "
        "code: any difference is noise. Shown only: it never fails the job.",
    ]
    yield folded("How it was measured, and how to read it", "\n".join(lines))


def _controls(comparison: Comparison) -> Iterable[tuple[str, rules.Control]]:
    families = list(comparison.families.items())[:_LINES]
    return ((words.clip(name, 40), family.control) for name, family in families)


def _all_timings(comparison: Comparison, budget: int) -> str:
    """Every timing, in groups where a line each is too much; what is left out is said."""
    worst = words.worst_first(comparison)
    if not worst:
        return ""
    states = [(timing, words.state(timing, comparison)) for timing in worst]
    single = [(_single(timing, state), 1) for timing, state in states]
    if sum(len(line.encode()) for line, _ in single) < budget - 600:
        return "\n" + _listed("All timings, worst first", single, budget, len(worst))
    known = words.everything(worst)
    lines = [
        (_together(group, state, known), len(group.timings))
        for state in words.STATES
        for group in _sorted(grouped(t for t, says in states if says == state), state)
    ]
    title = "All timings, worst first, those that moved alike together"
    return "\n" + _listed(title, lines, budget, len(worst))


def _listed(title: str, lines: Sequence[tuple[str, int]], budget: int, total: int) -> str:
    budget -= 600
    text, shown = "", 0
    for line, count in lines:
        if len((text + line).encode()) > budget:
            break
        text, shown = text + line, shown + count
    left = total - shown
    end = f"\n\n{left} of {total} timings are left out here; the JSON has all." if left else ""
    head = "timing | base | head | change | interval | could see\n"
    return folded(title, f"<pre>\n{head}{text}</pre>{end}")


def _single(timing: Timing, state: str) -> str:
    sides = (words.seconds(timing.base), words.seconds(timing.head), words.percent(timing.effect))
    return _line(state, words.label(timing.subject), sides, [timing])


def _together(group: Group, state: str, known: dict[int, frozenset[str]]) -> str:
    sides = (_range(group, "base"), _range(group, "head"), _effects(group))
    label = f"{len(group.timings)}: {words.group_label(group, known)}"
    return _line(state, label, sides, group.timings)


def _line(state: str, label: str, sides: tuple[str, ...], timings: Sequence[Timing]) -> str:
    interval = words.span(min(t.low for t in timings), max(t.high for t in timings))
    visible = words.percent(max(timing.visible for timing in timings), sign="")
    return html.escape(f"{SYMBOLS[state]} {' | '.join((label, *sides, interval, visible))}") + "\n"
