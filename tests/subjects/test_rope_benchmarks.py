"""The asv benchmarks of speed: what each track makes of an outcome, and what asv discovers."""

import json
import math
import os
import subprocess
import sys
from dataclasses import astuple
from pathlib import Path

import pytest

from benchmarks import model_calls, paths, rope
from benchmarks._engine.measure.cell_outcomes import Outcome
from benchmarks._engine.subject import BACKWARD, FORWARD
from benchmarks._studies.peers.cells import PEER_GRIDS, PeerCell
from benchmarks._subjects.rope.cells import Cell, ModelCell, PathCell
from benchmarks._subjects.rope.grid import GRIDS, MODEL_GRID, PATH_GRIDS, cells_of

CELL = Cell(128, 64, 1, "float16", "sbhd")
ROOT = Path(__file__).resolve().parents[2]
TRACKS = ("copy_ratio", "gbps", "latency")
OWN_TRACKS = (*TRACKS, "roofline_ratio")  # not of other libraries
CODE = (
    *("instructions", "narrow_share", "registers", "shared_bytes", "spilled_bytes"),
    "stack_bytes",
)
# asv's classes whose parameters are those of every grid, and their tracks.
UNTIMED = {
    **dict.fromkeys(("host.Call", "host.PathCall", "peers.Call"), ("forward", "forward_backward")),
    "host.FirstCall": ("compile", "import", "own_start", "warm_start"),
    **dict.fromkeys(("host.Memory", "host.PathMemory"), ("peak_bytes",)),
    **dict.fromkeys(("host.Launches", "host.PathLaunches"), ("launches",)),
    **dict.fromkeys(("host.Error", "host.PathError", "peers.Error"), ("error",)),
    **dict.fromkeys(
        ("training_step.Step", "training_step.Attention"),
        ("launches", "peak_bytes", "rope_share", "seconds"),
    ),
    "codegen.Codegen": CODE,
    "codegen.Surface": tuple(sorted((*CODE, "saved_bytes"))),
    "codegen.Variants": ("variants",),
}


CELLS = {
    rope: CELL,
    paths: PathCell("qkv", 32, "bfloat16"),
    model_calls: ModelCell("phi-2", "training", "tables"),
}


@pytest.mark.parametrize("module", CELLS)
@pytest.mark.parametrize("direction", ["Forward", "Backward"])
def test_tracks_derive_from_the_samples_of_their_cell(module, direction):
    cell = CELLS[module]
    benchmark, params = getattr(module, direction)(), astuple(cell)
    cache = {cell: Outcome((2e-6, 4e-6, 3e-6), (1e-6, 2e-6, 3e-6), roofline=(2e-6, 2.5e-6))}
    benchmark.setup(cache, *params)
    assert benchmark.track_latency(cache, *params) == {"samples": [2e-6, 4e-6, 3e-6], "number": 1}
    ratio = benchmark.track_copy_ratio(cache, *params)
    assert ratio == {"samples": pytest.approx([2.0, 2.0, 1.0]), "number": 1}
    roofline = benchmark.track_roofline_ratio(cache, *params)
    assert roofline == {"samples": pytest.approx([1.0, 1.6]), "number": 1}
    gbps = benchmark.track_gbps(cache, *params)
    moved = cell.bytes_moved
    assert gbps["samples"] == pytest.approx([moved / 2e3, moved / 4e3, moved / 3e3])


def test_a_cell_that_cannot_be_measured_is_skipped_and_one_that_failed_an_error():
    suite, params = rope.Forward(), astuple(CELL)
    with pytest.raises(NotImplementedError, match="no NVIDIA GPU"):
        suite.setup({CELL: Outcome(unavailable="no NVIDIA GPU")}, *params)
    with pytest.raises(RuntimeError, match="wrong output"):
        suite.setup({CELL: Outcome(error="wrong output")}, *params)


def discover(grid):
    """What asv finds in the suite, by name, in a process without this one's interpreter mode."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    code = (
        "import sys; from asv_runner._aux import update_sys_path; "
        "from asv_runner.discovery import list_benchmarks; "
        "list_benchmarks(sys.argv[1], sys.stdout)"
    )
    output = subprocess.run(
        [sys.executable, "-c", code, str(ROOT / "benchmarks")],
        env=environment | {"ROPE_GRID": grid},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return {benchmark["name"]: benchmark for benchmark in json.loads(output)}


def counts(grid: str) -> dict[str, int]:
    """Timings of each direction in a grid."""
    listed = {
        "rope": cells_of(Cell, GRIDS[grid]),
        "paths": cells_of(PathCell, PATH_GRIDS[grid]),
        "model_calls": cells_of(ModelCell, MODEL_GRID),
        "peers": cells_of(PeerCell, PEER_GRIDS[grid]),
    }
    return {
        f"{suite}.{direction.capitalize()}": sum(direction in cell.directions for cell in cells)
        for suite, cells in listed.items()
        for direction in (FORWARD, BACKWARD)
    }


# Measured in another way than at first.
MEASURED_ANEW = "codegen.Codegen", "host.Call", "host.PathCall", "peers.Call"


@pytest.mark.parametrize("grid", GRIDS)
def test_asv_finds_the_intended_benchmarks_and_no_other(grid):
    found, timings = discover(grid), counts(grid)
    timed = {s: TRACKS if s.startswith("peers.") else OWN_TRACKS for s in timings}
    suites = timed | UNTIMED
    assert set(found) == {f"{suite}.track_{track}" for suite in suites for track in suites[suite]}
    caches = {}
    for suite, tracks in suites.items():
        for benchmark in (found[f"{suite}.track_{track}"] for track in tracks):
            assert benchmark["type"] == "track" and benchmark["unit"] != "unit"
            assert benchmark["version"] == ("2" if suite in MEASURED_ANEW else "1")
            assert benchmark["timeout"] == 60
            seconds = {"codegen": 900, "peers": 3600}.get(suite.split(".")[0], 1800)
            assert benchmark["setup_cache_timeout"] == seconds
            caches.setdefault(benchmark["setup_cache_key"], set()).add(suite)
            if suite in timings:
                assert math.prod(map(len, benchmark["params"])) == timings[suite]
    # A class of paths has the cache of that of plain calls.
    assert sum(map(len, caches.values())) == len(suites)
    assert all(
        len({suite.replace("Path", "") for suite in shared}) == 1 for shared in caches.values()
    )
