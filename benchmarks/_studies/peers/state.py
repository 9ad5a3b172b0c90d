"""The rows of a sweep, and how they are stored, read and published.

A running sweep keeps them in a :class:`Journal`, so a killed run goes on. What is published has
the same lines.
"""

import statistics
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path

from ..._engine.measure.cell_outcomes import Outcome
from ..._engine.system import journal
from ..runner import StudyError, write_lines
from .cells import of_values
from .experiments import GRIDS, Experiment, Timing, measured

FORMAT = "rope-triton sweep"
SCHEMA = 1
MAY_DIFFER = ("grid", "command")
"""Keys of the header that may change between runs: a row is the same whatever lies beside it."""

_KEYS = ("experiment", "commit", "machine", "software", "suite", *MAY_DIFFER)
_DIGITS = 6  # far below the noise


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
        text = self.outcome.unavailable
        if self.outcome.error:
            lines = [line for line in self.outcome.error.splitlines() if line.strip()]
            named = [line for line in lines if not line[0].isspace() and "Error" in line]
            text = (named or lines)[-1]
        return " ".join(text.split())


@dataclass
class Results:
    """The rows of one experiment by timing, and the header that says where they come from."""

    header: dict
    rows: dict[Timing, Row]


def header(**values) -> dict:
    """A journal's header: experiment, grid, commit, machine, software, suite and command."""
    return {"format": FORMAT, "schema": SCHEMA, **values}


def results_of(path: Path, header: dict, entries: Iterable[dict]) -> Results:
    """The results that a journal's header and entries are; ``path`` is for messages.

    Raises
    ------
    StudyError
        If they are not a sweep's, or not all rows.
    """
    for key, expected in (("format", FORMAT), ("schema", SCHEMA)):
        if header.get(key) != expected:
            raise StudyError(f"{path} is no sweep of {key} {expected!r}: {header.get(key)!r}")
    rows = {}
    for number, content in enumerate(entries, 2):
        try:
            row = from_json(content)
        except (KeyError, TypeError, ValueError) as error:
            raise StudyError(f"{path}, line {number}, is no row: {error!r}") from error
        rows[row.timing] = row
    return Results(header, rows)


def read(path: Path) -> Results:
    """The results that a stored or published file holds.

    Raises
    ------
    StudyError
        If it is damaged, or no sweep's.
    """
    try:
        head, *entries = journal.read(path)
    except journal.JournalError as error:
        raise StudyError(str(error)) from error
    return results_of(path, head, entries)


def read_experiment(path: Path, name: str) -> tuple[Experiment, Results]:
    """The experiment that a file holds, with the providers that were measured, and its results.

    Raises
    ------
    StudyError
        As :func:`read`, or if it holds another experiment, a grid that is not known here, or does
        not say where its rows come from.
    """
    results = read(path)
    lacking = [key for key in _KEYS if key not in results.header]
    if lacking:
        raise StudyError(f"{path}, line 1, does not say its {', '.join(lacking)}")
    if results.header["experiment"] != name:
        raise StudyError(f"{path} holds the experiment {results.header['experiment']!r}")
    if results.header["grid"] not in GRIDS:
        raise StudyError(f"{path} is of the grid {results.header['grid']!r}, which is not known")
    return measured(name, results.header["grid"], results.rows), results


def write(path: Path, results: Results, timings: Iterable[Timing]) -> None:
    """Write the rows of these timings, in their order."""
    rows = (as_json(results.rows[timing]) for timing in timings if timing in results.rows)
    write_lines(path, (results.header, *rows))


def as_json(row: Row) -> dict:
    """A row as a line of the file has it."""
    samples = {
        name: [float(f"{value:.{_DIGITS}g}") for value in getattr(row.outcome, name)]
        for name in ("latency", "copy", "roofline")
    }
    why = {"unavailable": row.outcome.unavailable, "error": row.outcome.error}
    what = {"direction": row.timing.direction, "cell": list(astuple(row.timing.cell))}
    return what | {k: v for k, v in (samples | why).items() if v} | {"gpu": row.gpu}


def from_json(content: dict) -> Row:
    """The row of a line.

    Raises
    ------
    KeyError, TypeError, ValueError
        If it is none.
    """
    outcome = Outcome(
        tuple(content.get("latency", ())),
        tuple(content.get("copy", ())),
        content.get("unavailable", ""),
        content.get("error", ""),
        tuple(content.get("roofline", ())),
    )
    if not (outcome.latency or outcome.unavailable or outcome.error):
        raise ValueError("it has no samples and no reason")
    timing = Timing(content["direction"], of_values(content["cell"]))
    return Row(timing, outcome, content["gpu"])
