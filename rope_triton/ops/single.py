"""Rotate one tensor: the dispatch paths of ``rope_triton::rotate``."""

import torch
from torch.autograd import forward_ad

from rope_triton import checks
from rope_triton.kernel import launch, plans
from rope_triton.kernel.plans import Options
from rope_triton.ops.dispatch import (
    NO_MEMORY,
    compiling,
    has_exact_types,
    hidden,
    is_batch,
    is_plain,
    linear,
    linear_in_batch,
    materialized,
    no_gradient_of_tables,
    normalize_tables,
    transforming,
)
from rope_triton.ops.operators import InPlaceOperator, LinearOperator


def rotate(
    t: torch.Tensor,
    freqs: torch.Tensor,
    sin: torch.Tensor | None,
    start_positions: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    options: Options,
    inplace_gradient: bool = False,
) -> torch.Tensor:
    """Rotate by angles or, with ``sin``, by tables; raises what the functions of ``api`` raise."""
    required = (t, freqs) if sin is None else (t, freqs, sin)
    tables = freqs, sin, start_positions, cu_seqlens
    if not (is_plain(required, start_positions, cu_seqlens) and has_exact_types(options)):
        checks.check_rotation(t, *tables, options)
        checks.check_fused(t, "t" if sin is None else "x")
        return _dispatch(t, tables, options)
    try:
        if t.requires_grad and torch.is_grad_enabled():
            if not options.inplace:
                return _operator.apply(t, tables, options)
            checks.check_in_place(t)  # a leaf has the specialization key of any other tensor
            _RotateInPlace.apply(*_base_and_view(t), tables, options, inplace_gradient)
            return t
        out = _rotate(t, tables, options)
    except NO_MEMORY:
        out = linear_in_batch(_operator.overload, (t,), *tables, *options[:-1])
        return t.copy_(out) if options.inplace else out
    if options.inplace and not t.is_inference():
        torch.autograd.graph.increment_version(t)
    return out


def _dispatch(t, tables, options):
    """Through PyTorch's dispatcher, or torch.func."""
    if options.inplace:
        if compiling() and forward_ad._current_level < 0:
            _operator_in_place.overload(t, *tables, *options[:-1])
            return t.view_as(t)  # AOTAutograd copies what a custom Function made of an input
        return t.copy_(_dispatch(t, tables, options._replace(inplace=False)))
    if transforming():
        return _Transformed.apply(t, *tables, options)
    tables = *(table if table is None else table.detach() for table in tables[:2]), *tables[2:]
    return linear(_operator.overload, (t,), *tables, *options[:-1])


@hidden
def _rotate(t, tables, options):
    freqs, sin, start_positions, cu_seqlens = tables = normalize_tables(tables)
    key = "rope_kernel", options, launch.specialization_key(t), launch.table_keys(tables)
    cached = launch.cached(key)
    if cached is None or checks.CHECK_VALUES:
        checks.check_rotation(t, *tables, options, values=True)
        checks.check_fused(t, "t" if sin is None else "x")
        launch.check_device(t, "pass fused=False, or ")
    out = t if options.inplace else torch.empty_like(t, memory_format=torch.contiguous_format)
    if options.tensor_format != "thd":
        cu_seqlens = None  # the shape bounds the sequences
    tensors = out, None, t, None, freqs, sin, start_positions, cu_seqlens
    launch.run(key, cached, plans.rotation, tensors, options)
    return out


def _base_and_view(t):
    """The tensor that autograd records as changed: the one of which ``t`` is a view, if any.

    For a change of a view, autograd copies the gradient of the base and of the view. The view
    is its shape, strides and offset in the base; None if ``t`` is no view of another.
    """
    base = t._base
    if (
        base is None
        or (type(base), base.dtype, base.layout) != (type(t), t.dtype, torch.strided)
        or not (base.requires_grad and base.is_contiguous())
    ):
        return t, None
    return base, (t.shape, t.stride(), t.storage_offset() - base.storage_offset())


def _view_of(base, view):
    if view is None:
        return base
    size, stride, first = view
    return base.as_strided(size, stride, base.storage_offset() + first)


def _is_special(grad):
    """Whether autograd must see what becomes of a gradient: it is recorded, dual or batched."""
    return torch.is_grad_enabled() or forward_ad._current_level >= 0 or is_batch(grad)


