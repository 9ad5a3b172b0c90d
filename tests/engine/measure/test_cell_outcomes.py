"""From a cell to samples: no speed for a wrong output, and a bad cell costs only itself."""

import gc
import types
import weakref

import pytest
import torch

import rope_triton
from benchmarks import _subjects
from benchmarks._engine.compare import measure
from benchmarks._engine.measure import cell_outcomes, inputs, timed_cell
from benchmarks._engine.subject import BACKWARD, FORWARD
from benchmarks._engine.system import process
from benchmarks._subjects.rope.cells import PATHS, grid_cell, path_cell
from benchmarks._subjects.transformer.modules import ModuleCell
from tests.package import plain

CELLS = [
    grid_cell(37, 64, 2, dtype, tensor_format)
    for dtype in ("float32", "float16", "bfloat16")
    for tensor_format in ("sbhd", "bshd")
]
# Of 4 or more tokens, so that every sequence of a batch has one.
OTHERS = [
    path_cell(path, mib, dtype)
    for path in PATHS
    for dtype, mib in {"float32": 1 / 4, "bfloat16": 1 / 8}.items()
]
both_directions = pytest.mark.parametrize("direction", (FORWARD, BACKWARD))


# --- one cell, its calls and its samples, without a GPU -------------------------------------------


@both_directions
def test_cells_are_measured(on_cpu, direction, progress):
    for suite in (CELLS, OTHERS):
        cells = [cell for cell in suite if direction in cell.directions]
        outcomes = cell_outcomes.measure_cells(cells, direction)
        made_up = cell_outcomes.Outcome((1e-6,) * 7, (1e-6,) * 7, roofline=(1e-6,) * 3)
        assert outcomes == dict.fromkeys(cells, made_up)
        last = progress()[-1]
        assert last.startswith(f"{cells[0].suite} {direction}: {len(cells)}/{len(cells)} cells")


@both_directions
@pytest.mark.parametrize("wrong_set", [0, 2])
def test_wrong_output_has_no_speed(on_cpu, direction, wrong_set, monkeypatch):
    """The first buffer set is checked and the last."""
    calls = []

    def apply(t, freqs, tensor_format):
        calls.append(t)
        turned = -freqs if (len(calls) - 1) % 3 == wrong_set else freqs
        return plain.apply_rotary_pos_emb(t, turned, tensor_format)

    monkeypatch.setattr(rope_triton, "apply_rotary_pos_emb", apply)
    (outcome,) = cell_outcomes.measure_cells(CELLS[:1], direction).values()
    assert (outcome.latency, outcome.copy, outcome.unavailable) == ((), (), "")
    assert "AssertionError: Tensor-likes are not close!" in outcome.error


@pytest.mark.parametrize("number", [1, 9, 11])
def test_wrong_output_in_place_has_no_speed(on_cpu, number, monkeypatch):
    """The input is overwritten by the time that it is checked: the last calls decide."""
    calls = []

    def rotate(x, cos, sin, inplace):
        calls.append(x)
        turned = sin if len(calls) < number else -sin
        return plain.apply_rotary_emb(x, cos, turned, inplace=inplace)

    monkeypatch.setattr(rope_triton, "apply_rotary_emb", rotate)
    cell = path_cell("tables-inplace", 1 / 4, "float32")
    (outcome,) = cell_outcomes.measure_cells([cell], FORWARD).values()
    assert not outcome.latency
    assert "AssertionError: Tensor-likes are not close!" in outcome.error


