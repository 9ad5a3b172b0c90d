"""Choose what is timed: all that differs, as far as there is time, and a sample of the rest.

Pure. The machine code says what differs. Calls of several sizes run the same machine code: a
variant, which is timed at one size at least, at its smallest and largest if there is time, and at
more where few variants changed.
"""

import random
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

from ..machine_code.facts import Facts
from ..machine_code.host_cost import HostCost
from ..subject import Cell, keys_of
from ..verdict.metrics import COUNTED, HOST_CALL, STARTS
from ..verdict.note import Note
from ..verdict.rules import FAMILIES, Answer, Key
from .exact import Code, compare
from .findings import SIDES

_IMPORT = (Key("host_cost.Import.track_bytecodes", ()),)
Compiled = Mapping[Key, Facts | Exception]

# Of two machines with an H200 a cell took 0.07 s on one and 0.11 s on the other. On a third, beside
# two other comparisons, a process of 8 cells took 10.9 s, and one that clocked 41 calls of both
# versions 14 s, one call 6.5 s. Where that is too long, less is timed than there is time for; too
# short, and a run ends before it has the fewest rounds.
CELL_SECONDS, PROCESS_SECONDS = 0.09, 9.0
CALL_SECONDS, CLOCK_SECONDS = 0.2, 6.0
# So many are timed at least, if that many differ: with what comes before, it takes five minutes.
FEW_CELLS = 24
# Of the same machine code so many are timed, other ones for each pair of versions.
SAME_CODE_CELLS = 8
_MOST_CLOCKED = 24  # calls on the host that are only counted otherwise


class Left(NamedTuple):
    """Timings that differ and are not timed.

    represented: others of the same variant are timed. untimed: none is.
    """

    represented: frozenset[Key]
    untimed: frozenset[Key]


def affordable(seconds: float, rounds: int, calls: int) -> int:
    """The cells that so many rounds can time in this time, as far as is known before.

    calls: on the host, which are clocked besides.
    """
    return max(0, int((seconds / rounds - 60 * minutes(0, 1, calls)) / (2 * CELL_SECONDS)))


def minutes(cells: int, rounds: int, calls: int) -> float:
    """About how long so many rounds take: two processes, and one that clocks if there are calls."""
    clock = CLOCK_SECONDS + CALL_SECONDS * calls if calls else 0.0
    return rounds * (2 * (PROCESS_SECONDS + CELL_SECONDS * cells) + clock) / 60


def choose(
    cells: Sequence[Cell],
    compiled: Mapping[str, Compiled],
    at_most: int,
    seed: str,
    ends: int = 0,
    everything: bool = False,
) -> list[Cell]:
    """The cells to time, in the order in which they are given, which is that of preference.

    at_most: cells that there is time for. seed: of the sample of what is the same. ends: cells up
    to which a variant is timed at its smallest and its largest size, too. everything: whether all
    sizes are timed, and all that does not differ.
    """
    there = [cell for cell in cells if _is_in_both(cell, compiled)]
    differing = [cell for cell in there if _variants(compiled, [cell])]
    same = [cell for cell in there if not _variants(compiled, [cell])]
    chosen = _first_of_each_variant(differing, compiled)[:at_most]
    by_size = sorted(differing, key=lambda cell: cell.bytes_moved)
    orders = by_size, by_size[::-1]
    outer = {cell for order in orders for cell in _first_of_each_variant(order, compiled)}
    outer -= set(chosen)
    room = min(ends, at_most) - len(chosen) - min(len(same), SAME_CODE_CELLS)
    chosen += [cell for cell in differing if cell in outer][: max(0, room)]
    more = [cell for cell in differing if cell not in set(chosen)]
    few = at_most if everything else min(FEW_CELLS, at_most)
    chosen += more[: max(0, few - len(chosen))]
    count = len(same) if everything else min(len(same), SAME_CODE_CELLS)
    sample = random.Random(seed).sample(same, min(count, at_most - len(chosen)))
    return [cell for cell in cells if cell in {*chosen, *sample}]


def left(cells: Sequence[Cell], compiled: Mapping[str, Compiled], timed: Sequence[Cell]) -> Left:
    """What differs of these cells and is not timed."""
    timed_variants, without = _variants(compiled, timed), set(timed)
    differing = {
        key: change
        for cell in cells
        if cell not in without and _is_in_both(cell, compiled)
        for key in keys_of(cell)
        if (change := variant(compiled, key))
    }
    represented = frozenset(key for key, change in differing.items() if change in timed_variants)
    return Left(represented, frozenset(differing) - represented)


def variant(compiled: Mapping[str, Compiled], key: Key) -> tuple | None:
    """The change of machine code that a timing runs, None if it is the same in both versions."""
    base, head = (compiled[side].get(key) for side in SIDES)
    if not isinstance(base, Facts) or not isinstance(head, Facts):
        return (key,)  # what is not known may be anything
    return None if base.digest == head.digest else (base.code, head.code)


def facts_of(code: Mapping[str, Code], changed: Mapping[Key, str]) -> dict[str, Compiled]:
    """Each side's facts by timing; calls differ as well that put something else on the stream.

    ``changed``: what, see ``findings.changed_nodes``.
    """
    base, head = (dict(code[side].facts) for side in SIDES)
    for key, what in changed.items():
        if isinstance(facts := head.get(key), Facts):
            digest, text = f"{facts.digest} {what}", f"{facts.code} {what}"
            head[key] = replace(facts, digest=digest, code=text)
    return dict(zip(SIDES, (base, head), strict=True))


