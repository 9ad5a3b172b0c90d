"""What a call costs besides GPU time: host time, first calls, memory, launches, error; no GPU."""

import gc
import itertools
import sys
import types
import weakref
from pathlib import Path

import pytest
import torch
import triton

from benchmarks._engine.measure import accuracy, call_costs, first_call, host_time, inputs
from benchmarks._engine.measure import memory_and_launches as memory
from benchmarks._engine.measure.host_time import EagerCall
from benchmarks._engine.subject import BACKWARD, FORWARD, Eager
from benchmarks._engine.system import process
from benchmarks._engine.verdict.metrics import COMPILE, IMPORT, OWN_START, WARM_START
from tests import toy

NO_GPU = "no NVIDIA GPU: torch.cuda.is_available() is False"
CELL = toy.Cell(1024, "float16")
EAGER = toy.eager()
CALLS = {key: eager for key, eager in EAGER.items() if eager.kind == "seconds"}
EXACT = {key: eager for key, eager in EAGER.items() if eager.kind != "seconds"}
both_directions = pytest.mark.parametrize("direction", (FORWARD, BACKWARD))


@pytest.fixture
def package(monkeypatch):
    """The toy's package in plain PyTorch, whose function a test replaces; a GPU is pretended."""
    package = types.ModuleType(toy.PACKAGE)
    package.__file__ = str(Path("/somewhere", toy.PACKAGE, "__init__.py"))
    package.scale = lambda x: toy.FACTOR * x
    monkeypatch.setitem(sys.modules, toy.PACKAGE, package)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(inputs, "DEVICE", "cpu")
    return package


def raising(error):
    def fail(*_, **__):
        raise error

    return fail


def lost():
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


# --- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [NotImplementedError("not yet"), AssertionError("not close")])
def test_a_failure_is_its_own_keys_alone(package, error, monkeypatch):
    """Which errors are failures, and which a lack: see the tests of ``cell_outcomes``."""
    monkeypatch.setitem(call_costs._MEASURES, "launches", raising(error))
    answers = call_costs.exact_facts(toy)
    assert list(answers) == list(EXACT)
    failed = answers.pop(next(key for key in EXACT if EXACT[key].kind == "launches"))
    assert all(isinstance(value, float) for value in answers.values())
    assert str(error) in str(failed)
    assert isinstance(failed, NotImplementedError) == isinstance(error, NotImplementedError)
    assert ("Traceback" in str(failed)) == isinstance(error, AssertionError)


def test_a_fault_that_ends_the_process_leaves_the_rest_to_a_fresh_one(package, monkeypatch):
    def fatal(cell, direction):
        monkeypatch.setattr(torch.cuda, "synchronize", lost)
        lost()

    monkeypatch.setitem(call_costs._MEASURES, "launches", fatal)
    monkeypatch.setitem(call_costs._MEASURES, "peak_bytes", lambda *_: 1.0)
    asked = {kind: Eager(kind, CELL, FORWARD) for kind in ("peak_bytes", "launches", "error")}
    monkeypatch.setattr(process, "call", lambda function, rest: dict.fromkeys(rest, function))
    answers = call_costs.answers("title", asked)
    assert list(answers) == list(asked)
    assert answers["peak_bytes"] == 1.0
    assert "illegal memory access" in str(answers["launches"])
    assert answers["error"] is call_costs._answers


def test_a_fresh_process_that_fails_is_an_error_of_its_keys(package, monkeypatch):
    monkeypatch.setattr(process, "_CALL", "sys.exit(3)")
    monkeypatch.setitem(
        call_costs._MEASURES,
        "launches",
        lambda *_: monkeypatch.setattr(torch.cuda, "synchronize", lost) or lost(),
    )
    asked = {kind: Eager(kind, CELL, FORWARD) for kind in ("launches", "error")}
    assert "ended with 3" in str(call_costs.answers("title", asked)["error"])


def test_without_a_gpu_there_is_a_reason(monkeypatch, progress):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    everything = call_costs.first_call_samples(toy).values()
    assert {(type(answer), str(answer)) for answer in everything} == {(NotImplementedError, NO_GPU)}
    assert progress() == [f"host.FirstCall: n/a, {NO_GPU}"]


# --- the host time of a call ----------------------------------------------------------------------


@both_directions
def test_time_in_the_call_is_seen(package, clock, direction):
    outputs = []

    def slow(x):
        outputs.append(toy.FACTOR * x)
        clock.seconds += 20e-6
        if outputs[-1].requires_grad:
            outputs[-1].register_hook(lambda _: setattr(clock, "seconds", clock.seconds + 1e-6))
        return outputs[-1]

    package.scale = slow
    (samples,) = call_costs.answers("title", {"key": Eager("seconds", CELL, direction)}).values()
    seconds = 20e-6 if direction == FORWARD else 21e-6
    assert samples == pytest.approx([seconds] * host_time.BLOCKS)
    assert {output.requires_grad for output in outputs} == {direction == BACKWARD}
    blocks = host_time.BLOCKS * host_time.BLOCK_CALLS[direction]
    assert len(outputs) == 1 + host_time.WARM_CALLS + blocks


