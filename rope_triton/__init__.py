"""Rotary position embedding (RoPE), forward and backward, as one Triton kernel for PyTorch."""

from rope_triton import scalings
from rope_triton.angles import mrope_angles, rotary_angles
from rope_triton.api import (
    apply_fused_qkv_rotary_pos_emb,
    apply_qk_rotary_pos_emb,
    apply_rotary_pos_emb,
)
from rope_triton.configs import frequencies_from_config
from rope_triton.frequencies import RotaryPositionEmbedding
from rope_triton.tables import apply_qk_rotary_emb, apply_rotary_emb, rotary_embedding

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
