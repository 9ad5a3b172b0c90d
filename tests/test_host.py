"""What a call costs besides GPU time: every measure, every failure, asv's view; without a GPU."""

import contextlib
import functools
import itertools
import json
import math
import pickle
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
import torch

import rope_triton
from benchmarks import (
    _first_call,
    _grid,
    _host,
    _host_error,
    _host_inputs,
    _host_steps,
    _process,
    host,
)
from tests import oracle, plain

ROOT = Path(__file__).resolve().parent.parent
NO_GPU = "no NVIDIA GPU: torch.cuda.is_available() is False"
UNITS = {
    _host.CALL_FORWARD: "seconds",
    _host.CALL_FORWARD_BACKWARD: "seconds",
    _host.COMPILE: "seconds",
    _host.WARM_START: "seconds",
    _host.OWN_START: "seconds",
    _host.PEAK_BYTES: "bytes",
    _host.LAUNCHES: "launches",
    _host.ERROR: "x rounding",
    _host.PATH_FORWARD: "seconds",
    _host.PATH_FORWARD_BACKWARD: "seconds",
    _host.PATH_PEAK_BYTES: "bytes",
    _host.PATH_LAUNCHES: "launches",
    _host.PATH_ERROR: "x rounding",
}
COUNTS = dict(zip(UNITS, (2, 2, 1, 1, 1, 24, 24, 24, 6, 5, 11, 11, 22), strict=True))
EXACT = (_host.PEAK_BYTES, _host.LAUNCHES, _host.ERROR)
PATH_EXACT = (_host.PATH_PEAK_BYTES, _host.PATH_LAUNCHES, _host.PATH_ERROR)
IN_PLACE = NotImplementedError("a rotation in place has no backward pass of its own")
ERROR_CASES = [params for _, params in _host._keys(_host.ERROR, _host_error.PARAMS)]
apply_plain = functools.partial(rope_triton.apply_rotary_pos_emb, fused=False)


@pytest.fixture(autouse=True)
def progress(tmp_path, monkeypatch):
    path = tmp_path / "progress"
    monkeypatch.setenv("ROPE_PROGRESS", str(path))
    return lambda: [line for line in path.read_text().splitlines() if line]


