"""Reduce a comparison to what a reader sees; ``terminal`` and ``markdown`` print it.

Pure. The numbers of a view are texts already; its other texts are untrusted, so whoever prints
them must make them inert.
"""

from collections.abc import Iterable
from typing import NamedTuple

from ..verdict import rules
from ..verdict.metrics import ERROR, HOST_COST
from ..verdict.rules import FAMILIES, Answer, Exact, Family, Key, Timing
from ..verdict.schema import Comparison
from .exact_values import by_metric, summary
from .notes import shortened, texts
from .states import CLOCKS, State, counted, sentence, states_of
from .text import clean, clip, count, label, percent, seconds, side, span

FAILS, FINE, SHOWN, UNKNOWN, NOT_DONE = "❌", "✅", "ℹ️", "🟡", "⚪"
MOST_LINES = 12
_VERSIONS = {"driver": "driver", "cuda": "CUDA", "torch": "torch", "triton": "triton", "cpu": ""}


class Row(NamedTuple):
    """A timing. ``upper``: its one-sided bound."""

    state: State
    metric: str
    label: str
    base: str
    head: str
    change: str
    interval: str
    upper: str
    mde: str

    @property
    def is_informative(self) -> bool:
        """False for the same machine code, and for an unchanged (noisy) host timing."""
        if self.state is State.NOT_SLOWER:
            return self.metric.startswith(FAMILIES["gpu"])
        return self.state is not State.SAME_CODE


class Mean(NamedTuple):
    """How a family changed on average; ``words``: what it is the mean of."""

    words: str
    change: str
    interval: str


class Check(NamedTuple):
    """One thing that was checked: its state, its name, the results."""

    symbol: str
    name: str
    results: list[str]


