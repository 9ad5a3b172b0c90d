"""What a sweep has measured: JSON lines, the first of which says where and of what.

Each line is written as soon as a cell is finished, so a killed run goes on from there. What is
published has the same form.
"""

import fcntl
import json
import os
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

from ..._measure.workload import Outcome
from ..._system.files import plain_json, write_atomically
from ..cells import PeerCell
from .experiments import GRIDS, Experiment, Timing

FORMAT = "rope-triton sweep"
SCHEMA = 1
# Must agree between what is stored and what is measured. Command and grid may differ: a row is the
# same whatever was measured beside it.
_SAME = ("format", "schema", "experiment", "commit", "machine", "software", "suite")
_DIGITS = 6  # far below the noise


class SweepError(RuntimeError):
    """A sweep that cannot go on; the message says why."""


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
    def copy_seconds(self) -> float:
        """Median latency of ``copy_`` of the same bytes, in turns with the call."""
        return statistics.median(self.outcome.copy)

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
    """The rows of one experiment by timing, with what is said of them all, and its checks."""

    header: dict
    rows: dict[Timing, Row]
    checks: dict[tuple, dict]

    def check(self, found: dict) -> None:
        """Take what ``closeness`` found, in place of an earlier answer to the same question."""
        self.checks[found["seq_len"], found["against"], found["tolerance"]] = found


class State:
    """The file of one experiment, open for more rows; a ``with`` block closes it.

    Parameters
    ----------
    path : Path
        Made if missing.
    header : dict
        What is measured, where, and by what; plain JSON, see :func:`header`.

    Raises
    ------
    SweepError
        If the file is of another machine, commit or software, is damaged, or is in use.
    """

    def __init__(self, path: Path, header: dict):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._stream = path.open("a+b")
        try:
            self._lock()
            self._drop_half_a_line()
            if not path.stat().st_size:
                self._append(header)
            self.results = read(path)
            _agree(path, self.results.header, header)
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> "State":
        return self

    def __exit__(self, *exception) -> None:
        self._stream.close()

    def add(self, row: Row) -> None:
        self._append(as_json(row))
        self.results.rows[row.timing] = row

    def add_check(self, check: dict) -> None:
        self._append({"check": check})
        self.results.check(check)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SweepError(
                f"{self.path} is in use by another sweep: wait until it ends"
            ) from None

    def _append(self, content: dict) -> None:
        self._stream.write(_line(content))
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def _drop_half_a_line(self) -> None:
        """What a kill left of a line that was being written."""
        self._stream.seek(0)
        data = self._stream.read()
        self._stream.truncate(data.rfind(b"\n") + 1)


def set_aside(path: Path) -> Path:
    """Rename a state so that the experiment begins anew; its new name."""
    number = 1
    while (aside := path.with_name(f"{path.stem}.aside-{number}{path.suffix}")).exists():
        number += 1
    path.rename(aside)
    return aside


def header(**said) -> dict:
    """The first line of a state: experiment, grid, commit, machine, software, suite and command.

    All but grid and command must agree for rows to be shown together.
    """
    return plain_json({"format": FORMAT, "schema": SCHEMA, **said}, "header")


def read(path: Path) -> Results:
    """The results that a file holds.

    Raises
    ------
    SweepError
        If it is no such file, of another schema, or damaged.
    """
    try:
        lines = path.read_text().splitlines()
    except UnicodeDecodeError as error:
        raise SweepError(f"{path} is damaged: {error}") from error
    found = [_parsed(path, number, line) for number, line in enumerate(lines, 1)]
    if not found or found[0].get("format") != FORMAT:
        raise SweepError(f"{path} is not a file of a {FORMAT}")
    if found[0].get("schema") != SCHEMA:
        raise SweepError(f"{path} has schema {found[0].get('schema')!r}, this suite has {SCHEMA}")
    results = Results(found[0], {}, {})
    for number, content in enumerate(found[1:], 2):
        try:
            if "check" in content:
                results.check(content["check"])
                continue
            row = from_json(content)
        except (KeyError, TypeError, ValueError) as error:
            raise SweepError(f"{path}, line {number}, is no row: {error!r}") from error
        results.rows[row.timing] = row
    return results


def read_experiment(path: Path, name: str) -> tuple[Experiment, Results]:
    """The experiment that a file holds, with the providers that were measured, and its results.

    Raises
    ------
    SweepError
        As :func:`read`, or if it holds another experiment, a grid that is not known here, or does
        not say where its rows come from.
    """
    results = read(path)
    lacking = [key for key in (*_SAME, "grid", "command") if key not in results.header]
    if lacking:
        raise SweepError(f"{path}, line 1, does not say its {', '.join(lacking)}")
    if results.header["experiment"] != name:
        raise SweepError(f"{path} holds the experiment {results.header['experiment']!r}")
    if results.header["grid"] not in GRIDS:
        raise SweepError(f"{path} is of the grid {results.header['grid']!r}, which is not known")
    measured = {timing.cell.provider for timing in results.rows}
    return GRIDS[results.header["grid"]][name].of(measured), results


def write(path: Path, results: Results, timings: Iterable[Timing]) -> None:
    """Write the rows of these timings, in their order."""
    content: Iterator[dict] = (
        as_json(results.rows[each]) for each in timings if each in results.rows
    )
    checks = ({"check": check} for check in results.checks.values())
    write_atomically(path, b"".join(map(_line, [results.header, *content, *checks])))


def _parsed(path: Path, number: int, line: str) -> dict:
    try:
        content = json.loads(line)
    except ValueError as error:
        raise SweepError(f"{path}, line {number}, is damaged: {error}") from error
    if not isinstance(content, dict):
        raise SweepError(f"{path}, line {number}, is damaged: no object")
    return content


def _agree(path: Path, stored: dict, present: dict) -> None:
    differences = [
        f"{key}: stored {stored.get(key)!r}, present {present.get(key)!r}"
        for key in _SAME
        if stored.get(key) != present.get(key)
    ]
    if differences:
        raise SweepError(
            f"{path} holds another sweep, whose rows are not mixed with new ones:\n  "
            + "\n  ".join(differences)
            + "\nsweep --afresh sets it aside and begins anew"
        )


def _line(content: dict) -> bytes:
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def as_json(row: Row) -> dict:
    """A row as a line of the file has it."""
    rounded = {
        name: [float(f"{value:.{_DIGITS}g}") for value in getattr(row.outcome, name)]
        for name in ("latency", "copy")
        if getattr(row.outcome, name)
    }
    why = {
        name: getattr(row.outcome, name)
        for name in ("unavailable", "error")
        if getattr(row.outcome, name)
    }
    cell = {"direction": row.timing.direction, "cell": list(astuple(row.timing.cell))}
    return cell | rounded | why | {"gpu": row.gpu}


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
    )
    if not (outcome.latency or outcome.unavailable or outcome.error):
        raise ValueError("it has no samples and no reason")
    timing = Timing(content["direction"], PeerCell(*content["cell"]))
    return Row(timing, outcome, content["gpu"])
