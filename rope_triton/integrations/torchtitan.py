"""torchtitan: its rotary embeddings on this package's kernel, as overrides of its configuration.

``--override.imports rope_triton.integrations.torchtitan.cos_sin_rope`` (or ``complex_rope``) makes
torchtitan import this module.
"""

from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor
from torchtitan.config.override import derive, override
from torchtitan.models.common.rope import ComplexRoPE, CosSinRoPE

from rope_triton import api


class TritonCosSinRoPE(CosSinRoPE):
    """torchtitan's ``CosSinRoPE``: pairs ``(i, i + d/2)``, tables of cosines and sines."""

    @dataclass(kw_only=True, slots=True)
    class Config(CosSinRoPE.Config):
        pass

    @staticmethod
    def apply_rotary_emb(query, key, rope_cache):
        """Rotate ``[t, h, d]`` by ``[t, 1, 2 d]``: cosines, then sines, of each channel."""
        cos, sin = _local(rope_cache)[:, 0].chunk(2, dim=-1)
        half = cos.shape[-1] // 2
        return _rotated(query, key, cos[:, :half], sin[:, :half], interleaved=False)


class TritonComplexRoPE(ComplexRoPE):
    """torchtitan's ``ComplexRoPE``: pairs ``(2i, 2i + 1)``, a complex table."""

    @dataclass(kw_only=True, slots=True)
    class Config(ComplexRoPE.Config):
        pass

    @staticmethod
    def apply_rotary_emb(query, key, rope_cache):
        """Rotate ``[t, h, d]`` by complex ``[t, 1, d / 2]``."""
        table = _local(rope_cache)[:, 0]
        return _rotated(query, key, table.real, table.imag, interleaved=True)


@override(target=CosSinRoPE.Config, exact=True, description="rope-triton's kernel")
def cos_sin_rope(cfg: CosSinRoPE.Config) -> TritonCosSinRoPE.Config:
    """Let this package rotate where torchtitan would use ``CosSinRoPE``."""
    return derive(cfg, TritonCosSinRoPE.Config)


@override(target=ComplexRoPE.Config, exact=True, description="rope-triton's kernel")
def complex_rope(cfg: ComplexRoPE.Config) -> TritonComplexRoPE.Config:
    """Let this package rotate where torchtitan would use ``ComplexRoPE``."""
    return derive(cfg, TritonComplexRoPE.Config)


def _rotated(query, key, cos, sin, interleaved):
    """The rotation of each device's own tokens and heads: no device needs another's."""
    local = _local(query)[None], _local(key)[None]
    out = api.apply_qk_rotary_emb(*local, cos, sin, interleaved)
    return tuple(_like(x[0], original) for x, original in zip(out, (query, key), strict=True))


def _local(x):
    return x.to_local() if isinstance(x, DTensor) else x


def _like(x: torch.Tensor, original):
    if not isinstance(original, DTensor):
        return x
    return DTensor.from_local(x, original.device_mesh, original.placements, run_check=False)
