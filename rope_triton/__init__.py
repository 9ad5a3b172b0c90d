"""Rotary position embedding (RoPE), forward and backward, as one Triton kernel for PyTorch."""

from rope_triton.api import apply_rotary_pos_emb
from rope_triton.frequencies import RotaryPositionEmbedding

__all__ = ["RotaryPositionEmbedding", "apply_rotary_pos_emb"]
__version__ = "0.1.0"
