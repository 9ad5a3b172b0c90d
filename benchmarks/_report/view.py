"""What a reader sees of a comparison: built once, then printed by ``terminal`` and ``markdown``.

Pure. The numbers of a view are texts already; its other texts may be anybody's, so whoever prints
them must make them inert.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .._verdict import rules
from .._verdict.rules import FAMILIES, Answer, Exact, Family, Subject
from .._verdict.schema import Comparison
from .grouping import Group, grouped, single
from .states import State, counted, sentence, states_of
from .text import (
    all_values,
    axes_of,
    clean,
    clip,
    count,
    label,
    name_of,
    number,
    percent,
    seconds_range,
    side,
    span,
)

FAILS, FINE, SHOWN, UNKNOWN, NOT_DONE = "❌", "✅", "ℹ️", "🟡", "⚪"
MOST_LINES = 12
_CODE = "codegen.Codegen."
_ERRORS = ("host.Error.", "host.PathError.")
_MEMORY = ("host.Memory.", "host.PathMemory.", "host.Launches.", "host.PathLaunches.")
_EXACT_CHANGES = ("missing", "worse", "new", "better", "none")  # from the worst


@dataclass(frozen=True)
class Row:
    """A timing, or timings that moved alike. ``upper``: the bound of the worst of them."""

    state: State
    metric: str
    label: str
    size: int
    base: str
    head: str
    change: str
    interval: str
    upper: str
    floor: str
    mde: str

    @property
    def gates(self) -> bool:
        return rules.UNITS[self.metric].gates

    @property
    def is_pass(self) -> bool:
        """Whether a GPU was timed."""
        return self.metric.startswith(FAMILIES["gpu"])


@dataclass(frozen=True)
class ExactRow:
    """Values of an exact metric. ``changes``: "2 worse", or "" if none changed.

    values, unit, where: of the worst of them.
    """

    name: str
    size: int
    fails: bool
    changes: str
    got_worse: bool
    values: str
    unit: str
    where: str

    def __str__(self) -> str:
        total = count(self.size, "value")
        if not self.changes:
            return f"{total}, none changed"
        return f"{self.changes} of {total}, {self.values} {self.unit} {self.where}"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: how it came out, its name, what was found."""

    symbol: str
    name: str
    findings: tuple[str, ...]


@dataclass(frozen=True)
class View:
    """A comparison as its reader sees it.

    rows: one for each timing, worst first. groups: the same timings, those that moved alike
    together. exact: one for each exact metric, changed: one for each value that changed, and
    compiled: by architecture and metric what changed in the machine code; all worst first.
    """

    answer: Answer
    sentence: str
    sides: tuple[str, str]
    setting: str
    machine: str
    states: Mapping[Subject, State]
    rows: Sequence[Row]
    groups: Sequence[Row]
    checks: Sequence[Check]
    controls: Sequence[str]
    exact: Sequence[ExactRow]
    changed: Mapping[str, Sequence[ExactRow]]
    compiled: Mapping[str, Mapping[str, ExactRow]]


def view(comparison: Comparison) -> View:
    states, timings = states_of(comparison), comparison.timings
    known = all_values(timing.subject for timing in timings)
    groups = [
        (state, group)
        for state in State
        for group in grouped(t for t in timings if states[t.subject] is state)
    ]
    singles = [(states[timing.subject], single(timing)) for timing in timings]
    exact = _by_metric(comparison.exact)
    return View(
        comparison.answer,
        sentence(comparison, states),
        (side(comparison.base), side(comparison.head)),
        _setting(comparison),
        _machine(comparison),
        states,
        [_row(*each, known) for each in sorted(singles, key=_badness)],
        [_row(*each, known) for each in sorted(groups, key=_badness)],
        [
            *_correctness(comparison),
            *_clock("GPU time", "gpu", comparison, states),
            *_clock("host time of a call", "host", comparison, states),
            *_clock("first call", "start", comparison, states),
            *_memory(comparison.exact),
            *_machine_code(comparison),
            *_lost(comparison.exact),
        ],
        [_control(name, family) for name, family in comparison.families.items()],
        [_summary(values) for values in exact.values()],
        {
            metric: [_summary([each]) for each in values if each.change != "none"]
            for metric, values in exact.items()
            if _changes(values)
        },
        _compiled(comparison.exact),
    )


