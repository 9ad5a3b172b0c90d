"""Reduce a comparison to what a reader sees; ``terminal`` and ``markdown`` print it.

Pure. The numbers of a view are texts already; its other texts are untrusted, so whoever prints
them must make them inert.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from .._verdict import rules
from .._verdict.rules import FAMILIES, Answer, Exact, Family, Key, MeanChange, Timing
from .._verdict.schema import Comparison
from .exact import Summary, by_architecture, by_metric, changed, of_suites, summary
from .grouping import Group, grouped, single
from .states import State, counted, sentence, states_of
from .text import (
    all_values,
    clean,
    clip,
    count,
    label,
    name_of,
    percent,
    seconds_range,
    side,
    span,
)

FAILS, FINE, SHOWN, UNKNOWN, NOT_DONE = "❌", "✅", "ℹ️", "🟡", "⚪"
MOST_LINES = 12
_CODE = "codegen.Codegen.track_"
_ERRORS = ("host.Error.", "host.PathError.")
_MEMORY = ("host.Memory.", "host.PathMemory.", "host.Launches.", "host.PathLaunches.")
_CLOCKS = {"gpu": "GPU time", "host": "host time of a call", "start": "process start"}
_KINDS = {
    **{"rope.": "the grid", "paths.": "other paths"},
    **{"surface.": "forms of calls", "model_calls.": "calls of models"},
    "modules.": "calls of other modules",
}
_VERSIONS = {"driver": "driver", "cuda": "CUDA", "torch": "torch", "triton": "triton", "cpu": ""}


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
    mde: str

    @property
    def is_of_gpu(self) -> bool:
        return self.metric.startswith(FAMILIES["gpu"])

    @property
    def moved(self) -> str:
        """The change, if it is more than noise."""
        is_change = self.state in (State.SLOWER, State.FASTER)
        return self.change if is_change else self.state.label

    @property
    def tells(self) -> bool:
        """Whether it is more than that the host, whose noise is large, is not slower."""
        unmoved = self.state is State.NOT_SLOWER and not self.is_of_gpu
        return not unmoved and self.state is not State.SAME_CODE


class Mean(NamedTuple):
    """How a family changed on average; ``timings``: "17 timings"."""

    clock: str
    timings: str
    change: str
    interval: str


class Check(NamedTuple):
    """One thing that was checked: its state, its name, what was found."""

    symbol: str
    name: str
    findings: list[str]


class View:
    """A comparison as its reader sees it.

    scope: what the answer is of, where that is less than a reader expects, else "". sentence: the
    reasons of the answer. means: of each family, how it changed on average. sides,
    setting, machine: what was compared and where. notes: the comparison's, shortened.
    states: of each timing. rows: one for each timing, and groups: those that moved alike together,
    both worst first. worst, best: of the rows that tell something, None if none does. checks: all
    that was looked at. controls: the A/A control of each family.
    exact: by metric. changed: by metric, each value that changed. compiled: by architecture, the
    figures of the machine code that changed on some architecture.
    """

    def __init__(self, comparison: Comparison):
        self.states = states_of(comparison)
        self.scope = _scope(comparison)
        self.sentence = sentence(comparison, self.states)
        self.means = [
            _mean(name, family.mean)
            for name, family in comparison.families.items()
            if family.mean is not None
        ]
        self.sides = side(comparison.base), side(comparison.head)
        self.setting, self.machine = _setting(comparison), _machine(comparison)
        self.notes = _shortened(comparison)
        self.rows = self._rows(comparison.timings, lambda timings: map(single, timings))
        told = [row for row in self.rows if row.tells]
        self.worst = next((row for row in told if row.state is not State.FASTER), None)
        self.best = next((row for row in told if row.state is State.FASTER), None)
        self.groups = self._rows(comparison.timings, grouped)
        self.checks = [
            *_correctness(comparison),
            *(self._clock(name, comparison) for name in _CLOCKS if name in comparison.families),
            *_exact_checks(comparison),
        ]
        self.controls = [_control(*each) for each in comparison.families.items()]
        metrics = by_metric(comparison.exact)
        self.exact = [summary(values) for values in metrics.values()]
        moved = filter(None, (_compared(values) for values in metrics.values()))
        self.changed = [[summary([each]) for each in values] for values in moved]
        self.compiled = _compiled(comparison.exact)

    def _rows(
        self, timings: list[Timing], divided: Callable[[list[Timing]], Iterable[Group]]
    ) -> list[Row]:
        known = all_values(timing.key for timing in timings)
        return [
            _row(state, group, known)
            for state in State
            for group in sorted(
                divided([t for t in timings if self.states[t.key] is state]),
                key=lambda group: _badness(state, group),
            )
        ]

    def _clock(self, name: str, comparison: Comparison) -> Check:
        family = comparison.families[name]
        states = [self.states[timing.key] for timing in family.timings]
        bounds = [t.upper for t in family.timings if self.states[t.key] is State.NOT_SLOWER]
        says, bounded = counted(states), State.NOT_SLOWER.label
        if bounds:
            says = says.replace(bounded, f"{bounded} (within {percent(max(bounds))})")
        mde = percent(sorted(timing.mde for timing in family.timings)[len(states) // 2], sign="")
        findings = [f"{says}; minimum detectable effect {mde} (median)"]
        if name == "gpu":
            findings += _by_kind(self.states)
        if name == "gpu" and comparison.untimed:
            findings.append(f"{len(comparison.untimed)} not timed: same machine code")
        if name == "gpu" and comparison.represented:
            other = "the same change of machine code was timed at another size"
            findings.append(f"{len(comparison.represented)} not timed: {other}")
        if name != "gpu":
            groups = sorted(grouped(family.timings), key=lambda group: group.axes)[:MOST_LINES]
            rows = [_row(self.states[group.worst.key], group, {}) for group in groups]
            findings += [f"{row.label} {row.base} → {row.head}, {row.moved}" for row in rows]
        open_ = rules.too_inconclusive(family.timings, comparison.identical)
        uneven = rules.varies_more(family.spread)
        doubtful = State.NOISE in states or open_ or uneven or family.control.failed
        symbol = FAILS if State.SLOWER in states else UNKNOWN if doubtful else FINE
        return Check(symbol, _CLOCKS[name], findings)


def _scope(comparison: Comparison) -> str:
    code = of_suites(comparison.exact, ["codegen."])
    only_code = code and len(code) == len(comparison.exact)
    measured = comparison.timings or comparison.wrong
    return "machine code only; nothing was timed" if only_code and not measured else ""


def _by_kind(states: Mapping[Key, State]) -> list[str]:
    """A line for each kind of GPU timing: of forms and models, which have no map, the only one."""
    said = {
        what: counted(state for subject, state in states.items() if subject.metric.startswith(kind))
        for kind, what in _KINDS.items()
    }
    lines = [f"{what}: {counts}" for what, counts in said.items() if counts]
    return lines if len(lines) > 1 else []


def _mean(name: str, mean: MeanChange) -> Mean:
    noise = mean.low <= 0 <= mean.high
    change = "not significant" if noise else percent(mean.effect)
    timings = count(mean.timings, "timing")
    return Mean(_CLOCKS[name], timings, change, span((mean.low, mean.high)))


# Of exact values, which are counted by themselves, and of timings.
_LACKING = re.compile(
    r"base: \d+ values missing: this commit cannot: .*"
    r"|[\w. -]*?(?: and (?P<more>\d{1,6}) more)?: (?:not in|in no process of) the base: "
    r"this commit cannot: .*"
)


def _shortened(comparison: Comparison) -> list[str]:
    """The notes, but a number for all that the base is too old for."""
    new = sum(each.change == "new" and each.unit.exact for each in comparison.exact)
    kept = []
    for note in comparison.notes:
        found = _LACKING.fullmatch(note)
        if found is None:
            kept.append(note)
        elif not note.startswith("base: "):
            new += 1 + int(found["more"] or 0)
    return [f"{count(new, 'cell')} new in head", *kept] if new else kept


def _compared(exact: Iterable[Exact]) -> list[Exact]:
    return [each for each in changed(exact) if each.change != "new"]


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
    said += [f"{name} {record[key]}".strip() for key, name in _VERSIONS.items() if key in record]
    said += [f"{record['num_cpu']} cores"] if "num_cpu" in record else []
    return ", ".join(clip(clean(text), 80) for text in said[:MOST_LINES])


def _control(name: str, family: Family) -> str:
    found = family.control
    return (
        f"A/A control, {name}: {found.failed} of {found.timings} timings differ from themselves; "
        f"floor {percent(found.floor, sign='')}, noise of a round {percent(found.noise, sign='')}"
    )


def _badness(state: State, group: Group) -> float:
    """Sorts the worst first; of what became faster, the fastest."""
    size = -max(timing.upper for timing in group.timings)
    if state in (State.SLOWER, State.NOISE):
        size = -group.worst.effect
    if state is State.FASTER:
        size = min(timing.effect for timing in group.timings)
    return size


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
        percent(max(timing.mde for timing in timings), sign=""),
    )


def _correctness(comparison: Comparison) -> Iterable[Check]:
    error = of_suites(comparison.exact, _ERRORS)
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
    says += f"; error against float64: {summary(error)}" if error else ""
    yield Check(FAILS if failed else FINE if checked else NOT_DONE, "correctness", [says])


def _exact_checks(comparison: Comparison) -> Iterable[Check]:
    code = of_suites(comparison.exact, ["codegen."])
    looked_at = {
        "memory, launches": of_suites(comparison.exact, _MEMORY),
        "machine code": code,
        "timed on one side only": [each for each in comparison.exact if not each.unit.exact],
    }
    for name, values in looked_at.items():
        if values:
            whole, each = summary(values), map(summary, by_metric(values).values())
            symbol = FAILS if whole.fails else SHOWN if whole.changes else FINE
            says = "; ".join(f"{of.name}: {of}" for of in each if of.changes) or str(whole)
            yield Check(symbol, name, [_machine_code(code, comparison) if values is code else says])


def _machine_code(code: list[Exact], comparison: Comparison) -> str:
    archs = by_architecture(code)
    moved = [arch for arch, values in archs.items() if changed(values)]
    same = [arch for arch in archs if arch not in moved]
    says = [f"changed on {', '.join(moved[:MOST_LINES])}"] if moved else []
    says += [f"the same figures on {', '.join(same[:MOST_LINES])}"] if same else []
    gpu = comparison.families.get("gpu")
    if gpu and comparison.identical:
        of = len(gpu.timings) + len(comparison.untimed)
        says += [f"{len(comparison.identical)} of {of} timings run the very same code"]
    return "; ".join(says)


def _compiled(exact: Iterable[Exact]) -> dict[str, dict[str, Summary]]:
    code = of_suites(exact, [_CODE])
    moved = list(by_metric(changed(code)))
    found = {arch: by_metric(values) for arch, values in by_architecture(code).items()}
    return {
        arch: {name_of(metric): summary(metrics[metric]) for metric in moved if metric in metrics}
        for arch, metrics in found.items()
        if any(map(changed, metrics.values()))
    }
