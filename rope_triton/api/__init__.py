"""The public functions, and which implementation computes each call."""

from rope_triton.api.by_angles import (
    apply_fused_qkv_rotary_pos_emb,
    apply_qk_rotary_pos_emb,
    apply_rotary_pos_emb,
)
from rope_triton.api.by_tables import apply_qk_rotary_emb, apply_rotary_emb, rotary_embedding

__all__ = [
    "apply_fused_qkv_rotary_pos_emb",
    "apply_qk_rotary_emb",
    "apply_qk_rotary_pos_emb",
    "apply_rotary_emb",
    "apply_rotary_pos_emb",
    "rotary_embedding",
]
