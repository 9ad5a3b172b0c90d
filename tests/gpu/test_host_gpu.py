"""What a call costs besides its GPU time, on a GPU: planted costs show, and nothing else does."""

import statistics
import time
from pathlib import Path

import pytest
import torch
import triton

import rope_triton
from benchmarks import _subjects
from benchmarks._engine.compare import measure
from benchmarks._engine.compare.pool import Pool
from benchmarks._engine.compare.rounds import Round
from benchmarks._engine.measure import call_costs, first_call, host_time, memory_and_launches
from benchmarks._engine.subject import BACKWARD, DEFAULT, FORWARD, Eager
from benchmarks._engine.system import copies, process
from benchmarks._engine.verdict.metrics import HOST_CALL
from benchmarks._engine.verdict.rules import Key
from benchmarks._subjects import metric_list, traced_calls

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]


def step_cell(*params):
    """The cell of a step of a format, a dtype and a layout."""
    return metric_list.eager()["host.Memory.track_peak_bytes", ("forward", *params)].cell


SBHD = ("sbhd", "float16", "contiguous")
TRANSPOSED = ("sbhd", "float16", "transposed")
CELL, EXCHANGED = step_cell(*SBHD), step_cell(*TRANSPOSED)
BYTES = 512 * 2 * 64 * 128 * 2  # of a tensor of a step, float16
METRICS = ("host.Call.track_forward", "host.Call.track_forward_backward")
apply = rope_triton.apply_rotary_pos_emb


def plant(monkeypatch, function):
    """Let the package's function be this one, which calls ``apply``."""
    monkeypatch.setattr(rope_triton, "apply_rotary_pos_emb", function)


def contiguous_first(t, freqs, **options):
    return apply(t.contiguous(), freqs, **options)


# --- host time ------------------------------------------------------------------------------------


def medians():
    found = call_costs.answers("host.Call", metric_list.eager("host.Call"))
    for answer in found.values():
        if isinstance(answer, Exception):
            raise answer
    assert all(len(samples) == host_time.BLOCKS for samples in found.values())
    return {key: statistics.median(samples) for key, samples in found.items()}


@pytest.mark.alone
def test_python_in_the_call_path_shows(monkeypatch):
    def slow(*args, **options):
        end = time.perf_counter() + 100e-6
        while time.perf_counter() < end:
            pass
        return apply(*args, **options)

    before = medians()
    plant(monkeypatch, slow)
    after = medians()
    assert all(2e-6 < seconds < 2e-3 for seconds in before.values())
    for format in metric_list.FORMATS:
        forward, both = ((m, (format,)) for m in METRICS)
        assert before[both] > before[forward]
        # Half of it: on a busy host a median is some ten microseconds off.
        assert after[forward] - before[forward] > 50e-6


@pytest.mark.alone
@pytest.mark.parametrize("eager", metric_list.eager("host.Call", "host.PathCall").values(), ids=str)
def test_gpu_is_done_when_the_host_is(eager):
    """Else the block would clock the GPU, or the host's wait for room in its queue."""
    function, block_calls, _ = host_time.eager_call(eager.cell, eager.direction)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(block_calls):
        function()
    issued = time.perf_counter()
    torch.cuda.synchronize()
    assert time.perf_counter() - issued < 0.1 * (issued - start)


@pytest.mark.alone
def test_two_copies_of_the_package_take_the_same_time_in_one_process(tmp_path):
    """Also of the calls that are only counted elsewhere: all of them can be made on a GPU."""
    counted = [Key(HOST_CALL, params) for params in traced_calls.OTHERS]
    calls = [*metric_list.eager("host.Call"), *counted]
    names = copies.write(_subjects.PACKAGE, {"one": ROOT, "other": ROOT}, tmp_path)
    started = measure.Process(DEFAULT, tmp_path, Path(triton.knobs.cache.dir), names)
    try:
        started.wait_until_ready()
        job = {"task": "clock", "calls": calls, "arch": "", "seed": 1}
        answer = started.answer(job)
    finally:
        started.stop()
    for version in answer["versions"].values():
        assert not version["errors"] and not version["unavailable"]
    pool = Pool.of([Round("look1", 0, answer["versions"], {})], names)
    assert len(pool.subjects) == len(calls)
    (one,), (other,) = pool.seconds.values()
    ratios = dict(zip(pool.subjects, (other / one).tolist(), strict=True))
    assert all(0.8 < ratio < 1.25 for ratio in ratios.values()), ratios