def _setting(comparison: Comparison) -> str:
    gpu = comparison.machine.get("gpu", "unknown GPU")
    gpu = "no GPU" if gpu == "none" else clip(clean(gpu), 80)
    added = f" ({comparison.extension} of them added)" if comparison.extension else ""
    rounds = f"{count(comparison.rounds, 'round')}{added}" if comparison.rounds else "no rounds"
    grid = clip(clean(comparison.grid), 80)
    return f"{gpu}, {grid} grid, {rounds}, {comparison.minutes:.1f} min"


def _machine(comparison: Comparison) -> str:
    """GPU, clocks and versions on one line."""
    record = {key: value for key, value in comparison.machine.items() if value not in ("none", "")}
    said = [record["gpu"]] if "gpu" in record else []
    said += [f"{name} {clock}" for name, clock in comparison.clocks.items() if said]
    names = {
        "driver": "driver ",
        "cuda": "CUDA ",
        "torch": "torch ",
        "triton": "triton ",
        "cpu": "",
    }
    said += [f"{name}{record[key]}" for key, name in names.items() if key in record]
    said += [f"{record['num_cpu']} cores"] if "num_cpu" in record else []
    return ", ".join(clip(clean(text), 80) for text in said[:MOST_LINES])


def _control(name: str, family: Family) -> str:
    found = family.control
    return (
        f"A/A control, {name}: {found.failed} of {found.subjects} timings differ from themselves; "
        f"floor {percent(found.floor, sign='')}, noise of a round {percent(found.noise, sign='')}"
    )


# Timings.


def _badness(each: tuple[State, Group]) -> tuple:
    """Sorts the worst first; of what became faster, the fastest."""
    state, group = each
    size = -max(timing.upper for timing in group.timings)
    if state in (State.SLOWER, State.NOISE):
        size = -group.worst.effect
    if state is State.FASTER:
        size = min(timing.effect for timing in group.timings)
    return list(State).index(state), not rules.gates(group.worst), size


def _row(state: State, group: Group, known: Mapping[int, frozenset[str]]) -> Row:
    timings = group.timings
    return Row(
        state,
        group.axes[0][0],
        label(group.axes, known),
        len(timings),
        seconds_range(timing.base for timing in timings),
        seconds_range(timing.head for timing in timings),
        span(timing.effect for timing in timings),
        span(end for timing in timings for end in (timing.low, timing.high)),
        percent(max(timing.upper for timing in timings)),
        percent(max(timing.floor for timing in timings), sign=""),
        percent(max(timing.mde for timing in timings), sign=""),
    )


def _clock(
    what: str, name: str, comparison: Comparison, states: Mapping[Subject, State]
) -> Iterable[Check]:
    family = comparison.families.get(name)
    if family is None:
        return
    ours = [states[timing.subject] for timing in family.timings]
    bounds = [t.upper for t in family.timings if states[t.subject] is State.NOT_SLOWER]
    says = counted(ours)
    if bounds:
        bound = f"{State.NOT_SLOWER.label} (within {percent(max(bounds))})"
        says = says.replace(State.NOT_SLOWER.label, bound)
    gating = all(map(rules.gates, family.timings))
    mde = percent(sorted(timing.mde for timing in family.timings)[len(ours) // 2], sign="")
    says += f"; minimum detectable effect {mde} (median)" if gating else "; shown only"
    findings = [says]
    if name == "gpu" and comparison.untimed:
        findings.append(f"{len(comparison.untimed)} not timed: same machine code")
    if name != "gpu":
        groups = sorted(grouped(family.timings), key=lambda group: group.axes)[:MOST_LINES]
        rows = [_row(states[group.worst.subject], group, {}) for group in groups]
        findings += [f"{row.label} {row.base} → {row.head}, {row.change}" for row in rows]
    open_ = rules.too_inconclusive(family.timings, comparison.identical)
    doubtful = State.NOISE in ours or open_ or family.control.failed
    symbol = FAILS if State.SLOWER in ours else UNKNOWN if doubtful else FINE
    yield Check(symbol if gating else SHOWN, what, tuple(findings))


# Exact values.


def _badness_of_exact(each: Exact) -> tuple:
    """Sorts the worst first: what fails, then by the relative loss."""
    loss = 0.0
    if each.base is not None and each.head is not None:
        loss = abs(each.head - each.base) / (abs(each.base) or 1e-9)
    return each.answer is not Answer.FAIL, _EXACT_CHANGES.index(each.change), -loss


def _by_metric(exact: Iterable[Exact]) -> dict[str, list[Exact]]:
    """The values of each metric, the worst of both first."""
    metrics: dict[str, list[Exact]] = {}
    for each in sorted(exact, key=_badness_of_exact):
        metrics.setdefault(each.subject.metric, []).append(each)
    return metrics


def _changes(exact: Iterable[Exact]) -> str:
    """ "8 worse, 24 better", in the order of the values; "" if none changed."""
    kinds = [each.change for each in exact if each.change != "none"]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))


