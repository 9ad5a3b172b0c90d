"""SwiGLU and softmax and their gradients, beside float64; small, also in the interpreter."""

import pytest
import torch
from torch import empty
from torch.library import opcheck

from rope_triton.transformer import activations, softmax, swiglu
from tests.transformer.common import assert_near, assert_same, exact, gradients

# Of the largest value.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3}
all_dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks in a short row."""
    monkeypatch.setattr(activations, "_BLOCK", 16)


def plain_swiglu(gate, up):
    return torch.nn.functional.silu(gate) * up


def plain_softmax(x):
    return torch.softmax(x, -1)


BOTH = pytest.mark.parametrize(
    ("function", "plain", "count"),
    [(swiglu, plain_swiglu, 2), (softmax, plain_softmax, 1)],
    ids=["swiglu", "softmax"],
)


def normal(*shape, dtype=torch.float32, device="cpu"):
    return (3 * torch.randn(shape, device=device)).to(dtype)


def leaves(tensors):
    return [each.detach().requires_grad_() for each in tensors]


@all_dtypes
@BOTH
@pytest.mark.parametrize("shape", [(9, 32), (2, 3, 50), (7,), (3, 2)], ids=str)
def test_both(function, plain, count, shape, dtype, device):
    given = [normal(*shape, dtype=dtype, device=device) for _ in range(count)]
    cotangent = normal(*shape, dtype=dtype, device=device)
    expected = gradients(plain, exact(given), cotangent.double())
    assert_near(gradients(function, given, cotangent), expected, TOLERANCE[dtype], dtype)


LAYOUTS = {
    "transposed": lambda x: x.mT.contiguous().mT,
    "sliced": lambda x: torch.cat((x, x), -1)[..., : x.shape[-1]],
    "every second": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "expanded": lambda x: x[:1].expand_as(x),
    "rows apart": lambda x: torch.cat((x, x), 1)[:, : x.shape[1]],
}


@BOTH
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_has_the_same_bits(function, plain, count, layout, device):
    turn = LAYOUTS[layout]
    given = [turn(normal(2, 5, 20, device=device)) for _ in range(count)]
    cotangent = turn(normal(2, 5, 20, device=device))
    straight = [each.contiguous() for each in given]
    expected = gradients(function, straight, cotangent.contiguous())
    assert_same(gradients(function, given, cotangent), expected)


def test_halves_of_a_projection_are_not_copied(device):
    gate, up = normal(2, 5, 40, device=device).chunk(2, -1)
    assert activations._rows(gate).data_ptr() == gate.data_ptr()
    assert activations._rows(up).data_ptr() == up.data_ptr()


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # of the interpreter
def test_extreme_gates(device):
    gate = torch.tensor([-1e4, -100.0, 0.0, 100.0, 1e4], device=device)
    ones = torch.ones(5, device=device)
    y, dgate, dup = gradients(swiglu, [gate, ones], ones)
    assert torch.equal(y, gate.relu()) and torch.equal(dup, y)
    assert dgate.tolist() == [0, 0, 0.5, 1, 1]


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # of the interpreter
def test_softmax_of_infinities(device):
    x = torch.tensor([[1e4, 1e4, -torch.inf], [-torch.inf] * 3], device=device).requires_grad_()
    y = softmax(x)
    assert y[0].tolist() == [0.5, 0.5, 0] and y[1].isnan().all()
    (dx,) = torch.autograd.grad(y[0, 0], x)
    assert dx[0].tolist() == [0.25, -0.25, 0]


def test_opcheck(device):
    gate, up = leaves(normal(3, 20, device=device) for _ in range(2))
    opcheck(activations._swiglu.overload, (gate, up))
    opcheck(activations._softmax.overload, (gate,))


@BOTH
def test_compiled_without_a_graph_break(function, plain, count, device):
    given = [normal(3, 20, device=device) for _ in range(count)]
    cotangent = normal(3, 20, device=device)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert_same(*(gradients(each, given, cotangent) for each in (function, compiled)))


def test_autocast_is_as_in_pytorch(device):
    gate, up = leaves(normal(3, 20, dtype=torch.float16, device=device) for _ in range(2))
    with torch.autocast(device, torch.float16):
        y, weights = swiglu(gate, up), softmax(gate)
        assert y.dtype == plain_swiglu(gate, up).dtype == torch.float16
    assert torch.equal(y, swiglu(gate, up))
    assert torch.equal(weights, softmax(gate.float()))
    assert torch.autograd.grad(weights.square().sum(), gate)[0].dtype == torch.float16


@pytest.mark.parametrize(
    ("function", "given", "error", "said"),
    [
        (swiglu, (None, empty(2, 3)), TypeError, "gate must be a tensor, got NoneType"),
        (swiglu, (empty(2, 3), empty(2, 3).half()), TypeError, "up torch.float16"),
        (swiglu, (empty(2, 3), empty(3)), ValueError, r"got \(2, 3\) and \(3,\)"),
        (swiglu, (empty(()), empty(())), ValueError, r"must be \[\.\.\., n\] both"),
        (swiglu, (empty(2, 0), empty(2, 0)), ValueError, "gate must not be empty"),
        (swiglu, [empty(1).expand(2**30 + 1)] * 2, ValueError, "at most 1073741824 elements"),
        (softmax, (3,), TypeError, "x must be a tensor, got int"),
        (softmax, (empty(2, 3).long(),), TypeError, "x torch.int64"),
        (softmax, (empty(2, 0),), ValueError, "x must not be empty"),
        (softmax, (empty(()),), ValueError, r"x must be \[\.\.\., n\]"),
        (softmax, (empty(2, 16_385),), ValueError, r"at most 16384, got \(2, 16385\)"),
    ],
)
def test_bad_input_is_refused(function, given, error, said):
    with pytest.raises(error, match=said):
        function(*given)
