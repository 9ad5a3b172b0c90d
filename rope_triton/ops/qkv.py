"""Split packed queries, keys and values and rotate them, or rotate them back and join them.

Both are linear, and each is the transpose of the other and so its gradient.
"""

import torch

from rope_triton import checks
from rope_triton.kernel import launch, plans
from rope_triton.kernel.plans import QkvOptions
from rope_triton.ops.dispatch import (
    NO_MEMORY,
    contiguous,
    has_exact_types,
    hidden,
    is_plain,
    linear,
    linear_function,
    linear_in_batch,
    register_linear,
    transforming,
)
from rope_triton.ops.operators import operator


def split_qkv(
    qkv: torch.Tensor,
    q_freqs: torch.Tensor,
    k_freqs: torch.Tensor,
    start_positions: torch.Tensor | None,
    options: QkvOptions,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Split and rotate; see :func:`rope_triton.apply_fused_qkv_rotary_pos_emb`."""
    tables = q_freqs, k_freqs, start_positions
    if is_plain((qkv, q_freqs, k_freqs), start_positions) and has_exact_types(options):
        try:
            if qkv.requires_grad and torch.is_grad_enabled():
                return _Rotate.apply(qkv, tables, options)
            return _rotate(qkv, tables, options)
        except NO_MEMORY:
            return linear_in_batch(_split_operator.overload, (qkv,), *tables, *options[:-1])
    checks.check_qkv(qkv, *tables, options)
    if transforming():
        raise NotImplementedError(
            "the transforms of torch.func are not supported: call apply_rotary_pos_emb on q and k"
        )
    return linear(_split_operator.overload, (qkv,), *tables, *options[:-1])


@hidden
def _rotate(*args):
    """Of ``(qkv, tables, options)`` the parts; with ``options.join`` of the parts ``qkv``."""
    *inputs, (q_freqs, k_freqs, start_positions), options = args
    tables = q_freqs, k_freqs, contiguous(start_positions)
    keys = (None if t is None else launch.specialization_key(t) for t in (*inputs, *tables))
    key = "rope_qkv_kernel", options, *keys
    cached = launch.cached(key)
    if not options.join and (cached is None or checks.CHECK_VALUES):
        checks.check_qkv(*inputs, *tables, options, values=True)
        launch.check_device(inputs[0])
    shapes = [_qkv_shape(inputs[0], options)] if options.join else _part_shapes(*inputs, options)
    outputs = tuple(inputs[0].new_empty(shape) for shape in shapes)
    tensors = (*outputs, *inputs) if options.join else (*inputs, *outputs)
    launch.run(key, cached, plans.qkv_rotation, (*tensors, *tables), options)
    return outputs


def _part_shapes(qkv, options):
    *leading, groups, _ = qkv.shape
    return [(*leading, groups * count, options.v_channels) for count in options.counts]


def _qkv_shape(q, options):
    return *q.shape[:2], q.shape[2] // options.counts[0], sum(options.channels)


@operator("split_qkv")
def _split_operator(
    qkv: torch.Tensor,
    q_freqs: torch.Tensor,
    k_freqs: torch.Tensor,
    start_positions: torch.Tensor | None,
    tensor_format: str,
    interleaved: bool,
    cp_size: int,
    cp_rank: int,
    q_channels: int,
    k_channels: int,
    v_channels: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    options = tensor_format, interleaved, cp_size, cp_rank, q_channels, k_channels, v_channels
    return _rotate(qkv, (q_freqs, k_freqs, start_positions), QkvOptions(*options))


@operator("join_qkv")
def _join_operator(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_freqs: torch.Tensor,
    k_freqs: torch.Tensor,
    start_positions: torch.Tensor | None,
    tensor_format: str,
    interleaved: bool,
    cp_size: int,
    cp_rank: int,
    q_channels: int,
    k_channels: int,
    v_channels: int,
) -> torch.Tensor:
    options = tensor_format, interleaved, cp_size, cp_rank, q_channels, k_channels, v_channels
    tables = q_freqs, k_freqs, start_positions
    return _rotate(q, k, v, tables, QkvOptions(*options, join=True))[0]


@_split_operator.register_fake
def _(qkv, q_freqs, k_freqs, start_positions, *options):
    return tuple(qkv.new_empty(shape) for shape in _part_shapes(qkv, QkvOptions(*options)))


@_join_operator.register_fake
def _(q, k, v, q_freqs, k_freqs, start_positions, *options):
    return q.new_empty(_qkv_shape(q, QkvOptions(*options)))


register_linear(_split_operator, 1, 3, _join_operator.overload)
register_linear(_join_operator, 3, 3, _split_operator.overload)
_Rotate = linear_function(
    "RotateQkv",
    _rotate,
    lambda options: _join_operator.overload if options.join else _split_operator.overload,
)