class _RotateInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, base, view, tables, options, inplace_gradient):
        ctx.mark_dirty(base)
        ctx.save_for_backward(*tables)
        ctx.options, ctx.view = plans.adjoint(options), view
        ctx.inplace_gradient = inplace_gradient
        _rotate(_view_of(base, view), tables, options)
        return base

    @staticmethod
    def backward(ctx, grad):
        view = ctx.view
        is_kept = (
            ctx.inplace_gradient
            and (grad.is_contiguous() if view else checks.is_writable(grad))
            and not (compiling() or _is_special(grad))
        )
        if is_kept:
            torch.autograd.graph.increment_version(grad)
        elif view is None:
            return *_operator.function.backward(ctx, grad), None, None
        else:
            grad = grad.clone(memory_format=torch.contiguous_format)
        if is_kept or not (compiling() or _is_special(grad)):
            _rotate(_view_of(grad, view), ctx.saved_tensors, ctx.options._replace(inplace=True))
        else:
            # torch.as_strided_scatter would have a wrong derivative.
            _view_of(grad, view).copy_(_operator.function.backward(ctx, _view_of(grad, view))[0])
        return grad, None, None, None, None


class _CompiledInPlace(torch.autograd.Function):
    """The same by operators; inductor removes the copy of a gradient that nothing else reads."""

    @staticmethod
    def forward(ctx, base, view, tables, options):
        ctx.mark_dirty(base)
        ctx.save_for_backward(*tables)
        ctx.options, ctx.view = options, view
        view = _view_of(base, view)
        _operator_in_place.below_autograd(view, *tables, *options, recorded=True)
        return base

    @staticmethod
    def backward(ctx, grad):
        *options, transposed = ctx.options
        others = *ctx.saved_tensors, *options, not transposed
        if ctx.view is None:
            return _operator.overload(grad, *others), None, None, None
        grad = grad.clone(memory_format=torch.contiguous_format)
        view = _view_of(grad, ctx.view)
        if _is_special(grad):
            view.copy_(_operator.overload(view, *others))
        else:
            _operator_in_place.overload(view, *others)
        return grad, None, None, None


class _Transformed(torch.autograd.Function):
    @staticmethod
    def forward(t, *others):
        *tables, options = others
        return _rotate(materialized(t), tables, options)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[1:5])
        ctx.save_for_forward(*inputs[1:5])
        ctx.options = inputs[5]
        ctx.set_materialize_grads(False)  # so that a table without a tangent has None

    @staticmethod
    def backward(ctx, grad):
        if any(ctx.needs_input_grad[1:3]):
            raise no_gradient_of_tables()
        if grad is not None:
            grad = _Transformed.apply(grad, *ctx.saved_tensors, plans.adjoint(ctx.options))
        return grad, None, None, None, None, None

    @staticmethod
    def jvp(ctx, tangent, *others):
        if any(table is not None for table in others[:2]):
            raise no_gradient_of_tables()
        return _Transformed.apply(tangent, *ctx.saved_tensors, ctx.options)

    @staticmethod
    def vmap(info, in_dims, *inputs):
        return _batched(_Transformed.apply, in_dims, *inputs)


TABLES = {"freqs": torch.Tensor}
TABLES |= dict.fromkeys(("sin", "start_positions", "cu_seqlens"), torch.Tensor | None)
_operator = LinearOperator("rotate", _rotate, ("t",), TABLES, Options)


def _rotate_in_place(t, *others):
    _rotate(t, others[:4], Options(*others[4:], inplace=True))


_operator_in_place = InPlaceOperator("rotate_", _rotate_in_place, like=_operator)


@_operator_in_place.register_autograd
def _(t, *others):
    _CompiledInPlace.apply(*_base_and_view(t), others[:4], others[4:])


@_operator_in_place.register_vmap
def _(info, in_dims, t, *others):
    out, dim = _batched(_operator.overload, in_dims, t, *others)
    t.copy_(out.movedim(dim, in_dims[0]))
    return None, None


@_operator.register_vmap
def _(info, in_dims, *inputs):
    return _batched(_operator.overload, in_dims, *inputs)


def _batched(rotate, in_dims, t, *others):
    """Rotate a batch of ``t`` as if it were more heads, which share everything else."""
    if any(dim is not None for dim in in_dims[1:5]):
        raise NotImplementedError(
            "vmap is supported over the rotated tensor only, not over angles, tables or positions"
        )
    tensor_format = others[4][0] if isinstance(others[4], Options) else others[4]
    head = tensor_format.index("h") - len(tensor_format)
    t = t.movedim(in_dims[0], head - 1)
    out = rotate(t.flatten(head - 1, head), *others)
    return out.unflatten(head, t.shape[head - 1 : head + 1]), t.dim() + head - 1