@both_directions
def test_a_wrong_result_has_no_speed(package, clock, direction):
    package.scale = lambda x: -x
    (wrong,) = call_costs.answers("title", {"key": Eager("seconds", CELL, direction)}).values()
    assert isinstance(wrong, RuntimeError) and f"the {direction} is wrong" in str(wrong)


def test_blocks_are_in_turns_and_find_an_empty_queue_and_no_garbage_collection(clock, monkeypatch):
    events = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: events.append("wait"))

    def noted(name):
        return lambda: events.append((name, gc.isenabled()))

    sizes = {"a": 3, "b": 2}
    host_time.times({name: EagerCall(noted(name), size) for name, size in sizes.items()})
    a, b = (["wait", *[(name, False)] * size, "wait"] for name, size in sizes.items())
    assert events == (a + b) * 2
    assert gc.isenabled()


def test_a_call_that_fails_in_its_second_block_is_its_own_failure(clock, monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    calls = itertools.count()

    def failing():
        if next(calls) == 4:
            raise ValueError("the fifth call")

    times = host_time.times({"good": EagerCall(lambda: None, 3), "bad": EagerCall(failing, 3)})
    assert times["good"] == [0.0, 0.0]
    assert "the fifth call" in str(times["bad"])


def test_calls_that_a_fault_leaves_unclocked_are_answered_by_a_fresh_process(package, monkeypatch):
    def fatal():
        monkeypatch.setattr(torch.cuda, "synchronize", lost)
        lost()

    made = {FORWARD: lambda: None, BACKWARD: fatal}
    monkeypatch.setitem(call_costs._MEASURES, "seconds", lambda cell, d: EagerCall(made[d], 1))
    monkeypatch.setitem(call_costs._MEASURES, "error", lambda *_: 1.0)
    monkeypatch.setattr(process, "call", lambda _, rest: dict.fromkeys(rest, "elsewhere"))
    kinds = ("error", FORWARD), ("seconds", FORWARD), ("seconds", BACKWARD)
    asked = {(kind, d): Eager(kind, CELL, d) for kind, d in kinds}
    exact, unclocked, failed = call_costs.answers("title", asked).values()
    assert (exact, unclocked) == (1.0, "elsewhere") and "illegal memory access" in str(failed)


def test_versions_take_turns_in_an_order_that_is_drawn_block_by_block(clock, monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    events = []

    def call(name, version, blocks):
        return EagerCall(lambda: events.append((name, version)), 2, blocks)

    calls = {
        name: {version: call(name, version, blocks) for version in ("base", "head")}
        for name, blocks in (("short", 2), ("long", 3))
    }
    samples = host_time.times_in_turns(calls, list.reverse)
    assert {name: list(map(len, of.values())) for name, of in samples.items()} == {
        "short": [2, 2],
        "long": [3, 3],
    }
    block = [(name, version) for name in calls for version in ("head", "base") for _ in range(2)]
    assert events == block * 2 + block[4:]


# --- first calls ----------------------------------------------------------------------------------


def test_a_first_call_is_clocked_and_checked(package, clock, monkeypatch):
    def scale(x):
        clock.seconds += 2.0
        return toy.FACTOR * x

    package.scale = scale
    assert call_costs.warm_start_here(toy) == {(WARM_START, ()): [2.0]}
    package.scale = lambda x: x
    ((answer,),) = (call_costs.warm_start_here(toy).values(),)
    assert "the forward is wrong" in str(answer)
    elsewhere = first_call.answer(toy.__name__, "/nowhere")
    assert "toy_kernel should have come from /nowhere, it came from /somewhere" in str(elsewhere)


def test_another_kernel_goes_before_the_clock_starts(package, clock, monkeypatch):
    launched = []
    monkeypatch.setattr(first_call, "_launch_another", lambda x: launched.append(x.shape))
    assert first_call.answer(toy.__name__, None, True) == 0.0
    assert launched == [toy.first().shape]


def test_first_calls_share_a_cache_by_threes(package, monkeypatch):
    """Each in a process with the root's package and a cache."""
    caches = []

    def call(function, *args, path=(), env=None):
        if function is first_call.import_package:
            return 0.2
        name, root, after_another = args
        assert (function, name, root, path) == (first_call.answer, toy.__name__, None, ())
        cache = Path(env["TRITON_CACHE_DIR"])
        warm = (cache / "kernel").exists()
        (cache / "kernel").touch()
        caches.append(cache)
        return (0.02 if after_another else 0.1) if warm else 1.0 + len(caches)

    monkeypatch.setattr(process, "call", call)
    assert call_costs.first_call_samples(toy) == {
        (IMPORT, ()): [0.2] * 3,
        (COMPILE, ()): [2.0, 5.0, 8.0],
        (WARM_START, ()): [0.1] * 3,
        (OWN_START, ()): [0.02] * 3,
    }
    assert len(set(caches)) == 3
    assert not any(cache.exists() for cache in caches)


def test_a_first_call_without_a_gpu_says_so(tmp_path, monkeypatch):
    """A real process: it imports the suite, and torch, and its answer comes back."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(NotImplementedError, match=NO_GPU.partition(":")[0]):
        first_call.seconds(toy, None, tmp_path)


def test_import_is_the_packages_own_and_not_torchs(tmp_path):
    """In a real process: a package that takes a tenth of a second, and a torch that takes more."""
    for name, seconds in (("torch", 0.4), (toy.PACKAGE, 0.1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"import time; time.sleep({seconds})")
    importing, path = (first_call.import_package, toy.PACKAGE), (str(tmp_path),)
    assert 0.1 <= process.call(*importing, str(tmp_path), path=path) < 0.4
    with pytest.raises(RuntimeError, match="should have come from /nowhere, it came from"):
        process.call(*importing, "/nowhere", path=path)


def test_a_compilation_is_clocked_once_with_a_cache_of_its_own(package, clock):
    """A package whose call compiles into Triton's cache directory, unless it did so before."""
    compiled, directories, before = set(), [], triton.knobs.cache.dir

    def scale(x):
        directories.append(Path(triton.knobs.cache.dir))
        if x.dtype not in compiled:
            clock.seconds += 0.7
            (directories[-1] / "kernel").touch()
        compiled.add(x.dtype)
        return toy.FACTOR * x

    package.scale = scale
    assert call_costs.compile_here(toy) == {(COMPILE, ()): [pytest.approx(0.7)]}
    assert str(directories[0]) != before == triton.knobs.cache.dir
    assert not directories[0].exists()
    (again,) = call_costs.compile_here(toy).values()
    assert isinstance(again, RuntimeError) and "nothing was compiled" in str(again)


# --- memory and launches --------------------------------------------------------------------------


class Allocator:
    """Bytes asked of torch's CUDA allocator, current and peak, as torch tells them."""

    def __init__(self, monkeypatch):
        self.current = self.peak = 1000
        monkeypatch.setattr(torch.cuda, "memory_stats", self.stats)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self.reset)

    def stats(self):
        return {f"requested_bytes.all.{name}": value for name, value in vars(self).items()}

    def reset(self):
        self.peak = self.current

    def add(self, size):
        self.current += size
        self.peak = max(self.peak, self.current)


def test_peak_is_what_the_call_asks_for_beyond_what_its_caller_holds(package, monkeypatch):
    allocator = Allocator(monkeypatch)

    def scale(x):
        for size in (700, -300, 50, -450):
            allocator.add(size)
        return toy.FACTOR * x

    package.scale = scale
    allocator.peak = 10**9
    assert memory.peak_bytes(CELL, FORWARD) == 700
    monkeypatch.setattr(torch.cuda, "memory_stats", dict)  # counts nothing
    with pytest.raises(RuntimeError, match="counts no requested bytes: unset PYTORCH_NO_CUDA"):
        memory.peak_bytes(CELL, FORWARD)


@pytest.mark.parametrize("saves", [False, True])
def test_in_training_only_what_is_saved_outlives_the_forward(package, saves, monkeypatch):
    Allocator(monkeypatch)
    inputs_alive, alive, gradient = [], set(), torch.autograd.grad

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            inputs_alive[:] = [weakref.ref(x.untyped_storage())]
            ctx.save_for_backward(*([x] if saves else []))
            return 3 * x

        @staticmethod
        def backward(ctx, grad):
            return 3 * grad

    package.scale = Scale.apply
    monkeypatch.setattr(
        *(torch.autograd, "grad"),
        lambda *args: alive.add(inputs_alive[0]() is not None) or gradient(*args),
    )
    memory.peak_bytes(CELL, BACKWARD)
    assert alive == {saves}


# --- error ----------------------------------------------------------------------------------------


@both_directions
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_perfect_result_has_the_error_1_and_any_loss_shows(package, dtype, direction):
    cell = toy.Cell(1024, dtype)
    package.scale = lambda x: (toy.FACTOR * x.double()).to(x.dtype)
    assert accuracy.error(cell, direction) == 1.0
    eps = torch.finfo(getattr(torch, dtype)).eps
    package.scale = lambda x: ((1 + eps) * toy.FACTOR * x.double()).to(x.dtype)
    assert accuracy.error(cell, direction) > 1.1


def test_nan_has_no_error(package):
    package.scale = lambda x: x * float("nan")
    with pytest.raises(ValueError, match="NaN or infinite"):
        accuracy.error(CELL, FORWARD)


def test_a_forward_needs_no_gradient_of_a_call():
    """As of a subject whose calls have none."""
    call = types.SimpleNamespace(operand=lambda x: x, forward=lambda x: x + 1)
    assert inputs.step(call, FORWARD, 1)() == 2
