"""A timing process on a GPU: many recorded cells at a time, in groups that its memory holds."""

import statistics

import pytest
import torch

from benchmarks import _subjects
from benchmarks._engine.compare import measure
from benchmarks._engine.measure import gpu_timer, timed_cell
from benchmarks._subjects.rope.cells import grid_cell
from benchmarks._subjects.rope.grid import GRIDS, cells_of

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

# Each takes 2 GB on an H200, with all its sets of buffers.
CELLS = cells_of(grid_cell, GRIDS["small"])[:3]


def medians(cells) -> dict:
    answer = measure._measure(_subjects, cells, starts=False, seed=1)
    assert not answer["errors"] and not answer["unavailable"]
    assert all(len(samples) == measure.PASSES for *_, samples in answer["timings"])
    assert 1e-6 < min(answer["launches"]) <= max(answer["launches"]) < 4e-6
    return {
        (metric, *params): statistics.median(samples)
        for metric, params, samples in answer["timings"]
    }


def test_groups_change_no_figure_and_leave_no_memory(monkeypatch):
    medians(CELLS[:1])  # torch and the timer keep what they allocate first
    before = torch.cuda.memory_allocated()
    together = medians(CELLS)
    assert torch.cuda.memory_allocated() == before
    _, total = torch.cuda.mem_get_info()
    two = 2 * timed_cell.needed_bytes(CELLS[0], gpu_timer.cold_sets(CELLS[0].bytes_moved))
    monkeypatch.setattr(timed_cell, "HELD_SHARE", 1.1 * two / total)
    assert len(timed_cell.groups(CELLS)) == 2
    apart = medians(CELLS)
    assert torch.cuda.memory_allocated() == before
    assert together.keys() == apart.keys()
    shares = [apart[key] / together[key] for key in together]
    assert statistics.median(shares) == pytest.approx(1, rel=0.02)


def test_a_cell_that_does_not_fit_costs_only_itself():
    huge = grid_cell(2**17, 256, 64, "float32", "sbhd")  # half a terabyte
    answer = measure._measure(_subjects, [CELLS[0], huge, CELLS[1]], starts=False, seed=1)
    assert {params[0] for _, params, _ in answer["unavailable"]} == {huge.params[0]}
    assert len(answer["timings"]) == 4 and not answer["errors"]