@both_directions
def test_commit_without_the_other_calls_is_not_available(on_cpu, direction, monkeypatch):
    """One of before there were packed sequences and starts, and other functions."""

    def apply(t, freqs, tensor_format, start_positions=None, cu_seqlens=None):
        if tensor_format == "thd" or start_positions is not None:
            raise NotImplementedError("tensor_format='thd' is not implemented yet")
        return plain.apply_rotary_pos_emb(t, freqs, tensor_format)

    for name in plain.FUNCTIONS:
        monkeypatch.delattr(rope_triton, name)
    monkeypatch.setattr(rope_triton, "apply_rotary_pos_emb", apply, raising=False)
    # Heads of any form it rotated.
    lacked = [c for c in OTHERS if c.values[0] not in ("partial", "head-96", "then-read")]
    cells = [cell for cell in lacked if direction in cell.directions]
    for outcome in cell_outcomes.measure_cells(cells, direction).values():
        assert outcome.unavailable.startswith("this commit cannot: ")
        assert not outcome.error and not outcome.latency


@pytest.mark.parametrize("path", PATHS)
def test_process_of_a_comparison_checks_and_times_every_direction(on_cpu, path):
    cell = path_cell(path, 1 / 4, "float32")
    checked = measure._check(_subjects, [cell], exact=False)
    assert not checked["errors"] and not checked["unavailable"]
    timed = measure._measure(_subjects, [cell], starts=False, seed=0)["timings"]
    timings = [(metric, params) for metric, params, _ in timed]
    assert timings == [(metric, [path, "0.25", "float32"]) for metric in cell.metrics.values()]


def test_cell_that_does_not_fit_is_not_begun(on_cpu, monkeypatch):
    def fail(cell):
        raise AssertionError("something was allocated")

    cell = CELLS[0]
    # Three inputs, outputs, copies and autograd's outputs, and four tensors for the check.
    needed = 16 * cell.bytes_moved // 2
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (needed, 2**40))
    assert cell_outcomes.measure_cells([cell], "forward")[cell].latency
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (needed - 1, 2**40))
    monkeypatch.setattr(inputs, "random", fail)
    outcome = cell_outcomes.measure_cells([cell], "forward")[cell]
    assert "does not fit in the GPU's memory: needs 0.0 GB" in outcome.unavailable
    assert not outcome.error


CALLS = [
    *("attention-fp32-1x20x2x1x16-packed", "rotaryattention-fp32-1x20x24x2x1x16"),
    *("linear-fp32-9x24x40-bias-relu", "matmul-fp32-2x9x24x16-ta", "rmsnorm-fp32-9x24-residual"),
    *("layernorm-fp32-9x24-bias", "softmax-fp32-9x24", "swiglu-fp32-9x24-halves"),
    *("crossentropy-fp32-20x30", "linearcrossentropy-fp32-20x24x30"),
    *("hf-fp32-1x6x2x1x16", "vllm-fp32-6x2x1x16", "flashkv-fp32-1x6x2x16"),
]


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_other_modules_are_timed_like_others(on_cpu, name, monkeypatch):
    """All buffer sets share the weights' leaves, as the steps of a training do."""
    cell = ModuleCell(name)
    timed = timed_cell.TimedCell(cell, cell.directions)
    timed.sample(1, 1e-3)
    assert timed.checked() == [[1e-6]] * len(cell.directions)


# --- many cells -----------------------------------------------------------------------------------


FAILURES = [
    (NotImplementedError("no backward yet"), "unavailable"),
    (ImportError("cannot import name"), "unavailable"),
    (torch.cuda.OutOfMemoryError("12 GB"), "unavailable"),
    (ModuleNotFoundError("No module named rope_triton"), "error"),
    *(
        (kind("broken"), "error")
        for kind in (AssertionError, RuntimeError, TypeError, ValueError, AttributeError)
    ),
]


@pytest.mark.parametrize(("error", "kind"), FAILURES, ids=repr)
def test_failure_is_its_own_cells_only(on_cpu, error, kind, monkeypatch):
    bad = CELLS[2]

    def made_up(cell, directions, copies):
        if cell == bad:
            raise error
        return [[1.0], [2.0]]

    monkeypatch.setattr(timed_cell, "checked_samples", made_up)
    outcomes = cell_outcomes.measure_cells(CELLS, "forward")
    assert list(outcomes) == CELLS
    failed = outcomes.pop(bad)
    assert set(outcomes.values()) == {cell_outcomes.Outcome(latency=(1.0,), copy=(2.0,))}
    assert str(error) in getattr(failed, kind)
    assert failed == cell_outcomes.Outcome(**{kind: getattr(failed, kind)})
    assert ("Traceback" in failed.error) == (kind == "error")


