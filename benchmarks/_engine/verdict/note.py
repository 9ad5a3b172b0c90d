"""What a comparison did not measure, or saw go wrong, and why: fields, not sentences.

``report.notes`` makes the sentences.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from ..system.untrusted import Size, Text
from .rules import Key

Kind = Literal[
    # Forbid a pass.
    "requirement",  # reason: what the package runs on differs
    "no time",  # keys: machine code that changed, and there was no time for it
    "not timed",  # keys: machine code that changed, and it could not be timed
    "no host time",  # keys: host times that could not be compared
    "launches",  # count: launches of the head that no listed call has; reason: the first
    "call fails",  # count: calls that fail on the head alone; reason: the first
    # Wrong on the head, and else notes.
    "failed",  # keys, side: failed the check; reason: the error
    "lost",  # keys, side: lost in count of total processes; reason: the error
    "unavailable",  # keys, side ("": both): a version cannot do this; reason: the error
    "no value",  # side, count: exact values that are missing; reason: the error
    "no GPU",  # machine code alone was compared; reason: why
    "code differs",  # count of total timings differ; reason: the architecture
    # count of total calls execute something else on the host; reason: the first; keys: clocked
    "host differs",
    "architecture",  # reason: the GPU's architecture, which the suite does not compile for
    "only",  # no more was timed than --only names
    "same code",  # count of total cells of the same machine code were not timed
    "fewer rounds",  # count of the total that was asked for
    "no second look",  # count: timings that stay inconclusive; reason: why
]


@dataclass(frozen=True)
class Note:
    """One thing; :data:`Kind` lists the fields of each kind. ``keys``: all that it concerns."""

    kind: Kind
    reason: str = ""
    side: Annotated[str, Text("(base|head)?")] = ""
    keys: Annotated[tuple[Key, ...], Size(0, 4000)] = ()
    count: int = 0
    total: int = 0
