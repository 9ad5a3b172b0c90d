"""A comparison, for the terminal and for a pull request. Pure: ``Comparison`` in, text out.

"No change" and "blind" read differently: "no slower than +0.30 %" is a bound that the run
established, "cannot tell" comes with the smallest slowdown that it would have seen.
"""

import html
import re
import textwrap
from collections.abc import Iterable, Sequence

from . import _verdict
from ._comparison import Comparison, Side, from_json, to_json
from ._verdict import Answer, Exact, Subject, Timing

__all__ = ["Comparison", "Side", "from_json", "markdown", "terminal", "to_json"]

# GitHub takes 65,536 characters in a comment.
MARKDOWN_BYTES = 60_000
TERMINAL_ROWS, MARKDOWN_ROWS = 12, 8
_COLUMNS = 100
_ROPE = re.compile(r"rope\.(\w+)\.track_latency")
_HEADLINE = {Answer.PASS: "✅ PASS", Answer.FAIL: "❌ FAIL", Answer.CANNOT_TELL: "❔ CANNOT TELL"}
# Of a timing, from the worst: its symbol in the map, and what the symbol says.
_SYMBOLS = {
    "slower": ("X", "slower"),
    "noise": ("~", "slower, but of the same machine code: noise"),
    "untold": ("?", "cannot tell"),
    "told": (".", "no slower"),
    "faster": ("+", "faster"),
    "same code": ("=", "same machine code: any difference is noise"),
}


def terminal(comparison: Comparison) -> str:
    """The report for a terminal, at most 100 columns wide."""
    sides = " -> ".join(_side(side) for side in (comparison.base, comparison.head))
    lines = [*_wrapped(f"{comparison.answer.upper()}: {_sentence(comparison)}"), ""]
    lines += _wrapped(sides) + _wrapped(_setting(comparison)) + [""]
    for text in comparison.wrong:
        lines += _wrapped(f"wrong: {text}")
    worst = _worst_first(comparison)
    if worst:
        shown = worst[:TERMINAL_ROWS]
        lines.append(f"{'timings, worst first':43} {'base':>9} {'head':>9} {'change':>9}  reading")
        lines += [_terminal_row(timing, comparison) for timing in shown]
        lines += _left_out(worst[len(shown) :], comparison) + [""]
    for text in _controls(comparison):
        lines += _wrapped(text)
    for text in _exact_lines(comparison.exact):
        lines += _wrapped(text)
    for title, texts in _remarks(comparison)[1:]:
        lines += [line for text in texts for line in _wrapped(f"{title}: {text}")]
    lines += [f"again: {_clean(comparison.reproduce)}"]  # whole, to be copied
    return "\n".join(lines) + "\n"


def markdown(comparison: Comparison) -> str:
    """The report for a pull request, in GitHub's Markdown, below 60 kB.

    Whatever was given by others (names of branches, notes, parameters) is escaped: it can neither
    format, link nor mention.
    """
    sides = " → ".join(_code(_side(side)) for side in (comparison.base, comparison.head))
    blocks = [
        f"## {_HEADLINE[comparison.answer]}\n\n**{_escaped(_sentence(comparison))}**",
        f"{sides} · {_escaped(_setting(comparison))}",
        *_remark_list(comparison),
        *_worst_table(comparison),
        *_exact_table(comparison.exact),
        *_maps(comparison),
        *[_escaped(text) for text in _controls(comparison)],
        f"Again: {_code(comparison.reproduce, 400)}",
        _machine(comparison),
    ]
    text = "\n\n".join(blocks) + "\n"
    return text + _details(comparison, MARKDOWN_BYTES - len(text.encode()))


# What is said.


def _sentence(comparison: Comparison) -> str:
    says = {Answer.FAIL: _failures, Answer.CANNOT_TELL: _doubts, Answer.PASS: _assurances}
    return "; ".join(says[comparison.answer](comparison)) + "."


