"""What a call costs besides its GPU time, on a GPU: planted costs show, and nothing else does."""

import statistics
import time
from pathlib import Path

import pytest
import torch

import rope_triton
from benchmarks._measure import first_call, host, host_time, memory_and_launches
from benchmarks._subject import BACKWARD, FORWARD
from benchmarks._subjects import metrics
from benchmarks._system import process

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
SBHD = ("sbhd", "float16", "contiguous")
TRANSPOSED = ("sbhd", "float16", "transposed")
CELL = memory_and_launches.step_cell("sbhd", "float16")
BYTES = 512 * 2 * 64 * 128 * 2  # of a tensor of a step, float16
METRICS = (metrics.CALL_FORWARD, metrics.CALL_FORWARD_BACKWARD)
apply = rope_triton.apply_rotary_pos_emb


def plant(monkeypatch, function):
    """Let the package's function be this one, which calls ``apply``."""
    monkeypatch.setattr(rope_triton, "apply_rotary_pos_emb", function)


def contiguous_first(t, freqs, **options):
    return apply(t.contiguous(), freqs, **options)


# --- host time ------------------------------------------------------------------------------------


def medians():
    found = host.answers("host.Call")
    for answer in found.values():
        if isinstance(answer, Exception):
            raise answer
    assert all(len(samples) == host_time.BLOCKS for samples in found.values())
    return {key: statistics.median(samples) for key, samples in found.items()}


@pytest.mark.alone
def test_python_in_the_call_path_shows(monkeypatch):
    def slow(*args, **options):
        end = time.perf_counter() + 20e-6
        while time.perf_counter() < end:
            pass
        return apply(*args, **options)

    before = medians()
    plant(monkeypatch, slow)
    after = medians()
    assert all(2e-6 < seconds < 2e-3 for seconds in before.values())
    for format in metrics.FORMATS:
        forward, both = ((m, (format,)) for m in METRICS)
        assert before[both] > before[forward]
        # Half of it: on a busy host a median is some microseconds off.
        assert after[forward] - before[forward] > 10e-6


CELLS = [
    *map(metrics.call_cell, metrics.FORMATS),
    *map(metrics.path_call_cell, metrics.PATHS),
]


@pytest.mark.alone
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_gpu_is_done_when_the_host_is(cell):
    """Else the block would clock the GPU, or the host's wait for room in its queue."""
    for step in metrics.STEPS if cell.suite == "rope" else ["forward"]:
        call = memory_and_launches._step_call(step, cell, "contiguous", intermediate=False)
        for _ in range(host_time.WARM_CALLS):
            call()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(host_time.BLOCK_CALLS[FORWARD if step == "forward" else BACKWARD]):
            call()
        issued = time.perf_counter()
        torch.cuda.synchronize()
        assert time.perf_counter() - issued < 0.1 * (issued - start)


# --- the first call of a process ------------------------------------------------------------------


@pytest.mark.alone
def test_second_process_finds_the_cache_and_adds_little_to_tritons_start(tmp_path):
    cold, warm = (first_call.seconds(ROOT, tmp_path) for _ in range(2))
    own = first_call.seconds(ROOT, tmp_path, after_another=True)
    assert 0 < own < warm < cold < 120
    assert own < 0.1
    assert list(tmp_path.rglob("*.cubin"))


@pytest.mark.alone
def test_a_compilation_takes_longer_than_a_warm_start_every_time():
    """In processes that have called other things, as those of a comparison."""
    took = process.call(calls_then_compiles)
    again = process.call(calls_then_compiles)
    assert all(0.05 < seconds < 60 for seconds in (took, again))


def calls_then_compiles():
    host.answers("host.Call")
    ((seconds,),) = host.compile_here().values()
    return seconds


# --- memory and launches --------------------------------------------------------------------------


