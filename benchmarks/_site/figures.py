"""Read the figures of a stored asv result, and format them for a terminal. No torch."""

import itertools
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from .._cells.grid import cell_of

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
    """Some cells: their number, speed as a share of a copy's (minimum, median), median GB/s."""

    cells: int
    least: float
    median: float
    gbps: float


def speeds(values: dict, direction: str) -> dict[str, Speed]:
    """Speed by the size of the tensor, for "Forward" or "Backward"; empty classes are left out."""

    def size_class(cell) -> str:
        return next(label for upper, label in SIZE_CLASSES if cell.bytes_moved / 2 < upper)

    found = _speeds(values, "rope", direction, size_class)
    return {label: found[label] for _, label in SIZE_CLASSES if label in found}


def path_speeds(values: dict, direction: str, least_mib: float = 0) -> dict[str, Speed]:
    """Speed of the package's other paths, from cells of at least this many MiB."""
    return _speeds(
        values, "paths", direction, lambda cell: cell.path if cell.mib >= least_mib else None
    )


def _speeds(
    values: dict, suite: str, direction: str, group: Callable[[Any], str | None]
) -> dict[str, Speed]:
    metrics = (f"{suite}.{direction}.track_{name}" for name in ("copy_ratio", "gbps"))
    ratios, rates = (values.get(metric, {}) for metric in metrics)
    groups: dict[str, list] = {}
    for key in ratios:
        if label := group(cell_of(suite, key)):
            groups.setdefault(label, []).append(key)
    return {label: _speed(keys, ratios, rates) for label, keys in groups.items()}


def _speed(keys: list, ratios: dict, rates: dict) -> Speed:
    shares = [1 / ratios[key] for key in keys]
    gbps = statistics.median(rates[key] for key in keys)
    return Speed(len(keys), min(shares), statistics.median(shares), gbps)


def speed_table(values: dict) -> list[str]:
    """Copy ratio and GB/s by direction: a line for each class of sizes, path and kind of step.

    Those of a step, training or decoding, are of the calls that models make in it.
    """
    groups = {
        "tensors {}": speeds,
        "{}": path_speeds,
        "models, {}": lambda values, direction: _speeds(
            values, "model_calls", direction, lambda cell: cell.step
        ),
    }
    found = {
        (direction, f"{title.format(label):20}"): speed
        for title, speeds_of in groups.items()
        for direction in DIRECTIONS
        for label, speed in speeds_of(values, direction).items()
    }
    return [
        f"{direction:8}  {title}  {speed.cells:4} cells  "
        f"speed of a copy: min {speed.least:.3f}, median {speed.median:.3f}  "
        f"median {speed.gbps:5.0f} GB/s"
        for (direction, title), speed in found.items()
    ]


def codegen_table(values: dict) -> list[str]:
    """Registers, instructions and spills of a large float16 forward, one line an architecture.

    Results of version 1 of the benchmark have no size: theirs are those of a small call.
    """
    registers = values.get("codegen.Codegen.track_registers", {})
    instructions = values.get("codegen.Codegen.track_instructions", {})
    spilled = values.get("codegen.Codegen.track_spilled_bytes", {})
    lines = []
    for key in registers:
        target, *call = (text.strip("'") for text in key)
        if call in (_HEADLINE_CALL, [*_HEADLINE_CALL, "large"]):
            lines.append(
                f"{target:8} float16 sbhd forward, hidden 128: {registers[key]:3.0f} registers, "
                f"{instructions[key]:4.0f} instructions, {spilled[key]:.0f} bytes spilled"
            )
    return lines
