"""Causal attention and its gradients, beside float64; small ones, also in Triton's interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import empty
from torch.library import opcheck

from rope_triton.transformer import attention, causal_attention
from rope_triton.transformer.attention import Tile
from tests.transformer import common, plain_attention
from tests.transformer.common import assert_same, gradients

# Of the largest value; the products of the backward are sums of rounded factors.
TOLERANCE = {torch.float32: 4e-6, torch.float16: 4e-3}
TILES = attention.tiles
SMALL = attention._Tiles(Tile(32, 16, 4, 2), Tile(32, 16, 4, 2), Tile(16, 32, 4, 2))


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Several blocks in few tokens, which the interpreter can do."""
    monkeypatch.setattr(attention, "tiles", lambda channels, item: SMALL)


def tensors(s, h, shared, d, dtype, device, b=2):
    torch.manual_seed(s)
    q, dout = (torch.randn(b, s, h, d, device=device).to(dtype) for _ in range(2))
    k, v = (torch.randn(b, s, shared, d, device=device).to(dtype) for _ in range(2))
    return q, k, v, dout


def slopes_of(heads, device):
    return 2.0 ** -torch.arange(1, heads + 1, device=device)


def ours(q, k, v, dout, **options) -> list:
    return gradients(causal_attention, (q, k, v), dout, **options)


def assert_near(found, expected, dtype):
    """Of the output, and of the gradients of q, k and v.

    With one key the gradient of q is the difference of equal sums, whose terms are about 1.
    """
    assert all(each.is_contiguous() for each in found)
    common.assert_near(found, expected, TOLERANCE[dtype], dtype, least=0.5)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("s", "h", "shared", "d", "alibi"),
    [
        (64, 2, 2, 16, False),  # whole blocks
        (50, 4, 2, 32, False),  # a part of a block, two heads of queries for one of keys
        (70, 2, 1, 16, True),
        (33, 1, 1, 64, True),  # one row in the last block
        (1, 2, 1, 16, False),
    ],
)
def test_output_and_gradients(s, h, shared, d, alibi, dtype, device):
    given = tensors(s, h, shared, d, dtype, device)
    slopes = slopes_of(h, device) if alibi else None
    expected = plain_attention.gradients(*given, slopes)
    assert_near(ours(*given, alibi_slopes=slopes), expected, dtype)


def test_scale(device):
    given = tensors(40, 2, 2, 16, torch.float32, device)
    assert_near(
        ours(*given, scale=0.5), plain_attention.gradients(*given, scale=0.5), torch.float32
    )


def test_a_later_key_changes_nothing(device):
    q, k, v, _ = tensors(48, 2, 1, 16, torch.float32, device)
    before = causal_attention(q, k, v)
    k[:, 40:] += 1
    v[:, 40:] = 1e4
    after = causal_attention(q, k, v)
    assert torch.equal(before[:, :40], after[:, :40])
    assert (after[:, 40:] - before[:, 40:]).abs().min() > 0


def test_scores_of_minus_infinity(device):
    """In the first blocks of keys, by slopes that are too large for far ones."""
    given = tensors(70, 2, 1, 16, torch.float32, device)
    slopes = torch.full((2,), 3e37, device=device)
    expected = plain_attention.gradients(*given, slopes)
    assert_near(ours(*given, alibi_slopes=slopes), expected, torch.float32)
    q, k, v, _ = given
    q[..., 0], k[:, :33, :, 0] = 1, -torch.inf
    found, expected = (each(q, k, v) for each in (causal_attention, plain_attention.attention))
    common.assert_near([found[:, 33:]], [expected[:, 33:]], TOLERANCE[torch.float32])
    assert found[:, :33].isnan().all()


@pytest.mark.parametrize("how", ["packed", "transposed", "odd", "expanded"])
def test_strides(how, device):
    q, k, v, dout = tensors(40, 2, 2, 16, torch.float32, device)
    expected = plain_attention.gradients(q, k, v, dout)
    if how == "packed":
        q, k, v = torch.stack((q, k, v), 3).unbind(3)
    elif how == "transposed":
        q, k, v = (each.transpose(1, 2).contiguous().transpose(1, 2) for each in (q, k, v))
    elif how == "odd":
        wide = torch.zeros(*q.shape[:3], 17, device=device)
        wide[..., 1:] = q
        q = wide[..., 1:]
    else:
        dout = dout[:, :1].expand_as(dout)
        expected = plain_attention.gradients(q, k, v, dout)
    assert_near(ours(q, k, v, dout), expected, torch.float32)


def test_the_same_bits_every_time(device):
    given = tensors(50, 4, 2, 16, torch.float16, device)
    assert_same(ours(*given), ours(*given))


