"""The package's other paths, the forms of the surface and the transformer's calls, measured on a
GPU: each is right there, has a speed, a cost and a small error.
"""

import statistics

import pytest

import rope_triton
from benchmarks import _subjects
from benchmarks._engine.compare import measure
from benchmarks._engine.measure import call_costs, cell_outcomes, host_time, memory_and_launches
from benchmarks._engine.subject import BACKWARD, FORWARD
from benchmarks._subjects import metric_list
from benchmarks._subjects.rope import grid
from benchmarks._subjects.rope.cells import PATHS, path_cell
from benchmarks._subjects.transformer import modules

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("progress")]

all_paths = pytest.mark.parametrize("path", PATHS)
host_paths = pytest.mark.parametrize("path", metric_list.PATHS)
FUNCTIONS = (
    "apply_rotary_pos_emb",
    "apply_qk_rotary_pos_emb",
    "apply_fused_qkv_rotary_pos_emb",
    "apply_rotary_emb",
    "rotary_embedding",
)
# In place, there is no backward pass.
CALLS = 2 * len(metric_list.PATHS) - 1


# --- the surface ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cell",
    [c for c in _subjects.checked() if c.suite in ("surface", "model_calls", "modules")],
    ids=str,
)
def test_every_form_is_right_and_can_be_recorded(cell):
    answer = measure._check(_subjects, [cell], exact=False)
    assert not answer["errors"] and not answer["unavailable"]
    assert [metric for metric, *_ in answer["nodes"]] == list(cell.metrics.values())
    assert all("kernel" in text for *_, text in answer["nodes"])


# --- speed ----------------------------------------------------------------------------------------


@pytest.mark.alone
def test_calls_of_the_transformer_have_a_speed():
    """One of each function, in a timing process; all directions on the same inputs."""
    cells = list({cell.function: cell for cell in modules.cells()}.values())
    answer = measure._measure(_subjects, cells, starts=False, seed=1)
    assert not answer["errors"] and not answer["unavailable"]
    assert len(answer["timings"]) == sum(len(cell.metrics) for cell in cells)
    assert all(1e-6 < min(samples) <= max(samples) < 0.1 for *_, samples in answer["timings"])


@pytest.mark.alone
@pytest.mark.parametrize("direction", [FORWARD, BACKWARD])
def test_every_cell_is_right_and_has_a_speed(direction, unwarmed):
    cells = grid.cells_of(path_cell, grid.PATH_GRIDS["full"])
    cells = [cell for cell in cells if direction in cell.directions]
    for cell, outcome in cell_outcomes.measure_cells(cells, direction).items():
        assert not outcome.error and not outcome.unavailable, (cell, outcome)
        ratio = statistics.median(outcome.latency) / statistics.median(outcome.copy)
        assert 0.3 < ratio < 3, (cell, ratio)


@pytest.mark.alone
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_output_is_in_l2_for_what_reads_it_next(dtype):
    """Of 8 MiB; a kernel that writes past L2 takes 1.08 times as long as two copies on an H200."""
    (outcome,) = cell_outcomes.measure_cells([path_cell("then-read", 8, dtype)], FORWARD).values()
    assert statistics.median(outcome.latency) < 1.04 * statistics.median(outcome.copy)


@all_paths
def test_wrong_output_has_no_speed(path, monkeypatch, unwarmed):
    """The kernel runs, in place too, and only its result is at fault."""

    def spoiled(function):
        def call(*args, **options):
            output = function(*args, **options)
            (output[0] if isinstance(output, tuple) else output).data[..., -1] += 1
            return output

        return call

    for name in FUNCTIONS:
        monkeypatch.setattr(rope_triton, name, spoiled(getattr(rope_triton, name)))
    cell = path_cell(path, 4, "bfloat16")
    (outcome,) = cell_outcomes.measure_cells([cell], FORWARD).values()
    assert not outcome.latency
    assert "not close" in outcome.error


@pytest.mark.alone
@all_paths
def test_process_of_a_comparison_checks_and_times_it(path):
    cell = path_cell(path, 4, "bfloat16")
    checked = measure._check(_subjects, [cell], exact=False)
    answer = measure._measure(_subjects, [cell], starts=False, seed=1)
    for each in (checked, answer):
        assert not each["errors"] and not each["unavailable"]
    assert [metric for metric, *_ in answer["timings"]] == list(cell.metrics.values())
    for *_, samples in answer["timings"]:
        assert len(samples) == measure.PASSES
        assert all(1e-6 < seconds < 1e-4 for seconds in samples)


# --- what a call costs besides --------------------------------------------------------------------


@pytest.mark.alone
def test_every_call_has_a_host_time():
    found = call_costs.answers("host.PathCall", metric_list.eager("host.PathCall"))
    assert len(found) == CALLS
    for key, answer in found.items():
        assert not isinstance(answer, Exception), (key, answer)
        assert len(answer) == host_time.BLOCKS
        assert all(2e-6 < seconds < 2e-3 for seconds in answer)


@host_paths
def test_a_step_takes_its_outputs_and_one_launch_each(path):
    cell = metric_list.eager()["host.PathMemory.track_peak_bytes", ("forward", path)].cell
    outputs = 0 if path == "tables-inplace" else 1
    assert memory_and_launches.peak_bytes(cell, FORWARD) == outputs * cell.bytes_moved // 2
    assert memory_and_launches.launches(cell, FORWARD) == 1
    if BACKWARD in cell.directions:
        assert memory_and_launches.peak_bytes(cell, BACKWARD) == cell.bytes_moved
        assert memory_and_launches.launches(cell, BACKWARD) == 2
