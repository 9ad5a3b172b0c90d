"""The rows of an experiment, and the JSON that they are stored as."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..._engine.measure.cell_outcomes import Outcome
from ..._engine.system import journal
from .. import pages
from .experiments import Experiment, Timing, measured
from .peer_cells import SUITES

FORMAT = "rope-triton sweep"
_DIGITS = 6  # far below the noise
_SAMPLES, _WHY = ("latency", "copy", "roofline"), ("unavailable", "error")


@dataclass(frozen=True)
class Row:
    """A timing's outcome, and the UUID of the GPU that it comes from."""

    timing: Timing
    outcome: Outcome
    gpu: str

    @property
    def seconds(self) -> float:
        """Median latency of a call."""
        return statistics.median(self.outcome.latency)

    @property
    def gbps(self) -> float:
        """Input and output bytes over the latency."""
        return self.timing.cell.bytes_moved / self.seconds / 1e9

    @property
    def share(self) -> float:
        """Speed as a share of the copy's, of paired samples."""
        pairs = zip(self.outcome.latency, self.outcome.copy, strict=True)
        return statistics.median(copy / latency for latency, copy in pairs)

    @property
    def share_of_roofline(self) -> float | None:
        """The same of the roofline's; None where it was not timed."""
        pairs = zip(self.outcome.latency, self.outcome.roofline, strict=False)  # which has fewer
        return statistics.median([seconds / latency for latency, seconds in pairs] or [0]) or None

    @property
    def status(self) -> str:
        """ "measured", "n/a", "wrong" (the output failed its check) or "failed"."""
        if self.outcome.latency:
            return "measured"
        if self.outcome.unavailable:
            return "n/a"
        return "wrong" if "AssertionError" in self.outcome.error else "failed"

    @property
    def reason(self) -> str:
        """Why there is no speed, in a line."""
        if self.outcome.error:
            return pages.last_line(self.outcome.error)
        return " ".join(self.outcome.unavailable.split())


class Results(NamedTuple):
    """The rows of one experiment by timing, and the header that says where they come from."""

    header: dict
    rows: dict[Timing, Row]


def results_of(header: dict, entries: Iterable[dict]) -> Results:
    rows = map(from_json, entries)
    return Results(header, {row.timing: row for row in rows})


def read_experiment(path: Path) -> tuple[Experiment, Results]:
    """The experiment that a file holds, with the providers that were measured, and its results."""
    header, *entries = journal.read(path)
    results = results_of(header, entries)
    return measured(header["experiment"], header["grid"], results.rows), results


def as_json(row: Row) -> dict:
    direction, cell = row.timing
    line: dict = {"direction": direction, "suite": cell.suite, "cell": list(cell.values)}
    for name in _SAMPLES:
        line[name] = [float(f"{value:.{_DIGITS}g}") for value in getattr(row.outcome, name)]
    line |= {name: getattr(row.outcome, name) for name in _WHY}
    return {key: value for key, value in line.items() if value} | {"gpu": row.gpu}


def from_json(content: dict) -> Row:
    """JournalError if it is of a version that stored no suite."""
    suite = content.get("suite")
    if suite not in SUITES:
        raise journal.JournalError(f"a row's suite must be one of {[*SUITES]}, got {suite!r}")
    fields: dict = {name: tuple(content.get(name, ())) for name in _SAMPLES}
    fields |= {name: content.get(name, "") for name in _WHY}
    timing = Timing(content["direction"], SUITES[suite](*content["cell"]))
    return Row(timing, Outcome(**fields), content["gpu"])
