"""Cross-entropy and its gradient, beside PyTorch's in float64."""

import functools
import math

import pytest
import torch
from torch.nn import functional

from rope_triton.transformer import cross_entropy, linear_cross_entropy
from tests.conftest import COMPILED
from tests.transformer import common
from tests.transformer.common import LAYOUTS, assert_same, exact

pytestmark = [pytest.mark.gpu_or_interpreter, pytest.mark.public]

# Of the largest value of a gradient.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3}
IGNORED = -100
LOGITS = [(7, 100), (3, 32), (4, 5), (9, 65)]
PRODUCTS = [(11, 24, 100), (4, 24, 37), (3, 24, 16)]  # tokens, width, vocabulary
if COMPILED:
    TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}
    LOGITS += [(2048, 50_304), (2048, 50_257)]
    PRODUCTS += [(2048, 1024, 50_304), (2048, 1024, 50_257)]
all_dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
both_reductions = pytest.mark.parametrize("reduction", ["mean", "sum"])


def some_targets(tokens, vocabulary, device):
    """The first and the last column are among them, and ignored ones."""
    targets = torch.randint(vocabulary, (tokens,), device=device)
    targets[:3] = torch.tensor([0, IGNORED, vocabulary - 1])
    targets[3::7] = IGNORED
    return targets


def factors(tokens, width, vocabulary, device, dtype=torch.float32):
    """``x`` and ``weight``, whose logits are of the order of 1."""
    weight = torch.randn(vocabulary, width, device=device) / width**0.5
    return [torch.randn(tokens, width, device=device).to(dtype), weight.to(dtype)]


def plain(x, weight, targets, *options, **named):
    return functional.cross_entropy(x @ weight.mT, targets, *options, **named)