@pytest.fixture
def on_cpu(monkeypatch):
    """Measures as on a GPU, but CPU tensors in plain PyTorch."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(_host_inputs, "DEVICE", "cpu")
    monkeypatch.setattr(_host_error, "_SHAPE", (256, 1, 2, 128))
    monkeypatch.setattr(rope_triton, "apply_rotary_pos_emb", apply_plain)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors so small that more only wait for each other
    yield
    torch.set_num_threads(threads)


def implement(monkeypatch, apply):
    monkeypatch.setattr(rope_triton, "apply_rotary_pos_emb", apply)


# --- error ----------------------------------------------------------------------------------------


def rounded_rotation(loss):
    """A rotation in float64 on cos and sin with a loss, rounded once to the dtype of ``t``."""

    def apply(t, freqs, tensor_format, interleaved):
        assert tensor_format == "sbhd"
        cos, sin = loss(freqs.double().cos()).double(), loss(freqs.double().sin()).double()
        first, second = oracle.pairs(t.double(), interleaved).unbind(-1)
        cos, sin = (oracle.pairs(x, interleaved)[..., 0] for x in (cos, sin))
        turned = first * cos - second * sin, second * cos + first * sin
        return (torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)).to(
            t.dtype
        )

    return apply


@pytest.mark.parametrize("params", ERROR_CASES, ids="-".join)
def test_perfect_result_has_the_error_1(on_cpu, params, monkeypatch):
    implement(monkeypatch, rounded_rotation(lambda x: x))
    assert _host_error.error(*params) == 1.0


LOSSES = {
    # a loss of cos and sin: for each dtype, at least this error
    "bfloat16": (lambda x: x.bfloat16(), {"bfloat16": 1.25, "float16": 5, "float32": 1e4}),
    "float16": (lambda x: x.half(), {"bfloat16": 1.004, "float16": 1.25, "float32": 1e3}),
    "approximation": (lambda x: x + 5e-7, {"bfloat16": 1, "float16": 1, "float32": 5}),
}


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("dtype", _host_inputs.DTYPES)
@pytest.mark.parametrize("loss", LOSSES)
def test_loss_of_precision_is_seen(on_cpu, loss, dtype, direction, monkeypatch):
    function, least = LOSSES[loss]
    implement(monkeypatch, rounded_rotation(function))
    assert _host_error.error(direction, dtype, "long", "False") >= least[dtype]


def test_loss_that_the_tolerance_of_the_tests_lets_through_is_seen(on_cpu, monkeypatch):
    """cos and sin with the error of hardware approximations, in float32."""
    freqs = _host_inputs.freqs_of(_host_inputs.angles_of(0, 64, 128))
    t = torch.rand(64, 1, 2, 128)
    coarse = rounded_rotation(LOSSES["approximation"][0])
    exact = oracle.rotate(t, freqs, "sbhd", False).float()
    torch.testing.assert_close(coarse(t, freqs, "sbhd", False), exact)
    implement(monkeypatch, coarse)
    assert _host_error.error("forward", "float32", "short", "False") > 5


def test_error_of_plain_float32_is_that_of_a_few_roundings(on_cpu):
    for positions in _host_error.POSITIONS:
        assert 1 < _host_error.error("forward", "float32", positions, "True") < 2


def test_long_positions_are_long(on_cpu, monkeypatch):
    """A reduction of the angles that loses one bit in 2^20 shows there and only there."""
    fine = rounded_rotation(lambda x: x)

    def apply(t, freqs, tensor_format, interleaved):
        return fine(t, freqs.double() + 2.0**-30 * freqs.double(), tensor_format, interleaved)

    implement(monkeypatch, apply)
    short, long = (_host_error.error("forward", "float32", p, "False") for p in ("short", "long"))
    assert short < 20 < 100 < long


def test_error_is_the_same_again_and_with_other_threads(on_cpu):
    before = torch.get_num_threads()
    try:
        errors = set()
        for threads in (1, 2, 1):
            torch.set_num_threads(threads)
            torch.manual_seed(threads)
            errors.add(_host_error.error("backward", "float32", "short", "False"))
    finally:
        torch.set_num_threads(before)
    assert len(errors) == 1


def test_nan_has_no_error(on_cpu, monkeypatch):
    implement(monkeypatch, lambda t, *_, **__: t * float("nan"))
    with pytest.raises(ValueError, match="NaN or infinite"):
        _host_error.error("forward", "float32", "short", "False")


@pytest.mark.parametrize("interleaved", [False, True])
def test_exact_result_is_that_of_the_oracle(interleaved):
    angles = _host_inputs.angles_of(1000, 16, 12)
    x = torch.rand(16, 2, 3, 12)
    twice = angles.repeat_interleave(2, -1) if interleaved else torch.cat((angles, angles), -1)
    options = twice, "sbhd", interleaved
    close = functools.partial(torch.testing.assert_close, rtol=1e-14, atol=1e-14)
    close(_host_error.exact_rotation(x, angles, "forward", interleaved), oracle.rotate(x, *options))
    close(
        _host_error.exact_rotation(x, angles, "backward", interleaved),
        oracle.gradient(x, *options, x),
    )


def test_angles_are_those_of_the_package():
    for first in _host_error.POSITIONS.values():
        expected = rope_triton.RotaryPositionEmbedding(128)(64, offset=first)
        found = _host_inputs.angles_of(first, 64, 128)
        torch.testing.assert_close(torch.cat((found, found), -1), expected, rtol=1e-6, atol=0)


# --- host time ------------------------------------------------------------------------------------

CALLS = [
    (m, f) for m in (_host.CALL_FORWARD, _host.CALL_FORWARD_BACKWARD) for f in _host_inputs.FORMATS
]
all_calls = pytest.mark.parametrize(("metric", "format"), CALLS)


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless it is moved; few calls."""
    now = types.SimpleNamespace(seconds=0.0)
    fake = types.SimpleNamespace(perf_counter=lambda: now.seconds)
    for module in (_host, _first_call):
        monkeypatch.setattr(module, "time", fake)
    monkeypatch.setattr(_host, "_WARM_CALLS", 2)
    monkeypatch.setattr(_host, "_BLOCK_CALLS", 3)
    monkeypatch.setattr(_host, "_BLOCKS", 2)
    return now


