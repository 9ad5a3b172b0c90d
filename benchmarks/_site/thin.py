"""What bounds the stored history: old results keep their values only, and the oldest go.

A result of the full grid takes about 200 kB, nine tenths of it statistics that asv needs to tell a
change from noise in the newest commits, and digits that no clock has. What is left takes about 25.
"""

import json
from pathlib import Path

from .._system.files import write_atomically

KEEP_STATISTICS = 100
"""Newest results of a machine that stay as they were measured."""

KEEP_RESULTS = 1000
"""Newest results of a machine that stay at all: with the above, 45 MB for the full grid."""

_COLUMNS = ["result", "params", "version", "started_at", "duration"]
_DIGITS = 6


def thin(results: Path, statistics: int = KEEP_STATISTICS, kept: int = KEEP_RESULTS) -> list[str]:
    """Make old results of every machine small, and remove the oldest, by the commits' dates.

    Returns
    -------
    A line for each that was changed. The second run changes nothing.
    """
    said = []
    for machine in sorted(path.parent for path in results.glob("*/machine.json")):
        contents = {path: json.loads(path.read_text()) for path in machine.glob("*-*.json")}
        newest = sorted(contents, key=lambda p: (contents[p]["date"], p.name), reverse=True)
        for path in newest[kept:]:
            path.unlink()
            said.append(f"{machine.name}/{path.name}: removed")
        for path in newest[statistics:kept]:
            if contents[path]["result_columns"] != _COLUMNS:
                text = json.dumps(slim(contents[path]), separators=(",", ":"))
                write_atomically(path, text.encode())
                said.append(f"{machine.name}/{path.name}: values only")
    return said


def slim(content: dict) -> dict:
    """A result in asv's format without statistics, its values with six digits."""
    at = [content["result_columns"].index(name) for name in _COLUMNS]
    rows = {
        metric: [row[i] if i < len(row) else None for i in at]
        for metric, row in content["results"].items()
    }
    for row in rows.values():
        row[0] = row[0] and [_short(value) for value in row[0]]
    return content | {"result_columns": _COLUMNS, "results": rows}


def _short(value: float | None) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