def _failures(comparison: Comparison) -> Iterable[str]:
    if comparison.wrong:
        yield f"{_count(len(comparison.wrong), 'check')} failed on the head"
    timings = _gating(comparison)
    slower = [timing for timing in timings if _state(timing, comparison) == "slower"]
    if slower:
        worst = max(slower, key=lambda timing: timing.effect)
        of = f"{len(slower)} of {_count(len(timings), 'timing')} {_are(slower)} slower"
        yield f"{of}, the worst by {_percent(worst.effect)}: {_label(worst.subject)}"
    failed = [each for each in comparison.exact if each.answer is Answer.FAIL]
    missing = [each for each in failed if each.change == "missing"]
    if len(failed) > len(missing):
        yield f"{_count(len(failed) - len(missing), 'exact value')} got worse"
    if missing:
        yield f"{_count(len(missing), 'value')} of the base {_are(missing)} missing on the head"


def _doubts(comparison: Comparison) -> Iterable[str]:
    timings = _gating(comparison)
    judged = comparison.same_sources or any(each.answer for each in comparison.exact)
    if not timings and not judged:
        yield "nothing was judged"
    for name, family in comparison.families.items():
        if family.control.failed:
            control = family.control
            differ = f"{control.failed} of {control.subjects} {_clean(name)} timings differ"
            yield f"{differ} from themselves in the A/A control"
    noise = [timing for timing in timings if _state(timing, comparison) == "noise"]
    if noise:
        yield (
            f"{_count(len(noise), 'timing')} came out slower although the machine code is the "
            "same: this run's noise is larger than it says"
        )
    untold = _verdict.untold(timings, comparison.identical)
    if untold:
        yield f"{len(untold)} of {_count(len(timings), 'timing')} cannot be told: {_blind(untold)}"


def _assurances(comparison: Comparison) -> Iterable[str]:
    timings = _gating(comparison)
    by_state = {state: [t for t in timings if _state(t, comparison) == state] for state in _SYMBOLS}
    told, faster = by_state["told"] + by_state["faster"], by_state["faster"]
    if comparison.same_sources:
        yield "both versions have the same sources"
    if told:
        confidence = f"with {100 * comparison.rules.confidence:g} % confidence each"
        slowest = f"slower by more than {_percent(max(timing.upper for timing in told))}"
        yield f"none of {_count(len(told), 'timing')} is {slowest} ({confidence})"
    if faster:
        most = _percent(min(timing.effect for timing in faster))
        yield f"{len(faster)} {_are(faster)} faster, the most by {most}"
    if by_state["same code"]:
        same = _count(len(by_state["same code"]), "timing")
        yield f"the machine code of {same} is the same on both sides"
    if by_state["untold"]:
        yield f"{len(by_state['untold'])} cannot be told: {_blind(by_state['untold'])}"
    if comparison.exact:
        yield "no exact value that counts got worse"
    if not timings:
        yield "no timing was measured"


def _blind(untold: Sequence[Timing]) -> str:
    sizes = sorted({_percent(timing.visible, sign="") for timing in untold}, key=_leading)
    span = sizes[0] if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}, by timing,"
    return f"only a slowdown of {span} or more would have been seen"


def _leading(text: str) -> float:
    return float(text.split()[0])


def _reading(timing: Timing, comparison: Comparison) -> str:
    """What one timing says, in a sentence."""
    state = _state(timing, comparison)
    if state in ("slower", "faster"):
        return f"{state} by {_interval(timing)}"
    if state == "told":
        return f"no slower than {_percent(timing.upper)}"
    if state == "untold":
        return f"cannot tell: {_blind([timing])}"
    return "same machine code: any difference is noise"


def _state(timing: Timing, comparison: Comparison) -> str:
    if timing.subject in comparison.identical:
        return "noise" if timing.answer is Answer.FAIL else "same code"
    if timing.answer is Answer.FAIL:
        return "slower"
    if timing.answer is Answer.CANNOT_TELL:
        return "untold"
    return "faster" if timing.change == "faster" else "told"