class View:
    """A comparison as its reader sees it.

    scope: what the answer is of, where that is less than a reader expects, else "". sentence: the
    reasons of the answer. means: of each family, how it changed on average. sides, setting,
    machine: what was compared and where. wrong, unmeasured, notes: the comparison's, as sentences.
    states: of each timing. rows: one for each timing, the worst first. checks: all that was
    checked. controls: the A/A control of each family. exact: by metric. changed: by metric, each
    value that changed.
    """

    def __init__(self, comparison: Comparison):
        self.states = states_of(comparison)
        self.scope = _scope(comparison)
        self.sentence = sentence(comparison, self.states)
        self.means = [mean for family in comparison.families.items() for mean in _mean(*family)]
        self.sides = side(comparison.base), side(comparison.head)
        self.setting, self.machine = _setting(comparison), _machine(comparison)
        self.wrong, self.unmeasured = texts(comparison.wrong), texts(comparison.unmeasured)
        self.notes = shortened(comparison.notes, comparison.exact)
        timings = sorted(comparison.timings, key=self._badness)
        self.rows = [_row(self.states[timing.key], timing) for timing in timings]
        self.checks = [
            *_correctness(comparison),
            *(self._clock(name, comparison) for name in CLOCKS if name in comparison.families),
            *_exact_checks(comparison),
        ]
        self.controls = [_control(name, family) for name, family in comparison.families.items()]
        metrics = by_metric(comparison.exact)
        self.exact = [summary(values) for values in metrics.values()]
        compared = ([v for v in vs if v.change not in ("none", "new")] for vs in metrics.values())
        self.changed = [[summary([value]) for value in values] for values in compared if values]

    def headlines(self, most: int = 4) -> list[tuple[str, Row]]:
        """The rows to see at first look, with what each is: the slowest of each metric, and the
        fastest."""
        rows = [row for row in self.rows if row.is_informative]
        slower = [row for row in rows if row.state is State.SLOWER]
        faster = [row for row in rows if row.state is State.FASTER]
        others = [row for row in rows if row.state not in (State.SLOWER, State.FASTER)]
        slowest: dict[str, Row] = {}
        for row in slower:
            slowest.setdefault(row.metric, row)
        lines = [("slower", row) for row in list(slowest.values())[:most]]
        if not slower and others:
            what = "within noise" if others[0].state is State.NOT_SLOWER else others[0].state.label
            lines.append((f"largest change ({what})", others[0]))
        return lines + [("fastest", row) for row in faster[:1]]

    def _badness(self, timing: Timing) -> tuple:
        state = self.states[timing.key]
        size = -timing.effect if state in (State.SLOWER, State.NOISE) else -timing.upper
        return list(State).index(state), timing.effect if state is State.FASTER else size

    def _clock(self, name: str, comparison: Comparison) -> Check:
        family = comparison.families[name]
        rows = [row for row in self.rows if row.metric.startswith(FAMILIES[name])]
        states = [row.state for row in rows]
        bounds = [t.upper for t in family.timings if self.states[t.key] is State.NOT_SLOWER]
        counts = counted(states, f" (within {percent(max(bounds))})" if bounds else "")
        mde = percent(sorted(timing.mde for timing in family.timings)[len(states) // 2], sign="")
        results = [f"{counts}; minimum detectable effect {mde} (median)"]
        if name == "gpu":
            suites: dict[str, list[State]] = {}  # asv's modules
            for timing in family.timings:
                suite = timing.key.metric.partition(".")[0]
                suites.setdefault(suite, []).append(self.states[timing.key])
            if len(suites) > 1:
                results += [f"{suite}: {counted(timed)}" for suite, timed in suites.items()]
            if untimed := _of_gpu(comparison.untimed):
                results.append(f"{untimed} not timed: same code")
            if comparison.represented:
                other = "the same change of machine code was timed at another size"
                results.append(f"{len(comparison.represented)} not timed: {other}")
        else:
            for row in rows[:MOST_LINES]:
                is_change = row.state in (State.SLOWER, State.FASTER)
                result = row.change if is_change else row.state.label
                results.append(f"{row.label} {row.base} → {row.head}, {result}")
        inconclusive = rules.too_inconclusive(family.timings, comparison.identical)
        uneven = rules.varies_more(family.spread)
        doubtful = State.NOISE in states or inconclusive or uneven or family.control.failed
        symbol = FAILS if State.SLOWER in states else UNKNOWN if doubtful else FINE
        return Check(symbol, f"{CLOCKS[name]} time", results)


def _scope(comparison: Comparison) -> str:
    if comparison.timings:
        without = any(note.kind == "no GPU" for note in comparison.notes)
        return "exact values and host times; no GPU was used" if without else ""
    counted = all(_is_code(value) or _is_host(value) for value in comparison.exact)
    nothing = counted and comparison.exact and not comparison.wrong
    return "exact values only; nothing was timed" if nothing else ""


def _mean(name: str, family: Family) -> Iterable[Mean]:
    if mean := family.mean:
        words = f"{CLOCKS[name]} time, geometric mean of {count(mean.timings, 'timing')}"
        noise = mean.low <= 0 <= mean.high
        change = "not significant" if noise else percent(mean.effect)
        yield Mean(words, change, span((mean.low, mean.high)))


def _setting(comparison: Comparison) -> str:
    gpu = comparison.machine.get("gpu", "unknown GPU")
    gpu = "no GPU" if gpu == "none" else clip(clean(gpu), 80)
    added = f" ({comparison.extension} of them added)" if comparison.extension else ""
    rounds = f"{count(comparison.rounds, 'round')}{added}" if comparison.rounds else "no rounds"
    return f"{gpu}, {rounds}, {comparison.minutes:.1f} min"


def _machine(comparison: Comparison) -> str:
    """GPU, clocks and versions on one line."""
    record = {key: value for key, value in comparison.machine.items() if value not in ("none", "")}
    parts = [record["gpu"]] if "gpu" in record else []
    parts += [f"{name} {clock}" for name, clock in comparison.clocks.items() if parts]
    parts += [f"{name} {record[key]}".strip() for key, name in _VERSIONS.items() if key in record]
    parts += [f"{record['num_cpu']} cores"] if "num_cpu" in record else []
    return ", ".join(clip(clean(part), 80) for part in parts[:MOST_LINES])


def _control(name: str, family: Family) -> str:
    control = family.control
    return (
        f"A/A control, {name}: {control.failed} of {control.timings} timings differ from "
        f"themselves; floor {percent(control.floor, sign='')}, noise of a round "
        f"{percent(control.noise, sign='')}"
    )


def _row(state: State, timing: Timing) -> Row:
    return Row(
        state,
        timing.key.metric,
        label(timing.key),
        seconds(timing.base),
        seconds(timing.head),
        percent(timing.effect),
        span((timing.low, timing.high)),
        percent(timing.upper),
        percent(timing.mde, sign=""),
    )


def _correctness(comparison: Comparison) -> Iterable[Check]:
    error = [value for value in comparison.exact if _is_error(value)]
    checked = error or "gpu" in comparison.families
    failed = comparison.wrong or any(value.answer is Answer.FAIL for value in error)
    if comparison.wrong:
        result = f"{count(len(comparison.wrong), 'check')} failed on the head, see above"
    elif checked:
        result = "the head's outputs pass their checks"
    elif not comparison.exact and comparison.same_sources:
        return
    else:
        result = "outputs were not checked: that needs a GPU"
    result += f"; error against float64: {summary(error)}" if error else ""
    yield Check(FAILS if failed else FINE if checked else NOT_DONE, "correctness", [result])


def _is_code(value: Exact) -> bool:
    return value.key.metric.startswith("codegen.")


def _is_host(value: Exact) -> bool:
    return value.key.metric in HOST_COST


def _is_error(value: Exact) -> bool:
    return value.unit.name == ERROR.name


def _exact_checks(comparison: Comparison) -> Iterable[Check]:
    code = list(filter(_is_code, comparison.exact))
    host = list(filter(_is_host, comparison.exact))
    shown = {value.key for value in code + host}
    others = [v for v in comparison.exact if not (v.key in shown or _is_error(v))]
    kinds = {
        "memory, launches": [value for value in others if value.unit.exact],
        "host cost": host,
        "machine code": code,
        "timed on one side only": [value for value in others if not value.unit.exact],
    }
    for name, values in kinds.items():
        if values:
            worst, by_name = summary(values), map(summary, by_metric(values).values())
            symbol = FAILS if worst.fails else SHOWN if worst.changes else FINE
            result = "; ".join(f"{one.name}: {one}" for one in by_name if one.changes) or str(worst)
            yield Check(symbol, name, [_by_arch(code, comparison) if values is code else result])


def _of_gpu(keys: Iterable[Key]) -> int:
    return sum(key.metric.startswith(FAMILIES["gpu"]) for key in keys)


def _by_arch(code: list[Exact], comparison: Comparison) -> str:
    changes: dict[str, set[str]] = {}
    for value in code:
        arch = next(iter(value.key.params), "no architecture")
        changes.setdefault(arch, set()).add(value.change)
    same = [arch for arch in changes if changes[arch] == {"none"}]
    differing = [arch for arch in changes if arch not in same]
    parts = [f"changed on {', '.join(differing[:MOST_LINES])}"] if differing else []
    parts += [f"the same figures on {', '.join(same[:MOST_LINES])}"] if same else []
    gpu = comparison.families.get("gpu")
    if gpu:
        unchanged = _of_gpu(comparison.identical)
        total = len(gpu.timings) + _of_gpu(comparison.untimed)
        parts += [f"{unchanged} of {total} timings run the very same code"] * bool(unchanged)
    return "; ".join(parts)
