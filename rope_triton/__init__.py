"""Rotary position embedding (RoPE) for PyTorch, forward and backward, in one Triton kernel."""

from rope_triton import scalings
from rope_triton.api import (
    apply_fused_qkv_rotary_pos_emb,
    apply_qk_rotary_emb,
    apply_qk_rotary_pos_emb,
    apply_rotary_emb,
    apply_rotary_pos_emb,
    rotary_embedding,
)
from rope_triton.frequencies import (
    RotaryPositionEmbedding,
    frequencies_from_config,
    mrope_angles,
    rotary_angles,
)

__all__ = [
    "RotaryPositionEmbedding",
    "apply_fused_qkv_rotary_pos_emb",
    "apply_qk_rotary_emb",
    "apply_qk_rotary_pos_emb",
    "apply_rotary_emb",
    "apply_rotary_pos_emb",
    "frequencies_from_config",
    "mrope_angles",
    "rotary_angles",
    "rotary_embedding",
    "scalings",
]
__version__ = "0.1.0"
