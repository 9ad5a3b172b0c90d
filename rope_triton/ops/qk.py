"""Rotate queries and keys, which may differ in heads, in one launch."""

import torch

from rope_triton import checks
from rope_triton.kernel import launch, plans
from rope_triton.kernel.plans import Options
from rope_triton.ops.dispatch import (
    NO_MEMORY,
    has_exact_types,
    hidden,
    is_plain,
    linear,
    linear_in_batch,
    normalize_tables,
    transforming,
)
from rope_triton.ops.operators import LinearOperator
from rope_triton.ops.single import TABLES


def rotate_qk(
    q: torch.Tensor,
    k: torch.Tensor,
    freqs: torch.Tensor,
    sin: torch.Tensor | None,
    start_positions: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    options: Options,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate by angles or, with ``sin``, by tables; raises what the functions of ``api`` raise."""
    required = (q, k, freqs) if sin is None else (q, k, freqs, sin)
    plain = is_plain(required, start_positions, cu_seqlens) and has_exact_types(options)
    if not plain:
        checks.check_qk(q, k, freqs, sin, start_positions, cu_seqlens, options)
    tables = freqs, sin, start_positions, cu_seqlens
    if plain:
        try:
            if (q.requires_grad or k.requires_grad) and torch.is_grad_enabled():
                return _operator.apply(q, k, tables, options)
            return _rotate(q, k, tables, options)
        except NO_MEMORY:
            return linear_in_batch(_operator.overload, (q, k), *tables, *options[:-1])
    if transforming():
        raise NotImplementedError(
            "the transforms of torch.func are not supported: rotate q and k one by one"
        )
    freqs, sin = freqs.detach(), None if sin is None else sin.detach()
    others = freqs, sin, start_positions, cu_seqlens, *options[:-1]
    return linear(_operator.overload, (q, k), *others)


@hidden
def _rotate(q, k, tables, options):
    freqs, sin, start_positions, cu_seqlens = tables = normalize_tables(tables)
    keys = launch.specialization_key(q), launch.specialization_key(k), launch.table_keys(tables)
    key = "rope_kernel", options, *keys
    cached = launch.cached(key)
    if cached is None or checks.CHECK_VALUES:
        checks.check_qk(q, k, freqs, sin, start_positions, cu_seqlens, options, values=True)
        launch.check_device(q, "pass fused=False, or " if sin is None else "")
    out = (
        torch.empty_like(q, memory_format=torch.contiguous_format),
        torch.empty_like(k, memory_format=torch.contiguous_format),
    )
    if options.tensor_format != "thd":
        cu_seqlens = None  # the shape bounds the sequences
    tensors = *out, q, k, freqs, sin, start_positions, cu_seqlens
    launch.run(key, cached, plans.rotation, tensors, options)
    return out


_operator = LinearOperator("rotate_qk", _rotate, ("q", "k"), TABLES, Options)
