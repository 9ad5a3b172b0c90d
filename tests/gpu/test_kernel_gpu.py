"""What only a GPU can show: real sizes, streams, graphs.

Needs up to 17 GiB of GPU memory.
"""

import functools

import pytest
import torch

import rope_triton
from benchmarks._subjects.rope import angles
from tests import oracle
from tests.gpu.common import all_modes, apply, inputs, model_angles
from tests.oracle import MODES, Mode

pytestmark = [pytest.mark.gpu, pytest.mark.public]

both_formats = pytest.mark.parametrize("tensor_format", ["sbhd", "bshd"])
both_rotations = pytest.mark.parametrize(
    "interleaved", [False, True], ids=["halves", "interleaved"]
)


def forward_backward(t, freqs, cotangent, mode):
    out = apply(t, freqs, mode)
    return out, *torch.autograd.grad(out, t, cotangent)


@pytest.mark.parametrize("width", [64, 128, 256])
def test_model_angles(width):
    angles.check_package(2048, width, "cuda")


@all_modes
@pytest.mark.parametrize(
    ("seq", "batch", "heads"),
    [(70001, 1, 1), (70001, 2, 1), (2, 70001, 3), (1, 1, 300001)],
    ids=["seq", "seq_of_a_batch", "batch", "heads"],
)
def test_dimensions_beyond_a_grid_of_65535_programs(seq, batch, heads, mode):
    t, freqs, cotangent = inputs(mode, seq, batch, heads, 32)
    oracle.check(t, freqs, mode, cotangent)


@pytest.mark.parametrize("shape", [(1, 65_536, 4, 32), (65_536, 2, 3, 32)], ids=["heads", "batch"])
def test_heads_before_positions_beyond_a_grid_of_65535_programs(shape):
    x, angles = torch.randn(shape, device="cuda"), model_angles(shape[2], 32)[:, 0, 0, :16]
    actual, expected = (
        rope_triton.rotary_embedding(x, angles.cos(), angles.sin(), fused=fused)
        for fused in (True, False)
    )
    torch.testing.assert_close(actual, expected)


@both_formats
@both_rotations
def test_long_positions(tensor_format, interleaved):
    """cos and sin of float32 angles up to 131072 rad, read off pairs (1, 0) and (0, 1)."""
    mode = Mode(torch.float32, tensor_format, interleaved, 1.0)
    seq, channels = 131072 + 9, 128
    t, freqs, cotangent = inputs(mode, seq, 1, 2, channels)
    with torch.no_grad():
        t.zero_()
        oracle.pairs(t, interleaved)[:, :, 0, :, 0] = 1
        oracle.pairs(t, interleaved)[:, :, 1, :, 1] = 1
    cotangent.copy_(t)
    out, grad = forward_backward(t, freqs, cotangent, mode)
    options = freqs, tensor_format, interleaved
    close = functools.partial(torch.testing.assert_close, rtol=0, atol=1e-6)
    close(out.double(), oracle.rotate(t.detach(), *options))
    close(grad.double(), oracle.gradient(t, *options, cotangent))


def assert_rows(t, freqs, cotangent, out, grad, mode, rows):
    """Compare these positions only: float64 of everything would not fit."""
    seq_dim = mode.tensor_format.index("s")
    t, cotangent, out, grad = (
        x.detach().narrow(seq_dim, rows.start, len(rows)) for x in (t, cotangent, out, grad)
    )
    options = freqs[rows.start : rows.stop], mode.tensor_format, mode.interleaved
    torch.testing.assert_close(out, oracle.rotate(t, *options).to(mode.dtype))
    torch.testing.assert_close(grad, oracle.gradient(t, *options, cotangent).to(mode.dtype))


