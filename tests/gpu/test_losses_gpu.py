"""Cross-entropy at the sizes of models, on a GPU."""

import pytest
import torch
from torch.nn import functional

from rope_triton.transformer import cross_entropy, linear_cross_entropy
from tests.transformer import common
from tests.transformer.common import assert_same

pytestmark = [pytest.mark.gpu, pytest.mark.public]

TOKENS, WIDTH = 2048, 1024
# Of the largest value of a gradient.
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.2e-2, torch.float32: 2e-5}
all_dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
all_vocabularies = pytest.mark.parametrize("vocabulary", [50304, 50257])


def inputs(dtype, vocabulary, tokens=TOKENS):
    """``x`` and ``weight`` whose logits are of the order of 1, and targets, some ignored."""
    x = torch.randn(tokens, WIDTH, device="cuda").to(dtype)
    weight = (torch.randn(vocabulary, WIDTH, device="cuda") / WIDTH**0.5).to(dtype)
    targets = torch.randint(vocabulary, (tokens,), device="cuda")
    targets[::7] = -100
    return x, weight, targets


def results(function, given, targets):
    leaves = [each.detach().requires_grad_() for each in given]
    loss = function(*leaves, targets)
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


def plain(x, weight, targets):
    return functional.cross_entropy(functional.linear(x, weight), targets)


def assert_near(found, expected, tolerance):
    assert (found[0].double() - expected[0]).abs() <= 1e-3 * tolerance * expected[0] + 1e-5
    common.assert_near(found[1:], expected[1:], tolerance)


@all_dtypes
@all_vocabularies
def test_cross_entropy(vocabulary, dtype):
    torch.manual_seed(0)
    logits = torch.randn(TOKENS, vocabulary, device="cuda").to(dtype)
    targets = torch.randint(vocabulary, (TOKENS,), device="cuda")
    found = results(cross_entropy, [logits], targets)
    expected = results(functional.cross_entropy, [logits.double()], targets)
    assert_near(found, expected, TOLERANCE[dtype])


@all_dtypes
@all_vocabularies
def test_linear_cross_entropy(vocabulary, dtype):
    torch.manual_seed(0)
    *given, targets = inputs(dtype, vocabulary)
    found = results(linear_cross_entropy, given, targets)
    expected = results(plain, [each.double() for each in given], targets)
    loss, *gradients = expected
    assert (found[0] - loss).abs() <= TOLERANCE[dtype] * 0.1 * loss
    assert_near([loss, *found[1:]], [loss, *gradients], TOLERANCE[dtype])


def test_the_logits_of_all_tokens_never_exist():
    tokens = 32_768
    *given, targets = inputs(torch.bfloat16, 50304, tokens)
    results(linear_cross_entropy, given, targets)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    results(linear_cross_entropy, given, targets)
    peak = torch.cuda.max_memory_allocated() - before
    logits = tokens * 50304 * 2
    assert peak < logits / 3, f"{peak >> 20} MiB, and the logits take {logits >> 20} MiB"


def test_two_calls_have_the_same_bits():
    *given, targets = inputs(torch.bfloat16, 50304)
    once, again = (results(linear_cross_entropy, given, targets) for _ in range(2))
    assert_same(once, again)


def test_the_host_waits_for_nothing():
    *given, targets = inputs(torch.bfloat16, 50304)
    results(linear_cross_entropy, given, targets)
    logits = [functional.linear(*given)]
    results(cross_entropy, logits, targets)
    torch.cuda.set_sync_debug_mode("error")
    try:
        results(linear_cross_entropy, given, targets)
        results(cross_entropy, logits, targets)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_compiled():
    x, weight, targets = inputs(torch.bfloat16, 50304)
    given = [x[:512], weight]
    both = linear_cross_entropy, torch.compile(linear_cross_entropy, fullgraph=True)
    assert_same(*(results(each, given, targets[:512]) for each in both))
