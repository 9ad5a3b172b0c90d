"""Megatron Core, torchtitan, vLLM: their functions on this package's kernel.

None of them is installed here: what they call, and are called by, is made after their sources
(Megatron Core 0.16.1, torchtitan b5bcd76c, vLLM 0.33.0).
"""

import importlib
import itertools
import sys
import types
from dataclasses import dataclass, fields

import pytest
import torch

from rope_triton.integrations import megatron, vllm
from tests import covering
from tests.package import plain

TOKENS, HEADS, CHANNELS = 7, (4, 2), 16
TOLERANCE = {"rtol": 1.6e-2, "atol": 1e-5}


@pytest.fixture
def random():
    return torch.Generator().manual_seed(0)


def module(monkeypatch, name, **content):
    """A module of this name, in its packages, until the test ends."""
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        made = types.ModuleType(".".join(parts[:count]))
        made.__path__ = []
        made = sys.modules.get(made.__name__, made)
        monkeypatch.setitem(sys.modules, made.__name__, made)
    vars(made).update(content)
    return made


# --- Megatron Core --------------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [False, True])
def test_megatron_rotates_by_angles(interleaved, random, device):
    t = torch.randn(TOKENS, 2, 4, CHANNELS, generator=random).to(device).requires_grad_()
    angle = torch.randn(TOKENS, 4, generator=random).to(device)  # part of the channels
    wide = angle.repeat_interleave(2, -1) if interleaved else torch.cat((angle, angle), -1)
    out = megatron.fused_apply_rotary_pos_emb(t, wide[:, None, None], interleaved=interleaved)
    for batch in range(2):
        expected = plain.rotated(t[:, batch], angle, interleaved)
        torch.testing.assert_close(out[:, batch], expected, **TOLERANCE)
    with pytest.warns(UserWarning, match="transpose_output_memory is not supported"):
        again = megatron.fused_apply_rotary_pos_emb(t, wide[:, None, None], True, interleaved)
    assert torch.equal(again, out)


def test_megatron_rotates_packed_sequences_on_a_rank(random, device):
    """The second of two ranks has the second and the third quarter of each sequence."""
    bounds = torch.tensor((0, 8, 12), dtype=torch.int32, device=device)
    t = torch.randn(6, 4, CHANNELS, generator=random).to(device)
    angle = torch.randn(8, CHANNELS // 2, generator=random).to(device)
    freqs = torch.cat((angle, angle), -1)[:, None, None]
    out = megatron.fused_apply_rotary_pos_emb_thd(t, bounds, freqs, 2, 1)
    expected = plain.rotated(t, angle[[2, 3, 4, 5, 1, 2]], False)
    torch.testing.assert_close(out, expected, **TOLERANCE)


NAMES = "fused_apply_rotary_pos_emb", "fused_apply_rotary_pos_emb_thd"


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_megatron_is_patched_until_all_patches_are_undone(order, monkeypatch):
    utils = module(monkeypatch, megatron._MODULE, **dict.fromkeys(NAMES, len))
    patches = [megatron.patch() for _ in order]
    assert repr(patches[0]) == f"<Patch of {', '.join(f'{utils.__name__}.{x}' for x in NAMES)}>"
    for index in order:
        assert [getattr(utils, x).function for x in NAMES] == [getattr(megatron, x) for x in NAMES]
        patches[index].close()
        patches[index].close()  # a second time changes nothing
    assert [getattr(utils, name) for name in NAMES] == [len, len]


@pytest.mark.parametrize("theirs_first", [False, True])
@pytest.mark.parametrize("undone_first", ["ours", "theirs"])
def test_a_patch_of_another_library_stays(theirs_first, undone_first, monkeypatch):
    """One that is over ours, and calls it; one that is under it."""
    name = NAMES[0]
    utils = module(monkeypatch, megatron._MODULE, **dict.fromkeys(NAMES, max))

    def patch_theirs():
        below = getattr(utils, name)
        setattr(utils, name, lambda x, freqs: ("theirs", below(x, freqs)))
        return lambda: setattr(utils, name, below)

    monkeypatch.setattr(megatron.api, "apply_rotary_pos_emb", lambda *_, **__: "ours")
    kinds = ["theirs", "ours"] if theirs_first else ["ours", "theirs"]
    undo = {kind: patch_theirs() if kind == "theirs" else megatron.patch().close for kind in kinds}
    undo.pop(undone_first)()
    if undone_first == "ours":
        assert getattr(utils, name)(1, 2) == ("theirs", 2)
    elif not theirs_first:
        assert getattr(utils, name)(1, 2) == "ours"
    undo.popitem()[1]()
    assert getattr(utils, name)(1, 2) == 2


def test_megatron_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "megatron", None)
    with pytest.raises(ModuleNotFoundError, match="megatron"):
        megatron.patch()


# --- torchtitan -----------------------------------------------------------------------------------