# --- the first call of a process ------------------------------------------------------------------


@pytest.mark.alone
def test_second_process_finds_the_cache_and_adds_little_to_tritons_start(tmp_path):
    cold, warm = (first_call.seconds(_subjects, ROOT, tmp_path) for _ in range(2))
    own = first_call.seconds(_subjects, ROOT, tmp_path, after_another=True)
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
    medians()
    ((seconds,),) = call_costs.compile_here(_subjects).values()
    return seconds


# --- memory and launches --------------------------------------------------------------------------


@pytest.mark.parametrize("layout", metric_list.LAYOUTS)
@pytest.mark.parametrize("format", metric_list.FORMATS)
def test_a_step_takes_its_outputs_and_one_launch_each(format, layout):
    cell = step_cell(format, "float16", layout)
    for direction, count in ((FORWARD, 1), (BACKWARD, 2)):
        assert memory_and_launches.peak_bytes(cell, direction) == count * BYTES
        assert memory_and_launches.launches(cell, direction) == count


def test_hidden_copy_shows_where_the_layout_needs_it(monkeypatch):
    plant(monkeypatch, contiguous_first)
    for cell, count in ((CELL, 1), (EXCHANGED, 2)):
        assert memory_and_launches.peak_bytes(cell, FORWARD) == count * BYTES
        assert memory_and_launches.launches(cell, FORWARD) == count


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
    assert memory_and_launches.peak_bytes(CELL, FORWARD) == BYTES
    assert memory_and_launches.peak_bytes(CELL, BACKWARD) == 3 * BYTES
    assert memory_and_launches.launches(CELL, BACKWARD) == 2


def test_fills_and_copies_are_launches(monkeypatch):
    scratch = torch.empty(2, 1024, device="cuda")

    def apply_and_more(*args, **options):
        scratch[0].zero_()
        scratch[1].copy_(scratch[0])
        return apply(*args, **options)

    plant(monkeypatch, apply_and_more)
    assert memory_and_launches.launches(CELL, FORWARD) == 3


def answers_with_a_call_that_waits():
    def waits(t, freqs, **options):
        if not t.is_contiguous():
            t[0, 0, 0, 0].item()
        return apply(t, freqs, **options)

    rope_triton.apply_rotary_pos_emb = waits
    asked = {
        "first": Eager("launches", CELL, FORWARD),
        "waiting": Eager("launches", EXCHANGED, FORWARD),
        "then": Eager("launches", CELL, FORWARD),
        "bytes": Eager("peak_bytes", CELL, FORWARD),
    }
    return call_costs.answers("title", asked)


def test_call_that_waits_for_the_gpu_fails_and_the_next_cell_does_not():
    """In a process of its own: after a capture that failed, PyTorch gives back no more memory."""
    answers = process.call(answers_with_a_call_that_waits)
    waiting = answers.pop("waiting")
    assert isinstance(waiting, RuntimeError) and "captur" in str(waiting)
    assert list(answers.values()) == [1, 1, BYTES]


def answers_after_a_fault():
    def faulty(*args, **options):
        if not args[0].requires_grad:
            torch.zeros(2, device="cuda")[torch.tensor([5], device="cuda")].cpu()  # out of bounds
        return apply(*args, **options)

    rope_triton.apply_rotary_pos_emb = faulty
    asked = {each: Eager("launches", CELL, each) for each in (FORWARD, BACKWARD)}
    return call_costs.answers("title", asked)


def test_fault_costs_its_own_cell_only():
    """In a process of its own, for which it ends the use of the GPU."""
    forward, training = process.call(answers_after_a_fault).values()
    assert isinstance(forward, RuntimeError)
    assert training == 2


# --- error ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("suite", ["host.Error", "host.PathError"])
def test_error_is_little_more_than_rounding_and_repeats_also_in_another_process(suite):
    asked = suite, metric_list.eager(suite)
    here, again = call_costs.answers(*asked), call_costs.answers(*asked)
    there = process.call(call_costs.answers, *asked)
    assert here == again == there
    for (_, params), value in here.items():
        assert 0.999 < value < (4 if "float32" in params else 1.001), value
        assert value >= 1 or suite == "host.PathError"


def test_everything_exact_has_an_answer():
    found = call_costs.exact_facts(_subjects)
    every = metric_list.eager().items()
    assert found.keys() == {key for key, eager in every if eager.kind != "seconds"}
    assert not [str(answer) for answer in found.values() if isinstance(answer, Exception)]
