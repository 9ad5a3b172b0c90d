"""Turn what processes answered into verdicts, faults and notes; touches no clock and no GPU."""

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

from ..subject import Cell, keys_of
from ..verdict import rules
from ..verdict.note import Note
from ..verdict.rules import FAMILIES, Exact, Family, Key
from . import exact
from .pool import Pool
from .rounds import Round

SIDES = BASE, HEAD = ("base", "head")
_MOST_MDE = 0.2  # of a clock on the CPU


class Checks(NamedTuple):
    """What was checked and counted before anything was timed."""

    right: list[Cell]  # in both versions
    new: list[Cell]  # right in the head alone: nothing to compare with
    exact: list[Exact]
    wrong: list[Note]
    notes: list[Note]


class _Missing(NamedTuple):
    """The timings that each side lacks in some process, the faults among them, and the rest.

    mended: no process of the base has them, and all of the head. impossible: the base cannot do.
    """

    keys: dict[str, Set[Key]]
    wrong: list[Note]
    notes: list[Note]
    mended: Set[Key]
    impossible: Set[Key]


class Look(NamedTuple):
    """The verdict on rounds, and what was lost in them.

    mended: timings that no process of the base has and all of the head: without a comparison.
    lost_on_host: those on the host, and of starts, without a verdict though the base can do them.
    """

    rounds: int
    families: dict[str, Family]
    wrong: list[Note]
    notes: list[Note]
    mended: Set[Key] = frozenset()
    lost_on_host: Set[Key] = frozenset()

    @property
    def judged(self) -> set[Key]:
        """The timings that have a verdict."""
        return {timing.key for family in self.families.values() for timing in family.timings}


def judge_checks(answers: Mapping[str, dict], grid: Iterable[Cell]) -> Checks:
    """What is wrong, missing or exact, from the answer of one process of each version."""
    facts = {side: facts_of(answers[side]) for side in SIDES}
    missing = _missing([answers], FAMILIES["gpu"])
    of_head = [cell for cell in grid if not keys_of(cell) & missing.keys[HEAD]]
    return Checks(
        right=[cell for cell in of_head if not keys_of(cell) & missing.keys[BASE]],
        new=[cell for cell in of_head if keys_of(cell) & missing.keys[BASE]],
        exact=exact.compare(facts[BASE], facts[HEAD]),
        wrong=missing.wrong,
        notes=[*exact.problems(facts), *missing.notes],
    )


def changed_nodes(answers: Mapping[str, dict]) -> dict[Key, str]:
    """The checked calls that do not put the same on the stream in both versions, and what they do.

    ``answers``: of a process of each version that checked them. A call that only one of them could
    record is among these.
    """
    nodes = {
        side: {Key(metric, tuple(params)): text for metric, params, text in answer["nodes"]}
        for side, answer in answers.items()
    }
    return {
        subject: "; ".join(f"{side} {nodes[side].get(subject, 'not recorded')}" for side in SIDES)
        for subject in sorted(nodes[BASE].keys() | nodes[HEAD].keys())
        if nodes[BASE].get(subject) != nodes[HEAD].get(subject)
    }


def judge_rounds(
    measured: Sequence[Round], identical: Set[Key], only: Set[Key] | None = None
) -> Look:
    """The verdict from these rounds on the subjects that every process has, or ``only`` on some."""
    families = Pool.of(measured, SIDES).judged(BASE, HEAD, only=only, identical=identical)
    missing = _missing([one.answers for one in measured], sum(FAMILIES.values(), ()))
    on_host = {
        key
        for keys in missing.keys.values()
        for key in keys - missing.impossible
        if key.metric.startswith(FAMILIES["host"] + FAMILIES["start"])
    }
    return Look(
        *(len(measured), families, missing.wrong, missing.notes),
        *(missing.mended, on_host - missing.mended),
    )


def no_look() -> Look:
    """A look at no rounds."""
    return Look(0, {}, [], [])


def joined(first: Look, second: Look) -> Look:
    """Two looks in one: the second's verdicts replace those that it judged anew."""
    families = {
        name: _joined(family, second.families[name]) if name in second.families else family
        for name, family in first.families.items()
    }
    return first._replace(
        rounds=first.rounds + second.rounds,
        families=families,
        wrong=first.wrong + second.wrong,
        notes=first.notes + second.notes,
    )


def _joined(first: Family, second: Family) -> Family:
    newer = {timing.key: timing for timing in second.timings}
    timings = tuple(newer.get(timing.key, timing) for timing in first.timings)
    failed = first.control.failed + second.control.failed
    control = replace(first.control, failed=failed)
    return replace(first, timings=timings, control=control)


