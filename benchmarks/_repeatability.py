"""How far fresh processes agree: ``python -m benchmarks._repeatability [PROCESSES]``.

Each process measures the grid that ``ROPE_GRID`` names, forward and backward, and gives one median
latency a cell. Printed: the coefficient of variation (standard deviation over mean) of each cell's
medians over the processes.
"""

import json
import statistics
import subprocess
import sys

from . import _workload
from ._grid import BACKWARD, FORWARD, active_grid, cells

DIRECTIONS = (FORWARD, BACKWARD)


def medians() -> dict[str, float]:
    """Median latency in seconds of each cell and direction, measured in this process."""
    table = {}
    for direction in DIRECTIONS:
        for cell, outcome in _workload.measure_cells(cells(active_grid()), direction).items():
            if not outcome.latency:
                raise RuntimeError(f"{cell} {direction}: {outcome.unavailable}{outcome.error}")
            table[f"{direction} {cell}"] = statistics.median(outcome.latency)
    return table


def variation(tables: list[dict[str, float]]) -> dict[str, float]:
    """Coefficient of variation of each cell over the tables of several processes."""
    return {
        key: statistics.stdev(values) / statistics.mean(values)
        for key in tables[0]
        for values in [[table[key] for table in tables]]
    }


def _fresh_process() -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks._repeatability", "--once"]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output)


def _main(arguments: list[str]) -> None:
    if arguments == ["--once"]:
        print(json.dumps(medians()))
        return
    processes = int(arguments[0]) if arguments else 8
    found = variation([_fresh_process() for _ in range(processes)])
    ordered = sorted(found.items(), key=lambda item: item[1])
    below = sum(value <= 0.005 for _, value in ordered)
    print(f"{processes} processes, {len(ordered)} cells: variation at most 0.5 % in {below}")
    print(f"median {ordered[len(ordered) // 2][1]:.3%}, largest:")
    for key, value in ordered[:-9:-1]:
        print(f"  {value:.3%}  {key}")


if __name__ == "__main__":
    _main(sys.argv[1:])
