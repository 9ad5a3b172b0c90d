"""Write the notes of a comparison as sentences. Pure."""

import dataclasses
from collections.abc import Iterable

from ..verdict.note import Note
from ..verdict.rules import Exact
from .text import count

_CHANGED = "with changed machine code"
_MOST_KEYS = 3


def text(note: Note) -> str:
    """The note as a sentence; its reason is untrusted."""
    size, keys, reason = len(note.keys), _named(note), note.reason
    lost = f"failed in {note.count} of {note.total} processes of the {note.side}"
    if note.count == note.total:
        lost = f"in no process of the {note.side}"
    absent = f"not in the {note.side}" if note.side else "in neither version"
    sentences = {
        "requirement": reason,
        "no time": f"no time for {count(size, 'timing')} {_CHANGED} (a larger --budget with "
        f"--afresh gives it): {keys}",
        "not timed": f"{count(size, 'timing')} {_CHANGED} could not be timed (see the notes): "
        f"{keys}",
        "no host time": f"{count(size, 'host time')} could not be compared (see the notes): {keys}",
        "launches": f"the head launches kernels in {count(note.count, 'way')} that no listed call "
        f"covers: add calls to the list that do; the first: {reason}",
        "call fails": f"{count(note.count, 'call')} failed on the head alone; the first: {reason}",
        "failed": f"{keys}: {'failed in the base: ' * (note.side == 'base')}{reason}",
        "lost": f"{keys}: {lost}: {reason}",
        "unavailable": f"{keys}: {absent}: {reason}",
        "no value": f"{note.side}: {count(note.count, 'exact value')} missing: {reason}",
        "no GPU": f"{reason}: GPU time, memory, launches and error were not measured",
        "host differs": f"host: {note.count} of {note.total} calls execute other instructions, "
        f"{f'{size} of them, one of each kind, were' if size else 'and none of them was'} clocked: "
        f"{reason}",
        "code differs": f"machine code for {reason}: {note.count} of {note.total} timings differ",
        "architecture": f"the suite does not compile for {reason}: no machine code was compared",
        "only": "no more was timed than --only names",
        "same code": f"{note.count} of {note.total} cells with the same machine code were not "
        "timed (--all times them)",
        "fewer rounds": f"{note.count} rounds: there was no time for {note.total}",
        "no second look": f"{count(note.count, 'inconclusive timing')} not measured again: "
        f"{reason}",
    }
    return sentences[note.kind]


def texts(notes: Iterable[Note]) -> list[str]:
    return [text(note) for note in notes]


def shortened(notes: Iterable[Note], exact: Iterable[Exact]) -> list[str]:
    """The notes as sentences, with one in place of all on what the base is too old for.

    Exact values that are missing for many reasons are one sentence for each side too.
    """
    notes = list(notes)
    new = [note for note in notes if (note.kind, note.side) == ("unavailable", "base")]
    reasons = {note.reason for note in new}
    rest = [
        note
        for note in notes
        if note not in new
        and not ((note.kind, note.side) == ("no value", "base") and note.reason in reasons)
    ]
    for side in ("base", "head"):
        missing = [note for note in rest if (note.kind, note.side) == ("no value", side)]
        if len(missing) > _MOST_KEYS:
            total = sum(note.count for note in missing)
            why = f"{len(missing)} reasons, the first: {missing[0].reason}"
            rest = [note for note in rest if note not in missing]
            rest.append(dataclasses.replace(missing[0], count=total, reason=why))
    cells = sum(len(note.keys) for note in new)
    values = sum(value.change == "new" and value.unit.exact for value in exact)
    if not cells + values:
        return texts(rest)
    first = f"; the base: {new[0].reason}" if new else ""
    return [f"{count(cells + values, 'cell')} new in head{first}", *texts(rest)]


def _named(note: Note) -> str:
    most = _MOST_KEYS if note.kind in ("no time", "not timed", "no host time") else 1
    names = [key.words for key in note.keys[:most]]
    more = len(note.keys) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
