"""The network of every provider: parity with float32, operations, sizes."""

import sys

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks._engine.subject import Unavailable
from benchmarks._studies.training import sizes
from benchmarks._studies.training.functions import PROVIDERS
from benchmarks._studies.training.measuring import relative_error
from benchmarks._studies.training.network import Network, in_float32, random_weights
from benchmarks._studies.training.sizes import ATTENTION, STEP, TINY
from tests.training import liger

BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 0.03, torch.float16: 0.005}
"""Most that logits, loss and a gradient may differ, as a share of their norm."""
PARITY = [
    (name, dtype)
    for name in PROVIDERS
    # Triton's interpreter multiplies bit patterns in a product of bfloat16.
    for dtype in (torch.float32, torch.float16 if name.startswith("triton") else torch.bfloat16)
]


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Liger's stubs in place of what may be installed, and few threads for tiny tensors."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    liger.install(monkeypatch)
    yield
    torch.set_num_threads(threads)


def results(functions, weights, backend=None):
    """Logits, loss and the gradients of all weights."""
    network = Network(functions, TINY, weights, backend)
    torch.manual_seed(1)
    drawn = torch.randint(TINY.shape.vocabulary, (TINY.batch, TINY.context + 1))
    loss = network.loss(drawn[:, :-1], drawn[:, 1:])
    gradients = torch.autograd.grad(loss, weights.leaves())
    with torch.no_grad():
        return [Network(functions, TINY, weights).logits(drawn[:, :-1]), loss, *gradients]


def worst(actual, expected):
    return max(map(relative_error, actual, expected))


@pytest.mark.parametrize(("name", "dtype"), PARITY, ids=str)
def test_parity_with_float32(name, dtype):
    provider = PROVIDERS[name]
    weights = random_weights(TINY.shape, dtype, "cpu")
    # Of the compiler's stages only the last, which makes machine code, is left out.
    actual = results(provider.functions(), weights, provider.backend and "aot_eager")
    expected = results(provider.reference(), in_float32(weights))
    assert worst(actual, expected) < BOUNDS[dtype]


def test_liger_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", None)
    with pytest.raises(Unavailable, match="liger is not there: .*pip install liger-kernel"):
        PROVIDERS["liger"].functions()


def test_a_compiled_layer_is_one_graph_for_all_layers():
    weights = random_weights(TINY.shape, torch.float32, "cpu")
    network = Network(PROVIDERS["ours"].functions(), TINY, weights, "aot_eager")
    x = torch.randn(TINY.batch, TINY.context, TINY.shape.width, requires_grad=True)
    network.layer(weights.layers[0], x, x * 2, network.tables)
    with torch.compiler.set_stance("fail_on_recompile"):  # in a step no leaf comes in
        network.layer(weights.layers[1], x * 3, x * 4, network.tables)


# --- sizes and operations -------------------------------------------------------------------------


@pytest.mark.parametrize("part", [STEP, ATTENTION])
def test_operations_are_those_that_torch_counts(part):
    """Attention by two products, which torch counts without the mask: twice what is needed."""
    size, weights = TINY.shape, random_weights(TINY.shape, torch.float32, "cpu")
    network = Network(PROVIDERS["eager"].functions(), TINY, weights)
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), counter:
        if part == STEP:
            tokens = torch.zeros(TINY.batch, TINY.context, dtype=torch.long)
            network.loss(tokens, tokens).backward()
        else:
            x = torch.randn(TINY.batch, TINY.context, size.width, requires_grad=True)
            network.attention(weights.layers[0], x, network.tables).sum().backward()
    layers = size.layers if part == STEP else 1
    masked = 6 * size.tokens * TINY.context * size.heads * size.channels * layers
    assert counter.get_total_flops() == TINY.flops(part) + masked


@pytest.mark.parametrize(("name", "parameters"), [("410M", 411), ("840M", 834), ("1.4B", 1420)])
def test_sizes_have_the_parameters_of_their_names(name, parameters):
    size = sizes.SIZES[name]
    with torch.device("meta"):
        weights = random_weights(size, torch.bfloat16, "meta")
    assert round(sum(weight.numel() for weight in weights.leaves()) / 1e6) == parameters
    for context in (2048, 4096):
        assert sizes.POINTS[f"{name}-{context}"].batch * context == size.tokens == 16384