@all_calls
def test_time_in_the_call_path_is_seen(on_cpu, clock, metric, format, monkeypatch):
    def apply(t, freqs, tensor_format):
        assert t.requires_grad == (metric == _host.CALL_FORWARD_BACKWARD)
        assert tensor_format == format
        clock.seconds += 20e-6
        return apply_plain(t, freqs, tensor_format)

    implement(monkeypatch, apply)
    assert _host.call_seconds(metric, format) == pytest.approx([20e-6] * _host._BLOCKS)


@pytest.mark.parametrize("format", _host_inputs.FORMATS)
def test_time_in_the_backward_is_seen(on_cpu, clock, format, monkeypatch):
    def apply(t, *args, **options):
        output = apply_plain(t, *args, **options)
        if output.requires_grad:
            output.register_hook(lambda _: setattr(clock, "seconds", clock.seconds + 20e-6))
        return output

    implement(monkeypatch, apply)
    assert _host.call_seconds(_host.CALL_FORWARD, format) == [0.0] * _host._BLOCKS
    both = _host.call_seconds(_host.CALL_FORWARD_BACKWARD, format)
    assert both == pytest.approx([20e-6] * _host._BLOCKS)


@all_calls
def test_wrong_result_has_no_speed(on_cpu, clock, metric, format, monkeypatch):
    implement(monkeypatch, lambda t, freqs, **options: apply_plain(t, -freqs, **options))
    with pytest.raises(AssertionError, match="not close"):
        _host.call_seconds(metric, format)


def test_blocks_begin_with_an_empty_queue_and_without_garbage_collection(clock, monkeypatch):
    import gc

    events = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: events.append("wait"))
    _host._host_seconds(lambda: events.append(gc.isenabled()), _host._BLOCKS)
    assert events == [True] * 2 + ["wait", *[False] * 3] * 2 + ["wait"]
    assert gc.isenabled()


# --- the first call of a process ------------------------------------------------------------------


def test_first_call_is_clocked_and_checked(on_cpu, clock, monkeypatch):
    costs = [2.0, 0.1]

    def apply(t, *args, **options):
        clock.seconds += costs.pop(0)
        return apply_plain(t, *args, **options)

    implement(monkeypatch, apply)
    assert _first_call._clocked(str(ROOT), False) == 2.0
    assert costs == [0.1]
    implement(monkeypatch, lambda t, freqs, **options: t)
    with pytest.raises(AssertionError, match="not close"):
        _first_call._clocked(None, False)


def test_package_from_elsewhere_is_refused(on_cpu, tmp_path):
    with pytest.raises(RuntimeError, match="was to be imported from .*, but came from"):
        _first_call._clocked(str(tmp_path), False)


def test_first_call_asks_a_process_with_the_roots_package_and_cache(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        _process, "call", lambda *args, **options: asked.append((args, options)) or 1.5
    )
    assert _first_call.seconds(tmp_path, tmp_path / "cache") == 1.5
    assert _first_call.seconds(None, tmp_path / "cache", after_another=True) == 1.5
    env, root = {"TRITON_CACHE_DIR": str(tmp_path / "cache")}, str(tmp_path)
    assert asked == [
        ((_first_call.answer, root, False), {"path": (root,), "env": env}),
        ((_first_call.answer, None, True), {"path": (), "env": env}),
    ]


