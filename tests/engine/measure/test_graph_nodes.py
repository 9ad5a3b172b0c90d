"""What a call puts on the stream, in words; without a GPU."""

import contextlib
import types

import pytest
import torch
import triton

from benchmarks._engine.measure import graph_nodes
from tests.engine.measure.driver import Driver, Node

ROPE = Node(0, "rope_kernel", grid=(8, 1, 4))
COSINE = Node(0, "_ZN2at6native10cos_kernelEv", grid=(2, 1, 1), shared=64)
GEMM = Node(0, "sm90_gemm", library=True)
COPY, FILL = Node(1, size=(4096, 2, 1)), Node(2, size=(4, 16, 1))
HOST, EMPTY = Node(3), Node(5)


@pytest.fixture
def describe(monkeypatch):
    """Describes the nodes of a graph, some of them launched through Triton."""

    @contextlib.contextmanager
    def capture(graph, stream):
        capturing.append(True)
        yield
        capturing.clear()

    capturing, hook = [], triton.knobs.runtime.launch_enter_hook
    stream = types.SimpleNamespace(synchronize=lambda: None)
    graph = types.SimpleNamespace(raw_cuda_graph=lambda: 77)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda keep_graph: keep_graph and graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)

    def described(*nodes, function=graph_nodes.described, triton_names=("rope_kernel",), **driver):
        monkeypatch.setattr(graph_nodes.ctypes, "CDLL", lambda name: Driver(nodes, **driver))
        calls = []

        def call():
            calls.append(bool(capturing))
            for name in triton_names:
                hook(types.SimpleNamespace(get=lambda name=name: {"name": name}))

        result = function(call, stream)
        assert calls == [False, True], "compiled, then recorded"
        assert not hook.calls, "nobody listens any more"
        return result

    return described


def test_every_kind_of_work_is_in_the_words(describe):
    text = describe(ROPE, COSINE, ROPE, GEMM, COPY, FILL, HOST, EMPTY)
    digest, _, summary = text.partition(": ")
    assert len(digest) == 16
    assert summary.split("; ") == [
        "1 x copy of 4096x2x1 bytes",
        "1 x fill of 16x1 x 4 bytes",
        "1 x kernel _ZN2at6native10cos_kernelEv, grid 2x1x1, block 128x1x1, 64 bytes shared",
        "1 x kernel sm90_gemm, grid 1x1x1, block 128x1x1",
        "2 x Triton kernel, grid 8x1x4, block 128x1x1",
    ]


def test_launches_are_kernels_copies_and_fills(describe):
    # kernel, memcpy, memset; host function, child graph, empty, waits and records of events
    nodes = [Node(kind) for kind in (0, 0, 1, 2, 3, 4, 5, 6, 7)]
    assert describe(*nodes, function=graph_nodes.launches) == 4


CHANGES = {
    "another kernel of PyTorch's": [ROPE, COSINE],
    "twice": [ROPE, ROPE],
    "another grid": [ROPE._replace(grid=(16, 1, 4))],
    "another block": [ROPE._replace(block=(256, 1, 1))],
    "more shared memory": [ROPE._replace(shared=1024)],
    "a copy": [ROPE, COPY],
    "a larger copy": [ROPE, COPY._replace(size=(8192, 2, 1))],
    "a fill": [ROPE, FILL],
    "nothing": [],
}


def test_texts_differ_where_the_work_does(describe):
    texts = [describe(ROPE), *(describe(*nodes) for nodes in CHANGES.values())]
    assert len(set(texts)) == len(texts)


def test_texts_do_not_differ_for_names_that_triton_gives_or_the_order(describe):
    renamed = ROPE._replace(name="_rotate")
    assert describe(renamed, COPY, triton_names=("_rotate",)) == describe(COPY, ROPE)
    assert describe(renamed) != describe(ROPE), "launched by another"


def test_many_nodes_are_cut_for_the_reader_and_not_for_the_digest(describe):
    many = [Node(0, f"kernel_{index}") for index in range(40)]
    one, other = describe(*many), describe(*many[:-1], many[-1]._replace(grid=(9, 1, 1)))
    assert len(one) < 400 and one.endswith(" ...")
    assert one.split(": ")[0] != other.split(": ")[0]


def test_driver_that_knows_no_names(describe):
    lacks = ("cuFuncGetName", "cuKernelGetName")
    assert "1 x kernel , grid 8x1x4" in describe(ROPE, lacks=lacks)
    assert describe(ROPE, lacks=lacks) != describe(COSINE, lacks=lacks)


@pytest.mark.parametrize(
    "function",
    [
        *("cuGraphGetNodes", "cuGraphNodeGetType", "cuGraphKernelNodeGetParams_v2"),
        *("cuFuncGetName", "cuKernelGetName"),
        *("cuGraphMemcpyNodeGetParams", "cuGraphMemsetNodeGetParams"),
    ],
)
def test_driver_that_fails(describe, function):
    with pytest.raises(RuntimeError, match="CUresult 700"):
        describe(ROPE, GEMM, COPY, FILL, fails=function)


def test_a_call_that_cannot_be_recorded_leaves_no_hook(describe, monkeypatch):
    monkeypatch.setattr(torch.cuda, "graph", contextlib.nullcontext())
    with pytest.raises(TypeError):
        describe(ROPE)
    assert not triton.knobs.runtime.launch_enter_hook.calls
