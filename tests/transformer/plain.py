"""Causal attention in plain PyTorch, by whole matrices, in float64."""

import math

import torch


def attention(q, k, v, alibi_slopes=None, scale=None):
    """``[b, s, h, d]`` of tensors of any dtype, in float64."""
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * (scale or q.shape[-1] ** -0.5)
    at = torch.arange(q.shape[1], device=q.device)
    distance = at - at[:, None]
    if alibi_slopes is not None:
        scores = scores + alibi_slopes.double()[:, None, None] * distance
    weights = scores.masked_fill(distance > 0, -math.inf).softmax(-1)
    return torch.einsum("bhij,bjhd->bihd", weights, v)
