"""What a comparison says, in words and numbers that the terminal and Markdown share. Pure.

"No change" and "blind" read differently: "no slower than +0.30 %" is a bound that the run
established, "cannot tell" comes with the smallest slowdown that it would have seen.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from .._verdict import rules
from .._verdict.rules import Answer, Exact, Subject, Timing
from .._verdict.schema import Comparison, Side
from .grouping import Group

ROPE = re.compile(r"rope\.(\w+)\.track_latency")
PATHS = re.compile(r"paths\.(\w+)\.track_latency")
# A pass on the GPU, wherever it belongs.
PASS = re.compile(r"(?:rope|paths)\.(\w+)\.track_latency")
# What a timing says, from the worst.
STATES = {
    "slower": "slower",
    "noise": "slower, but of the same machine code: noise",
    "untold": "cannot tell",
    "told": "no slower",
    "faster": "faster",
    "same code": "same machine code: any difference is noise",
}


def sentence(comparison: Comparison) -> str:
    """The answer's reasons."""
    says = {Answer.FAIL: _failures, Answer.CANNOT_TELL: _doubts, Answer.PASS: _assurances}
    return "; ".join(says[comparison.answer](comparison)) + "."


def _failures(comparison: Comparison) -> Iterable[str]:
    if comparison.wrong:
        yield f"{count(len(comparison.wrong), 'check')} failed on the head"
    timings = gating(comparison)
    slower = [timing for timing in timings if state(timing, comparison) == "slower"]
    if slower:
        worst = max(slower, key=lambda timing: timing.effect)
        of = f"{len(slower)} of {_judged(comparison)} {are(slower)} slower"
        yield f"{of}, the worst by {percent(worst.effect)}: {label(worst.subject)}"
        faster = [timing for timing in timings if state(timing, comparison) == "faster"]
        if faster:
            yield f"{len(faster)} {are(faster)} faster"
    failed = [each for each in comparison.exact if each.answer is Answer.FAIL]
    missing = [each for each in failed if each.change == "missing"]
    worse = [each for each in failed if each.change == "worse"]
    if worse:
        names = [name_of(metric) for metric in by_metric(worse)]
        more = ", ..." if len(names) > 3 else ""
        yield f"{count(len(worse), 'exact value')} got worse ({', '.join(names[:3])}{more})"
    if missing:
        yield f"{count(len(missing), 'value')} of the base {are(missing)} missing on the head"


def _doubts(comparison: Comparison) -> Iterable[str]:
    timings = gating(comparison)
    judged = comparison.same_sources or any(each.answer for each in comparison.exact)
    if not timings and not judged:
        yield "nothing was judged"
    if comparison.unmeasured:
        changes = count(len(comparison.unmeasured), "change")
        yield f"{changes} of what it runs on {was(comparison.unmeasured)} not measured"
    for name, family in comparison.families.items():
        control = family.control
        if control.failed and any(map(rules.gates, family.timings)):
            differ = f"{control.failed} of {control.subjects} {clean(name)} timings differ"
            yield f"{differ} from themselves in the A/A control"
    noise = [timing for timing in timings if state(timing, comparison) == "noise"]
    if noise:
        yield (
            f"{count(len(noise), 'timing')} came out slower although the machine code is the "
            "same: this run's noise is larger than it says"
        )
    open_ = rules.inconclusive(timings, comparison.identical)
    if open_:
        which = f"{len(open_)} of {_judged(comparison)}{_whose(open_, comparison)}"
        yield f"{which} cannot be told: {blind(open_)}"
    slow = [timing for timing in open_ if rules.suspicious(timing)]
    if slow:
        worst = max(slow, key=lambda timing: timing.effect)
        yield (
            f"{len(slow)} of these {look(slow)} slower, by up to {percent(worst.effect)}: "
            f"{label(worst.subject)}"
        )


def _judged(comparison: Comparison) -> str:
    """How many timings may have changed: their machine code is not the same."""
    changed = [t for t in gating(comparison) if t.subject not in comparison.identical]
    return count(len(changed), "changed timing")


def _whose(untold: Sequence[Timing], comparison: Comparison) -> str:
    """The family that has all of them, where others have none."""
    families = {
        name: set(untold) & set(family.timings)
        for name, family in comparison.families.items()
        if any(map(rules.gates, family.timings))
    }
    names = [name for name, theirs in families.items() if theirs]
    return f", all of the {clean(names[0])}," if len(names) == 1 < len(families) else ""