def test_first_call_without_a_gpu_says_so(tmp_path, monkeypatch):
    """A real process: it imports the suite, and torch, and its answer comes back."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(NotImplementedError) as raised:
        _first_call.seconds(ROOT, tmp_path)
    assert str(raised.value) == NO_GPU


def test_fresh_process_has_the_path_and_the_environment_and_no_other_directory(
    tmp_path, monkeypatch
):
    (tmp_path / "root").mkdir()
    (tmp_path / "here").mkdir()
    for name in ("root", "here"):
        (tmp_path / name / "package_of_this_test.py").write_text(f"NAME = {name!r}")
    monkeypatch.chdir(tmp_path / "here")
    names = _process.call(
        eval,
        "__import__('package_of_this_test').NAME, __import__('os').environ['OF_THIS_TEST']",
        path=(str(tmp_path / "root"),),
        env={"OF_THIS_TEST": "set"},
    )
    assert names == ("root", "set")


def test_fresh_process_that_fails_or_hangs_is_an_error(monkeypatch):
    with pytest.raises(RuntimeError, match="ended with 1:(?s:.*)ValueError"):
        _process.call(math.sqrt, -1)
    with pytest.raises(RuntimeError, match="ended with -9"):
        _process.call(exec, "import os; os.kill(os.getpid(), 9)")
    monkeypatch.setattr(_process, "CALL_SECONDS", 0.5)
    with pytest.raises(RuntimeError, match="not done after 0.5 s"):
        _process.call(time.sleep, 60)


def test_first_calls_share_a_cache_by_threes(on_cpu, monkeypatch):
    caches = []

    def seconds(root, cache_dir, after_another):
        assert root is None
        warm = (cache_dir / "kernel").exists()
        (cache_dir / "kernel").touch()
        caches.append(cache_dir)
        return (0.02 if after_another else 0.1) if warm else 1.0 + len(caches)

    monkeypatch.setattr(_first_call, "seconds", seconds)
    assert _host.first_call_samples() == {
        (_host.COMPILE, ()): [2.0, 5.0, 8.0],
        (_host.WARM_START, ()): [0.1] * 3,
        (_host.OWN_START, ()): [0.02] * 3,
    }
    assert len(set(caches)) == 3
    assert not any(cache.exists() for cache in caches)


def test_another_kernel_goes_before_the_clock_starts(on_cpu, clock, monkeypatch):
    launched = []

    def launch(x):
        clock.seconds += 0.5
        launched.append(x.device.type)

    monkeypatch.setattr(_first_call, "_launch_another", launch)
    assert _first_call._clocked(None, True) == 0.0
    assert launched == ["cpu"]


# --- memory and launches --------------------------------------------------------------------------


class Allocator:
    """Bytes asked of torch's CUDA allocator, current and peak, as torch tells them."""

    def __init__(self, monkeypatch):
        self.current = self.peak = 0
        monkeypatch.setattr(torch.cuda, "memory_stats", self.stats)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self.reset)

    def stats(self):
        return {f"requested_bytes.all.{name}": value for name, value in vars(self).items()}

    def reset(self):
        self.peak = self.current

    def add(self, size):
        self.current += size
        self.peak = max(self.peak, self.current)


def test_peak_is_what_the_call_asks_for_beyond_what_its_caller_holds(on_cpu, monkeypatch):
    allocator = Allocator(monkeypatch)
    allocator.add(1000)

    def call():
        allocator.add(700)
        allocator.add(-300)
        allocator.add(50)
        allocator.add(-450)

    def build(*params, intermediate):
        assert params == ("training", "sbhd", "float16", "transposed") and intermediate
        return call

    allocator.peak = 10**9
    monkeypatch.setattr(_host_steps, "_step_call", build)
    assert _host_steps.peak_bytes("training", "sbhd", "float16", "transposed") == 700


def test_allocator_that_counts_nothing_is_an_error(on_cpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "memory_stats", dict)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(_host_steps, "_step_call", lambda *_, **__: lambda: None)
    with pytest.raises(RuntimeError, match="counts no requested bytes: unset PYTORCH_NO_CUDA"):
        _host_steps.peak_bytes("forward", "sbhd", "float16", "contiguous")


@pytest.fixture
def small_steps(monkeypatch):
    monkeypatch.setattr(_host_steps, "_SEQ_LEN", 8)
    monkeypatch.setattr(_host_steps, "_HIDDEN_SIZE", 16)


