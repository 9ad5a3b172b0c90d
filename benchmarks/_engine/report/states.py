"""Name the state of each timing, and the reasons for an answer in one sentence. Pure.

A timing that is not slower comes with its bound, an inconclusive one with the minimum detectable
effect: so "no change" never just means low statistical power.
"""

import collections
import enum
from collections.abc import Iterable, Mapping, Sequence

from ..verdict import rules
from ..verdict.rules import Answer, Key, Timing
from ..verdict.schema import Comparison
from .text import count, label, name_of, percent, span

CLOCKS = {"gpu": "GPU", "host": "host", "start": "process start"}
"""What the timings of a family are of."""


class State(enum.Enum):
    """What a timing shows, worst first: its name and its symbol.

    The symbols differ in shape and brightness too, on a light and on a dark page.
    """

    SLOWER = "slower", "🟥"
    NOISE = "slower with the same code", "🟪"
    INCONCLUSIVE = "inconclusive", "🟨"
    NOT_SLOWER = "not slower", "⬜"
    FASTER = "faster", "🔵"
    SAME_CODE = "same code", "▫️"

    def __init__(self, label: str, symbol: str):
        self.label, self.symbol = label, symbol


def states_of(comparison: Comparison) -> dict[Key, State]:
    return {t.key: _state(t, t.key in comparison.identical) for t in comparison.timings}


def _state(timing: Timing, same_code: bool) -> State:
    if same_code:
        return State.NOISE if timing.answer is Answer.FAIL else State.SAME_CODE
    if timing.answer is Answer.PASS:
        return State.FASTER if timing.change == "faster" else State.NOT_SLOWER
    return State.SLOWER if timing.answer is Answer.FAIL else State.INCONCLUSIVE


def counted(states: Iterable[State], bound: str = "") -> str:
    """ "8 slower, 20 not slower", and behind these a bound."""
    counts = collections.Counter(states)
    return ", ".join(
        f"{counts[state]} {state.label}{bound if state is State.NOT_SLOWER else ''}"
        for state in State
        if counts[state]
    )


_ByState = Mapping[State, Sequence[Timing]]


def sentence(comparison: Comparison, states: Mapping[Key, State]) -> str:
    """The reasons of the answer."""
    by_state = {state: [t for t in comparison.timings if states[t.key] is state] for state in State}
    reasons = {Answer.FAIL: _failures, Answer.CANNOT_TELL: _doubts, Answer.PASS: _assurances}
    return "; ".join(reasons[comparison.answer](comparison, by_state)) + "."


def _failures(comparison: Comparison, by_state: _ByState) -> Iterable[str]:
    if comparison.wrong:
        yield f"{count(len(comparison.wrong), 'check')} failed on the head"
    faster = {timing.key for timing in by_state[State.FASTER]}
    for name, family in comparison.families.items():
        changed = rules.changed(family.timings, comparison.identical)
        slower = [timing.effect for timing in changed if timing.answer is Answer.FAIL]
        gained = sum(timing.key in faster for timing in changed)
        total = count(len(changed), f"changed {CLOCKS[name]} timing")
        if slower:
            yield (
                f"{len(slower)} of {total} slower by up to {percent(max(slower), '')}"
                + f", {gained} faster" * (gained > 0)
            )
        elif gained and by_state[State.SLOWER]:
            yield f"{gained} of {total} faster"
    failed = [value for value in comparison.exact if value.answer is Answer.FAIL]
    worse = [value for value in failed if value.change == "worse"]
    if worse:
        names = list(dict.fromkeys(name_of(value.key.metric) for value in worse))
        more = ", ..." if len(names) > 3 else ""
        yield f"{count(len(worse), 'exact value')} worse ({', '.join(names[:3])}{more})"
    if len(failed) > len(worse):
        yield f"{count(len(failed) - len(worse), 'value')} of the base missing on the head"


def _doubts(comparison: Comparison, by_state: _ByState) -> Iterable[str]:
    judged = comparison.same_sources or any(value.answer for value in comparison.exact)
    if not any(by_state.values()) and not judged:
        yield "nothing was judged"
    if comparison.unmeasured:
        yield f"{count(len(comparison.unmeasured), 'difference')} of the versions not measured"
    for name, family in comparison.families.items():
        control, spread = family.control, family.spread
        if control.failed:
            differ = f"{control.failed} of {control.timings} {CLOCKS[name]} timings differ"
            yield f"{differ} from themselves in the A/A control"
        if spread is not None and rules.varies_more(spread):
            yield (
                f"the head's processes vary more than the base's, by {percent(spread.head, '')} "
                f"of a {CLOCKS[name]} timing instead of {percent(spread.base, '')}: it may be "
                "slower in some of them"
            )
    if by_state[State.NOISE]:
        yield (
            f"{count(len(by_state[State.NOISE]), 'timing')} slower although the code is "
            "the same: the noise of this run is larger than estimated"
        )
    for name, family in comparison.families.items():
        yield from _inconclusive(family.timings, comparison, f"changed {CLOCKS[name]} timing")


def _inconclusive(timings: Sequence[Timing], comparison: Comparison, what: str) -> Iterable[str]:
    changed = rules.changed(timings, comparison.identical)
    timings = rules.inconclusive(changed, comparison.identical)
    if timings:
        mde = span((timing.mde for timing in timings), sign="")
        total = count(len(changed), what)
        yield f"{len(timings)} of {total} inconclusive (minimum detectable effect {mde})"
    slower = list(filter(rules.suspicious, timings))
    if slower:
        worst = max(slower, key=lambda timing: timing.effect)
        largest = f"the largest change {percent(worst.effect)}: {label(worst.key)}"
        yield f"{len(slower)} of these look slower, {largest}"


def _bounds(comparison: Comparison, by_state: _ByState) -> Iterable[str]:
    """How much slower timings may be at most: by family, whose noise differs a hundredfold."""
    unchanged, faster = ({t.key for t in by_state[s]} for s in (State.NOT_SLOWER, State.FASTER))
    for name, family in comparison.families.items():
        bounded = [t for t in family.timings if t.key in unchanged | faster]
        if any(timing.key in unchanged for timing in bounded):
            upper = percent(max(timing.upper for timing in bounded))
            yield f"{CLOCKS[name]} {upper} ({count(len(bounded), 'timing')})"


def _assurances(comparison: Comparison, by_state: _ByState) -> Iterable[str]:
    faster, same = by_state[State.FASTER], by_state[State.SAME_CODE]
    if comparison.same_sources:
        yield "both versions have the same sources"
    if bounds := ", ".join(_bounds(comparison, by_state)):
        yield f"no regression, {100 * comparison.rules.confidence:g} % upper bounds: {bounds}"
    if faster:
        most = percent(-min(timing.effect for timing in faster), "")
        yield f"{count(len(faster), 'timing')} faster by up to {most}"
    if same or comparison.untimed:
        total = count(len(same) + len(comparison.untimed), "timing")
        yield f"the same code in {total}"
    yield from _inconclusive(comparison.timings, comparison, "changed timing")
    if comparison.exact:
        yield "no regression of an exact value"
    elif not any(by_state.values()):
        yield "nothing was measured"
