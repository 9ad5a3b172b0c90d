"""Functions of ``rope_triton.integrations``: the tensors of a call, and the same by PyTorch.

torchtitan's overrides are not among them, because they need torchtitan.
"""

from typing import ClassVar

from ..module_calls import ModuleCall, shapes_of
from . import angles
from .formula import rotated


class _Rotation(ModuleCall):
    """Of half rotation: calls of the package's own functions have other pairs, and offsets."""

    @classmethod
    def results(cls, size, words):
        return [*cls.operands(size, words).values()]

    def _pairs(self, device: str):
        """Cosines and sines ``[s, d/2]`` in the dtype of the call."""
        import torch

        pairs, dtype = self._radians(device)[:, 0, 0], getattr(torch, self.cell.dtype)
        return pairs.cos().to(dtype), pairs.sin().to(dtype)

    def _radians(self, device: str):
        """Float32 ``[s, 1, 1, d/2]``."""
        return angles.exact(0, self._size.tokens, self._size.channels, device).float()


class _HuggingFace(_Rotation):
    module, function = "integrations.transformers", "apply_rotary_pos_emb"
    sizes: ClassVar[tuple[str, ...]] = ("batch", "tokens", "heads", "kv_heads", "channels")
    words: ClassVar[tuple[str, ...]] = ("tokensfirst",)  # [b, s, h, d]

    @classmethod
    def operands(cls, size, words):
        counts = {"q": size.heads, "k": size.kv_heads}
        return shapes_of(size, counts, heads_first="tokensfirst" not in words)

    def _make_constants(self, device):
        import torch

        cos, sin = (torch.cat((table, table), -1)[None] for table in self._pairs(device))
        return {"cos": cos, "sin": sin, "unsqueeze_dim": 2 if self._words else 1}

    def _expected(self, q, k, cos, sin, unsqueeze_dim=1):
        half = q.shape[-1] // 2
        cos, sin = (table.float()[..., :half].unsqueeze(unsqueeze_dim) for table in (cos, sin))
        return rotated(q, cos, sin), rotated(k, cos, sin)


class _HuggingFaceVision(_HuggingFace):
    function = "apply_rotary_pos_emb_vision"
    sizes = ("tokens", "heads", "kv_heads", "channels")
    words = ()

    @classmethod
    def operands(cls, size, words):
        counts = {"q": size.heads, "k": size.kv_heads}
        return {name: (size.tokens, count, size.channels) for name, count in counts.items()}

    def _make_constants(self, device):
        constants = super()._make_constants(device)
        return {name: constants[name][0] for name in ("cos", "sin")}


class _FlashQkv(_Rotation):
    module, function = "integrations.flash_attention", "apply_rotary_emb_qkv_"
    sizes = ("batch", "tokens", "heads", "channels")
    in_place = True
    packed = "qkv"
    turned: ClassVar[tuple[bool, ...]] = (True, True, False)  # queries, keys, values

    @classmethod
    def operands(cls, size, words):
        return {cls.packed: (size.batch, size.tokens, len(cls.packed), size.heads, size.channels)}

    def _make_constants(self, device):
        return dict(zip(("cos", "sin"), self._pairs(device), strict=True))

    def _expected(self, cos, sin, **packed):
        import torch

        cos, sin = cos.float()[:, None], sin.float()[:, None]
        parts = zip(packed[self.packed].unbind(2), self.turned, strict=True)
        return torch.stack([rotated(x, cos, sin) if turn else x for x, turn in parts], dim=2)


class _FlashKv(_FlashQkv):
    function = "apply_rotary_emb_kv_"
    packed = "kv"
    turned = (True, False)


class _Vllm(_Rotation):
    module, function = "integrations.vllm", "rotary_embedding"
    sizes = ("tokens", "heads", "kv_heads", "channels")
    in_place = True

    @classmethod
    def operands(cls, size, words):
        counts = {"query": size.heads, "key": size.kv_heads}
        return {name: (size.tokens, count * size.channels) for name, count in counts.items()}

    def _make_constants(self, device):
        import torch

        return {
            "positions": torch.arange(self._size.tokens, device=device),
            "head_size": self._size.channels,
            "cos_sin_cache": torch.cat(self._pairs(device), dim=-1),
            "is_neox": True,
        }

    def _expected(self, query, key, positions, head_size, cos_sin_cache, is_neox):
        cos, sin = cos_sin_cache.float()[:, None].chunk(2, dim=-1)
        both = (t.unflatten(-1, (-1, head_size)) for t in (query, key))
        return tuple(rotated(t, cos, sin).flatten(1) for t in both)


class _Megatron(_Rotation):
    module, function = "integrations.megatron", "fused_apply_rotary_pos_emb"
    sizes = ("tokens", "batch", "heads", "channels")

    @classmethod
    def operands(cls, size, words):
        return {"t": (size.tokens, size.batch, size.heads, size.channels)}

    def _make_constants(self, device):
        return {"freqs": angles.by_channel(self._radians(device))}

    def _expected(self, t, freqs, cu_seqlens=None):
        if cu_seqlens is not None:
            freqs = freqs.repeat(self._size.batch, 1, 1, 1)[:, 0]
        pairs = freqs[..., : freqs.shape[-1] // 2]
        return rotated(t, pairs.cos(), pairs.sin())


class _MegatronPacked(_Megatron):
    function = "fused_apply_rotary_pos_emb_thd"  # of sequences of equal length

    @classmethod
    def operands(cls, size, words):
        return {"t": (size.tokens * size.batch, size.heads, size.channels)}

    def _make_constants(self, device):
        import torch

        bounds = torch.arange(self._size.batch + 1, dtype=torch.int32, device=device)
        return super()._make_constants(device) | {"cu_seqlens": bounds * self._size.tokens}


FUNCTIONS: dict[str, type[ModuleCall]] = {
    **{"hf": _HuggingFace, "hfvision": _HuggingFaceVision},
    **{"flashqkv": _FlashQkv, "flashkv": _FlashKv, "vllm": _Vllm},
    **{"megatron": _Megatron, "megatronthd": _MegatronPacked},
}
"""Names in a call, and how each function is called."""
