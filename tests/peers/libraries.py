"""Stubs of other libraries' modules, with their habits, in plain PyTorch.

What is theirs: names and places, the order of dimensions, what they copy, overwrite and refuse.
Also small cells to call them in, and a fixture that lets them be called: ``here = libraries.here``.
"""

import dataclasses
import sys
import types

import pytest
import torch

from benchmarks._engine.measure import inputs, timed_cell
from benchmarks._engine.subject import BACKWARD, FORWARD
from benchmarks._studies.peers import plain
from benchmarks._studies.peers.peer_cells import peer_cell

FORWARD_ONLY = {"vllm", "flashinfer", "xformers"}
HALF_ONLY = {"flashinfer"}
DIRECTIONS = (FORWARD, BACKWARD)


def rotated(x, cos, sin, interleaved=False):
    """By tables that broadcast to pairs of the first channels, in float32, rounded once."""
    turned, rest = x.float().tensor_split([2 * cos.shape[-1]], dim=-1)
    pairs = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, dim=-1)
    first, second = pairs
    cos, sin = cos.float(), sin.float()
    both = first * cos - second * sin, second * cos + first * sin
    turned = torch.stack(both, -1).flatten(-2) if interleaved else torch.cat(both, dim=-1)
    return torch.cat((turned, rest), dim=-1).to(x.dtype)


def te_apply_rotary_pos_emb(t, freqs, tensor_format="sbhd", *, fused=False):
    assert fused and freqs.dtype == torch.float32 and freqs.dim() == 4
    angle = freqs[: t.shape[tensor_format.index("s")], ..., : t.shape[-1] // 2]
    angle = angle.transpose(0, 1) if tensor_format == "bshd" else angle
    return rotated(t, angle.cos(), angle.sin())


def flash_apply_rotary_emb(x, cos, sin, interleaved=False, *, seqlen_offsets=0):
    assert x.dtype == cos.dtype == sin.dtype and len(cos) >= x.shape[1]
    rows = torch.arange(x.shape[1], device=x.device)[None]
    if isinstance(seqlen_offsets, torch.Tensor):
        assert seqlen_offsets.shape == (len(x),)
        rows = rows + seqlen_offsets[:, None]
    return rotated(x, cos[rows][:, :, None], sin[rows][:, :, None], interleaved)


def fla_rotary_embedding(x, cos, sin, **options):
    return flash_apply_rotary_emb(x.contiguous(), cos, sin, **options)


def quack_apply_rotary_emb(x, cos, sin, interleaved=False, *, seqlen_offsets=None):
    assert x.stride(-1) == 1 and x.shape[-1] % 8 == 0 and 2 * cos.shape[1] % 8 == 0
    assert seqlen_offsets is None or isinstance(seqlen_offsets, torch.Tensor)
    return flash_apply_rotary_emb(x, cos, sin, interleaved, seqlen_offsets=seqlen_offsets)


class _LigerRope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, cos, sin):
        ctx.save_for_backward(cos, sin)
        return _turned_in_place(q, cos, sin), _turned_in_place(k, cos, sin)

    @staticmethod
    def backward(ctx, dq, dk):
        cos, sin = ctx.saved_tensors
        return _turned_in_place(dq, cos, -sin), _turned_in_place(dk, cos, -sin), None, None


def _turned_in_place(x, cos, sin):
    """``[b, h, s, d]``, made contiguous as ``[b, s, h, d]`` and overwritten; products rounded.

    As by a kernel, of whose writing autograd learns nothing.
    """
    stored, half = x.transpose(1, 2).contiguous().data, cos.shape[-1] // 2
    cos, sin = (table[:, :, None, :half].to(x.dtype) for table in (cos, sin))
    first, second = (part.clone() for part in stored[..., : 2 * half].chunk(2, dim=-1))
    stored[..., :half] = first * cos - second * sin
    stored[..., half : 2 * half] = second * cos + first * sin
    overwritten = stored.data_ptr() == x.data_ptr()
    return x.transpose(1, 2).transpose(1, 2) if overwritten else stored.transpose(1, 2)


def liger_rotary_pos_emb(q, k, cos, sin):
    assert cos.shape[:2] in ((1, q.shape[2]), (len(q), q.shape[2]))
    return _LigerRope.apply(q, k, cos, sin)


def fast_rope_embedding(Q, K, cos, sin):
    assert cos.shape == (Q.shape[2], Q.shape[3])
    return _LigerRope.apply(Q, K, cos[None], sin[None])


def llama_apply_rotary_pos_emb(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)

    def turned(x):
        first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
        return (x * cos) + (torch.cat((-second, first), dim=-1) * sin)

    return turned(q), turned(k)


def vllm_rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox) -> None:
    assert positions.dtype == torch.int64 and query.dtype == cos_sin_cache.dtype
    cos, sin = cos_sin_cache[positions][:, None].chunk(2, dim=-1)
    for tokens in (query, key):
        if tokens is not None:
            heads = tokens.view(len(positions), -1, head_size)
            heads.copy_(rotated(heads, cos, sin, interleaved=not is_neox))


