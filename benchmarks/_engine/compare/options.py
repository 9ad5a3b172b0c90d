"""What the user of ``compare`` asked for."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ..subject import Cell, Subject
from ..system import checkout
from ..system.errors import CouldNotRunError
from ..verdict.metrics import COMPILE, FAMILIES, IMPORT, OWN_START, WARM_START
from ..verdict.rules import Key
from .findings import BASE, HEAD, SIDES, keys_of


class NothingToTimeError(CouldNotRunError):
    """No cell works in either version, or --only names none: that is no verdict."""


class Request(NamedTuple):
    """What the user asked for, and where.

    pair: base and head. arch: as ``machine.probe`` gives it. deadline: in ``time.monotonic``'s
    seconds. only: the timings that are wanted, and what else their comparison finds; empty for all.
    """

    subject: Subject
    pair: Mapping[str, checkout.Version]
    arch: str
    grid: str
    rounds: int
    deadline: float
    exact_only: bool
    wait_seconds: float
    afresh: bool
    every_cell: bool
    only: frozenset[Key]

    @property
    def digests(self) -> dict[str, str]:
        """Of the sources of each version."""
        return {side: self.pair[side].digest for side in SIDES}

    @property
    def roots(self) -> dict[str, Path]:
        """The directory that holds the package of each version."""
        return {side: self.pair[side].root for side in SIDES}

    def cells(self) -> list[Cell]:
        """The cells to look at, in the order in which they are measured."""
        cells = [*self.subject.candidates()]
        timings = {key for key in self.only if key.metric.startswith(sum(FAMILIES.values(), ()))}
        starts = (Key(metric, ()) for metric in (IMPORT, COMPILE, WARM_START, OWN_START))
        on_host = itertools.starmap(Key, self.subject.eager())
        for unknown in timings.difference(starts, on_host, *map(keys_of, cells)):
            raise NothingToTimeError(f"no timing is called {unknown.words}")
        return [cell for cell in cells if not self.only or keys_of(cell) & timings]

    def checked(self) -> list[Cell]:
        """The cells whose output is checked before any is timed."""
        if self.only:
            return self.cells()

        def changed(part: str) -> bool:
            return checkout.differs(part, self.pair[BASE], self.pair[HEAD], self.subject.PACKAGE)

        return [*self.subject.checked(changed)]

    @property
    def host(self) -> bool:
        """Whether to time calls on the host."""
        hosts = FAMILIES["host"] + FAMILIES["start"]
        return not self.only or any(key.metric.startswith(hosts) for key in self.only)
