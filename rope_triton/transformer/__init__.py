"""Triton kernels of a transformer's training step, beside the rotation."""

from rope_triton.transformer.activations import softmax, swiglu
from rope_triton.transformer.attention import causal_attention
from rope_triton.transformer.losses import cross_entropy, linear_cross_entropy
from rope_triton.transformer.norms import layer_norm, rms_norm
from rope_triton.transformer.products import linear, matmul
from rope_triton.transformer.rotary_attention import interleaved_rows, rotary_attention

__all__ = [
    "causal_attention",
    "cross_entropy",
    "interleaved_rows",
    "layer_norm",
    "linear",
    "linear_cross_entropy",
    "matmul",
    "rms_norm",
    "rotary_attention",
    "softmax",
    "swiglu",
]