def inconclusive(look: Look, identical: Set[Key]) -> set[Key]:
    """The timings on which neither the clock nor the machine code is conclusive."""
    return {
        timing.key
        for family in look.families.values()
        for timing in rules.inconclusive(family.timings, identical)
    }


def without_noise(look: Look) -> Look:
    """The look without inconclusive timings of calls of which a clock on the CPU says nothing.

    PyTorch's own work takes longer there than all that Python does.
    """
    families = {}
    for name, family in look.families.items():
        unclear = rules.inconclusive(family.timings, frozenset())
        noisy = [timing for timing in unclear if timing.mde > _MOST_MDE]
        if left := tuple(timing for timing in family.timings if timing not in noisy):
            families[name] = replace(family, timings=left)
    return look._replace(families=families, rounds=look.rounds if families else 0)


def clocks(measured: Sequence[Round]) -> dict[str, str]:
    """Median clocks of the GPU under load, over the rounds."""
    medians = {}
    for words, key in (("SM", "sm_mhz"), ("memory", "memory_mhz")):
        # Least, median and largest of a round.
        if clocks := [one.watch[key][1] for one in measured if one.watch[key]]:
            medians[words] = f"{statistics.median(clocks):g} MHz"
    return medians


def facts_of(answer: dict) -> dict[Key, float | Exception]:
    """The exact metrics that a process found, and why others are missing."""
    rows = [(metric, params, value) for metric, params, value in answer["facts"]]
    rows += [
        (metric, params, RuntimeError(reason))
        for metric, params, reason in answer["errors"] + answer["unavailable"]
        if not metric.startswith(FAMILIES["gpu"])
    ]
    return {Key(metric, tuple(params)): value for metric, params, value in rows}


def _reasons(rows: Iterable[Sequence], prefixes: tuple[str, ...]) -> dict[Key, str]:
    """Why timings are missing: the last line of each traceback."""
    return {
        Key(metric, tuple(params)): (reason.strip().splitlines() or ["no reason"])[-1][:300]
        for metric, params, reason in rows
        if metric.startswith(prefixes)
    }


def _missing(answers: Sequence[Mapping[str, dict]], prefixes: tuple[str, ...]) -> _Missing:
    """What is missing in the answers of processes, by process and side.

    What fails in the head alone is wrong there, and so is what no other reason keeps the base from:
    a base that cannot be called so is no excuse for a failure.
    """
    reasons: dict[str, dict[Key, list[str]]] = {side: {} for side in SIDES}
    failed: dict[str, set[Key]] = {side: set() for side in SIDES}
    for side, process in itertools.product(SIDES, answers):
        errors, unavailable = (
            _reasons(process[side][kind], prefixes) for kind in ("errors", "unavailable")
        )
        failed[side] |= errors.keys()
        for key, reason in (errors | unavailable).items():
            reasons[side].setdefault(key, []).append(reason)
    base, head = (reasons[side] for side in SIDES)
    wrong = [key for key in head if key not in (failed[BASE] if key in failed[HEAD] else base)]
    neither = {
        key: Note("unavailable", why[0])
        for key, why in head.items()
        if key not in wrong and len(why) == len(base.get(key, ())) == len(answers)
    }

    def note(side: str, key: Key) -> Note:
        why, fails = reasons[side][key], key in failed[side]
        if len(answers) == 1 and (fails or side == HEAD):
            return Note("failed", why[0], side)
        if len(why) == len(answers) and not fails:
            return Note("unavailable", why[0], side)
        return Note("lost", why[0], side, count=len(why), total=len(answers))

    notes = _together(neither)
    for side, others in ((BASE, {*neither}), (HEAD, {*neither, *wrong})):
        notes += _together({key: note(side, key) for key in reasons[side] if key not in others})
    never = {key for key, why in base.items() if len(why) == len(answers)}
    return _Missing(
        keys={side: reasons[side].keys() for side in SIDES},
        wrong=[replace(note(HEAD, key), keys=(key,)) for key in wrong],
        notes=notes,
        mended=never - head.keys(),
        impossible=never - failed[BASE],
    )


def _together(notes: Mapping[Key, Note]) -> list[Note]:
    """One of all alike notes, with all their keys."""
    alike: dict[Note, list[Key]] = {}
    for key, note in notes.items():
        alike.setdefault(note, []).append(key)
    return [replace(note, keys=tuple(keys)) for note, keys in alike.items()]
