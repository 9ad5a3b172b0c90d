"""The asv benchmarks of speed: what each track makes of an outcome, and what asv discovers."""

import collections
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import model_calls, paths, peers, rope
from benchmarks._engine.measure.cell_outcomes import Outcome
from benchmarks._engine.subject import BACKWARD, FORWARD
from benchmarks._subjects.rope.cells import grid_cell, model_cell, path_cell
from benchmarks._subjects.rope.grid import cells_of

CELL = grid_cell(128, 64, 1, "float16", "sbhd")
ROOT = Path(__file__).resolve().parents[2]
CELLS = {
    rope: CELL,
    paths: path_cell("qkv", 32, "bfloat16"),
    model_calls: model_cell("phi-2", "training", "tables"),
}


@pytest.mark.parametrize("module", CELLS)
@pytest.mark.parametrize("direction", ["Forward", "Backward"])
def test_tracks_derive_from_the_samples_of_their_cell(module, direction):
    cell = CELLS[module]
    benchmark, params = getattr(module, direction)(), cell.values
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
    suite, params = rope.Forward(), CELL.values
    with pytest.raises(NotImplementedError, match="no NVIDIA GPU"):
        suite.setup({CELL: Outcome(unavailable="no NVIDIA GPU")}, *params)
    with pytest.raises(RuntimeError, match="wrong output"):
        suite.setup({CELL: Outcome(error="wrong output")}, *params)


@functools.cache
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


def test_the_list_of_benchmarks_that_ships_is_todays():
    """What `asv publish` shows before anything was measured here."""
    stored = json.loads((ROOT / "benchmarks" / "results" / "benchmarks.json").read_text())
    del stored["version"]
    keys = "type", "unit", "version", "params", "timeout", "setup_cache_timeout"
    shipped, today = (
        {name: [benchmark[key] for key in keys] for name, benchmark in benchmarks.items()}
        for benchmarks in (stored, discover("full"))
    )
    assert shipped == today, (
        "write it with: asv run -E existing:python3 --bench just-discover; "
        "cp .asv/results/benchmarks.json benchmarks/results"
    )


def test_the_small_grid_has_fewer_parameters_of_the_same_benchmarks():
    full, small = discover("full"), discover("small")
    assert full.keys() == small.keys() and full != small
    for name, benchmark in small.items():
        assert all(map(set.issuperset, map(set, full[name]["params"]), benchmark["params"])), name


def test_only_a_class_and_its_sister_of_other_calls_share_a_cache():
    """asv tells caches apart by the line of their ``setup_cache``; ``host_cost`` has one."""
    sharing = collections.defaultdict(set)
    for name, benchmark in discover("full").items():
        suite = name.rpartition(".")[0].replace("Path", "").replace("Import", "Call")
        sharing[benchmark["setup_cache_key"]].add(suite)
    assert all(len(suites) == 1 for suites in sharing.values()), sharing


@pytest.mark.parametrize("module", [*CELLS, peers])
@pytest.mark.parametrize("direction", [FORWARD, BACKWARD])
def test_only_cells_that_have_the_direction_are_timed(module, direction):
    suite = getattr(module, direction.capitalize())
    assert all(direction in cell.directions for cell in cells_of(suite.cell, suite.grid))
