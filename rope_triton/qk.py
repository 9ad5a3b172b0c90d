"""The operator on queries and keys at once, which may differ in heads.

Linear, and its gradient the transposed rotation, as in ``ops``: plain tensors go straight to the
launch and the rest through PyTorch's dispatcher.
"""

import torch
from torch.autograd import forward_ad

from rope_triton import checks, launch, plans
from rope_triton.kernels import rope_qk_kernel
from rope_triton.ops import as_read, back, check_device, is_plain, keyed, linear, transforming
from rope_triton.plans import Options


def rotate(
    q: torch.Tensor,
    k: torch.Tensor,
    freqs: torch.Tensor,
    sin: torch.Tensor | None,
    start_positions: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    options: Options,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys, rotated by angles or, with ``sin``, by tables; errors as of ``api``."""
    needed = (q, k, freqs) if sin is None else (q, k, freqs, sin)
    plain = is_plain(needed, start_positions, cu_seqlens) and keyed(options)
    if not plain:
        checks.check_both(q, k, freqs, sin, start_positions, cu_seqlens, options)
    tables = freqs, sin, start_positions, cu_seqlens
    if plain:
        if (q.requires_grad or k.requires_grad) and torch.is_grad_enabled():
            return _RotateBoth.apply(q, k, tables, options)
        return _rotate(q, k, tables, options)
    if transforming():
        raise NotImplementedError(
            "the transforms of torch.func are not supported: rotate q and k one by one"
        )
    freqs, sin = freqs.detach(), None if sin is None else sin.detach()
    rest = freqs, sin, start_positions, cu_seqlens, *options[:-1]
    return linear(_operator, (q, k), *rest)


def _rotate(q, k, tables, options):
    freqs, sin, start_positions, cu_seqlens = tables = as_read(tables)
    form = "rope_qk_kernel", options, launch.form(q), launch.form(k), launch.forms(tables)
    launches = launch.known(form)
    if launches is None or checks.VALUES:
        checks.check_both(q, k, freqs, sin, start_positions, cu_seqlens, options)
        check_device(q)
    out = (
        torch.empty_like(q, memory_format=torch.contiguous_format),
        torch.empty_like(k, memory_format=torch.contiguous_format),
    )
    if options.tensor_format != "thd":
        cu_seqlens = None  # says what the shape says
    tensors = *out, q, k, freqs, sin, start_positions, cu_seqlens
    launch.run(form, launches, rope_qk_kernel, plans.qk_rotation, tensors, options)
    return out


class _RotateBoth(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, tables, options):
        ctx.save_for_backward(*tables)
        ctx.options = options
        return _rotate(q, k, tables, options)

    @staticmethod
    def backward(ctx, *grads):
        run = _RotateBoth.apply if torch.is_grad_enabled() else _rotate
        tables, options = ctx.saved_tensors, back(ctx.options)
        if forward_ad._current_level < 0:  # saves a function, as in ``ops``
            q, k = run(grads[0], grads[1], tables, options)
        else:
            q, k = linear(run, grads, tables, options)
        return q, k, None, None


@torch.library.custom_op("rope_triton::rotate_qk", mutates_args=())
def _operator(
    q: torch.Tensor,
    k: torch.Tensor,
    freqs: torch.Tensor,
    sin: torch.Tensor | None,
    start_positions: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    tensor_format: str,
    interleaved: bool,
    cp_size: int,
    cp_rank: int,
    rounding: str,
    transposed: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    options = Options(tensor_format, interleaved, cp_size, cp_rank, rounding, transposed)
    return _rotate(q, k, (freqs, sin, start_positions, cu_seqlens), options)


@_operator.register_fake
def _(q, k, *_):
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k))


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs[2:6])
    ctx.options = inputs[6:]


def _backward(ctx, *grads):
    *options, transposed = ctx.options
    rest = *ctx.saved_tensors, *options, not transposed
    return *linear(_operator, grads, *rest), *[None] * 10


_operator.register_autograd(_backward, setup_context=_save)
