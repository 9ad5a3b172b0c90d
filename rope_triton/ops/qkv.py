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
    linear_in_batch,
    transforming,
)
from rope_triton.ops.operators import LinearOperator


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
                return _split.apply(qkv, tables, options)
            return _rotate(qkv, tables, options)
        except NO_MEMORY:
            return linear_in_batch(_split.overload, (qkv,), *tables, *options[:-1])
    checks.check_qkv(qkv, *tables, options)
    if transforming():
        raise NotImplementedError(
            "the transforms of torch.func are not supported: call apply_rotary_pos_emb on q and k"
        )
    return linear(_split.overload, (qkv,), *tables, *options[:-1])


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
    outputs = tuple(inputs[0].new_empty(shape) for shape in _shapes(inputs, options))
    tensors = (*outputs, *inputs) if options.join else (*inputs, *outputs)
    launch.run(key, cached, plans.qkv_rotation, (*tensors, *tables), options)
    return outputs[0] if options.join else outputs


def _shapes(inputs, options):
    """Of the parts of packed heads; with ``options.join``, of the packed heads of parts."""
    *leading, heads, _ = inputs[0].shape
    if options.join:
        return [(*leading, heads // options.counts[0], sum(options.channels))]
    return [(*leading, heads * count, options.v_channels) for count in options.counts]


_TABLES = {"q_freqs": torch.Tensor, "k_freqs": torch.Tensor, "start_positions": torch.Tensor | None}
_arguments = _TABLES, QkvOptions, _shapes
_split = LinearOperator("split_qkv", _rotate, ("qkv",), *_arguments, results=3)
_join = LinearOperator("join_qkv", _rotate, ("q", "k", "v"), *_arguments, results=1, last=True)
_split.adjoint, _join.adjoint = _join, _split
