"""Causal attention and its gradients in float64, by whole matrices."""

import math

import torch

from tests.transformer import common


def attention(q, k, v, slopes=None, scale=None):
    """``[b, s, h, d]`` of tensors of any dtype, in float64."""
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[2] // k.shape[2]
    k, v = (each.repeat_interleave(group, 2) for each in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * (scale or q.shape[-1] ** -0.5)
    at = torch.arange(q.shape[1], device=q.device)
    back = at - at[:, None]
    if slopes is not None:
        scores = scores + slopes.double()[:, None, None] * back
    weights = scores.masked_fill(back > 0, -math.inf).softmax(-1)
    return torch.einsum("bhij,bjhd->bihd", weights, v)


def gradients(q, k, v, dout, slopes=None, scale=None) -> list:
    """The output, and the gradients of ``q``, ``k`` and ``v``."""
    given = common.exact((q, k, v))
    return common.gradients(attention, given, dout.double(), slopes=slopes, scale=scale)