def test_a_fault_that_ends_the_process_leaves_the_other_cells_to_a_fresh_one(on_cpu, monkeypatch):
    def lost():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def made_up(cell, directions, copies):
        if cell == CELLS[1]:
            monkeypatch.setattr(torch.cuda, "synchronize", lost)
            monkeypatch.setattr(torch.cuda, "empty_cache", lost)
            lost()
        return [[1.0], [2.0]]

    monkeypatch.setattr(timed_cell, "checked_samples", made_up)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # of the fresh process
    reported = []
    outcomes = cell_outcomes.measure_cells(CELLS, "forward", lambda *row: reported.append(row))
    assert list(outcomes) == CELLS
    assert reported == list(outcomes.items())
    assert outcomes[CELLS[0]].latency == (1.0,)
    assert "illegal memory access" in outcomes[CELLS[1]].error
    assert len(CELLS) > 2
    for cell in CELLS[2:]:  # in a process in which nothing is pretended the GPU is gone
        assert "no NVIDIA GPU" in outcomes[cell].error and not outcomes[cell].unavailable
    monkeypatch.setattr(process, "_CALL", "sys.exit(3)")
    outcomes = cell_outcomes.measure_cells(CELLS, "forward")
    assert "ended with 3" in outcomes[CELLS[-1]].error


def test_each_cell_is_reported_as_soon_as_it_is_finished(on_cpu, monkeypatch):
    events = []

    def made_up(cell, directions, copies):
        events.append(cell)
        return [[1.0], [1.0]]

    monkeypatch.setattr(timed_cell, "checked_samples", made_up)
    outcomes = cell_outcomes.measure_cells(CELLS, "forward", lambda *row: events.append(row))
    assert events == [event for cell in CELLS for event in (cell, (cell, outcomes[cell]))]


def test_progress_is_reported_for_every_dozen_cells(on_cpu, progress, monkeypatch):
    monkeypatch.setattr(timed_cell, "checked_samples", lambda *_, **__: [[1.0], [1.0]])
    cells = [grid_cell(seq_len, 64, 1, "float16", "sbhd") for seq_len in range(1, 27)]
    cell_outcomes.measure_cells(cells, "backward")
    counts = [line.split(" cells")[0] for line in progress()]
    assert counts == [f"rope backward: {count}/26" for count in (12, 24, 26)]


def test_a_cell_leaves_nothing_and_what_was_there_is_not_looked_through(on_cpu, monkeypatch):
    class Cycle:
        def __init__(self):
            self.itself = self

    left, here = [], Cycle()

    def made_up(cell, directions, copies):
        left.append(weakref.ref(Cycle()))
        return [[1.0], [1.0]]

    monkeypatch.setattr(timed_cell, "checked_samples", made_up)
    cell_outcomes.measure_cells(CELLS, "forward")
    assert len(left) == len(CELLS) and not any(cycle() for cycle in left)
    assert not any(thing is here for thing in gc.get_objects())


@both_directions
def test_without_a_gpu_every_cell_is_unavailable_for_one_reason(direction, progress, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(cell_outcomes, "gpu_timer", types.SimpleNamespace())  # no clock is touched
    reported: list = []
    outcomes = cell_outcomes.measure_cells(CELLS, direction, lambda *row: reported.append(row))
    assert reported == list(outcomes.items())
    reason = "no NVIDIA GPU: torch.cuda.is_available() is False"
    assert outcomes == dict.fromkeys(CELLS, cell_outcomes.Outcome(unavailable=reason))
    assert progress() == [f"rope.{direction.capitalize()}: n/a, {reason}"]