@pytest.mark.parametrize("layout", metrics.LAYOUTS)
@pytest.mark.parametrize("format", metrics.FORMATS)
def test_a_step_takes_its_outputs_and_one_launch_each(format, layout):
    cell = memory_and_launches.step_cell(format, "float16")
    for step, count in (("forward", 1), ("training", 2)):
        assert memory_and_launches.peak_bytes(step, cell, layout) == count * BYTES
        assert memory_and_launches.launches(step, cell, layout) == count


def test_hidden_copy_shows_where_the_layout_needs_it(monkeypatch):
    plant(monkeypatch, contiguous_first)
    assert memory_and_launches.peak_bytes("forward", CELL) == BYTES
    assert memory_and_launches.launches("forward", CELL) == 1
    assert memory_and_launches.peak_bytes("forward", CELL, "transposed") == 2 * BYTES
    assert memory_and_launches.launches("forward", CELL, "transposed") == 2


class _SavesItsInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        ctx.save_for_backward(t)
        return t.view_as(t)

    @staticmethod
    def backward(ctx, gradient):
        assert ctx.saved_tensors
        return gradient


def test_extra_saved_tensor_shows_in_training_only(monkeypatch):
    plant(monkeypatch, lambda t, freqs, **options: apply(_SavesItsInput.apply(t), freqs, **options))
    assert memory_and_launches.peak_bytes("forward", CELL) == BYTES
    assert memory_and_launches.peak_bytes("training", CELL) == 3 * BYTES
    assert memory_and_launches.launches("training", CELL) == 2


def test_fills_and_copies_are_launches(monkeypatch):
    scratch = torch.empty(2, 1024, device="cuda")

    def apply_and_more(*args, **options):
        scratch[0].zero_()
        scratch[1].copy_(scratch[0])
        return apply(*args, **options)

    plant(monkeypatch, apply_and_more)
    assert memory_and_launches.launches("forward", CELL) == 3


def test_call_that_waits_for_the_gpu_fails_and_the_next_cell_does_not(monkeypatch):
    def waits(t, freqs, **options):
        if not t.is_contiguous():
            t[0, 0, 0, 0].item()
        return apply(t, freqs, **options)

    plant(monkeypatch, waits)
    keys = [(metrics.LAUNCHES, ("forward", *layout)) for layout in (SBHD, TRANSPOSED, SBHD)]
    first = host._answers(keys[:1])
    waiting = host._answers(keys[1:2])
    then = host._answers(keys[2:]) | host._answers([(metrics.PEAK_BYTES, ("forward", *SBHD))])
    assert list(first.values()) == [1]
    assert "captur" in str(waiting[keys[1]])
    assert isinstance(waiting[keys[1]], RuntimeError)
    assert list(then.values()) == [1, BYTES]


STEPS = [(metrics.LAUNCHES, (step, *SBHD)) for step in metrics.STEPS]


def answers_after_a_fault():
    launches = host._MEASURES[metrics.LAUNCHES]

    def faulty(step, *rest):
        if step == "forward":
            torch.zeros(2, device="cuda")[torch.tensor([5], device="cuda")].cpu()  # out of bounds
        return launches(step, *rest)

    host._MEASURES[metrics.LAUNCHES] = faulty
    return host._answers(STEPS)


def test_fault_costs_its_own_cell_only():
    """In a process of its own, for which it ends the use of the GPU."""
    forward, training = process.call(answers_after_a_fault).values()
    assert isinstance(forward, RuntimeError)
    assert training == 2


# --- error ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("suite", ["host.Error", "host.PathError"])
def test_error_is_little_more_than_rounding_and_repeats_also_in_another_process(suite):
    here, again = host.answers(suite), host.answers(suite)
    there = process.call(host._answers, list(here))
    assert here == again == there
    for (_, params), value in here.items():
        assert 0.999 < value < (4 if "float32" in params else 1.001), value
        assert value >= 1 or suite == "host.PathError"


def test_everything_exact_has_an_answer():
    found = host.exact_facts()
    assert list(found) == metrics.host_keys(*metrics.EXACT)
    assert not [str(answer) for answer in found.values() if isinstance(answer, Exception)]