def flashinfer_apply_rope_with_cos_sin_cache(
    positions, query, key, head_size, cos_sin_cache, is_neox=True
):
    """By token, into new memory of which autograd learns nothing."""
    assert cos_sin_cache.dtype == torch.float32 and cos_sin_cache.shape[1] % 32 == 0
    assert query.dtype == key.dtype and query.dtype != torch.float32
    assert query.dim() == key.dim() == 2
    cos, sin = cos_sin_cache[positions][:, None].chunk(2, dim=-1)
    return tuple(
        rotated(x.detach().view(len(x), -1, head_size), cos, sin, not is_neox).view(x.shape)
        for x in (query, key)
    )


class BlockDiagonalCausalWithOffsetPaddedKeysMask:
    @classmethod
    def from_seqlens(cls, q_seqlen, kv_padding, kv_seqlen, causal_diagonal=None, *, device=None):
        assert q_seqlen == kv_seqlen and set(q_seqlen) == {kv_padding}
        mask = cls()
        mask.lengths = q_seqlen
        return mask


def rope_padded(xq, xk, xv, cache_k, cache_v, attn_bias, *, theta=10000.0, adjacents=True):
    assert not adjacents and xq.shape[:2] == xk.shape[:2] == (1, sum(attn_bias.lengths))
    assert xk.shape == xv.shape == cache_k.shape == cache_v.shape
    positions = torch.cat([torch.arange(n, device=xq.device) for n in attn_bias.lengths])
    powers = torch.arange(0, xq.shape[-1], 2, device=xq.device) / xq.shape[-1]
    angle = (positions[:, None] * theta**-powers)[None, :, None]
    cache_k.copy_(rotated(xk, angle.cos(), angle.sin()))
    cache_v.copy_(xv)
    return rotated(xq, angle.cos(), angle.sin())


# --- as modules -----------------------------------------------------------------------------------

FUNCTIONS = {
    "transformer-engine": (
        "transformer_engine.pytorch.attention.rope",
        "apply_rotary_pos_emb",
        te_apply_rotary_pos_emb,
    ),
    "flash-attention": ("flash_attn.layers.rotary", "apply_rotary_emb", flash_apply_rotary_emb),
    "liger": ("liger_kernel.transformers.rope", "liger_rotary_pos_emb", liger_rotary_pos_emb),
    "fla": ("fla.modules.rotary", "rotary_embedding", fla_rotary_embedding),
    "quack": ("quack.rotary", "apply_rotary_emb", quack_apply_rotary_emb),
    "huggingface": (
        "transformers.models.llama.modeling_llama",
        "apply_rotary_pos_emb",
        llama_apply_rotary_pos_emb,
    ),
    "vllm": ("vllm._custom_ops", "rotary_embedding", vllm_rotary_embedding),
    "flashinfer": (
        "flashinfer.rope",
        "apply_rope_with_cos_sin_cache",
        flashinfer_apply_rope_with_cos_sin_cache,
    ),
    "xformers": ("xformers.ops.rope_padded", "rope_padded", rope_padded),
    "unsloth": ("unsloth.kernels.rope_embedding", "fast_rope_embedding", fast_rope_embedding),
}
_MASK = BlockDiagonalCausalWithOffsetPaddedKeysMask


def install(patch, provider: str, function=None) -> None:
    """Let a library be there, or its function another, as long as the patch lasts."""
    place, name, real = FUNCTIONS[provider]
    put(patch, place, **{name: function or real})
    if provider == "xformers":
        put(patch, "xformers.ops.fmha.attn_bias", **{_MASK.__name__: _MASK})


def remove(patch, provider: str) -> None:
    """Let a library not be there."""
    place, *_ = FUNCTIONS[provider]
    top = place.partition(".")[0]
    for name in [name for name in sys.modules if name.partition(".")[0] == top]:
        patch.delitem(sys.modules, name)
    patch.setitem(sys.modules, top, None)


def put(patch, place: str, **values) -> None:
    """Let there be a module with these, as long as the patch lasts."""
    parts = place.split(".")
    for length in range(1, len(parts) + 1):
        path = ".".join(parts[:length])
        if not isinstance(sys.modules.get(path), types.ModuleType) or length == len(parts):
            patch.setitem(sys.modules, path, types.ModuleType(path))
            sys.modules[path].__path__ = []
    vars(sys.modules[place]).update(values)


# --- in cells -------------------------------------------------------------------------------------


def cell_of(provider, format="bshd", dtype="bfloat16", heads=4, seq_len=5, hidden_size=32, batch=2):
    return peer_cell(provider, seq_len, hidden_size, heads, batch, dtype, format)


def random(cell, device="cpu"):
    return torch.randn(cell.shape, dtype=getattr(torch, cell.dtype)).to(device)


def called(cell, direction, device="cpu"):
    """The call, what runs it, its memory, and what was in that before."""
    cell = dataclasses.replace(cell)  # which knows no shapes yet
    call, x = cell.call(device), random(cell, device)
    before = x.clone()
    (rotate,) = timed_cell.calls(call, direction, [x])
    return call, rotate, x, before


@pytest.fixture
def here(monkeypatch, device):
    """Cells are called where the kernels run, by stubs of all libraries."""
    for provider in FUNCTIONS:
        install(monkeypatch, provider)
    monkeypatch.setattr(plain.Compiled, "backend", "aot_eager")
    monkeypatch.setattr(inputs, "DEVICE", device)
    return device