def identical(compiled: Mapping[str, Compiled]) -> set[Key]:
    """The timings for which both versions run the same machine code, on the same grids."""
    return {key for key in compiled[SIDES[0]] if variant(compiled, key) is None}


def _is_in_both(cell: Cell, compiled: Mapping[str, Compiled]) -> bool:
    """Whether neither version says that it cannot be called so."""
    facts = [compiled[side].get(key) for side in SIDES for key in keys_of(cell)]
    return not any(isinstance(value, NotImplementedError) for value in facts)


def _variants(compiled: Mapping[str, Compiled], cells: Sequence[Cell]) -> set[tuple]:
    """The variants that calls of these cells run, of those that differ."""
    changes = {variant(compiled, key) for cell in cells for key in keys_of(cell)}
    return {change for change in changes if change is not None}


def _first_of_each_variant(cells: Sequence[Cell], compiled: Mapping[str, Compiled]) -> list[Cell]:
    chosen: list[Cell] = []
    covered: set[tuple] = set()
    for cell in cells:
        if new := _variants(compiled, [cell]) - covered:
            chosen.append(cell)
            covered |= new
    return chosen


def alike_on_host(code: Mapping[str, Code], same_code: bool) -> set[Key]:
    """The host timings of calls that execute the same in both versions, instruction by instruction.

    And how a process starts, if all calls do, their machine code is the same (``same_code``), and
    the import costs no more.
    """
    pairs, differ = _counted_in_both(code), _differing(code)
    alike = {key for key in pairs if key not in differ and key.metric.startswith(FAMILIES["host"])}
    counted = [set(code[side].host) for side in SIDES]
    failed = any(isinstance(one, Exception) for side in SIDES for one in code[side].host.values())
    imports = (
        {key: code[side].values[key] for key in _IMPORT if key in code[side].values}
        for side in SIDES
    )
    no_dearer = [value.answer for value in compare(*imports)] == [Answer.PASS]
    if same_code and not differ and not failed and counted[0] == counted[1] and no_dearer:
        alike |= {Key(metric, ()) for metric in STARTS}
    return alike


def to_clock(code: Mapping[str, Code]) -> set[Key]:
    """Calls that execute something else, and that no list clocks: one for each difference.

    Where hundreds of calls run what changed, most of them differ by the same counts: the cheapest
    of these is clocked, of which the difference is the largest share. Of too many differences those
    that most calls have are clocked.
    """
    kinds: dict[tuple, list[tuple[int, Key]]] = {}
    for key, (base, head) in _differing(code).items():
        if key.metric == COUNTED:
            counts = (after - before for before, after in zip(base[1:], head[1:], strict=True))
            kinds.setdefault((key.params[-1], *counts), []).append((base.nominal_ns, key))
    most = sorted(kinds.values(), key=lambda calls: (-len(calls), min(calls)))[:_MOST_CLOCKED]
    return {Key(HOST_CALL, min(calls)[1].params) for calls in most}


def changed_on_host(code: Mapping[str, Code], timings: Set[Key]) -> set[Key]:
    """All that a clock has to compare of the host: of ``timings``, and of what is only counted."""
    return (_differing(code).keys() & timings) | to_clock(code)


def _counted_in_both(code: Mapping[str, Code]) -> dict[Key, tuple[HostCost, HostCost]]:
    """What each call does on the host in both versions; without the import."""
    base, head = (code[side].host for side in SIDES)
    return {
        key: (before, after)
        for key, before in base.items()
        if key.params
        and isinstance(before, HostCost)
        and isinstance(after := head.get(key), HostCost)
    }


def _differing(code: Mapping[str, Code]) -> dict[Key, tuple[HostCost, HostCost]]:
    pairs = _counted_in_both(code)
    return {key: pair for key, pair in pairs.items() if pair[0].digest != pair[1].digest}


def host_changes(code: Mapping[str, Code], clocked: Set[Key] = frozenset()) -> list[Note]:
    """A note on the calls that execute other instructions on the host, if there are any.

    ``clocked``: the timings of calls that were.
    """
    if not (differ := _differing(code)):
        return []
    first = "; ".join(key.words for key in [*differ][:3])
    total = len(_counted_in_both(code))
    return [Note("host differs", first, "", tuple(sorted(clocked)), len(differ), total)]


def unreached(code: Mapping[str, Code]) -> list[Note]:
    """What only the head's calls do, and no listed cell: notes that forbid a pass."""
    (base, head), notes = (code[side].reach for side in SIDES), []
    if not head:
        return []  # nothing is compiled for an unknown architecture
    new = head["dense"]["features"] - base["dense"]["features"] - base["listed"]["features"]
    missed: Set[str] = new - head["listed"]["features"]
    if missed:
        first = "; ".join(sorted(missed, key=lambda text: (len(text), text))[:3])
        notes.append(Note("launches", first, count=len(missed)))
    failed = head["dense"]["failures"].keys() - base["dense"]["failures"].keys()
    if failed:
        first_failed = min(failed)
        why = head["dense"]["failures"][first_failed]
        notes.append(Note("call fails", f"{first_failed}: {why}", count=len(failed)))
    return notes
