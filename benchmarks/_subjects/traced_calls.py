"""Calls whose cost on the host is counted: all that the lists have, and what a model does besides.

A clock on a GPU would say little of the others: they are made once a step, or once.
"""

import itertools
from collections.abc import Callable, Mapping

from .._engine.subject import BACKWARD, FORWARD, Countable
from .._engine.verdict.metrics import COUNTED
from .calls import BaseCell

Step = Callable[[], object]
_CHANNELS, _HEADS, _TOKENS = 128, 4, 4  # so few elements that PyTorch's own work takes no time


def calls(listed: Mapping[str, BaseCell]) -> dict[tuple[str, tuple[str, str]], Countable]:
    """All of them, by asv's class and parameters; ``listed``: cells by their names."""
    counted: dict[tuple[str, str], Countable] = {
        (name, direction): (cell, direction)
        for name, cell in listed.items()
        for direction in cell.directions
    }
    return {(COUNTED, params): call for params, call in (counted | OTHERS).items()}


def _embedding() -> Step:
    import rope_triton

    embedding = rope_triton.RotaryPositionEmbedding(_CHANNELS)
    return lambda: embedding(_TOKENS)


def _rotary_angles() -> Step:
    import torch

    import rope_triton

    positions, frequencies = torch.arange(_TOKENS), torch.ones(_CHANNELS // 2)
    return lambda: rope_triton.rotary_angles(positions, frequencies)


def _mrope_angles() -> Step:
    import torch

    import rope_triton

    positions, frequencies = torch.zeros(3, 2, _TOKENS, dtype=torch.int64), torch.ones(64)
    return lambda: rope_triton.mrope_angles(positions, frequencies, [16, 24, 24])


def _from_config(**scaling) -> Callable[[], Step]:
    """Frequencies by this scaling, from the configuration of a model."""

    def make() -> Step:
        import rope_triton

        config = {"model_type": "llama", "head_dim": _CHANNELS, "max_position_embeddings": 131072}
        config |= {"rope_theta": 500000.0, "hidden_size": 4096, "num_attention_heads": 32}
        config |= {"rope_scaling": scaling} if scaling else {}
        return lambda: rope_triton.frequencies_from_config(config, seq_len=8192)

    return make


def _new_length() -> Step:
    """Eager training and prefill: no call has the length of one before."""
    import torch

    import rope_triton

    # So long that a clock does not reach the end.
    lengths, angles = itertools.count(1001, 2), torch.zeros(1 << 15, 1, 1, _CHANNELS)
    memory = torch.empty(1 << 15, 1, _HEADS, _CHANNELS, dtype=torch.bfloat16)

    def step():
        length = next(lengths)
        return rope_triton.apply_rotary_pos_emb(memory[:length], angles[:length])

    return step


def _gradients(function: str, tensors: int, tables: int) -> Callable[[], Step]:
    """Gradients of the tensors that are rotated, and of the angles or tables."""

    def make() -> Step:
        import torch

        import rope_triton

        called = getattr(rope_triton, function)
        rotated = [torch.zeros(_TOKENS, 2, _HEADS, _CHANNELS) for _ in range(tensors)]
        shape = (_TOKENS, 1, 1, _CHANNELS) if tables == 1 else (2, _CHANNELS // 2)
        leaves = [*rotated, *(torch.zeros(shape) for _ in range(tables))]
        leaves = [leaf.requires_grad_() for leaf in leaves]
        cotangents = [torch.zeros_like(x) for x in rotated]

        def step():
            return torch.autograd.grad(called(*leaves), leaves, cotangents)

        return step

    return make


def _flash() -> Step:
    import torch

    from rope_triton.integrations import flash_attention

    x = torch.empty(2, _TOKENS, _HEADS, _CHANNELS)
    cos, sin = (torch.empty(_TOKENS, _CHANNELS // 2) for _ in range(2))
    return lambda: flash_attention.apply_rotary_emb(x, cos, sin)


def _interleaved_rows() -> Step:
    import torch

    from rope_triton import transformer

    weight = torch.empty(_HEADS * _CHANNELS, 64)
    return lambda: transformer.interleaved_rows(weight, _HEADS)


OTHERS: dict[tuple[str, str], Callable[[], Step]] = {
    ("embedding", FORWARD): _embedding,
    ("rotary-angles", FORWARD): _rotary_angles,
    ("mrope-angles", FORWARD): _mrope_angles,
    ("config", FORWARD): _from_config(),
    ("config-linear", FORWARD): _from_config(rope_type="linear", factor=4.0),
    ("config-yarn", FORWARD): _from_config(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=32768
    ),
    ("new-length", FORWARD): _new_length,
    ("angles-gradient", BACKWARD): _gradients("apply_rotary_pos_emb", 1, 1),
    ("qkangles-gradient", BACKWARD): _gradients("apply_qk_rotary_pos_emb", 2, 1),
    ("tables-gradient", BACKWARD): _gradients("apply_rotary_emb", 1, 2),
    ("qktables-gradient", BACKWARD): _gradients("apply_qk_rotary_emb", 2, 2),
    ("flash", FORWARD): _flash,
    ("interleaved-rows", FORWARD): _interleaved_rows,
}
"""By name and direction, what makes each call."""
