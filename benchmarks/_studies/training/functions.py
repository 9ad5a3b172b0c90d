"""The providers: what a network's functions are, and whether torch.compile gets them.

One that has kernels of its own replaces those functions of another's table, as ``_liger`` does.
"""

import functools
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..._engine.subject import Unavailable
from .network import EPS, Functions
from .sizes import KERNELS, PARTS


@functools.cache
def _plain() -> Functions:
    """PyTorch, with RoPE as ``modeling_llama.py`` of Hugging Face's Transformers has it.

    Tables and every step are rounded to the dtype of the network; the loss is in float32. One
    object for all that it is part of, so that equal heads are compiled once.
    """
    import torch
    from torch.nn import functional

    def tables(angles, dtype):
        return tuple(table.to(dtype)[None, None, :, 0, 0] for table in (angles.cos(), angles.sin()))

    def rotate_half(x):
        first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
        return torch.cat((-second, first), dim=-1)

    def rope(q, k, tables):
        cos, sin = tables
        q, k = q.transpose(1, 2), k.transpose(1, 2)
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        return q.transpose(1, 2), k.transpose(1, 2)

    def norm(x, weight):
        return functional.rms_norm(x, weight.shape, weight, EPS)

    def attention(q, k, v):
        shared = q.shape[2] != k.shape[2]
        q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shared)
        return mixed.transpose(1, 2)

    def activation(gate, up):
        return functional.silu(gate) * up

    def loss(logits, targets):
        return functional.cross_entropy(logits.float(), targets)

    return Functions(tables, rope, norm, functional.linear, attention, activation, loss)


def _ours() -> Functions:
    from rope_triton import apply_qk_rotary_pos_emb

    def rope(q, k, angles):
        return apply_qk_rotary_pos_emb(q, k, angles, "bshd")

    return _plain()._replace(tables=lambda angles, dtype: angles, rope=rope)


def _transformers() -> Functions:
    from rope_triton.integrations.transformers import apply_rotary_pos_emb

    def rope(q, k, tables):
        cos, sin = tables
        return apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=2)

    return _plain()._replace(tables=_by_token, rope=rope)


def _megatron() -> Functions:
    """Its tensors are ``[s, b, h, d]``."""
    from rope_triton.integrations.megatron import fused_apply_rotary_pos_emb

    def rope(q, k, angles):
        both = (fused_apply_rotary_pos_emb(tensor.transpose(0, 1), angles) for tensor in (q, k))
        return tuple(tensor.transpose(0, 1) for tensor in both)

    return _ours()._replace(rope=rope)


def _flash_attention() -> Functions:
    from rope_triton.integrations.flash_attention import apply_rotary_emb_qkv_

    def tables(angles, dtype):
        half = angles[:, 0, 0, : angles.shape[-1] // 2]
        return half.cos().to(dtype), half.sin().to(dtype)

    def split_rope(qkv, tables, heads, kv_heads):
        packed = qkv.unflatten(-1, (heads + 2 * kv_heads, -1))
        cos, sin = tables
        rotated = apply_rotary_emb_qkv_(packed, cos, sin, num_heads_q=heads)
        return rotated.split([heads, kv_heads, kv_heads], dim=2)

    return _plain()._replace(tables=tables, split_rope=split_rope)


def _liger() -> Functions:
    """Some overwrite what they are given; Unavailable if Liger-Kernel is not installed."""
    try:
        from liger_kernel.transformers import functional
        from liger_kernel.transformers.rope import liger_rotary_pos_emb
    except ImportError as error:
        why = f"liger is not there: {error}; pip install liger-kernel"
        raise Unavailable(why) from None

    def rope(q, k, tables):
        rotated = liger_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), *tables)
        return tuple(tensor.transpose(1, 2) for tensor in rotated)

    return _plain()._replace(
        tables=_by_token,
        rope=rope,
        norm=lambda x, weight: functional.liger_rms_norm(x, weight, EPS),
        activation=functional.liger_swiglu,
        loss=functional.liger_cross_entropy,
    )


