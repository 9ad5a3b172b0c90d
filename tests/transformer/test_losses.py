"""Cross-entropy and its gradient, beside PyTorch's in float64; small, also in the interpreter."""

import math

import pytest
import torch
from torch import empty
from torch.library import opcheck
from torch.nn import functional

from rope_triton.transformer import cross_entropy, linear_cross_entropy, losses
from tests.transformer import common
from tests.transformer.common import assert_same

# Of the largest value.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3}
IGNORED = -100
CHUNK_OF = losses.chunk_of
all_dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
both_reductions = pytest.mark.parametrize("reduction", ["mean", "sum"])


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """Several blocks and chunks in small matrices, which the interpreter can do."""
    monkeypatch.setattr(losses, "_BLOCK", 32)
    monkeypatch.setattr(losses, "chunk_of", lambda tokens, *_: min(tokens, 4))


def leaf(*shape, dtype=torch.float32, device="cpu"):
    return torch.randn(shape, device=device).to(dtype).requires_grad_()


def some_targets(tokens, vocabulary, device):
    """The first and the last column are among them, and so is one that counts for nothing."""
    targets = torch.randint(vocabulary, (tokens,), device=device)
    targets[:3] = torch.tensor([0, IGNORED, vocabulary - 1])
    return targets


def plain(x, weight, targets, *rest, **options):
    return functional.cross_entropy(x @ weight.mT, targets, *rest, **options)


def results(function, leaves, *rest, **options):
    """The loss, and the gradients of three times that."""
    loss = function(*leaves, *rest, **options)
    return [loss.detach(), *torch.autograd.grad(3 * loss, leaves)]


def exact(leaves):
    return [each.detach().double().requires_grad_() for each in leaves]


def assert_near(found, expected, dtype):
    common.assert_near(found[:1], expected[:1], TOLERANCE[dtype], torch.float32)
    common.assert_near(found[1:], expected[1:], TOLERANCE[dtype], dtype)


@all_dtypes
@both_reductions
@pytest.mark.parametrize(("tokens", "vocabulary"), [(7, 100), (3, 32), (4, 5), (9, 65)])
def test_cross_entropy(tokens, vocabulary, reduction, dtype, device):
    leaves = [leaf(tokens, vocabulary, dtype=dtype, device=device)]
    targets = some_targets(tokens, vocabulary, device)
    found = results(cross_entropy, leaves, targets, reduction=reduction)
    expected = results(functional.cross_entropy, exact(leaves), targets, reduction=reduction)
    assert_near(found, expected, dtype)


@all_dtypes
@both_reductions
@pytest.mark.parametrize(("tokens", "vocabulary"), [(11, 100), (4, 37), (3, 16)])
def test_linear_cross_entropy(tokens, vocabulary, reduction, dtype, device):
    leaves = [leaf(rows, 24, dtype=dtype, device=device) for rows in (tokens, vocabulary)]
    targets = some_targets(tokens, vocabulary, device)
    found = results(linear_cross_entropy, leaves, targets, reduction=reduction)
    expected = results(plain, exact(leaves), targets, reduction=reduction)
    assert_near(found, expected, dtype)


def test_float16_keeps_the_gradients_of_a_mean_over_many_tokens(device):
    """Times 1 / tokens, a small one would be one of float16's last few steps."""
    x = torch.ones(64, 16, device=device).half().requires_grad_()
    weight = torch.zeros(40, 16, device=device).half()
    weight[0] = 11 / 16  # so that the other columns have 2e-5 of the probability
    targets = torch.zeros(64, dtype=torch.int64, device=device)
    both = [x, weight.requires_grad_()]
    factor = 1024.0  # as of torch.amp.GradScaler
    _, dx, dweight = results(lambda *g: factor * linear_cross_entropy(*g), both, targets)
    expected = results(lambda *g: factor * plain(*g), exact(both), targets)[1:]
    for one, other in zip((dx, dweight), expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=5e-3, atol=0)


def test_the_factor_is_not_rounded_to_float16(device):
    """On a GPU ``x * factor`` would be 0."""
    x, factor = torch.full((2,), 6e4, device=device).half(), torch.tensor(1e-8, device=device)
    found = losses._scaled(x, factor, torch.float16)
    torch.testing.assert_close(found.float(), x.float() * factor, rtol=1e-3, atol=0)


@pytest.mark.parametrize("layout", ["transposed", "sliced", "expanded"])
def test_logits_of_any_layout_are_left_as_they_are(layout, device):
    given = {
        "transposed": lambda: torch.randn(50, 6, device=device).mT,
        "sliced": lambda: torch.randn(6, 60, device=device)[:, 3:53],
        "expanded": lambda: torch.randn(50, device=device).expand(6, 50),
    }[layout]()
    before, targets = given.clone(), some_targets(12, 50, device)[::2]
    found = results(cross_entropy, [given.detach().requires_grad_()], targets)
    assert_near(found, results(functional.cross_entropy, exact([given]), targets), torch.float32)
    assert torch.equal(given, before)


