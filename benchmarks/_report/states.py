"""Name the state of each timing, and the reasons for an answer in one sentence. Pure.

A timing that is not slower comes with its bound, an inconclusive one with the minimum detectable
effect: so "no change" never just means low statistical power.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence

from .._verdict import rules
from .._verdict.rules import Answer, Key, Timing
from .._verdict.schema import Comparison
from .text import axes_of, count, label, name_of, percent, span


class State(enum.Enum):
    """What a timing shows, worst first: its name, its symbol and the most rows a table gives it.

    The symbols differ in shape and brightness too, on a light and on a dark page.
    """

    SLOWER = "slower", "🟥", 8
    NOISE = "slower with the same machine code", "🟪", 3
    INCONCLUSIVE = "inconclusive", "🟨", 6
    NOT_SLOWER = "not slower", "⬜", 2
    FASTER = "faster", "🔵", 3
    SAME_CODE = "same machine code", "▫️", 0

    def __init__(self, label: str, symbol: str, most_rows: int):
        self.label, self.symbol, self.most_rows = label, symbol, most_rows


def states_of(comparison: Comparison) -> dict[Key, State]:
    return {t.key: _state(t, t.key in comparison.identical) for t in comparison.timings}


def _state(timing: Timing, same_code: bool) -> State:
    if same_code:
        return State.NOISE if timing.answer is Answer.FAIL else State.SAME_CODE
    if timing.answer is Answer.PASS:
        return State.FASTER if timing.change == "faster" else State.NOT_SLOWER
    return State.SLOWER if timing.answer is Answer.FAIL else State.INCONCLUSIVE


def counted(states: Iterable[State]) -> str:
    """ "8 slower, 20 not slower"."""
    found = list(states)
    return ", ".join(f"{found.count(each)} {each.label}" for each in State if each in found)


def sentence(comparison: Comparison, states: Mapping[Key, State]) -> str:
    """The reasons of the answer."""
    found = {state: [t for t in comparison.timings if states[t.key] is state] for state in State}
    reasons = {Answer.FAIL: _failures, Answer.CANNOT_TELL: _doubts, Answer.PASS: _assurances}
    return "; ".join(reasons[comparison.answer](comparison, found)) + "."


_KINDS = {"gpu": "GPU", "start": "process start"}
_Found = Mapping[State, Sequence[Timing]]


def _failures(comparison: Comparison, found: _Found) -> Iterable[str]:
    if comparison.wrong:
        yield f"{count(len(comparison.wrong), 'check')} failed on the head"
    faster = {timing.key for timing in found[State.FASTER]}
    for name, family in comparison.families.items():
        changed = rules.changed(family.timings, comparison.identical)
        failed = sum(timing.answer is Answer.FAIL for timing in changed)
        gained = sum(timing.key in faster for timing in changed)
        of = count(len(changed), f"changed {_KINDS.get(name, name)} timing")
        if failed:
            yield f"{failed} of {of} became slower" + f", {gained} faster" * (gained > 0)
        elif gained and found[State.SLOWER]:
            yield f"{gained} of {of} became faster"
    lost = [each for each in comparison.exact if each.answer is Answer.FAIL]
    worse = [each for each in lost if each.change == "worse"]
    if worse:
        names = list(dict.fromkeys(name_of(each.key.metric) for each in worse))
        more = ", ..." if len(names) > 3 else ""
        yield f"{count(len(worse), 'exact value')} got worse ({', '.join(names[:3])}{more})"
    if len(lost) > len(worse):
        yield f"the head lost {count(len(lost) - len(worse), 'value')} of the base"


def _worst(timings: Sequence[Timing]) -> str:
    worst = max(timings, key=lambda timing: timing.effect)
    return f"the worst by {percent(worst.effect)}: {label(axes_of(worst.key))}"


def _doubts(comparison: Comparison, found: _Found) -> Iterable[str]:
    judged = comparison.same_sources or any(each.answer for each in comparison.exact)
    if not any(found.values()) and not judged:
        yield "nothing was judged"
    if comparison.unmeasured:
        yield f"not measured: {count(len(comparison.unmeasured), 'difference')} of the versions"
    for name, family in comparison.families.items():
        control, kind = family.control, _KINDS.get(name, name)
        if control.failed:
            differ = f"{control.failed} of {control.timings} {kind} timings differ"
            yield f"{differ} from themselves in the A/A control"
        spread = family.spread
        if spread is not None and rules.varies_more(spread):
            yield (
                f"the head's processes vary more than the base's, by {percent(spread.head, '')} "
                f"of a {kind} timing instead of {percent(spread.base, '')}: it may be slower in "
                "some of them"
            )
    if found[State.NOISE]:
        yield (
            f"{count(len(found[State.NOISE]), 'timing')} came out slower although the machine code "
            "is the same: the noise of this run is larger than it says"
        )
    for name, family in comparison.families.items():
        yield from _inconclusive(
            family.timings, comparison, f"changed {_KINDS.get(name, name)} timing"
        )


def _inconclusive(timings: Sequence[Timing], comparison: Comparison, what: str) -> Iterable[str]:
    changed = rules.changed(timings, comparison.identical)
    timings = rules.inconclusive(changed, comparison.identical)
    if timings:
        of = f"{len(timings)} of {count(len(changed), what)}"
        mde = span((timing.mde for timing in timings), sign="")
        yield f"{of} stayed inconclusive (minimum detectable effect {mde})"
    slower = list(filter(rules.suspicious, timings))
    if slower:
        yield f"{len(slower)} of these looked slower, {_worst(slower)}"


def _bounds(comparison: Comparison, found: _Found) -> Iterable[str]:
    """How much slower timings may be at most: by family, whose noise differs a hundredfold."""
    unmoved, faster = ({t.key for t in found[s]} for s in (State.NOT_SLOWER, State.FASTER))
    says = "is slower by"
    for name, family in comparison.families.items():
        bounded = [t for t in family.timings if t.key in unmoved | faster]
        if any(timing.key in unmoved for timing in bounded):
            kind, most = _KINDS.get(name, name), percent(max(timing.upper for timing in bounded))
            if len(bounded) == 1:
                yield f"the only {kind} timing {says} no more than {most}"
            else:
                yield f"none of {len(bounded)} {kind} timings {says} more than {most}"
            says = "by"


def _assurances(comparison: Comparison, found: _Found) -> Iterable[str]:
    faster, same = found[State.FASTER], found[State.SAME_CODE]
    if comparison.same_sources:
        yield "both versions have the same sources"
    if bounds := list(_bounds(comparison, found)):
        confidence = f"{100 * comparison.rules.confidence:g} % confidence"
        yield f"{', '.join(bounds)} (with {confidence} each)"
    if faster:
        most = percent(min(timing.effect for timing in faster))
        yield f"{len(faster)} became faster, the most by {most}"
    if same or comparison.untimed:
        total = count(len(same) + len(comparison.untimed), "timing")
        yield f"the machine code of {total} is the same on both sides"
    yield from _inconclusive(comparison.timings, comparison, "changed timing")
    if comparison.exact:
        yield "no exact value that counts got worse"
    elif not any(found.values()):
        yield "nothing was measured"
