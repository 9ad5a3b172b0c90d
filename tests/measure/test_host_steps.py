"""Memory and launches of a step; without a GPU."""

import contextlib
import math
import types
import weakref

import pytest
import torch

from benchmarks._measure import graph_nodes, memory_and_launches
from benchmarks._subjects import metrics
from tests.measure.common import change, implement, params_of
from tests.measure.driver import Driver, Node

CELL = memory_and_launches.step_cell("sbhd", "float16")


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
        assert params == ("training", CELL, "transposed") and intermediate
        return call

    allocator.peak = 10**9
    monkeypatch.setattr(memory_and_launches, "_step_call", build)
    assert memory_and_launches.peak_bytes("training", CELL, "transposed") == 700
    monkeypatch.setattr(torch.cuda, "memory_stats", dict)  # counts nothing
    with pytest.raises(RuntimeError, match="counts no requested bytes: unset PYTORCH_NO_CUDA"):
        memory_and_launches.peak_bytes("training", CELL, "transposed")


@pytest.mark.parametrize("format", metrics.FORMATS)
@pytest.mark.parametrize("layout", metrics.LAYOUTS)
@pytest.mark.parametrize("intermediate", [False, True])
def test_layout_reaches_the_call_and_its_gradient(
    on_cpu, format, layout, intermediate, monkeypatch
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
    cell = memory_and_launches.step_cell(format, "float16")
    for step in ("training", "forward"):
        memory_and_launches._step_call(step, cell, layout, intermediate)()
    t, gradient, alone = seen
    for x in seen:
        assert x.shape == ((8, 2, 64, 16) if format == "sbhd" else (2, 8, 64, 16))
        assert x.dtype == torch.float16
        assert x.is_contiguous() == (layout == "contiguous")
        assert (x.stride(3) == 1) == (layout == "contiguous")
        assert (x.stride(0) > x.stride(1)) == (layout == "contiguous")
    assert not alone.requires_grad


@pytest.mark.parametrize("step, path", params_of(metrics.PATH_LAUNCHES))
@pytest.mark.parametrize("intermediate", [False, True])
def test_step_of_a_path_runs_as_it_is_called(on_cpu, step, path, intermediate, monkeypatch):
    outputs = []
    change(monkeypatch, lambda output: outputs.append(output) or output)
    cell = memory_and_launches.path_step_cell(path)
    result = memory_and_launches._step_call(step, cell, "contiguous", intermediate)()
    assert [output.requires_grad for output in outputs] == [step == "training"]
    if step == "training":
        assert sum(gradient.numel() for gradient in result) == math.prod(cell.shape)


@pytest.mark.parametrize("saves", [False, True])
def test_in_training_only_what_is_saved_outlives_the_forward(on_cpu, saves, monkeypatch):
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
    cell = memory_and_launches.step_cell("sbhd", "float32")
    memory_and_launches._step_call("training", cell, "contiguous", intermediate=True)()
    assert inputs[1] == saves
    assert alive == [saves]


def test_launches_are_kernels_copies_and_fills(on_cpu, monkeypatch):
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
    driver = Driver([Node(kind) for kind in (0, 0, 1, 2, 3, 4, 5, 6, 7)])
    monkeypatch.setattr(graph_nodes.ctypes, "CDLL", lambda name: driver)
    implement(monkeypatch, apply)
    cell = memory_and_launches.step_cell("sbhd", "float16")  # smaller than CELL
    assert memory_and_launches.launches("forward", cell) == 4