@pytest.mark.parametrize("ignored", [0, 5, -1])
def test_any_target_can_be_ignored(ignored, device):
    leaves = [leaf(6, 24, device=device), leaf(40, 24, device=device)]
    targets = torch.tensor([3, ignored, 39, ignored, 1, 7], device=device)
    expected = results(plain, exact(leaves), targets, ignore_index=ignored)
    found = results(linear_cross_entropy, leaves, targets, ignored)
    assert_near(found, expected, torch.float32)
    logits = [(leaves[0] @ leaves[1].mT).detach().requires_grad_()]
    expected = results(functional.cross_entropy, exact(logits), targets, ignore_index=ignored)
    found = results(cross_entropy, logits, targets, ignored)
    assert_near(found, expected, torch.float32)
    assert not found[1][1].any()


@pytest.mark.parametrize(("reduction", "expected"), [("mean", math.nan), ("sum", 0.0)])
def test_all_ignored_as_pytorch(reduction, expected, device):
    x, weight = leaf(6, 24, device=device), leaf(40, 24, device=device)
    targets = torch.full((6,), IGNORED, device=device)
    for function, leaves in (
        (cross_entropy, [x]),
        (functional.cross_entropy, [x]),
        (linear_cross_entropy, [x, weight]),
    ):
        loss, *gradients = results(function, leaves, targets, reduction=reduction)
        assert loss.item() == pytest.approx(expected, nan_ok=True)
        assert not any(each.any() for each in gradients)


@pytest.mark.parametrize("wrong", [-1, 40, 2**40, -(2**40)])
def test_a_target_that_is_no_column_makes_nan(wrong, device):
    targets = torch.tensor([3, wrong, 39], device=device)
    loss, dlogits = results(cross_entropy, [leaf(3, 40, device=device)], targets)
    assert loss.isnan() and dlogits[1].isnan().all() and dlogits[[0, 2]].isfinite().all()
    leaves = [leaf(3, 24, device=device), leaf(40, 24, device=device)]
    loss, dx, dweight = results(linear_cross_entropy, leaves, targets)
    assert loss.isnan() and dx[1].isnan().all() and dx[[0, 2]].isfinite().all()
    assert dweight.isnan().all()


@pytest.mark.filterwarnings("ignore:overflow", "ignore:divide by zero", "ignore:invalid value")
def test_infinite_logits_as_pytorch(device):
    logits = torch.randn(5, 100, device=device)
    logits[0, :70] = -math.inf  # more than the first blocks
    logits[1, 70:] = -math.inf
    logits[2] = -math.inf
    logits[3, 4] = math.inf
    logits[4] = torch.finfo(torch.float32).min
    logits[4, 0] = 2.0
    targets = torch.tensor([80, 80, 1, 1, 0], device=device)
    for row, (given, target) in enumerate(zip(logits, targets, strict=True)):
        leaves = [given[None].requires_grad_()]
        found = results(cross_entropy, leaves, target[None])
        expected = results(functional.cross_entropy, leaves, target[None])
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, equal_nan=True, msg=f"row {row}: {one}")


def test_large_logits_do_not_overflow(device):
    logits = [(1e4 * torch.randn(3, 100, device=device)).requires_grad_()]
    targets = torch.tensor([5, 6, 7], device=device)
    expected = results(functional.cross_entropy, exact(logits), targets)
    assert_near(results(cross_entropy, logits, targets), expected, torch.float32)


@pytest.mark.parametrize("needs", ["", "x", "weight", "x weight"])
def test_no_gradient_is_computed_in_vain(needs, device, monkeypatch):
    shapes, gradients = [], []
    for name in ("mm", "addmm"):
        monkeypatch.setattr(torch, name, counted(getattr(torch, name), shapes))
    launch = losses._launch_loss
    monkeypatch.setattr(
        losses, "_launch_loss", lambda *given: gradients.append(given[2]) or launch(*given)
    )
    x, weight = torch.randn(4, 24, device=device), torch.randn(40, 24, device=device)
    x.requires_grad_("x" in needs)
    weight.requires_grad_("weight" in needs)
    targets = some_targets(4, 40, device)
    expected = {"": [], "x": [(4, 24)], "weight": [(40, 24)], "x weight": [(4, 24), (40, 24)]}
    loss = linear_cross_entropy(x, weight, targets)
    assert shapes == [(4, 40), *expected[needs]]
    assert (gradients[0] is None) == (not needs) and loss.requires_grad == bool(needs)
    if needs:
        loss.backward()
        assert (x.grad is not None, weight.grad is not None) == ("x" in needs, "weight" in needs)
    shapes.clear()
    with torch.no_grad():
        assert torch.equal(linear_cross_entropy(x, weight, targets), loss)
    assert shapes == [(4, 40)] and gradients[-1] is None