@both_formats
@both_rotations
def test_more_than_2_to_the_31_elements(tensor_format, interleaved):
    mode = Mode(torch.bfloat16, tensor_format, interleaved, 0.5)
    seq, batch, heads, channels = 4100, 8, 256, 256
    t, freqs, cotangent = inputs(mode, seq, batch, heads, channels)
    assert t.numel() > 2**31
    out, grad = forward_backward(t, freqs, cotangent, mode)
    element = torch.unravel_index(torch.tensor(2**31), t.shape)
    middle = int(element[tensor_format.index("s")])
    for rows in (range(2), range(middle - 1, middle + 2), range(seq - 2, seq)):
        assert_rows(t, freqs, cotangent, out, grad, mode, rows)


def far_apart(dim, stride, shape, dtype):
    """A tensor whose neighbours in one dimension lie ``stride`` elements apart."""
    strides = list(torch.empty(shape, device="meta").stride())
    strides[dim] = stride
    extent = 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    view = torch.empty(extent, dtype=dtype, device="cuda").as_strided(shape, strides)
    return view.copy_(torch.randn(shape, device="cuda"))


@both_formats
@pytest.mark.parametrize("n", [2, 3], ids=["stride_beyond", "offset_beyond"])
@pytest.mark.parametrize("dim", range(4))
def test_offsets_beyond_2_to_the_31(dim, n, tensor_format):
    mode = Mode(torch.bfloat16, tensor_format, False, 0.5)
    shape = [4, 3, 5, 16]
    shape[dim] = n
    stride = 2**31 // (n - 1) + 64
    t, cotangent = (far_apart(dim, stride, shape, mode.dtype) for _ in range(2))
    seq, width = shape[tensor_format.index("s")], 2 if dim == 3 else 8
    oracle.check(t, oracle.random_angles(seq, width, "cuda"), mode, cotangent)


@all_modes
def test_cuda_graph_gives_the_same_bits(mode):
    t, freqs, cotangent = inputs(mode, 257, 3, 6, 128)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compiles, which a capture must not
        forward_backward(t, freqs, cotangent, mode)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = forward_backward(t, freqs, cotangent, mode)
    with torch.no_grad():
        t.normal_()
        cotangent.normal_()
    graph.replay()
    for replayed, eager in zip(captured, forward_backward(t, freqs, cotangent, mode), strict=True):
        assert torch.equal(replayed, eager)


@all_modes
def test_current_stream(mode):
    t, freqs, cotangent = inputs(mode, 257, 3, 6, 128)
    expected = forward_backward(t, freqs, cotangent, mode)
    late_t, late_cotangent = torch.zeros_like(t, requires_grad=True), torch.zeros_like(t)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)  # cycles: another stream would read the zeros meanwhile
        with torch.no_grad():
            late_t.copy_(t)
            late_cotangent.copy_(cotangent)
        results = forward_backward(late_t, freqs, late_cotangent, mode)
    side.synchronize()
    for result, correct in zip(results, expected, strict=True):
        assert torch.equal(result, correct)


@all_modes
@pytest.mark.parametrize("index", range(max(1, torch.cuda.device_count())))
def test_device_other_than_the_current_one(index, mode):
    device = f"cuda:{index}"
    with torch.cuda.device((index + 1) % torch.cuda.device_count()):
        t = oracle.contiguous(mode.shape(33, 2, 6, 64), mode.dtype, device)
        freqs = oracle.random_angles(33, mode.width(64), device)
        oracle.check(t, freqs, mode, oracle.random_like(t))


def test_gradient_of_a_sum_is_read_in_place():
    t, freqs, _ = inputs(MODES[0], 257, 3, 6, 128)
    out = apply(t, freqs, MODES[0])
    cotangent = torch.ones((), device="cuda").expand_as(out)
    (grad,) = torch.autograd.grad(out, t, cotangent, retain_graph=True)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    (again,) = torch.autograd.grad(out, t, cotangent)
    peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    assert peak - before == again.nbytes  # as asked for: a block of the allocator may be larger
    assert torch.equal(again, grad)


def test_cpu_tensor_is_an_error():
    t, freqs = torch.ones(2, 1, 1, 4), torch.ones(2, 1, 1, 4)
    with pytest.raises(ValueError, match=r"tensor is on cpu.*cuda.*fused=False"):
        rope_triton.apply_rotary_pos_emb(t, freqs)