@pytest.mark.parametrize("format", _host_inputs.FORMATS)
@pytest.mark.parametrize("layout", _host_steps.LAYOUTS)
@pytest.mark.parametrize("intermediate", [False, True])
def test_layout_reaches_the_call_and_its_gradient(
    on_cpu, small_steps, format, layout, intermediate, monkeypatch
):
    seen = []

    class Rotate(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            seen.append(t)
            return t.clone(memory_format=torch.contiguous_format)

        @staticmethod
        def backward(ctx, gradient):
            seen.append(gradient)
            return gradient.clone()

    implement(monkeypatch, lambda t, freqs, **options: Rotate.apply(t))
    _host_steps._step_call("training", format, "float16", layout, intermediate)()
    _host_steps._step_call("forward", format, "float16", layout, intermediate)()
    t, gradient, alone = seen
    for x in seen:
        assert x.shape == ((8, 2, 64, 16) if format == "sbhd" else (2, 8, 64, 16))
        assert x.dtype == torch.float16
        assert x.is_contiguous() == (layout == "contiguous")
        assert (x.stride(3) == 1) == (layout == "contiguous")
        assert (x.stride(0) > x.stride(1)) == (layout == "contiguous")
    assert not alone.requires_grad


@pytest.mark.parametrize("saves", [False, True])
def test_in_training_only_what_is_saved_outlives_the_forward(
    on_cpu, small_steps, saves, monkeypatch
):
    import weakref

    inputs = []

    class Rotate(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            inputs.append(weakref.ref(t.untyped_storage()))
            ctx.save_for_backward(*([t] if saves else []))
            return t * 2

        @staticmethod
        def backward(ctx, gradient):
            inputs.append(bool(ctx.saved_tensors))
            return gradient * 2

    implement(monkeypatch, lambda t, freqs, **options: Rotate.apply(t))
    alive = []
    gradient = torch.autograd.grad
    monkeypatch.setattr(
        torch.autograd,
        "grad",
        lambda *args: alive.append(inputs[0]() is not None) or gradient(*args),
    )
    _host_steps._step_call("training", "sbhd", "float32", "contiguous", intermediate=True)()
    assert inputs[1] == saves
    assert alive == [saves]


class Driver:
    """CUDA's list of the nodes of graph 77, whose types are given; ``fails`` at this function."""

    def __init__(self, kinds, fails=None):
        self.kinds, self.fails = kinds, fails

    def cuGraphGetNodes(self, graph, nodes, count):
        assert graph.value == 77
        count._obj.value = len(self.kinds)
        if nodes is not None:
            nodes[:] = [1000 + index for index in range(len(self.kinds))]
        return 700 * (self.fails == "nodes")

    def cuGraphNodeGetType(self, node, kind):
        kind._obj.value = self.kinds[node.value - 1000]
        return 700 * (self.fails == "type")


def test_nodes_of_a_graph_are_listed():
    assert _host_steps._node_kinds(77, Driver([0, 2, 7, 0, 1])) == [0, 2, 7, 0, 1]
    assert _host_steps._node_kinds(77, Driver([])) == []
    for fails in ("nodes", "type"):
        with pytest.raises(RuntimeError, match="CUresult 700"):
            _host_steps._node_kinds(77, Driver([0], fails))


def test_launches_are_kernels_copies_and_fills(on_cpu, small_steps, monkeypatch):
    captured = []

    @contextlib.contextmanager
    def capture(graph, stream):
        captured.append(None)
        yield
        assert captured[1:] == [torch.Size([8, 2, 64, 16])]

    def apply(t, freqs, **options):
        if captured:
            captured.append(t.shape)
        return t * 1

    stream = types.SimpleNamespace(synchronize=lambda: None)
    graph = types.SimpleNamespace(raw_cuda_graph=lambda: 77)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda keep_graph: keep_graph and graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    # kernel, memcpy, memset; host function, child graph, empty, waits and records of events
    monkeypatch.setattr(
        _host_steps.ctypes, "CDLL", lambda name: Driver([0, 0, 1, 2, 3, 4, 5, 6, 7])
    )
    implement(monkeypatch, apply)
    assert _host_steps.launches("forward", "sbhd", "float16", "contiguous") == 4


# --- failures -------------------------------------------------------------------------------------


def raise_(error):
    raise error


def import_name():
    from rope_triton import a_name_that_no_commit_has  # noqa: F401


def import_package():
    import rope_triton_that_nobody_has  # noqa: F401


FAILURES = {
    "no backward yet": (lambda: raise_(NotImplementedError("no backward yet")), True),
    "cannot import name": (import_name, True),
    "12 GB": (lambda: raise_(torch.cuda.OutOfMemoryError("12 GB")), True),
    "No module named": (import_package, False),
    "AssertionError: not close": (lambda: raise_(AssertionError("not close")), False),
}


@pytest.mark.parametrize("message", FAILURES)
def test_failure_is_its_own_cells_only(on_cpu, message, monkeypatch):
    fail, unavailable = FAILURES[message]
    bad = ("training", "sbhd", "float16", "transposed")

    def measure(*params):
        return fail() if params == bad else 1.0

    for metric in (*EXACT, *PATH_EXACT):
        monkeypatch.setitem(_host._MEASURES, metric, measure)
    found = _host.exact_facts()
    failed = [found.pop((metric, bad)) for metric in (_host.PEAK_BYTES, _host.LAUNCHES)]
    assert set(found.values()) == {1.0}
    for error in failed:
        assert message in str(error)
        assert isinstance(error, NotImplementedError) == unavailable
        assert ("Traceback" in str(error)) != unavailable


def test_a_fault_that_ends_the_process_leaves_the_rest_to_a_fresh_one(on_cpu, monkeypatch):
    def lost(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def measure(*params):
        if params == keys[1][1]:
            monkeypatch.setattr(torch.cuda, "synchronize", lost)
            lost()
        return 1.0

    keys = _host._keys(_host.PEAK_BYTES, _host_steps.PARAMS)
    monkeypatch.setitem(_host._MEASURES, _host.PEAK_BYTES, measure)
    monkeypatch.setattr(
        _process, "call", lambda function, rest: {key: (function, 2.0) for key in rest}
    )
    found = _host.memory_facts()
    assert list(found) == keys
    assert found.pop(keys[0]) == 1.0
    assert "illegal memory access" in str(found.pop(keys[1]))
    assert set(found.values()) == {(_host._answers, 2.0)}


def test_the_fresh_process_failing_is_an_error_of_its_keys(on_cpu, monkeypatch):
    monkeypatch.setattr(_process, "_CALL", "sys.exit(3)")
    found = _host._answers_of_fresh_process([("a", ()), ("b", ())])
    assert list(found) == [("a", ()), ("b", ())]
    assert all("ended with 3" in str(error) for error in found.values())
    assert _host._answers_of_fresh_process([]) == {}


def test_without_a_gpu_everything_is_unavailable_for_one_reason(progress, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = _host.call_samples() | _host.exact_facts() | _host.first_call_samples()
    found |= _host.path_call_samples()
    metrics = [metric for metric, _ in found]
    assert {metric: metrics.count(metric) for metric in UNITS} == COUNTS
    assert all(isinstance(answer, NotImplementedError) for answer in found.values())
    assert {str(answer) for answer in found.values()} == {NO_GPU}
    assert progress() == [
        f"{title}: n/a, {NO_GPU}"
        for title in ("host.Call", "host", "host.FirstCall", "host.PathCall")
    ]


# --- as asv sees it -------------------------------------------------------------------------------

ASV = """
import json, os, pickle, sys
from asv_runner._aux import update_sys_path
from asv_runner.discovery import disc_benchmarks
root, answers = sys.argv[1:]
update_sys_path(root)
found = {}
for benchmark in disc_benchmarks(root):
    if benchmark.name.startswith("host."):
        benchmark.set_param_idx(0)
        benchmark.set_cache(pickle.load(open(answers, "rb")))
        try:
            found[benchmark.name] = None if benchmark.do_setup() else benchmark.do_run()
        except Exception as error:
            found[benchmark.name] = repr(error)
imports = [name for name in ("torch", "triton", "rope_triton") if name in sys.modules]
print(json.dumps([found, imports]))
"""


def as_asv_runs_it(answers, tmp_path):
    """What each of asv's tracks returns for its first parameters, and what was imported."""
    (tmp_path / "answers").write_bytes(pickle.dumps(answers))
    command = [sys.executable, "-c", ASV, str(ROOT / "benchmarks"), str(tmp_path / "answers")]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


def first_answers():
    """An answer for the first parameters of every track: samples or a fact."""
    samples = {
        (_host.COMPILE, ()): [3.0],
        (_host.WARM_START, ()): [0.5],
        (_host.OWN_START, ()): [0.02],
    }
    samples |= {(_host.CALL_FORWARD, ("sbhd",)): [3e-5, 2e-5]}
    samples |= {(_host.CALL_FORWARD_BACKWARD, ("sbhd",)): [9e-5]}
    samples |= {(_host.PATH_FORWARD, ("thd",)): [4e-5]}
    samples |= {(_host.PATH_FORWARD_BACKWARD, ("thd",)): [8e-5]}
    step = ("forward", "sbhd", "float32", "contiguous")
    facts = {(_host.PEAK_BYTES, step): 4096, (_host.LAUNCHES, step): 1}
    facts |= {(_host.PATH_PEAK_BYTES, ("forward", "thd")): 8192}
    facts |= {(_host.PATH_LAUNCHES, ("forward", "thd")): 3}
    facts |= {(_host.PATH_ERROR, ("forward", "thd", "float32")): 1.5}
    return samples, facts | {(_host.ERROR, ("forward", "float32", "short", "False")): 1.25}


def test_tracks_pick_their_answers_and_asv_needs_no_torch(tmp_path):
    samples, facts = first_answers()
    found, imported = as_asv_runs_it(samples | facts, tmp_path)
    expected = {metric: {"samples": values, "number": 1} for (metric, _), values in samples.items()}
    assert found == expected | {metric: value for (metric, _), value in facts.items()}
    assert imported == []


def test_a_track_that_failed_leaves_the_other_of_its_class_alone(tmp_path):
    samples, facts = first_answers()
    samples[_host.CALL_FORWARD, ("sbhd",)] = RuntimeError("wrong output")
    samples[_host.WARM_START, ()] = NotImplementedError("no GPU")
    found, _ = as_asv_runs_it(samples | facts, tmp_path)
    assert found[_host.CALL_FORWARD] == "RuntimeError('wrong output')"
    assert found[_host.WARM_START] is None
    assert found[_host.CALL_FORWARD_BACKWARD]["samples"] == [9e-5]
    assert found[_host.COMPILE]["samples"] == [3.0]


SUITES = (host.Call, host.FirstCall, host.Memory, host.Launches, host.Error)
PATH_SUITES = (host.PathCall, host.PathMemory, host.PathLaunches, host.PathError)


def tracks_of(suite):
    """asv's names of a class's tracks, and of all its parameters."""
    tracks = [name for name in vars(suite) if name.startswith("track_")]
    params = [tuple(map(str, p)) for p in itertools.product(*getattr(suite, "params", []))]
    return [f"host.{suite.__name__}.{track}" for track in tracks], params


@pytest.mark.parametrize("suite", [*SUITES, *PATH_SUITES])
def test_every_answer_has_its_track(suite, monkeypatch):
    """Every class's tracks and parameters are those that its setup_cache answers."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    names, params = tracks_of(suite)
    answers = suite().setup_cache()
    nothing = set(itertools.product(names, params)) - set(answers)
    assert set(answers) <= set(itertools.product(names, params))
    assert not nothing or suite in PATH_SUITES
    for metric, values in nothing:  # of a rotation in place, the backward
        assert "tables-inplace" in values
        assert "forward_backward" in metric or {"training", "backward"} & {*values}
        with pytest.raises(NotImplementedError, match=str(IN_PLACE)):
            getattr(suite, metric.split(".")[2]).setup(answers, *values)
    for name in names:
        assert getattr(suite, name.split(".")[2]).unit == UNITS[name]
        assert [metric for metric, _ in answers].count(name) == COUNTS[name]
    assert len(getattr(suite, "param_names", [])) == len(getattr(suite, "params", []))
    assert suite.version == "1" and suite.setup_cache.timeout


# --- the other paths ------------------------------------------------------------------------------


@pytest.fixture
def paths_on_cpu(on_cpu, monkeypatch):
    plain.install(monkeypatch)
    monkeypatch.setattr(_host_steps, "_PATH_MIB", 1 / 4)
    monkeypatch.setattr(_host_error, "_PATH_MIB", 1 / 4)


PATH_CALLS = [
    *_host._path_keys(_host.PATH_FORWARD, {"path": _host_inputs.PATHS}),
    *_host._path_keys(_host.PATH_FORWARD_BACKWARD, {"path": _host_inputs.PATHS}),
]
PATH_ERRORS = [params for _, params in _host._path_keys(_host.PATH_ERROR, _host_error.PATH_PARAMS)]
PATH_STEPS = [
    params for _, params in _host._path_keys(_host.PATH_LAUNCHES, _host_steps.PATH_PARAMS)
]


def change(monkeypatch, what):
    """Let ``what`` be made of the first tensor that each function of the package returns."""

    def changed(function):
        def call(*args, **options):
            output = function(*args, **options)
            if isinstance(output, tuple):
                return what(output[0]), *output[1:]
            return output.copy_(what(output)) if options.get("inplace") else what(output)

        return call

    for name, function in plain.FUNCTIONS.items():
        monkeypatch.setattr(rope_triton, name, changed(function))


@pytest.mark.parametrize(("metric", "params"), PATH_CALLS)
def test_time_in_the_call_of_a_path_is_seen(paths_on_cpu, clock, metric, params, monkeypatch):
    def slow(output):
        clock.seconds += 20e-6
        return output

    change(monkeypatch, slow)
    found = _host._answers([(metric, params)])[metric, params]
    assert found == pytest.approx([20e-6] * _host._PATH_BLOCKS)


@pytest.mark.parametrize(("metric", "params"), PATH_CALLS)
def test_wrong_result_of_a_path_has_no_speed(paths_on_cpu, clock, metric, params, monkeypatch):
    change(monkeypatch, lambda output: -output)
    found = _host._answers([(metric, params)])[metric, params]
    assert isinstance(found, RuntimeError)
    assert "not close" in str(found)


@pytest.mark.parametrize("params", PATH_ERRORS, ids="-".join)
def test_error_of_a_path_is_that_of_its_roundings(paths_on_cpu, params):
    assert 0.999 < _host_error.path_error(*params) < (2 if params[2] == "float32" else 1.01)


@pytest.mark.parametrize("params", PATH_ERRORS, ids="-".join)
def test_loss_of_precision_in_a_path_is_seen(paths_on_cpu, params, monkeypatch):
    loss = {"float32": 2.0**-16, "bfloat16": 2.0**-7}[params[2]]
    change(monkeypatch, lambda output: output * (1 + loss))
    assert _host_error.path_error(*params) > 2


@pytest.mark.parametrize("params", PATH_STEPS, ids="-".join)
@pytest.mark.parametrize("intermediate", [False, True])
def test_step_of_a_path_runs_as_it_is_called(paths_on_cpu, params, intermediate, monkeypatch):
    outputs = []
    change(monkeypatch, lambda output: outputs.append(output) or output)
    result = _host_steps._path_step_call(*params, intermediate)()
    step, path = params
    assert [output.requires_grad for output in outputs] == [step == "training"]
    cell = _grid.PathCell(path, _host_steps._PATH_MIB, _host_steps._PATH_DTYPE)
    if step == "training":
        assert result.shape == cell.shape


def test_commit_without_the_paths_has_no_answers_and_says_why(paths_on_cpu, monkeypatch):
    def refuse(t, freqs, tensor_format, **options):
        if options:
            raise NotImplementedError(f"{sorted(options)} is not implemented yet")
        return plain.apply_rotary_pos_emb(t, freqs, tensor_format)

    implement(monkeypatch, refuse)
    for name in plain.FUNCTIONS.keys() - {"apply_rotary_pos_emb"}:
        monkeypatch.delattr(rope_triton, name)
    found = _host._answers([*PATH_CALLS, *((_host.PATH_ERROR, p) for p in PATH_ERRORS)])
    assert {type(answer) for answer in found.values()} == {NotImplementedError}
    assert all(str(answer).startswith("this commit cannot: ") for answer in found.values())
