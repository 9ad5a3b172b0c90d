"""From a cell to samples: no speed for a wrong output, and a bad cell costs only itself."""

import gc
import types
import weakref

import pytest
import torch

import rope_triton
from benchmarks._engine.measure import cell_outcomes, gpu_timer, inputs, timed_cell
from benchmarks._engine.subject import BACKWARD, FORWARD
from benchmarks._engine.system import process
from benchmarks._subjects.rope.cells import Cell
from benchmarks._subjects.transformer.modules import ModuleCell
from rope_triton import transformer
from tests.engine.measure import samples
from tests.package import plain

CELLS = [
    Cell(37, 64, 2, dtype, tensor_format)
    for dtype in ("float32", "float16", "bfloat16")
    for tensor_format in ("sbhd", "bshd")
]
both_directions = pytest.mark.parametrize("direction", (FORWARD, BACKWARD))


# --- one cell, its calls and its samples, without a GPU -------------------------------------------


@pytest.fixture
def on_cpu(monkeypatch, tmp_path):
    """Measures cells as on a GPU, but with CPU tensors, plain PyTorch and made-up samples."""

    samples.install(monkeypatch, tmp_path / "progress", sets=3)
    monkeypatch.setattr(gpu_timer, "paired_samples", lambda *_: [[2e-6] * 3, [1e-6] * 3])
    monkeypatch.setattr(inputs, "DEVICE", "cpu")
    monkeypatch.setattr(rope_triton, "apply_rotary_pos_emb", plain.apply_rotary_pos_emb)


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
    # Recorded and replayed; the backward's forward, which is neither, once.
    assert len(calls) == (6 if direction == FORWARD else 3)
    assert (outcome.latency, outcome.copy, outcome.unavailable) == ((), (), "")
    assert "AssertionError: Tensor-likes are not close!" in outcome.error


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
    monkeypatch.setattr(gpu_timer, "paired_samples", lambda recordings, *_: [[1e-6]] * 2)
    cell = ModuleCell(name)
    timed = timed_cell.TimedCell(cell, cell.directions)
    timed.sample(1, 1e-3)
    assert timed.checked() == [[1e-6]] * len(cell.directions)


@pytest.mark.parametrize("wrong_set", [0, 2])
def test_wrong_output_of_the_transformer_has_no_speed(on_cpu, wrong_set, monkeypatch):
    right, calls = transformer.softmax, []

    def softmax(x):
        calls.append(x)
        return right(2 * x if (len(calls) - 1) % 3 == wrong_set else x)

    monkeypatch.setattr(transformer, "softmax", softmax)
    timed = timed_cell.TimedCell(ModuleCell("softmax-fp32-9x24"), [FORWARD])
    with pytest.raises(AssertionError, match="a row is off by"):
        timed.checked()


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


def test_each_cell_is_told_as_soon_as_it_is_finished(on_cpu, monkeypatch):
    events = []

    def made_up(cell, directions, copies):
        events.append(cell)
        return [[1.0], [1.0]]

    monkeypatch.setattr(timed_cell, "checked_samples", made_up)
    outcomes = cell_outcomes.measure_cells(CELLS, "forward", lambda *each: events.append(each))
    assert events == [event for cell in CELLS for event in (cell, (cell, outcomes[cell]))]


def test_progress_is_reported_for_every_dozen_cells(on_cpu, progress, monkeypatch):
    monkeypatch.setattr(timed_cell, "checked_samples", lambda *_, **__: [[1.0], [1.0]])
    cells = [Cell(seq_len, 64, 1, "float16", "sbhd") for seq_len in range(1, 27)]
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
    assert len(left) == len(CELLS) and not any(each() for each in left)
    assert not any(each is here for each in gc.get_objects())


@both_directions
def test_without_a_gpu_every_cell_is_unavailable_for_one_reason(direction, progress, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(cell_outcomes, "gpu_timer", types.SimpleNamespace())  # no clock is touched
    told: list = []
    outcomes = cell_outcomes.measure_cells(CELLS, direction, lambda *each: told.append(each))
    assert told == list(outcomes.items())
    reason = "no NVIDIA GPU: torch.cuda.is_available() is False"
    assert outcomes == dict.fromkeys(CELLS, cell_outcomes.Outcome(unavailable=reason))
    assert progress() == [f"rope.{direction.capitalize()}: n/a, {reason}"]