def _hybrid() -> Functions:
    """RoPE takes the projection apart, so that its backward writes the projection's gradient."""
    from rope_triton import apply_fused_qkv_rotary_pos_emb
    from rope_triton.transformer import linear_cross_entropy, rms_norm

    def split_rope(qkv, angles, heads, kv_heads):
        channels = angles.shape[-1]
        groups = qkv.unflatten(-1, (kv_heads, -1))
        sizes = [heads // kv_heads * channels, channels, channels]
        return apply_fused_qkv_rotary_pos_emb(groups, angles, angles, sizes, "bshd")

    return _ours()._replace(
        split_rope=split_rope,
        norm=lambda x, weight: rms_norm(x, weight, EPS),
        add_norm=lambda x, added, weight: rms_norm(added, weight, EPS, residual=x),
        linear_loss=linear_cross_entropy,
    )


def _triton() -> Functions:
    """This package's kernels alone, but for the embedding and the sums of residuals."""
    from rope_triton.transformer import causal_attention, linear, swiglu

    return _hybrid()._replace(linear=linear, attention=causal_attention, activation=swiglu)


def _triton_fused() -> Functions:
    """Rotates neighbouring pairs of channels."""
    from rope_triton.transformer import rotary_attention

    return _triton()._replace(tables=_by_pairs, rotary_attention=rotary_attention)


def _plain_groups() -> Functions:
    """The projection has groups of heads: queries, and the keys and values that they share."""
    plain = _plain()

    def split_rope(qkv, tables, heads, kv_heads):
        shared = heads // kv_heads
        groups = qkv.unflatten(-1, (kv_heads, shared + 2, -1))
        q, k, v = (part.flatten(2, 3) for part in groups.split([shared, 1, 1], dim=3))
        return *plain.rope(q, k, tables), v

    return plain._replace(split_rope=split_rope)


def _plain_pairs() -> Functions:
    import torch

    def rope(q, k, angles):
        cos, sin = angles[:, 0].cos(), angles[:, 0].sin()

        def turned(x):
            members = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1)
            return x * cos + members.flatten(-2) * sin

        return turned(q), turned(k)

    return _plain()._replace(tables=_by_pairs, rope=rope)


def _without_rotation(functions: Callable[[], Functions]) -> Functions:
    return functions()._replace(
        tables=lambda angles, dtype: None, rope=lambda q, k, _: (q, k), split_rope=None
    )


_none = functools.partial(_without_rotation, _plain)
_triton_none = functools.partial(_without_rotation, _triton)


def _by_token(angles, dtype):
    """Cosines and sines ``[1, s, d]``, as models of Transformers have them."""
    return tuple(table.to(dtype)[None, :, 0, 0] for table in (angles.cos(), angles.sin()))


def _by_pairs(angles, dtype):
    """Angles ``[s, 1, 1, d]``, the same for both channels of a pair, which are neighbours."""
    return angles[..., : angles.shape[-1] // 2].repeat_interleave(2, dim=-1)


class Provider(NamedTuple):
    """What a provider is in words, and its functions.

    ``backend``: of torch.compile, None for eager PyTorch. ``without_rope``: the same without RoPE,
    beside which RoPE's share is measured, if there is such a provider. ``reference``: what its
    network computes, in plain PyTorch, to be called in float32. ``kernels``: whether its products
    and its attention are measured alone, too.
    """

    about: str
    functions: Callable[[], Functions]
    backend: str | None = None
    without_rope: str = ""
    reference: Callable[[], Functions] = _plain
    kernels: bool = False

    def parts(self, asked: Iterable[str] = PARTS) -> tuple[str, ...]:
        """Those of the parts that are measured of it."""
        return tuple(part for part in asked if self.kernels or part not in KERNELS)


_eager = functools.partial(Provider, without_rope="none-eager")
_compiled = functools.partial(Provider, backend="inductor")

# Each is measured beside all others, in this order and in the reverse one.
PROVIDERS = {
    "none-eager": Provider("eager PyTorch without RoPE", _none, reference=_none),
    "eager": _eager("eager PyTorch, RoPE as Llama's formula on precomputed tables", _plain),
    "ours-eager": _eager(
        "eager PyTorch, RoPE by this package: queries and keys in one launch", _ours
    ),
    "transformers": _eager("the same by `rope_triton.integrations.transformers`", _transformers),
    "megatron": _eager(
        "the same by `rope_triton.integrations.megatron`, a launch for each of the two", _megatron
    ),
    "flash-attention": _eager(
        "the same by `rope_triton.integrations.flash_attention`, in place in the projection",
        _flash_attention,
    ),
    "liger": Provider(
        "eager PyTorch, with Liger-Kernel's RoPE, RMSNorm, SwiGLU and cross-entropy", _liger
    ),
    "none": _compiled(
        "torch.compile of each layer and the head, without RoPE",
        _none,
        reference=_none,
        kernels=True,
    ),
    "compiled": _compiled("the same with Llama's formula", _plain, without_rope="none"),
    "ours": _compiled("the same with this package's operator", _ours, without_rope="none"),
    "hybrid": _compiled(
        "the same with this package's norms and loss, too; RoPE splits the projection",
        _hybrid,
        reference=_plain_groups,
    ),
    "triton-none": _compiled(
        "this package's kernels alone, compiled, without RoPE",
        _triton_none,
        reference=_none,
        kernels=True,
    ),
    "triton": _compiled(
        "the same with this package's RoPE, which splits the projection",
        _triton,
        without_rope="triton-none",
        reference=_plain_groups,
    ),
    "triton-fused": _compiled(
        "the same with RoPE in the projection and in attention's backward",
        _triton_fused,
        without_rope="triton-none",
        reference=_plain_pairs,
    ),
}
"""By name. Where no other kernels are named, they are PyTorch's."""

OURS = ("none-eager", "ours-eager", "none", "ours")
"""Those that this package changes, and what they are measured beside."""
