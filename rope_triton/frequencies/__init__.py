"""The angles of a model: its frequencies times the positions of its tokens."""

from rope_triton.frequencies.angles import mrope_angles, rotary_angles
from rope_triton.frequencies.configs import frequencies_from_config
from rope_triton.frequencies.embedding import RotaryPositionEmbedding

__all__ = ["RotaryPositionEmbedding", "frequencies_from_config", "mrope_angles", "rotary_angles"]