def counted(function, shapes):
    def call(*given, out, **options):
        shapes.append(tuple(out.shape))
        return function(*given, out=out, **options)

    return call


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((16384, 1024), 4096),
        ((16384, 8192), 8192),
        ((100, 1024), 100),
    ],
)
def test_chunks(given, expected):
    assert CHUNK_OF(*given) == expected


def test_opcheck(device):
    x, weight = leaf(5, 12, device=device), leaf(40, 12, device=device)
    targets = some_targets(5, 40, device)
    opcheck(losses._cross_entropy.overload, (leaf(5, 40, device=device), targets, IGNORED, True))
    opcheck(losses._linear_cross_entropy.overload, (x, weight, targets, IGNORED, True, True, True))
    factor = torch.tensor(0.5, device=device)
    logits, lse = torch.randn(5, 40, device=device), torch.randn(5, device=device)
    opcheck(losses._cross_entropy_backward.overload, (logits, targets, lse, factor, IGNORED))
    opcheck(losses._scaled.overload, (lse, factor, torch.float16))


@both_reductions
def test_compiled_without_a_graph_break(reduction, device):
    targets = some_targets(5, 40, device)
    for function, leaves in (
        (cross_entropy, [leaf(5, 40, device=device)]),
        (linear_cross_entropy, [leaf(5, 12, device=device), leaf(40, 12, device=device)]),
    ):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        both = function, compiled
        assert_same(*(results(each, leaves, targets, reduction=reduction) for each in both))


def test_autocast_as_pytorch(device):
    """It computes cross-entropies in float32 and linear layers in its own dtype."""
    x, weight = leaf(5, 12, device=device), leaf(40, 12, device=device)
    targets = some_targets(5, 40, device)
    with torch.autocast(device, torch.float16):
        logits = functional.linear(x, weight)
        theirs = functional.cross_entropy(logits, targets)
        ours = cross_entropy(logits, targets)
        linear = linear_cross_entropy(x, weight, targets)
    assert logits.dtype == torch.float16
    assert theirs.dtype == ours.dtype == linear.dtype == torch.float32
    # On a GPU PyTorch 2.11 rounds the logarithms to float16.
    torch.testing.assert_close(ours, theirs, rtol=2e-4 if device == "cuda" else 1e-6, atol=0)
    assert torch.equal(linear, linear_cross_entropy(x.half(), weight.half(), targets))
    expected = torch.autograd.grad(theirs, (x, weight), retain_graph=True)
    for loss in (ours, linear):
        found = torch.autograd.grad(loss, (x, weight), retain_graph=True)
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == torch.float32
            assert (one - other).abs().max() <= 2e-3 * other.abs().max()


X, W, T = empty(4, 3), empty(5, 3), torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("function", "given", "error", "said"),
    [
        (cross_entropy, (None, T), TypeError, "logits must be a tensor, got NoneType"),
        (cross_entropy, (X.double(), T), TypeError, "logits torch.float64"),
        (cross_entropy, (X[None], T), ValueError, r"vocabulary\], got \(1, 4, 3\)"),
        (cross_entropy, (empty(4, 0), T), ValueError, r"not be empty, got \(4, 0\)"),
        (cross_entropy, (X, [0] * 4), TypeError, "targets must be a tensor of int64, got list"),
        (cross_entropy, (X, T.int()), TypeError, "int64, got torch.int32"),
        (cross_entropy, (X, T[:3]), ValueError, r"must be \[4\] on cpu, got \(3,\) on cpu"),
        (cross_entropy, (X, T.to("meta")), ValueError, r"on cpu, got \(4,\) on meta"),
        (cross_entropy, (X, T, None), TypeError, "ignore_index must be an int, got NoneType"),
        (cross_entropy, (X, T, True), TypeError, "ignore_index must be an int, got bool"),
        (cross_entropy, (X, T, 0, "none"), ValueError, "'mean' or 'sum', got 'none'"),
        (linear_cross_entropy, (X, W.half(), T), TypeError, "weight torch.float16"),
        (linear_cross_entropy, (X, W.mT, T), ValueError, r"got \(4, 3\) and \(3, 5\)"),
        (linear_cross_entropy, (X[None], W, T), ValueError, r"got \(1, 4, 3\) and \(5, 3\)"),
        (linear_cross_entropy, (X, W, T[:3]), ValueError, r"must be \[4\] on cpu"),
    ],
)
def test_bad_input_is_refused(function, given, error, said):
    with pytest.raises(error, match=said):
        function(*given)