def _assurances(comparison: Comparison) -> Iterable[str]:
    timings = gating(comparison)
    by_state = {each: [t for t in timings if state(t, comparison) == each] for each in STATES}
    told, faster = by_state["told"] + by_state["faster"], by_state["faster"]
    if comparison.same_sources:
        yield "both versions have the same sources"
    if told:
        confidence = f"with {100 * comparison.rules.confidence:g} % confidence each"
        slowest = f"slower by more than {percent(max(timing.upper for timing in told))}"
        yield f"none of {count(len(told), 'timing')} is {slowest} ({confidence})"
    if faster:
        most = percent(min(timing.effect for timing in faster))
        yield f"{len(faster)} {are(faster)} faster, the most by {most}"
    same = len(by_state["same code"]) + len(comparison.untimed)
    if same:
        yield f"the machine code of {count(same, 'timing')} is the same on both sides"
    if by_state["untold"]:
        yield f"{len(by_state['untold'])} cannot be told: {blind(by_state['untold'])}"
    if comparison.exact:
        yield "no exact value that counts got worse"
    if not timings:
        yield "no timing was measured"


def blind(untold: Sequence[Timing]) -> str:
    """What a run that cannot tell would have seen."""
    visible = [timing.visible for timing in untold]
    sizes = span(min(visible), max(visible), sign="")
    by = ", by timing," if " to " in sizes else ""
    return f"only a slowdown of {sizes}{by} or more would have been seen"


def state(timing: Timing, comparison: Comparison) -> str:
    """One of ``STATES``."""
    if timing.subject in comparison.identical:
        return "noise" if timing.answer is Answer.FAIL else "same code"
    if timing.answer is Answer.FAIL:
        return "slower"
    if timing.answer is Answer.CANNOT_TELL:
        return "untold"
    return "faster" if timing.change == "faster" else "told"


def worst_first(comparison: Comparison) -> list[Timing]:
    order = list(STATES)

    def badness(timing: Timing) -> tuple:
        says = state(timing, comparison)
        size = timing.effect if says in ("slower", "noise") else timing.upper
        return (order.index(says), not rules.gates(timing), -size)

    return sorted(comparison.timings, key=badness)


def gating(comparison: Comparison) -> list[Timing]:
    return [timing for timing in comparison.timings if rules.gates(timing)]


def counts(timings: Sequence[Timing], comparison: Comparison) -> str:
    """ "8 slower, 20 no slower", in the order of the timings."""
    states = [state(timing, comparison) for timing in timings]
    return ", ".join(
        f"{states.count(each)} {STATES[each].partition(':')[0]}" for each in dict.fromkeys(states)
    )


def setting(comparison: Comparison) -> str:
    added = f" ({comparison.extension} of them added)" if comparison.extension else ""
    gpu = comparison.machine.get("gpu", "unknown GPU")
    gpu = "no GPU" if gpu == "none" else gpu
    rounds = f"{count(comparison.rounds, 'round')}{added}" if comparison.rounds else "no rounds"
    what = f"{clip(clean(gpu), 80)}, {clip(clean(comparison.grid), 80)} grid"
    return f"{what}, {rounds}, {min(comparison.minutes, 1e6):.1f} min"


def machine(comparison: Comparison) -> str:
    """GPU, clocks and versions on one line."""
    record, said = comparison.machine, []
    if record.get("gpu", "none") != "none":
        said = [record["gpu"], *(f"{name} {clock}" for name, clock in comparison.clocks.items())]
    known = {"driver": "driver", "cuda": "CUDA", "torch": "torch", "triton": "triton"}
    said += [f"{words} {record[key]}" for key, words in known.items() if _given(record, key)]
    said += [record["cpu"]] if _given(record, "cpu") else []
    said += [f"{record['num_cpu']} cores"] if _given(record, "num_cpu") else []
    return ", ".join(clip(clean(text), 80) for text in said[:12])


def _given(record: Mapping[str, str], key: str) -> bool:
    return record.get(key, "none") not in ("none", "")


def control(name: str, found: rules.Control) -> str:
    return (
        f"A/A control, {clean(name)}: {found.failed} of {found.subjects} timings differ from "
        f"themselves; floor {percent(found.floor, sign='')}, noise of a round "
        f"{percent(found.noise, sign='')}"
    )


# Exact values.


def by_metric(exact: Iterable[Exact]) -> dict[str, list[Exact]]:
    """The values of each metric, the worst of both first."""
    metrics: dict[str, list[Exact]] = {}
    for each in sorted(exact, key=rank):
        metrics.setdefault(each.subject.metric, []).append(each)
    return metrics


