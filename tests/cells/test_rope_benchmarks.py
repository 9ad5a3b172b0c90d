"""The asv benchmarks of speed: what each track makes of an outcome, and what asv discovers."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import paths, peers, rope
from benchmarks._cells.grid import Cell
from benchmarks._measure.workload import Outcome

CELL = Cell(128, 64, 1, "float16", "sbhd")
PARAMS = (128, 64, 1, "float16", "sbhd")
ROOT = Path(__file__).resolve().parents[2]
TRACKS = ("track_copy_ratio", "track_gbps", "track_latency")
HOST = {
    *("host.Call.track_forward", "host.Call.track_forward_backward"),
    *(f"host.FirstCall.track_{name}" for name in ("compile", "warm_start", "own_start")),
    *("host.Memory.track_peak_bytes", "host.Launches.track_launches", "host.Error.track_error"),
    *("host.PathCall.track_forward", "host.PathCall.track_forward_backward"),
    *("host.PathMemory.track_peak_bytes", "host.PathLaunches.track_launches"),
    "host.PathError.track_error",
    *("peers.Call.track_forward", "peers.Call.track_forward_backward", "peers.Error.track_error"),
}
CODEGEN = ("instructions", "narrow_share", "registers", "shared_bytes", "spilled_bytes")


def outcomes(**fields):
    return {CELL: Outcome(**fields)}


@pytest.mark.parametrize("benchmark", [rope.Forward(), rope.Backward()], ids=["fwd", "bwd"])
def test_tracks_derive_from_the_same_samples(benchmark):
    cache = outcomes(latency=(2e-6, 4e-6, 3e-6), copy=(1e-6, 2e-6, 3e-6))
    benchmark.setup(cache, *PARAMS)
    assert benchmark.track_latency(cache, *PARAMS) == {"samples": [2e-6, 4e-6, 3e-6], "number": 1}
    ratio = benchmark.track_copy_ratio(cache, *PARAMS)
    assert ratio == {"samples": pytest.approx([2.0, 2.0, 1.0]), "number": 1}
    gbps = benchmark.track_gbps(cache, *PARAMS)
    moved = 2 * 128 * 64 * 64 * 2
    assert gbps["samples"] == pytest.approx([moved / 2e3, moved / 4e3, moved / 3e3])


def test_a_cell_that_cannot_be_measured_is_skipped_with_its_reason():
    with pytest.raises(NotImplementedError, match="no NVIDIA GPU"):
        rope.Forward().setup(outcomes(unavailable="no NVIDIA GPU"), *PARAMS)


def test_a_cell_that_failed_is_an_error():
    with pytest.raises(RuntimeError, match="wrong output"):
        rope.Forward().setup(outcomes(error="wrong output"), *PARAMS)


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


# Timings of each direction in each grid.
COUNTS = {
    "full": {
        **{"rope.Forward": 504, "rope.Backward": 504, "paths.Forward": 66, "paths.Backward": 54},
        **dict.fromkeys(("peers.Forward", "peers.Backward"), 15 * 16),
    },
    "small": {
        **{"rope.Forward": 48, "rope.Backward": 48, "paths.Forward": 33, "paths.Backward": 27},
        **dict.fromkeys(("peers.Forward", "peers.Backward"), 15 * 4),
    },
}


@pytest.mark.parametrize("grid", COUNTS)
def test_asv_finds_the_intended_benchmarks_and_no_other(grid):
    found = discover(grid)
    timed = {f"{suite}.{track}" for suite in COUNTS[grid] for track in TRACKS}
    codegen_names = {f"codegen.Codegen.track_{name}" for name in (*CODEGEN, "stack_bytes")}
    assert set(found) == timed | codegen_names | HOST | {"codegen.Variants.track_variants"}
    for name in timed:
        module, suite, _ = name.split(".")
        assert math.prod(map(len, found[name]["params"])) == COUNTS[grid][f"{module}.{suite}"]
        measured = {"rope": rope, "paths": paths, "peers": peers}[module]
        assert found[name]["version"] == getattr(measured, suite).version == "1"
        assert found[name]["unit"] != "unit"
    keys = {name: found[name]["setup_cache_key"] for name in timed}
    for suite in COUNTS[grid]:  # one for all of its tracks, and no other has it
        own = {keys[f"{suite}.{track}"] for track in TRACKS}
        assert len(own) == 1
        assert [key for key in keys.values() if key in own] == [*own] * len(TRACKS)
