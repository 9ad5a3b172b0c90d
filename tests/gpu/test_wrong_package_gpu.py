"""On a GPU: a package that is wrong has no speed, neither in ``asv run`` nor in ``compare``.

Real processes on a copy of the package with a patch at the end of its ``__init__``.
``tests/test_wrong_package`` has more ways to be wrong.
"""

import re
import shutil
from pathlib import Path

import pytest
import triton

import rope_triton
from benchmarks._engine.compare import measure
from benchmarks._engine.measure import cell_outcomes
from benchmarks._engine.subject import DEFAULT, FORWARD
from benchmarks._engine.system import process
from benchmarks._subjects.rope.cells import grid_cell
from tests.gpu import test_bits_gpu as bits

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("progress")]

CELL = grid_cell(128, 64, 1, "bfloat16", "bshd")
ANGLES = """
class RotaryPositionEmbedding(RotaryPositionEmbedding):
    def __init__(self, dim):
        super().__init__(dim, rotary_base={base})
    def forward(self, *args):
        return {factor} * super().forward(*args)
"""
RECORDED = """
import torch
_right = apply_rotary_pos_emb
def apply_rotary_pos_emb(t, freqs, *args, **options):
    recorded = torch.cuda.is_current_stream_capturing()
    return _right(t, -freqs if recorded else freqs, *args, **options)
"""
# Name: patch, and whether eager calls are right by the angles that a user has.
PACKAGES = {
    "right": ("", True),
    "angles of zero": (ANGLES.format(base=10000.0, factor=0), False),
    "another base": (ANGLES.format(base=500000.0, factor=1), False),
    "wrong when recorded": (RECORDED, True),
}

all_packages = pytest.mark.parametrize("name", PACKAGES)


def package(name: str, directory: Path) -> Path:
    """A directory with the package of that name."""
    copy = directory / "version" / "rope_triton"
    shutil.copytree(Path(rope_triton.__file__).parent, copy)
    with (copy / "__init__.py").open("a") as file:
        file.write(PACKAGES[name][0])
    return copy.parent


def answer(root: Path, job: dict) -> dict:
    """What a process of a comparison answers; it has the compiled kernels of this one."""
    process = measure.Process(DEFAULT, root, Path(triton.knobs.cache.dir))
    try:
        process.wait_until_ready()
        return process.answer(job)
    finally:
        process.stop()


@all_packages
def test_comparison(name, tmp_path):
    root, metrics = package(name, tmp_path), set(CELL.metrics.values())
    checked = answer(root, measure.check_job([CELL]))
    timed = answer(root, measure.timing_job([CELL])["alone"] | {"seed": 1})
    wrong_when_checked = {metric for metric, *_ in checked["errors"]}
    assert wrong_when_checked == (set() if PACKAGES[name][1] else metrics)
    assert {metric for metric, *_ in timed["errors"]} == (set() if name == "right" else metrics)
    assert {metric for metric, *_ in timed["timings"]} == (metrics if name == "right" else set())


@all_packages
def test_asv(name, tmp_path):
    root = package(name, tmp_path)
    found = process.call(cell_outcomes.measure_cells, [CELL], FORWARD, path=(str(root),))
    assert bool(found[CELL].latency) == (name == "right")
    assert bool(found[CELL].error) == (name != "right")


def test_one_fused_multiply_add_the_other_way_round_is_seen(tmp_path):
    """In packed sequences alone: the rows of these have other bits then."""
    root = package("right", tmp_path)
    path = root / "rope_triton" / "kernel" / "rotation.py"
    line = "        y2 = sum_of_products(x2, c2, x1, s2, 1, ROUNDING)\n"
    swapped = "        if cu_seqlens[0] is not None:\n    " + re.sub(
        r"\(x2, c2, x1, s2", "(x1, s2, x2, c2", line
    )
    source = path.read_text()
    assert source.count(line) == 1
    path.write_text(source.replace(line, line + swapped))
    names = ["angles-thd-bf16-64x128-cp", "angles-bshd-bf16-64x128-il"]
    cells = [next(cell for cell in bits.CELLS if str(cell).count(name)) for name in names]
    packed, plain = (process.call(bits.different, cell, path=(str(root),)) for cell in cells)
    assert packed[FORWARD] and not any(plain.values())
