"""Other calls than the plain one are measured, and those that a commit lacks are not available."""

import pytest

import rope_triton
from benchmarks import _subjects
from benchmarks._engine.compare import measure
from benchmarks._engine.measure import cell_outcomes, inputs
from benchmarks._engine.subject import BACKWARD, FORWARD
from benchmarks._subjects.rope.cells import PATHS, PathCell
from tests.engine.measure import samples
from tests.engine.measure.test_cell_outcomes import CELLS as PLAIN
from tests.package import plain

# Of 4 or more tokens, so that every sequence of a batch has one.
TINY = {"float32": 1 / 4, "bfloat16": 1 / 8}
CELLS = [PathCell(path, mib, dtype) for path in PATHS for dtype, mib in TINY.items()]
# What the first commits had no function or argument for; heads of any form they rotated.
LACKED = [cell for cell in CELLS if cell.path not in ("partial", "head-96", "then-read")]

all_paths = pytest.mark.parametrize("path", PATHS)


@pytest.fixture
def on_cpu(one_thread, monkeypatch, tmp_path):
    """Measures as on a GPU, but CPU tensors, plain PyTorch and made-up samples."""
    plain.install(monkeypatch)
    monkeypatch.setattr(inputs, "DEVICE", "cpu")
    samples.install(monkeypatch, tmp_path / "progress", sets=3)


@pytest.mark.parametrize("direction", [FORWARD, BACKWARD])
def test_cells_are_measured(on_cpu, direction, tmp_path):
    for suite in (PLAIN, CELLS):
        cells = [cell for cell in suite if direction in cell.directions]
        outcomes = cell_outcomes.measure_cells(cells, direction)
        made_up = cell_outcomes.Outcome((1e-6,) * 7, (1e-6,) * 7, roofline=(1e-6,) * 3)
        assert outcomes == dict.fromkeys(cells, made_up)
        said = f"{cells[0].suite} {direction}: {len(cells)}/{len(cells)} cells"
        assert said in (tmp_path / "progress").read_text()


def in_place_wrong_from(number):
    """Rotates in place, by the wrong angle from a call on."""
    calls = []

    def rotate(x, cos, sin, inplace):
        calls.append(x)
        turned = sin if len(calls) < number else -sin
        return plain.apply_rotary_emb(x, cos, turned, inplace=inplace)

    return rotate


@pytest.mark.parametrize("number", [1, 9, 11])
def test_wrong_output_in_place_has_no_speed(on_cpu, number, monkeypatch):
    """What was given is overwritten by the time that it is checked: the last calls decide."""
    monkeypatch.setattr(rope_triton, "apply_rotary_emb", in_place_wrong_from(number))
    cell = PathCell("tables-inplace", 1 / 4, "float32")
    (outcome,) = cell_outcomes.measure_cells([cell], FORWARD).values()
    assert not outcome.latency
    assert "AssertionError: Tensor-likes are not close!" in outcome.error


NOT_YET = NotImplementedError("tensor_format='thd' is not implemented yet")


def refuse_what_is_new(t, freqs, tensor_format, start_positions=None, cu_seqlens=None):
    """The function as it was before there were packed sequences and starts."""
    if tensor_format == "thd" or start_positions is not None:
        raise NOT_YET
    return plain.apply_rotary_pos_emb(t, freqs, tensor_format)


@pytest.fixture
def old(on_cpu, monkeypatch):
    """A commit that has none of the paths."""
    monkeypatch.setattr(rope_triton, "apply_rotary_pos_emb", refuse_what_is_new)
    for name in plain.FUNCTIONS.keys() - {"apply_rotary_pos_emb"}:
        monkeypatch.delattr(rope_triton, name)


@pytest.mark.parametrize("direction", [FORWARD, BACKWARD])
def test_commit_without_the_paths_is_not_available(old, direction):
    cells = [cell for cell in LACKED if direction in cell.directions]
    for outcome in cell_outcomes.measure_cells(cells, direction).values():
        assert outcome.unavailable.startswith("this commit cannot: ")
        assert not outcome.error and not outcome.latency


# --- in a comparison's process --------------------------------------------------------------------


@all_paths
def test_process_checks_and_times_every_direction(on_cpu, path, monkeypatch):
    cell = PathCell(path, 1 / 4, "float32")
    checked = measure._check(_subjects, [cell], exact=False)
    assert not checked["errors"] and not checked["unavailable"]
    timed = measure._measure(_subjects, [cell], host=False, seed=0)["timings"]
    expected = [f"paths.{each.capitalize()}.track_latency" for each in cell.directions]
    assert [metric for metric, _, _ in timed] == expected
    assert all(params == [path, "0.25", "float32"] for _, params, _ in timed)
