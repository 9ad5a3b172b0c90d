"""Split packed queries, keys and values and rotate them, or rotate them back and join them.

Both are linear, and each is the transpose of the other and so its gradient.
"""

import torch
from torch.autograd import forward_ad

from rope_triton import checks
from rope_triton.kernel import launch, plans
from rope_triton.kernel.plans import QkvOptions
from rope_triton.ops.dispatch import (
    NO_MEMORY,
    compiling,
    contiguous,
    has_exact_types,
    hidden,
    is_plain,
    linear,
    linear_in_batch,
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
    call = qkv, q_freqs, k_freqs, start_positions
    if is_plain(call[:3], start_positions) and has_exact_types(options):
        try:
            if qkv.requires_grad and torch.is_grad_enabled():
                return _Split.apply(*call, options)
            return _split(*call, options)
        except NO_MEMORY:
            others = *call[1:], *options[:-1]
            return linear_in_batch(_split_operator.overload, (qkv,), *others)
    checks.check_qkv(*call, options)
    if transforming():
        raise NotImplementedError(
            "the transforms of torch.func are not supported: call apply_rotary_pos_emb on q and k"
        )
    return linear(_split_operator.overload, (qkv,), *call[1:], *options[:-1])


@hidden
def _split(qkv, q_freqs, k_freqs, start_positions, options):
    call = qkv, q_freqs, k_freqs, contiguous(start_positions)
    key = _key(call, options)
    cached = launch.cached(key)
    if cached is None or checks.CHECK_VALUES:
        checks.check_qkv(*call, options, values=True)
        launch.check_device(qkv)
    parts = [qkv.new_empty(shape) for shape in _part_shapes(qkv, options)]
    tensors = qkv, *parts, *call[1:]
    launch.run(key, cached, plans.qkv_rotation, tensors, options)
    return tuple(parts)


@hidden
def _join(q, k, v, q_freqs, k_freqs, start_positions, options):
    qkv = q.new_empty(_qkv_shape(q, options))
    tables = q_freqs, k_freqs, contiguous(start_positions)
    options = options._replace(join=True)
    key = _key((q, k, v, *tables), options)
    tensors = qkv, q, k, v, *tables
    launch.run(key, launch.cached(key), plans.qkv_rotation, tensors, options)
    return qkv


def _part_shapes(qkv, options):
    *leading, groups, _ = qkv.shape
    return [(*leading, groups * count, options.v_channels) for count in options.counts]


def _qkv_shape(q, options):
    return *q.shape[:2], q.shape[2] // options.counts[0], sum(options.channels)


def _key(tensors, options):
    keys = (None if t is None else launch.specialization_key(t) for t in tensors)
    return "rope_qkv_kernel", options, *keys


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx, qkv, q_freqs, k_freqs, start_positions, options):
        ctx.save_for_backward(q_freqs, k_freqs, start_positions)
        ctx.options = options
        return _split(qkv, q_freqs, k_freqs, start_positions, options)

    @staticmethod
    def backward(ctx, *grads):
        tables, options = ctx.saved_tensors, ctx.options
        if compiling():  # compiled autograd
            grad = _join_operator.overload(*grads, *tables, *options[:-1])
            return grad, None, None, None, None
        run = _Join.apply if torch.is_grad_enabled() else _join
        without = forward_ad._current_level < 0  # saves a function call, 0.5 microseconds
        others = *tables, options
        try:
            grad = run(*grads, *others) if without else linear(run, grads, *others)
        except NO_MEMORY:
            grad = linear_in_batch(_join_operator.overload, grads, *tables, *options[:-1])
        return grad, None, None, None, None


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, q_freqs, k_freqs, start_positions, options):
        ctx.save_for_backward(q_freqs, k_freqs, start_positions)
        ctx.options = options
        return _join(q, k, v, q_freqs, k_freqs, start_positions, options)

    @staticmethod
    def backward(ctx, grad):
        tables, options = ctx.saved_tensors, ctx.options
        if compiling():  # compiled autograd
            parts = _split_operator.overload(grad, *tables, *options[:-1])
            return *parts, None, None, None, None
        run = _Split.apply if torch.is_grad_enabled() else _split
        try:
            parts = linear(run, (grad,), *tables, options)
        except NO_MEMORY:
            parts = linear_in_batch(_split_operator.overload, (grad,), *tables, *options[:-1])
        return *parts, None, None, None, None


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
    return _split(qkv, q_freqs, k_freqs, start_positions, QkvOptions(*options))


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
    return _join(q, k, v, q_freqs, k_freqs, start_positions, QkvOptions(*options))


@_split_operator.register_fake
def _(qkv, q_freqs, k_freqs, start_positions, *options):
    return tuple(qkv.new_empty(shape) for shape in _part_shapes(qkv, QkvOptions(*options)))


@_join_operator.register_fake
def _(q, k, v, q_freqs, k_freqs, start_positions, *options):
    return q.new_empty(_qkv_shape(q, QkvOptions(*options)))


def _save(first):
    def save(ctx, inputs, output):
        ctx.save_for_backward(*inputs[first : first + 3])
        ctx.options = inputs[first + 3 :]

    return save


def _split_backward(ctx, *grads):
    others = *ctx.saved_tensors, *ctx.options
    return linear(_join_operator.overload, grads, *others), *[None] * 10


def _join_backward(ctx, grad):
    others = *ctx.saved_tensors, *ctx.options
    return *linear(_split_operator.overload, (grad,), *others), *[None] * 10


_split_operator.register_autograd(_split_backward, setup_context=_save(1))
_join_operator.register_autograd(_join_backward, setup_context=_save(3))
