"""Rules that choose blocks, parts and chunks, and what they save; none of them changes a result."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rope_triton.transformer import (
    activations,
    attention,
    linear,
    linear_cross_entropy,
    losses,
    matmul,
    norms,
    products,
    rotary_attention,
)
from rope_triton.transformer.products import Tile
from tests.transformer.common import assert_near, assert_same

# Not those of the interpreter.
ATTENTION_TILES, PRODUCT_TILE, CHUNK_OF = attention.tiles, products.tile, losses.chunk_of


@pytest.mark.parametrize(
    ("columns", "expected"),
    [(1, (1, 1)), (1000, (1024, 4)), (2048, (2048, 8)), (5504, (8192, 16)), (16384, (16384, 16))],
)
def test_warps_follow_the_row(columns, expected):
    assert norms.row_block(columns) == expected
    block, warps = expected
    assert norms.row_block(columns, 16) == (block, min(16, max(1, block // 512)))


@pytest.mark.parametrize(
    ("kib", "rotated", "expected"),
    [
        (227, False, (128, 256, 4)),  # sm_90
        (227, True, (128, 256, 3)),
        (163, False, (128, 256, 2)),  # sm_80
        (99, False, (128, 128, 2)),  # sm_86, sm_89, sm_120
        (99, True, (128, 128, 2)),
        (64, True, (64, 128, 2)),  # gfx942
    ],
)
def test_tiles_fit_into_shared_memory(kib, rotated, expected):
    tile, parts = PRODUCT_TILE((1, 1 << 15, 1 << 15), 1024, 2, (132, kib << 10), not rotated)
    assert (tile.rows, tile.columns, tile.stages) == expected and parts == 1


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((1, 1024, 2816), 3),  # 88 blocks for 132 multiprocessors: 264 are two for each
        ((1, 3072, 1024), 4),
        ((1, 2048, 2048), 1),  # 128 blocks
        ((1, 16384, 16384), 1),
    ],
)
def test_few_blocks_are_divided(shape, expected):
    tokens, gpu = 16384, (132, 227 << 10)
    tile, parts = PRODUCT_TILE(shape, tokens, 2, gpu)
    assert (tile.rows, tile.columns, parts) == (128, 256, expected)
    assert PRODUCT_TILE(shape, tokens, 2, gpu, False)[1] == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("columns", [24, 21])
def test_parts_of_the_sums_are_added(columns, dtype, device, monkeypatch):
    asked = []

    def in_parts(shape, inner, item, gpu, as_it_is):
        asked.append((shape, inner, as_it_is))
        return Tile(32, 16, 16, 4, 2), 3 if as_it_is else 1

    monkeypatch.setattr(products, "tile", in_parts)
    a, b = (torch.randn(2, *s, device=device).to(dtype) for s in ((40, 200), (200, columns)))
    limits = {torch.float32: 2e-6, torch.float16: 2e-3}[dtype], dtype
    assert_near([matmul(a, b)], [a.double() @ b.double()], *limits)
    x, weight, bias = a[0], b[0].mT, torch.ones(columns, device=device, dtype=dtype)
    assert_near([linear(x, weight, bias)], [x.double() @ b[0].double() + 1], *limits)
    assert asked == [((2, 40, columns), 200, True), ((1, 40, columns), 200, False)]
    x, weight = a[0].requires_grad_(), weight.detach().requires_grad_()
    expected = torch.autograd.grad((2 * matmul(x, weight.mT)).sum(), (x, weight))
    changed = matmul(x, weight.mT).mul_(2)
    assert_same(torch.autograd.grad(changed.sum(), (x, weight)), expected)


@pytest.mark.parametrize(
    ("sizes", "expected"), [((16384, 1024), 4096), ((16384, 8192), 8192), ((100, 1024), 100)]
)
def test_chunks(sizes, expected):
    assert CHUNK_OF(*sizes) == expected


@pytest.mark.parametrize("item", [2, 4])
@pytest.mark.parametrize("channels", attention._CHANNELS)
def test_no_kernel_loads_more_of_lse_than_was_stored(channels, item):
    forward, dq, dkv = (tile.queries for tile in ATTENTION_TILES(channels, item))
    assert forward % 16 == forward % dq == dq % dkv == attention._MOST_QUERIES % forward == 0


# --- what is not computed or copied ---------------------------------------------------------------


def test_halves_of_a_projection_are_not_copied(device):
    for half in torch.randn(2, 5, 40, device=device).chunk(2, -1):
        assert activations._rows(half).data_ptr() == half.data_ptr()


def test_products_compute_no_gradient_in_vain(device, monkeypatch):
    shapes, product = [], products.product

    def counted(a, *args, **options):
        shapes.append(a.shape)
        return product(a, *args, **options)

    monkeypatch.setattr(products, "product", counted)
    x, weight = torch.randn(8, 16, device=device), torch.randn(32, 16, device=device)
    linear(x, weight.requires_grad_()).sum().backward()
    assert shapes == [(1, 8, 16), (1, 32, 8)]
    x, weight = torch.randn(1, 4, 24, device=device), torch.randn(128, 24, device=device)
    freqs = torch.randn(4, 1, 1, 16, device=device)
    for leaf, expected in ((x, (1, 4, 128)), (weight, (1, 128, 4))):
        leaf.requires_grad_()
        out = rotary_attention(x, weight, freqs, 4, 2)
        shapes.clear()
        out.sum().backward()
        assert shapes == [expected] and leaf.grad is not None
        leaf.requires_grad_(False)


@pytest.mark.parametrize("needs", ["", "x", "weight", "x weight"])
def test_losses_compute_no_gradient_in_vain(needs, device, monkeypatch):
    shapes, gradients = [], []

    def counted(function):
        def call(*args, out, **options):
            shapes.append(tuple(out.shape))
            return function(*args, out=out, **options)

        return call

    for name in ("mm", "addmm"):
        monkeypatch.setattr(torch, name, counted(getattr(torch, name)))
    launch = losses._launch_loss
    monkeypatch.setattr(
        losses, "_launch_loss", lambda *args: gradients.append(args[2]) or launch(*args)
    )
    monkeypatch.setattr(losses, "chunk_of", lambda tokens, *_: tokens)
    x, weight = torch.randn(4, 24, device=device), torch.randn(40, 24, device=device)
    x.requires_grad_("x" in needs)
    weight.requires_grad_("weight" in needs)
    targets = torch.tensor([0, -100, 39, 7], device=device)
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


def test_the_factor_of_a_loss_is_not_rounded_to_float16(device):
    """On a GPU ``x * factor`` would be 0."""
    x, factor = torch.full((2,), 6e4, device=device).half(), torch.tensor(1e-8, device=device)
    result = losses._scaled(x, factor, torch.float16)
    torch.testing.assert_close(result.float(), x.float() * factor, rtol=1e-3, atol=0)


# --- machine code ---------------------------------------------------------------------------------

# In a process of its own: in this one kernels may be made for the interpreter.
COMPILED = """
import json, sys
from pathlib import Path
import torch, triton
from benchmarks._engine.machine_code import disassembly
from benchmarks._engine.machine_code.stub_driver import StubDriver
from rope_triton.transformer import causal_attention

StubDriver.activate("sm_90")
found = {}
def note(*, src, metadata_group, **_):
    path = next(path for name, path in metadata_group.items() if name.endswith(".cubin"))
    kernels[src.fn.__name__] = disassembly.cubin(Path(path).read_bytes(), "SM90")
triton.knobs.compilation.listener = note
for length in map(int, sys.argv[1:]):
    kernels = {}
    q, k, v = (
        torch.empty(1, length, heads, 128, dtype=torch.bfloat16, requires_grad=True)
        for heads in (8, 2, 2)
    )
    causal_attention(q, k, v).backward(torch.empty_like(q))
    codes = disassembly.read_cubins(kernels.values())
    found[length] = {name: codes[cubin].instructions for name, cubin in kernels.items()}
print(json.dumps(found))
"""


def test_code_for_any_length_is_that_for_whole_blocks(tmp_path):
    """Where lse's rows were not aligned, Triton 3.6 made 60 % more instructions of their loads."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, "1024", "1000"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    full, other = json.loads(done.stdout).values()
    assert full.keys() == {"forward_kernel", "dq_kernel", "dkv_kernel"}
    for name, count in full.items():
        assert other[name] <= 1.02 * count, name