def _worst_first(comparison: Comparison) -> list[Timing]:
    order = list(_SYMBOLS)

    def badness(timing):
        state = _state(timing, comparison)
        size = timing.effect if state in ("slower", "noise") else timing.upper
        return (order.index(state), not _verdict.gates(timing), -size)

    return sorted(comparison.timings, key=badness)


def _gating(comparison: Comparison) -> list[Timing]:
    return [timing for timing in comparison.timings if _verdict.gates(timing)]


def _setting(comparison: Comparison) -> str:
    added = f" ({comparison.extension} of them added)" if comparison.extension else ""
    gpu = comparison.machine.get("gpu", "unknown GPU")
    gpu = "no GPU" if gpu == "none" else gpu
    rounds = f"{_count(comparison.rounds, 'round')}{added}" if comparison.rounds else "no rounds"
    return f"{_clean(gpu)}, {_clean(comparison.grid)} grid, {rounds}, {comparison.minutes:.1f} min"


def _controls(comparison: Comparison) -> Iterable[str]:
    for name, family in comparison.families.items():
        control = family.control
        yield (
            f"A/A control, {_clean(name)}: {control.failed} of {control.subjects} timings differ "
            f"from themselves; floor {_percent(control.floor, sign='')}, noise of a round "
            f"{_percent(control.noise, sign='')}"
        )


def _remarks(comparison: Comparison) -> list[tuple[str, tuple[str, ...]]]:
    return [
        ("wrong", comparison.wrong),
        ("note", comparison.notes),
        ("repeated", comparison.disturbed),
    ]


def _summaries(exact: Iterable[Exact]) -> Iterable[tuple[str, str, str]]:
    """Of each exact metric that changed: its name, how many values and how, the worst of them."""
    metrics = {}
    for each in exact:
        metrics.setdefault(each.subject.metric, []).append(each)
    for metric in sorted(metrics, key=lambda name: min(map(_rank, metrics[name]))):
        changed = sorted((e for e in metrics[metric] if e.change != "none"), key=_rank)
        if changed:
            kinds = [each.change for each in changed]
            counts = [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)]
            total = _count(len(metrics[metric]), "value")
            verdict = "FAIL" if changed[0].answer is Answer.FAIL else "shown only"
            worst = f"{_values(changed[0])} at {_params(changed[0].subject)}"
            yield f"{_name(metric)}: {verdict}", f"{', '.join(counts)} of {total}", worst


def _rank(each: Exact) -> tuple:
    """Sorts the worst first: what fails, then by the relative loss."""
    kinds = ["missing", "worse", "new", "better", "none"]
    loss = 0.0
    if None not in (each.base, each.head):
        loss = abs(each.head - each.base) / (abs(each.base) or 1e-9)
    return (each.answer is not Answer.FAIL, kinds.index(each.change), -loss)


def _values(each: Exact) -> str:
    sides = ("none" if value is None else f"{value:.6g}" for value in (each.base, each.head))
    return f"{' -> '.join(sides)} {each.unit.name}"


def _exact_lines(exact: Sequence[Exact]) -> list[str]:
    lines = [f"exact, {name}: {counts}; {worst}" for name, counts, worst in _summaries(exact)]
    if exact and not lines:
        lines = [f"exact: none of {_count(len(exact), 'value')} changed"]
    return lines


# The terminal.


def _terminal_row(timing: Timing, comparison: Comparison) -> str:
    state = _state(timing, comparison)
    ends = f"{_percent(timing.low)[:-2]} to {_percent(timing.high)}"
    reading = {
        "slower": f"SLOWER {ends}",
        "faster": f"faster {ends}",
        "told": f"no slower than {_percent(timing.upper)}",
        "untold": f"cannot tell below {_percent(timing.visible, sign='')}",
    }.get(state, "same code: only noise")
    if not _verdict.gates(timing):
        reading = f"{_SYMBOLS[state][1].partition(':')[0]} (shown only)"
    label, (base, head) = _clip(_label(timing.subject), 43), _sides(timing)
    return f"{label:43} {base:>9} {head:>9} {_percent(timing.effect):>9}  {reading}"


