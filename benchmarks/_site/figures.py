"""A few lines of figures from a stored asv result, for the end of a run. Imports no torch."""

import itertools
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .._cells.grid import Cell

DIRECTIONS = ("Forward", "Backward")
_HEADLINE_CALL = ["float16", "sbhd", "forward", "128"]  # without the architecture and the size
SIZE_CLASSES = ((16_000_000, "below 16 MB"), (256_000_000, "16 to 256 MB"), (float("inf"), "above"))


def load_values(path: Path) -> dict[str, dict[tuple[str, ...], float]]:
    """Benchmark name -> parameters (asv's texts) -> value, without what is n/a or failed."""
    stored = json.loads(path.read_text())
    columns = stored["result_columns"]
    tables = {}
    for name, row in stored["results"].items():
        entry = dict(zip(columns, row, strict=False))
        keys = itertools.product(*entry["params"])
        values = entry["result"] or []
        tables[name] = {
            key: value
            for key, value in zip(keys, values, strict=False)
            if isinstance(value, (int, float)) and value == value
        }
    return tables


class Speed(NamedTuple):
    """Of some cells: how many, their speed as a share of a copy's, least and median, their GB/s."""

    cells: int
    least: float
    median: float
    gbps: float


def speeds(values: dict, direction: str) -> dict[str, Speed]:
    """Speed by the size of the tensor, of "Forward" or "Backward"; classes without cells lack."""
    ratios, rates = _ratios_and_rates(values, "rope", direction)
    return {label: _speed(keys, ratios, rates) for label, keys in _by_size(ratios)}


def path_speeds(values: dict, direction: str, least_mib: float = 0) -> dict[str, Speed]:
    """Speed of the package's other paths, of cells of so many MiB and more."""
    ratios, rates = _ratios_and_rates(values, "paths", direction)
    keys = [key for key in ratios if float(key[1]) >= least_mib]
    paths = dict.fromkeys(key[0].strip("'") for key in keys)
    return {
        path: _speed([key for key in keys if key[0].strip("'") == path], ratios, rates)
        for path in paths
    }


def _ratios_and_rates(values: dict, suite: str, direction: str) -> tuple[dict, dict]:
    metrics = (f"{suite}.{direction}.track_{name}" for name in ("copy_ratio", "gbps"))
    ratios, rates = (values.get(metric, {}) for metric in metrics)
    return ratios, rates


def _speed(keys: list, ratios: dict, rates: dict) -> Speed:
    shares = [1 / ratios[key] for key in keys]
    gbps = statistics.median(rates[key] for key in keys)
    return Speed(len(keys), min(shares), statistics.median(shares), gbps)


def speed_table(values: dict) -> list[str]:
    """Copy ratio and GB/s by the size of the tensor, one line a class and direction."""
    return [
        _line(f"{direction:8}  tensors {label:12}", speed)
        for direction in DIRECTIONS
        for label, speed in speeds(values, direction).items()
    ]


def path_table(values: dict) -> list[str]:
    """Copy ratio and GB/s of the package's other paths, one line a path and direction."""
    return [
        _line(f"{direction:8}  {path:20}", speed)
        for direction in DIRECTIONS
        for path, speed in path_speeds(values, direction).items()
    ]


def _line(title: str, speed: Speed) -> str:
    return (
        f"{title}  {speed.cells:4} cells  "
        f"speed of a copy: min {speed.least:.3f}, median {speed.median:.3f}  "
        f"median {speed.gbps:5.0f} GB/s"
    )


def _by_size(values: dict) -> Iterator[tuple[str, list]]:
    sizes = {key: _cell(key).bytes_moved / 2 for key in values}
    lower = 0.0
    for upper, label in SIZE_CLASSES:
        keys = [key for key, size in sizes.items() if lower <= size < upper]
        if keys:
            yield label, keys
        lower = upper


def _cell(key: tuple[str, ...]) -> Cell:
    seq_len, hidden_size, batch, dtype, fmt = key
    return Cell(int(seq_len), int(hidden_size), int(batch), dtype.strip("'"), fmt.strip("'"))


def codegen_table(values: dict) -> list[str]:
    """Registers, instructions and spills of a large float16 forward, one line an architecture.

    Results of version 1 of the benchmark have no size: theirs are those of a small call.
    """
    registers = values.get("codegen.Codegen.track_registers", {})
    instructions = values.get("codegen.Codegen.track_instructions", {})
    spilled = values.get("codegen.Codegen.track_spilled_bytes", {})
    lines = []
    for key in registers:
        arch, *call = (text.strip("'") for text in key)
        if call in (_HEADLINE_CALL, [*_HEADLINE_CALL, "large"]):
            lines.append(
                f"{arch:8} float16 sbhd forward, hidden 128: {registers[key]:3.0f} registers, "
                f"{instructions[key]:4.0f} instructions, {spilled[key]:.0f} bytes spilled"
            )
    return lines