def results(function, tensors, *options, **named):
    """The loss, and the gradients of three times that."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    loss = function(*leaves, *options, **named)
    return [loss.detach(), *torch.autograd.grad(3 * loss, leaves)]


def assert_near(actual, expected, dtype, of_loss=2e-6):
    common.assert_near(actual[:1], expected[:1], of_loss, torch.float32)
    common.assert_near(actual[1:], expected[1:], TOLERANCE[dtype], dtype)


@all_dtypes
@both_reductions
@pytest.mark.parametrize("shape", LOGITS)
def test_cross_entropy(shape, reduction, dtype, device):
    logits, targets = torch.randn(shape, device=device).to(dtype), some_targets(*shape, device)
    actual = results(cross_entropy, [logits], targets, reduction=reduction)
    expected = results(functional.cross_entropy, exact([logits]), targets, reduction=reduction)
    assert_near(actual, expected, dtype)


@all_dtypes
@both_reductions
@pytest.mark.parametrize("sizes", PRODUCTS)
def test_linear_cross_entropy(sizes, reduction, dtype, device):
    tensors, targets = factors(*sizes, device, dtype), some_targets(*sizes[::2], device)
    actual = results(linear_cross_entropy, tensors, targets, reduction=reduction)
    expected = results(plain, exact(tensors), targets, reduction=reduction)
    of_loss = TOLERANCE[dtype] * (0.1 if sizes[0] > 1000 else 1.0)
    assert_near(actual, expected, dtype, of_loss)


def test_float16_keeps_the_gradients_of_a_mean_over_many_tokens(device):
    """Times 1 / tokens, a small one would be one of float16's last few steps."""
    x = torch.ones(64, 16, device=device).half()
    weight = torch.zeros(40, 16, device=device).half()
    weight[0] = 11 / 16  # so that the other columns have 2e-5 of the probability
    targets = torch.zeros(64, dtype=torch.int64, device=device)

    def scaled(function):  # as by torch.amp.GradScaler
        return lambda *leaves: 1024.0 * function(*leaves)

    actual = results(scaled(linear_cross_entropy), [x, weight], targets)[1:]
    expected = results(scaled(plain), exact([x, weight]), targets)[1:]
    for gradient, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(gradient.double(), right, rtol=5e-3, atol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_of_any_layout_are_left_as_they_are(layout, device):
    logits = LAYOUTS[layout](torch.randn(6, 50, device=device))
    before, targets = logits.clone(), some_targets(12, 50, device)[::2]
    actual = results(cross_entropy, [logits], targets)
    assert_near(actual, results(functional.cross_entropy, exact([logits]), targets), torch.float32)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("ignored", [0, 5, -1])
def test_any_target_can_be_ignored(ignored, device):
    tensors = factors(6, 24, 40, device)
    targets = torch.tensor([3, ignored, 39, ignored, 1, 7], device=device)
    expected = results(plain, exact(tensors), targets, ignore_index=ignored)
    assert_near(results(linear_cross_entropy, tensors, targets, ignored), expected, torch.float32)
    logits = [tensors[0] @ tensors[1].mT]
    expected = results(functional.cross_entropy, exact(logits), targets, ignore_index=ignored)
    actual = results(cross_entropy, logits, targets, ignored)
    assert_near(actual, expected, torch.float32)
    assert not actual[1][1].any()


@pytest.mark.parametrize(("reduction", "expected"), [("mean", math.nan), ("sum", 0.0)])
def test_all_ignored_as_pytorch(reduction, expected, device):
    x, weight = factors(6, 24, 40, device)
    targets = torch.full((6,), IGNORED, device=device)
    for function, tensors in (
        (cross_entropy, [x]),
        (functional.cross_entropy, [x]),
        (linear_cross_entropy, [x, weight]),
    ):
        loss, *gradients = results(function, tensors, targets, reduction=reduction)
        assert loss.item() == pytest.approx(expected, nan_ok=True)
        assert not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("wrong", [-1, 40, 2**40, -(2**40)])
def test_a_target_that_is_no_column_makes_nan(wrong, device):
    targets = torch.tensor([3, wrong, 39], device=device)
    tensors = factors(3, 24, 40, device)
    loss, dlogits = results(cross_entropy, [tensors[0] @ tensors[1].mT], targets)
    assert loss.isnan() and dlogits[1].isnan().all() and dlogits[[0, 2]].isfinite().all()
    loss, dx, dweight = results(linear_cross_entropy, tensors, targets)
    assert loss.isnan() and dx[1].isnan().all() and dx[[0, 2]].isfinite().all()
    assert dweight.isnan().all()


@pytest.mark.filterwarnings("ignore:overflow", "ignore:divide by zero", "ignore:invalid value")
def test_infinite_and_large_logits_as_pytorch(device):
    logits = torch.randn(6, 100, device=device)
    logits[0, :70] = -math.inf  # more than the first blocks
    logits[1, 70:] = -math.inf
    logits[2] = -math.inf
    logits[3, 4] = math.inf
    logits[4] = torch.finfo(torch.float32).min
    logits[4, 0] = 2.0
    logits[5] *= 1e4
    for row, target in zip(logits, [80, 80, 1, 1, 0, 5], strict=True):
        call = [row[None]], torch.tensor([target], device=device)
        actual, expected = (results(f, *call) for f in (cross_entropy, functional.cross_entropy))
        torch.testing.assert_close(actual, expected, equal_nan=True)


def test_autocast_as_pytorch(device):
    """It computes cross-entropies in float32 and linear layers in its own dtype."""
    x, weight = (t.requires_grad_() for t in factors(5, 12, 40, device))
    targets = some_targets(5, 40, device)
    with torch.autocast(device, torch.float16):
        logits = functional.linear(x, weight)
        theirs = functional.cross_entropy(logits, targets)
        ours = cross_entropy(logits, targets)
        linear = linear_cross_entropy(x, weight, targets)
    assert logits.dtype == torch.float16
    assert theirs.dtype == ours.dtype == linear.dtype == torch.float32
    # On a GPU PyTorch 2.11 rounds the logarithms to float16.
    torch.testing.assert_close(ours, theirs, rtol=2e-4 if COMPILED else 1e-6, atol=0)
    assert torch.equal(linear, linear_cross_entropy(x.half(), weight.half(), targets))
    gradients = [torch.autograd.grad(y, (x, weight), retain_graph=True) for y in (ours, linear)]
    expected = torch.autograd.grad(theirs, (x, weight))
    for actual in gradients:
        common.assert_near(actual, expected, 2e-3, torch.float32)


# --- at the sizes of models -----------------------------------------------------------------------

a_model = functools.partial(factors, width=1024, vocabulary=50_304, dtype=torch.bfloat16)


@pytest.mark.gpu
def test_the_logits_of_all_tokens_never_exist(device):
    tokens = 32_768
    tensors, targets = a_model(tokens, device=device), some_targets(tokens, 50_304, device)
    results(linear_cross_entropy, tensors, targets)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    results(linear_cross_entropy, tensors, targets)
    peak = torch.cuda.max_memory_allocated() - before
    logits = tokens * 50_304 * 2
    assert peak < logits / 3, f"{peak >> 20} MiB, and the logits take {logits >> 20} MiB"


@pytest.mark.gpu
def test_two_calls_have_the_same_bits_and_the_host_waits_for_nothing(device):
    tensors, targets = a_model(2048, device=device), some_targets(2048, 50_304, device)
    logits = [functional.linear(*tensors)]
    first = results(linear_cross_entropy, tensors, targets), results(cross_entropy, logits, targets)
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = (
            results(linear_cross_entropy, tensors, targets),
            results(cross_entropy, logits, targets),
        )
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_same(sum(first, []), sum(again, []))