def _left_out(timings: Sequence[Timing], comparison: Comparison) -> list[str]:
    states = [_state(timing, comparison) for timing in timings]
    counts = [
        f"{states.count(state)} {_SYMBOLS[state][1].partition(':')[0]}"
        for state in dict.fromkeys(states)
    ]
    return _wrapped(f"and {len(timings)} more: {', '.join(counts)}") if timings else []


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(_clean(text), _COLUMNS, subsequent_indent="  ")


# Markdown.


def _worst_table(comparison: Comparison) -> Iterable[str]:
    worst = _worst_first(comparison)
    if not worst:
        return
    interval = f"{100 * comparison.rules.confidence:g} % interval"
    lines = [
        f"| timings, worst first | base | head | change | {interval} | could see | reading |",
        "|:--|--:|--:|--:|:--|--:|:--|",
    ]
    for timing in worst[:MARKDOWN_ROWS]:
        cells = [
            _label(timing.subject),
            *_sides(timing),
            _percent(timing.effect),
            _interval(timing),
            _percent(timing.visible, sign=""),
            _reading(timing, comparison) + ("" if _verdict.gates(timing) else " (shown only)"),
        ]
        lines.append("| " + " | ".join(map(_escaped, cells)) + " |")
    lines += [f"\n{text}" for text in _left_out(worst[MARKDOWN_ROWS:], comparison)]
    yield "\n".join(lines)


def _exact_table(exact: Sequence[Exact]) -> Iterable[str]:
    rows = ["| " + " | ".join(map(_escaped, row)) + " |" for row in _summaries(exact)]
    if rows:
        yield "\n".join(["| exact metric | changed | worst |", "|:--|:--|:--|", *rows])
    elif exact:
        yield _escaped(_exact_lines(exact)[0])


def _maps(comparison: Comparison) -> Iterable[str]:
    """Of each direction the whole grid, a symbol a cell; rows and columns as they were measured."""
    directions, used = {}, set()
    for timing in comparison.timings:
        match = _ROPE.fullmatch(timing.subject.metric)
        if match and len(timing.subject.params) == 5:
            state = _state(timing, comparison)
            used.add(state)
            directions.setdefault(match[1], {})[timing.subject.params] = _SYMBOLS[state][0]
    blocks = [_map(direction, symbols) for direction, symbols in directions.items()]
    if blocks:
        legend = [" ".join(_SYMBOLS[state]) for state in _SYMBOLS if state in used]
        legend.append("(blank) not timed on both sides")
        text = "\n\n".join(blocks) + "\n\n" + "\n".join(legend)
        yield f"<pre>\n{html.escape(text)}\n</pre>"


def _map(direction: str, symbols: dict[tuple[str, ...], str]) -> str:
    rows = list(dict.fromkeys(params[:2] for params in symbols))
    batches = list(dict.fromkeys(params[2] for params in symbols))
    columns = sorted(dict.fromkeys(params[3:] for params in symbols), key=lambda pair: pair[1])
    width = max(len(text) for pair in columns for text in pair)
    width = max(width, len(" ".join(batches))) + 2
    head = f"{'seq_len':>8} {'hidden':>6}"
    blank = " " * len(head)
    lines = [
        f"{direction:{len(head)}}  " + "".join(f"{fmt:{width}}" for _, fmt in columns),
        f"{blank}  " + "".join(f"{dtype:{width}}" for dtype, _ in columns),
        f"{head}  " + "".join(f"{' '.join(batches):{width}}" for _ in columns) + "(batch)",
    ]
    for seq_len, hidden in rows:
        groups = []
        for dtype, fmt in columns:
            cells = [
                symbols.get((seq_len, hidden, batch, dtype, fmt), " ").ljust(len(batch))
                for batch in batches
            ]
            groups.append(f"{' '.join(cells):{width}}")
        lines.append(f"{seq_len:>8} {hidden:>6}  {''.join(groups)}")
    return "\n".join(line.rstrip() for line in lines)


