"""The cells that are measured, and the bytes that each must move."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks._subjects.rope import grid
from benchmarks._subjects.rope.cells import grid_cell

ROOT = Path(__file__).resolve().parents[2]
FULL, SMALL = (grid.cells_of(grid_cell, grid.GRIDS[name]) for name in ("full", "small"))


def test_comments_tell_the_sizes():
    tensors = [cell.bytes_moved // 2 for cell in FULL]
    assert (min(tensors), max(tensors)) == (2**20, 2**32)
    moved = [cell.bytes_moved for cell in SMALL]
    assert (min(moved), max(moved)) == (2 * 2**20, 512 * 2**20)


def test_order_is_fixed_and_the_format_varies_fastest():
    """Where a cell's buffers lie in memory, and so its speed, depends on the cells before it."""
    assert FULL[:3] == [
        grid_cell(128, 64, 1, "float32", "sbhd"),
        grid_cell(128, 64, 1, "float32", "bshd"),
        grid_cell(128, 64, 1, "float16", "sbhd"),
    ]
    assert FULL[-1] == grid_cell(8192, 256, 8, "bfloat16", "bshd")
    assert [cell for cell in FULL if cell in set(SMALL)] == SMALL


@pytest.mark.parametrize("cell", FULL[:: len(FULL) // 12], ids=str)
def test_shape_and_bytes_moved(cell):
    memory = torch.empty(cell.shape, dtype=getattr(torch, cell.dtype), device="meta")
    t = cell.call("meta").operand(memory)
    seq_len, hidden_size, batch, _, format = cell.values
    sizes = {"s": seq_len, "b": batch, "h": 64, "d": hidden_size}
    assert dict(zip(format, t.shape, strict=True)) == sizes
    assert cell.bytes_moved == t.nbytes + torch.empty_like(t).nbytes and t.nbytes == memory.nbytes


def test_full_grid_is_the_default_and_unknown_grids_are_refused(monkeypatch):
    monkeypatch.delenv(grid.GRID_VARIABLE, raising=False)
    assert grid.active(grid.GRIDS) == grid.GRIDS["full"]
    monkeypatch.setenv(grid.GRID_VARIABLE, "small")
    assert grid.active(grid.GRIDS) == grid.GRIDS["small"]
    for name in ("tiny", "", "FULL"):
        monkeypatch.setenv(grid.GRID_VARIABLE, name)
        with pytest.raises(ValueError) as caught:
            grid.active(grid.GRIDS)
        assert str(caught.value) == f"ROPE_GRID must be one of ['full', 'small'], got {name!r}"


def test_importing_what_asv_measures_does_not_import_numpy():
    """Their parameters have a process each; what no module imports: see the architecture's test."""
    files = (ROOT / "benchmarks").glob("*.py")
    modules = [f"benchmarks.{file.stem}" for file in files if not file.stem.startswith("_")]
    imports = "\n".join(f"import {module}" for module in modules)
    command = [sys.executable, "-c", f"import sys\n{imports}\nprint('numpy' in sys.modules)"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert modules and done.stdout.strip() == "False"