def test_opcheck(device):
    q, k, v, _ = tensors(20, 2, 1, 16, torch.float32, device, b=1)
    leaves = [each.requires_grad_() for each in (q, k, v)]
    opcheck(attention._attention.overload, (*leaves, slopes_of(2, device), 0.25))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compiled_without_a_graph_break(dynamic, device, monkeypatch):
    monkeypatch.setattr(attention, "tiles", TILES)
    torch.compiler.reset()
    *given, dout = tensors(20, 2, 1, 16, torch.float32, device, b=1)
    compiled = torch.compile(causal_attention, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    assert_same(*(gradients(each, given, dout) for each in (causal_attention, compiled)))


def test_autocast_casts_the_inputs(device):
    q, k, v, dout = tensors(20, 2, 1, 16, torch.float32, device, b=1)
    leaves = [each.requires_grad_() for each in (q, k, v)]
    with torch.autocast(device, torch.float16):
        out = causal_attention(*leaves)
    assert out.dtype == torch.float16
    assert torch.equal(out, causal_attention(*(each.half() for each in (q, k, v))))
    found = torch.autograd.grad(out, leaves, dout.half())
    assert all(each.dtype == torch.float32 for each in found)


Q, KV = (1, 4, 4, 16), (1, 4, 2, 16)


@pytest.mark.parametrize(
    ("q", "k", "v", "options", "error", "said"),
    [
        (None, empty(*KV), empty(*KV), {}, TypeError, "q must be a tensor, got NoneType"),
        (empty(*Q).double(), empty(*KV), empty(*KV), {}, TypeError, "q torch.float64"),
        (empty(*Q).half(), empty(*KV), empty(*KV), {}, TypeError, "q torch.float16, k torch"),
        (empty(4, 4, 16), empty(*KV), empty(*KV), {}, ValueError, r"got \(4, 4, 16\)"),
        (empty(1, 0, 4, 16), empty(*KV), empty(*KV), {}, ValueError, "q must not be empty"),
        (empty(*Q), empty(1, 4, 3, 16), empty(1, 4, 3, 16), {}, ValueError, "h_kv that divides"),
        (empty(*Q), empty(1, 5, 2, 16), empty(1, 5, 2, 16), {}, ValueError, "h_kv that divides"),
        (empty(*Q), empty(*KV), empty(1, 4, 1, 16), {}, ValueError, "h_kv that divides"),
        (empty(1, 4, 4, 24), empty(1, 4, 2, 24), empty(1, 4, 2, 24), {}, ValueError, "got 24"),
        (*[empty(65_536, 1, 1, 16)] * 3, {}, ValueError, "at most 65535 sequences"),
        (*[empty(1, 1, 1, 16).expand(2**12, 65, 2**12, 16)] * 3, {}, ValueError, "at most 1073741"),
        (
            *[empty(1, 1, 1, 16).expand(65_535, 1, 520, 16)] * 3,
            {},
            ValueError,
            "times 64: 1 rounded up",
        ),
        (empty(*Q), empty(*KV), empty(*KV), {"alibi_slopes": 1.0}, TypeError, "got 1.0"),
        (empty(*Q), empty(*KV), empty(*KV), {"alibi_slopes": empty(2)}, ValueError, r"be \[4\]"),
        (empty(*Q), empty(*KV), empty(*KV), {"scale": 0}, ValueError, "positive and finite, got 0"),
    ],
)
def test_bad_input_is_refused(q, k, v, options, error, said):
    with pytest.raises(error, match=said):
        causal_attention(q, k, v, **options)


def test_slopes_with_a_gradient_are_refused():
    slopes = torch.ones(4, requires_grad=True)
    with pytest.raises(ValueError, match="need no gradient"):
        causal_attention(empty(*Q), empty(*KV), empty(*KV), alibi_slopes=slopes)


@pytest.mark.parametrize("item", [2, 4])
@pytest.mark.parametrize("channels", attention._CHANNELS)
def test_no_kernel_loads_more_of_lse_than_was_stored(channels, item):
    forward, dq, dkv = (tile.queries for tile in TILES(channels, item))
    assert forward % 16 == forward % dq == dq % dkv == attention._MOST_QUERIES % forward == 0


# In a process of its own: in this one kernels may be made for the interpreter.
COMPILED = """
import json, sys
from pathlib import Path
import torch, triton
from benchmarks._machine_code import disassembly
from benchmarks._machine_code.stub_driver import StubDriver
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
    whole, other = json.loads(done.stdout).values()
    assert whole.keys() == {"forward_kernel", "dq_kernel", "dkv_kernel"}
    for name, count in whole.items():
        assert other[name] <= 1.02 * count, name