def rank(each: Exact) -> tuple:
    """Sorts the worst first: what fails, then by the relative loss."""
    kinds = ["missing", "worse", "new", "better", "none"]
    loss = 0.0
    if each.base is not None and each.head is not None:
        loss = abs(each.head - each.base) / (abs(each.base) or 1e-9)
    return (each.answer is not Answer.FAIL, kinds.index(each.change), -loss)


def changes(exact: Iterable[Exact]) -> str:
    """ "8 worse, 24 better", in the order of the values; "" if none changed."""
    kinds = [each.change for each in exact if each.change != "none"]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))


def values(each: Exact, arrow: str = "->") -> str:
    sides = ("none" if value is None else _number(value) for value in (each.base, each.head))
    return f" {arrow} ".join(sides)


def _number(value: float) -> str:
    return f"{value:.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:.3g}"


# Pieces.


def name_of(metric: str) -> str:
    """ "host.Call.track_forward" as "Call forward"; the speed of a pass by its direction alone."""
    match = PASS.fullmatch(metric)
    suite, _, name = metric.partition(".")[2].partition(".track_")
    return match[1] if match else name if name == suite.lower() else f"{suite} {name}"


def label(subject: Subject) -> str:
    return _label([(value,) for value in (subject.metric, *subject.params)], {})


def group_label(group: Group, everything: dict[int, frozenset[str]]) -> str:
    """``everything``: of each axis of ``rope`` all values that were timed."""
    return _label(group.axes, everything)


def everything(timings: Iterable[Timing]) -> dict[int, frozenset[str]]:
    names = [t.subject for t in timings if ROPE.fullmatch(t.subject.metric)]
    rows = [(name.metric, *name.params) for name in names if len(name.params) == 5]
    return {axis: frozenset(column) for axis, column in enumerate(zip(*rows, strict=True))}


def _label(axes: Sequence[tuple[str, ...]], known: dict[int, frozenset[str]]) -> str:
    metrics, *given = axes
    name = " + ".join(sorted(map(name_of, metrics), reverse=True))
    params = [clip("/".join(clip(clean(text), 40) for text in each), 60) for each in given]
    if PATHS.fullmatch(metrics[0]) and len(params) == 3:
        path, mib, dtype = params
        return f"{name} {path}, {mib} MiB, {dtype}"
    if not ROPE.fullmatch(metrics[0]) or len(params) != 5:
        return f"{name} ({', '.join(params)})" if params else name
    whole = [len(each) > 1 and frozenset(each) == known.get(i) for i, each in enumerate(given, 1)]
    seq_len, hidden, batch, dtype, fmt = (
        f"any {what}" if all_of_it else text
        for text, all_of_it, what in zip(
            params, whole, ("seq_len", "hidden", "batch", "dtype", "format"), strict=True
        )
    )
    size = "any size" if whole[0] and whole[1] else f"{seq_len} × {hidden}"
    batch = batch if whole[2] else f"batch {batch}"
    return f"{name} {size}, {batch}, {dtype}, {fmt}"


def params_of(subject: Subject) -> str:
    return f"({', '.join(clip(clean(param), 40) for param in subject.params)})"


def side(given: Side) -> str:
    """A version's name and commit, once if the name is the commit."""
    name, sha = clip(clean(given.name), 80), given.sha[:10]
    if sha and len(name) >= 7 and given.sha.startswith(name):
        return sha
    return f"{name} {sha or '(not committed)'}"


def seconds(value: float, digits: int = 4) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale:
            return f"{value / scale:.{digits}g} {unit}"
    return f"{value / 1e-9:.{digits}g} ns"


def percent(share: float, sign: str = "+") -> str:
    if abs(share) >= 100:
        return f"{100 * share:{sign}.3g} %"
    return f"{100 * share:{sign}.{1 if abs(share) >= 0.1 else 2}f} %"


def span(low: float, high: float, sign: str = "+") -> str:
    """Two shares, or one if they read the same."""
    ends = percent(low, sign), percent(high, sign)
    return ends[0] if ends[0] == ends[1] else f"{ends[0][:-2]} to {ends[1]}"


def count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def are(things: Sequence) -> str:
    return "is" if len(things) == 1 else "are"


def was(things: Sequence) -> str:
    return "was" if len(things) == 1 else "were"


def look(things: Sequence) -> str:
    return "looks" if len(things) == 1 else "look"


def clip(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def clean(text: str) -> str:
    """On one line, without what a terminal or a browser acts upon."""
    return "".join(each if each.isprintable() else " " for each in text)