def _remark_list(comparison: Comparison) -> Iterable[str]:
    shown = 8
    for title, texts in _remarks(comparison):
        # A text in a list could open another with a bullet of its own.
        bare = [_clip(_clean(text).lstrip("-+ "), 200) for text in texts[:shown]]
        lines = [f"- {_escaped(text)}" for text in bare]
        if len(texts) > shown:
            lines.append(f"- and {len(texts) - shown} more")
        if lines:
            yield "\n".join([f"{title.capitalize()}:", "", *lines])


def _machine(comparison: Comparison) -> str:
    shown = list(comparison.machine.items())[:20]
    return "Machine: " + ", ".join(
        f"{_escaped(_clip(_clean(key), 20))} {_code(value, 60)}" for key, value in shown
    )


def _details(comparison: Comparison, budget: int) -> str:
    """Every timing, collapsed, as many as the budget of bytes holds."""
    worst = _worst_first(comparison)
    if not worst:
        return ""
    header = "timing | base | head | change | interval | could see"
    opening = f"\n<details><summary>All timings, worst first</summary>\n\n<pre>\n{header}\n"
    closing = "</pre>\n\n{} of {} timings are left out here; the JSON has all.\n</details>\n"
    budget -= len((opening + closing).encode()) + 20
    rows = []
    for timing in worst:
        symbol = _SYMBOLS[_state(timing, comparison)][0]
        cells = (*_sides(timing), _percent(timing.effect), _interval(timing))
        text = " | ".join((_label(timing.subject), *cells, _percent(timing.visible, sign="")))
        row = html.escape(f"{symbol} {text}") + "\n"
        budget -= len(row.encode())
        if budget < 0:
            break
        rows.append(row)
    left = len(worst) - len(rows)
    end = closing.format(left, len(worst)) if left else "</pre>\n</details>\n"
    return opening + "".join(rows) + end


# Pieces.


def _name(metric: str) -> str:
    """ "host.Call.track_forward" as "Call forward"; the speed of a pass by its direction alone."""
    match = _ROPE.fullmatch(metric)
    return match[1] if match else metric.partition(".")[2].replace(".track_", " ")


def _label(subject: Subject) -> str:
    return f"{_name(subject.metric)} {_params(subject)}"


def _params(subject: Subject) -> str:
    return f"({', '.join(_clip(_clean(param), 40) for param in subject.params)})"


def _side(side: Side) -> str:
    return f"{_clip(_clean(side.name), 80)} {side.sha[:10] or '(not committed)'}"


def _sides(timing: Timing) -> tuple[str, str]:
    return _seconds(timing.base), _seconds(timing.head)


def _seconds(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds / 1e-9:.4g} ns"


def _percent(share: float, sign: str = "+") -> str:
    return f"{100 * share:{sign}.{1 if abs(share) >= 0.1 else 2}f} %"


def _interval(timing: Timing) -> str:
    return f"{_percent(timing.low)} to {_percent(timing.high)}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _are(things: Sequence) -> str:
    return "is" if len(things) == 1 else "are"


def _clip(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _clean(text: str) -> str:
    """On one line, without what a terminal or a browser acts upon."""
    return "".join(each if each.isprintable() else " " for each in text)


def _escaped(text: str) -> str:
    """Text that Markdown, GitHub's extensions of it and HTML leave alone."""
    text = re.sub(r"[^\w\s.,:;()/+%'=µ…→-]|_", lambda match: f"&#{ord(match[0])};", _clean(text))
    text = re.sub(r"(&#(?:64|35);)", r"\1&#8203;", text)  # mentions and references
    text = text.replace("://", "&#58;//")
    return re.sub(r"(?i)\bwww\.", lambda match: match[0][:-1] + "&#46;", text)


def _code(text: str, length: int = 100) -> str:
    """Text in a code span, in which GitHub neither mentions nor links."""
    return f"<code>{_escaped(_clip(_clean(text), length))}</code>"