@pytest.fixture
def torchtitan(monkeypatch):
    """The integration, on classes as torchtitan has them; with what it registers."""
    registered = []

    def override(**about):
        return lambda factory: registered.append((about, factory)) or factory

    def derive(source, to):
        return to(**{field.name: getattr(source, field.name) for field in fields(source)})

    class RoPE(torch.nn.Module):
        @dataclass(kw_only=True, slots=True)
        class Config:
            dim: int

        def __init__(self, config, table):
            super().__init__()
            self.cache = table

        def forward(self, query, key, positions):
            return self.apply_rotary_emb(query, key, self.cache[positions][:, None])

    class CosSinRoPE(RoPE):
        class Config(RoPE.Config):
            pass

    class ComplexRoPE(RoPE):
        class Config(RoPE.Config):
            pass

    module(monkeypatch, "torchtitan.config.override", override=override, derive=derive)
    common = {"CosSinRoPE": CosSinRoPE, "ComplexRoPE": ComplexRoPE}
    module(monkeypatch, "torchtitan.models.common.rope", **common)
    name = "rope_triton.integrations.torchtitan"
    monkeypatch.delitem(sys.modules, name, raising=False)
    made = importlib.import_module(name)
    monkeypatch.delitem(sys.modules, name)
    return types.SimpleNamespace(**vars(made), registered=registered)


@covering.pairs(
    {"complex": [False, True], "dtype": [torch.float32, torch.bfloat16], "sharded": [False, True]}
)
def test_torchtitan_rotates_queries_and_keys(case, torchtitan, random, device, mesh):
    sizes = ((TOKENS, heads, CHANNELS) for heads in HEADS)
    q, k = (torch.randn(size, generator=random).to(device, case["dtype"]) for size in sizes)
    angle = torch.randn(20, CHANNELS // 2, generator=random).to(device)
    at = torch.randint(20, (TOKENS,), generator=random).to(device)
    kind = torchtitan.TritonComplexRoPE if case["complex"] else torchtitan.TritonCosSinRoPE
    wide = torch.cat((angle, angle), -1)
    table = torch.polar(torch.ones_like(angle), angle)
    table = table if case["complex"] else torch.cat((wide.cos(), wide.sin()), -1)
    inputs = [x.requires_grad_() for x in (q, k)]
    if case["sharded"]:
        from torch.distributed.tensor import DTensor, Replicate, Shard

        inputs = [DTensor.from_local(x, mesh, [Shard(1)]) for x in inputs]
        table = DTensor.from_local(table, mesh, [Replicate()])
        at = DTensor.from_local(at, mesh, [Replicate()])
    out = kind(None, table)(*inputs, at)
    if case["sharded"]:
        assert all(x.placements == (Shard(1),) for x in out)
        out, at = [x.to_local() for x in out], at.to_local()
    expected = [plain.rotated(x, angle[at], case["complex"]) for x in (q, k)]
    results, right = (
        (*outputs, *torch.autograd.grad(outputs, (q, k), (q, k))) for outputs in (out, expected)
    )
    atol = 1e-5 if case["dtype"] == torch.float32 else 2e-2  # the interpreter rounds toward zero
    torch.testing.assert_close(results, right, rtol=1.6e-2, atol=atol)


@pytest.fixture(scope="module")
def mesh():
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
    yield DeviceMesh("cuda" if torch.cuda.is_available() else "cpu", [0])
    dist.destroy_process_group()


def test_torchtitan_takes_both_overrides(torchtitan):
    for name in ("CosSin", "Complex"):
        kind = getattr(torchtitan, f"{name}RoPE")
        ((about, factory),) = (
            entry for entry in torchtitan.registered if entry[0]["target"] is kind.Config
        )
        assert about["exact"]  # a subclass has a table of its own kind
        made = factory(kind.Config(dim=8))
        assert type(made) is getattr(torchtitan, f"Triton{name}RoPE").Config and made.dim == 8


# --- vLLM -----------------------------------------------------------------------------------------


VLLM_CALLS = {
    "neox": [True, False],
    "rotated": [CHANNELS, 8],
    "offset": [0, 8],
    "inverse": [False, True],
    "shape": ["flat", "heads", "batch"],
    "key": [True, False],
    "dtype": [torch.float32, torch.bfloat16],
}


@covering.parametrize(
    covering.spanning(VLLM_CALLS, 2, lambda case: case["rotated"] + case["offset"] <= CHANNELS)
)
def test_vllm_rotates_in_place(case, random, device, monkeypatch):
    angle = torch.randn(20, case["rotated"] // 2, generator=random).to(device)
    at = torch.randint(20, (6,), generator=random).to(device)
    cache = torch.cat((angle.cos(), angle.sin()), -1).to(case["dtype"])
    # Queries and keys lie side by side, as a projection of both writes them.
    both = torch.randn(6, sum(HEADS) * CHANNELS, generator=random).to(device, case["dtype"])
    before = both.clone()
    q, k = both.split([count * CHANNELS for count in HEADS], -1)
    positions = at.view(2, 3) if case["shape"] == "batch" else at
    if case["shape"] == "heads":
        q, k = (x.unflatten(-1, (-1, CHANNELS)) for x in (q, k))
    if case["shape"] == "batch":
        q, k = (x.unflatten(0, (2, 3)) for x in (q, k))
    options = (CHANNELS, cache, case["neox"], case["offset"], case["inverse"])
    with monkeypatch.context() as patched:  # it turns back without a negated copy of the cache
        patched.setattr(torch.Tensor, "__neg__", None)
        vllm.rotary_embedding(positions, q, k if case["key"] else None, *options)
    expected = before.unflatten(-1, (-1, CHANNELS))
    heads = sum(HEADS) if case["key"] else HEADS[0]
    part = expected[:, :heads, case["offset"] : case["offset"] + case["rotated"]]
    part[:] = plain.rotated(part, -angle[at] if case["inverse"] else angle[at], not case["neox"])
    atol = 1e-5 if case["dtype"] == torch.float32 else 3e-2
    torch.testing.assert_close(both, expected.flatten(1), rtol=1.6e-2, atol=atol)