def _summary(exact: Sequence[Exact]) -> ExactRow:
    ordered = sorted(exact, key=_badness_of_exact)
    worst = ordered[0]
    return ExactRow(
        name_of(worst.subject.metric),
        len(ordered),
        worst.answer is Answer.FAIL,
        _changes(ordered),
        worst.change in ("missing", "worse"),
        f"{number(worst.base)} → {number(worst.head)}",
        worst.unit.name,
        f"({', '.join(worst.subject.params)})",
    )


def _symbol(exact: Sequence[Exact]) -> str:
    if any(each.answer is Answer.FAIL for each in exact):
        return FAILS
    return SHOWN if _changes(exact) else FINE


def _of(exact: Iterable[Exact], prefixes: str | tuple[str, ...]) -> list[Exact]:
    return [each for each in exact if each.subject.metric.startswith(prefixes)]


def _correctness(comparison: Comparison) -> Iterable[Check]:
    error = _of(comparison.exact, _ERRORS)
    checked = error or "gpu" in comparison.families
    failed = comparison.wrong or any(each.answer is Answer.FAIL for each in error)
    if comparison.wrong:
        says = f"{count(len(comparison.wrong), 'check')} failed on the head, see above"
    elif checked:
        says = "the head's outputs pass their checks"
    elif not comparison.exact and comparison.same_sources:
        return
    else:
        says = "outputs were not checked: that needs a GPU"
    says += f"; error against float64: {_summary(error)}" if error else ""
    yield Check(FAILS if failed else FINE if checked else NOT_DONE, "correctness", (says,))


def _memory(exact: Iterable[Exact]) -> Iterable[Check]:
    chosen = _of(exact, _MEMORY)
    if chosen:
        rows = [_summary(values) for values in _by_metric(chosen).values()]
        says = "; ".join(f"{row.name}: {row}" for row in rows if row.changes)
        none = f"{count(len(chosen), 'value')}, none changed"
        yield Check(_symbol(chosen), "memory, launches", (says or none,))


def _machine_code(comparison: Comparison) -> Iterable[Check]:
    code = _of(comparison.exact, "codegen.")
    if not code:
        return
    archs = _by_architecture(code)
    changed = [arch for arch, values in archs.items() if _changes(values)]
    same = [arch for arch in archs if arch not in changed]
    says = [f"changed on {', '.join(changed[:MOST_LINES])}"] if changed else []
    says += [f"the same figures on {', '.join(same[:MOST_LINES])}"] if same else []
    gpu = comparison.families.get("gpu")
    if gpu and comparison.identical:
        of = len(gpu.timings) + len(comparison.untimed)
        says += [f"{len(comparison.identical)} of {of} timings run the very same code"]
    yield Check(_symbol(code), "machine code", ("; ".join(says),))


def _by_architecture(exact: Iterable[Exact]) -> dict[str, list[Exact]]:
    archs: dict[str, list[Exact]] = {}
    for each in exact:
        archs.setdefault(next(iter(each.subject.params), "no architecture"), []).append(each)
    return archs


def _lost(exact: Iterable[Exact]) -> Iterable[Check]:
    """Timings that only one side has."""
    lost = sorted((each for each in exact if not each.unit.exact), key=_badness_of_exact)
    if lost:
        says = f"{_changes(lost)}: {label(axes_of(lost[0].subject))}"
        yield Check(_symbol(lost), "timings of one side", (says,))


def _compiled(exact: Iterable[Exact]) -> dict[str, dict[str, ExactRow]]:
    """By architecture where something changed, every figure that changed anywhere."""
    code = _of(exact, _CODE)
    moved = list(_by_metric(each for each in code if each.change != "none"))
    names = {metric: metric.removeprefix(f"{_CODE}track_").replace("_", " ") for metric in moved}
    found = {arch: _by_metric(values) for arch, values in _by_architecture(code).items()}
    return {
        arch: {names[each]: _summary(metrics[each]) for each in moved if each in metrics}
        for arch, metrics in found.items()
        if any(map(_changes, metrics.values()))
    }
