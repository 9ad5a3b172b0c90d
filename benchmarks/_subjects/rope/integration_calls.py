"""Each function of ``rope_triton.integrations``: its tensors, and the same by PyTorch.

torchtitan's overrides are not among them, because they need torchtitan.
"""

from typing import ClassVar

from ..module_calls import ModuleCall
from . import angles
from .formula import rotated


class _Rotation(ModuleCall):
    """Of half rotation: other pairs, offsets and rounding are options of the surface, too."""

    @classmethod
    def results(cls, size, words):
        return cls.operands(size, words)

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

    @staticmethod
    def operands(size, words):
        first = "tokensfirst" in words
        counts = size.heads, size.kv_heads
        inner = [(size.tokens, n) if first else (n, size.tokens) for n in counts]
        return [(size.batch, *each, size.channels) for each in inner]

    def _more(self, device):
        import torch

        cos, sin = (torch.cat((each, each), -1)[None] for each in self._pairs(device))
        return {"cos": cos, "sin": sin, "unsqueeze_dim": 2 if self._words else 1}

    def _arguments(self, q, k):
        return {"q": q, "k": k}

    def _expected(self, q, k, cos, sin, unsqueeze_dim=1):
        half = q.shape[-1] // 2
        cos, sin = (each.float()[..., :half].unsqueeze(unsqueeze_dim) for each in (cos, sin))
        return rotated(q, cos, sin), rotated(k, cos, sin)


class _HuggingFaceVision(_HuggingFace):
    function = "apply_rotary_pos_emb_vision"
    sizes = ("tokens", "heads", "kv_heads", "channels")
    words = ()

    @staticmethod
    def operands(size, words):
        return [(size.tokens, count, size.channels) for count in (size.heads, size.kv_heads)]

    def _more(self, device):
        import torch

        cos, sin = (torch.cat((each, each), -1) for each in self._pairs(device))
        return {"cos": cos, "sin": sin}


class _FlashQkv(_Rotation):
    module, function = "integrations.flash_attention", "apply_rotary_emb_qkv_"
    sizes = ("batch", "tokens", "heads", "channels")
    in_place = True
    rotates: ClassVar[tuple[bool, ...]] = (True, True, False)  # queries, keys, values

    @classmethod
    def operands(cls, size, words):
        return [(size.batch, size.tokens, len(cls.rotates), size.heads, size.channels)]

    def _more(self, device):
        return dict(zip(("cos", "sin"), self._pairs(device), strict=True))

    def _arguments(self, packed):
        return {"qkv": packed}

    def _expected(self, qkv, cos, sin):
        import torch

        cos, sin = cos.float()[:, None], sin.float()[:, None]
        parts = zip(qkv.unbind(2), self.rotates, strict=True)
        return torch.stack([rotated(x, cos, sin) if turn else x for x, turn in parts], dim=2)


class _FlashKv(_FlashQkv):
    function = "apply_rotary_emb_kv_"
    rotates = (True, False)

    def _arguments(self, packed):
        return {"kv": packed}

    def _expected(self, kv, cos, sin):
        return super()._expected(kv, cos, sin)


class _Vllm(_Rotation):
    module, function = "integrations.vllm", "rotary_embedding"
    sizes = ("tokens", "heads", "kv_heads", "channels")
    in_place = True

    @staticmethod
    def operands(size, words):
        return [(size.tokens, count * size.channels) for count in (size.heads, size.kv_heads)]

    def _more(self, device):
        import torch

        return {
            "positions": torch.arange(self._size.tokens, device=device),
            "head_size": self._size.channels,
            "cos_sin_cache": torch.cat(self._pairs(device), dim=-1),
            "is_neox": True,
        }

    def _arguments(self, query, key):
        return {"query": query, "key": key}

    def _expected(self, query, key, positions, head_size, cos_sin_cache, is_neox):
        cos, sin = cos_sin_cache.float()[:, None].chunk(2, dim=-1)
        both = (each.unflatten(-1, (-1, head_size)) for each in (query, key))
        return tuple(rotated(each, cos, sin).flatten(1) for each in both)


class _Megatron(_Rotation):
    module, function = "integrations.megatron", "fused_apply_rotary_pos_emb"
    sizes = ("tokens", "batch", "heads", "channels")

    @staticmethod
    def operands(size, words):
        return [(size.tokens, size.batch, size.heads, size.channels)]

    def _more(self, device):
        return {"freqs": angles.by_channel(self._radians(device))}

    def _arguments(self, t):
        return {"t": t}

    def _expected(self, t, freqs, cu_seqlens=None):
        if cu_seqlens is not None:
            freqs = freqs.repeat(self._size.batch, 1, 1, 1)[:, 0]
        pairs = freqs[..., : freqs.shape[-1] // 2]
        return rotated(t, pairs.cos(), pairs.sin())


class _MegatronPacked(_Megatron):
    function = "fused_apply_rotary_pos_emb_thd"  # of sequences of equal length

    @staticmethod
    def operands(size, words):
        return [(size.tokens * size.batch, size.heads, size.channels)]

    def _more(self, device):
        import torch

        bounds = torch.arange(self._size.batch + 1, dtype=torch.int32, device=device)
        return super()._more(device) | {"cu_seqlens": bounds * self._size.tokens}


FUNCTIONS: dict[str, type[ModuleCall]] = {
    **{"hf": _HuggingFace, "hfvision": _HuggingFaceVision},
    **{"flashqkv": _FlashQkv, "flashkv": _FlashKv, "vllm": _Vllm},
    **{"megatron": _Megatron, "megatronthd": _MegatronPacked},
}
"""Names in a form, and how each function is called."""
