"""The planted slowdown on a GPU: kernels stay right, and wait as long as they are told."""

import statistics
import types
from pathlib import Path

import pytest
import triton

from benchmarks._engine.compare import measure
from benchmarks._engine.subject import DEFAULT
from benchmarks._engine.system import checkout
from benchmarks._studies.reliability import planted
from benchmarks._subjects.rope.cells import grid_cell
from tests.lab import ROOT

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

CELL = grid_cell(128, 64, 1, "bfloat16", "sbhd")
KEYS = [f"128 1 64 bfloat16 sbhd {transposed}" for transposed in (False, True)]


def seconds(root: Path) -> list[float]:
    """Of both directions, in a fresh process."""
    process = measure.Process(DEFAULT, root, Path(triton.knobs.cache.dir))
    try:
        process.wait_until_ready()
        answer = process.answer(measure.timing_job([CELL])["alone"] | {"seed": 1})
    finally:
        process.stop()
    assert not answer["errors"] and not answer["unavailable"]
    return [statistics.median(samples) for *_, samples in answer["timings"]]


def test_a_kernel_waits_in_proportion(tmp_path):
    given = types.SimpleNamespace(base=checkout.from_working_tree(ROOT, tmp_path), sources=tmp_path)
    # Of a step: a half, which only the mean over calls can have, 200, and 400.
    waits = [128, 200 * 256, 400 * 256]
    roots = [planted.plant("slow", given, dict.fromkeys(KEYS, wait)).root for wait in waits]
    none = seconds(planted.plant("none", given, {}).root)
    half, some, twice = (
        [one - other for one, other in zip(seconds(root), none, strict=True)] for root in roots
    )
    for direction in range(2):
        step = twice[direction] / 400
        assert 2e-9 < step < 200e-9
        assert some[direction] == pytest.approx(200 * step, rel=0.15)
        # Medians of two processes differ by a step, and by 0.33 us if another GPU begins to work.
        assert abs(half[direction]) < 4 * step + 0.4e-6
