"""The operator, three times over, as what PyTorch's machinery asks for costs more than the kernel.

Plain tensors, with or without autograd, go straight to the launch. The transforms of torch.func ask
for a function of another form, which would cost each call some 40 microseconds; torch.compile,
export, modes and tensors without data ask for an operator of the dispatcher: some 30.
"""

import functools
from collections.abc import Callable

import torch
import triton
from torch._compile import _disable_dynamo
from torch.autograd import forward_ad

from rope_triton import checks, launch, plans
from rope_triton.kernels import rope_kernel
from rope_triton.plans import Options

NAME = "rope_triton::rotate"
_KEYS = frozenset((str, int, bool))
# Every call asks these, and each dot on the way to them costs it some 30 ns.
_TENSOR = torch.Tensor
_compiling = torch.compiler.is_compiling
_dispatch_modes = torch._C._len_torch_dispatch_stack
_transform = torch._C._functorch.peek_interpreter_stack


def rotate(
    t: torch.Tensor,
    freqs: torch.Tensor,
    start_positions: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    options: Options,
) -> torch.Tensor:
    """Rotate ``t`` by ``freqs``; see :func:`rope_triton.apply_rotary_pos_emb`, also for errors."""
    plain = is_plain((t, freqs), start_positions, cu_seqlens) and keyed(options)
    if not plain:
        checks.check_by_angles(t, freqs, start_positions, cu_seqlens, options)
        checks.check_fused(t)
    return _dispatch(plain, t, freqs, None, start_positions, cu_seqlens, options)


def rotate_by_tables(
    t: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    start_positions: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    options: Options,
) -> torch.Tensor:
    """Rotate ``t`` by ready-made tables, ``[s2, d2/2]`` or ``[s2, 1 or b, 1 or h, d2/2]``."""
    plain = is_plain((t, cos, sin), start_positions, cu_seqlens) and keyed(options)
    if not plain:
        checks.check_by_tables(t, cos, sin, start_positions, cu_seqlens, options)
        checks.check_fused(t)
    call = t, cos, sin, start_positions, cu_seqlens
    if not options.inplace:
        return _dispatch(plain, *call, options)
    if not plain:
        return t.copy_(_dispatch(plain, *call, options._replace(inplace=False)))
    tables = call[1:]
    if t.requires_grad and torch.is_grad_enabled():
        checks.check_no_leaf(t)  # of the call, not of its form
        return _RotateInPlace.apply(t, tables, options)
    _rotate(t, tables, options)
    if not t.is_inference():
        torch.autograd.graph.increment_version(t)
    return t


def _dispatch(plain, t, freqs, sin, start_positions, cu_seqlens, options):
    tables = freqs, sin, start_positions, cu_seqlens
    if plain:
        if t.requires_grad and torch.is_grad_enabled():
            return _Rotate.apply(t, tables, options)
        return _rotate(t, tables, options)
    if transforming():
        return _Transformed.apply(t, *tables, options)
    tables = *(table if table is None else table.detach() for table in tables[:2]), *tables[2:]
    return linear(_operator, (t,), *tables, *options[:-1])


def is_plain(needed: tuple, *more) -> bool:
    """Whether these are plain tensors, of ``more`` or None, and nothing but autograd looks on."""
    if _compiling():
        return False
    for tensor in needed:
        if type(tensor) is not _TENSOR:
            return False
    for tensor in more:
        if tensor is not None and type(tensor) is not _TENSOR:
            return False
    if _dispatch_modes() or _transform() is not None:
        return False
    return forward_ad._current_level < 0 or not dual(*needed)


def dual(*tensors: object) -> bool:
    """Whether forward-mode differentiation has a tangent of one of these."""
    return forward_ad._current_level >= 0 and _dual(*tensors)


@_disable_dynamo  # it does not see tangents
def _dual(*tensors):
    tensors = [tensor for tensor in tensors if isinstance(tensor, _TENSOR)]
    return any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def linear(rotate: Callable, tensors: tuple, *rest):
    """``rotate(*tensors, *rest)``, with tangents where forward-mode differentiation has some.

    A rotation is linear in what it rotates: it maps tangents as it maps what they belong to.
    """
    if forward_ad._current_level < 0:
        return rotate(*tensors, *rest)
    return _with_tangents(rotate, tensors, rest)


@_disable_dynamo
def _with_tangents(rotate, tensors, rest):
    if not dual(*tensors):
        return rotate(*tensors, *rest)
    unpacked = [forward_ad.unpack_dual(tensor) for tensor in tensors]
    out = rotate(*(tensor for tensor, _ in unpacked), *rest)
    tangents = (torch.zeros_like(a) if b is None else _in_memory(b) for a, b in unpacked)
    tangents = rotate(*tangents, *rest)
    if isinstance(out, _TENSOR):
        return forward_ad.make_dual(out, tangents)
    return tuple(map(forward_ad.make_dual, out, tangents))


def _in_memory(tangent):
    """A tangent that kernels can read: PyTorch has zeros that no memory holds."""
    return torch.zeros_like(tangent) if tangent._is_zerotensor() else tangent


def no_gradient_of_tables() -> NotImplementedError:
    """Why the tables of a call cannot be differentiated."""
    return NotImplementedError(
        "the gradient of angles or tables is not supported under torch.compile and torch.func: "
        "pass fused=False, or detach them"
    )


def keyed(options: tuple) -> bool:
    """Whether what is found for these options holds for all that are equal: 1.0 equals 1."""
    return _KEYS.issuperset(map(type, options))


def transforming() -> bool:
    """Whether a transform of torch.func is at work."""
    return not _compiling() and _transform() is not None


def as_read(tables: tuple) -> tuple:
    """Tables as the kernels read them: cosines and sines by the same strides, indices one by one.

    Asked in the backward too: what is saved for it may come back with other strides, as from the
    host's memory by ``torch.autograd.graph.save_on_cpu``.
    """
    freqs, sin, start_positions, cu_seqlens = tables
    if sin is start_positions is cu_seqlens is None:
        return tables
    if sin is not None and freqs.stride() != sin.stride():
        freqs, sin = freqs.contiguous(), sin.contiguous()
    return freqs, sin, contiguous(start_positions), contiguous(cu_seqlens)


def contiguous(index: torch.Tensor | None) -> torch.Tensor | None:
    """An index as the kernels read it."""
    return None if index is None else index.contiguous()


def _rotate(t, tables, options):
    freqs, sin, start_positions, cu_seqlens = tables = as_read(tables)
    form = "rope_kernel", options, launch.form(t), launch.forms(tables)
    launches = launch.known(form)
    if launches is None or checks.VALUES:
        if sin is None:
            checks.check_by_angles(t, freqs, start_positions, cu_seqlens, options)
        else:
            checks.check_by_tables(t, *tables, options)
        checks.check_fused(t)
        check_device(t)
    out = t if options.inplace else torch.empty_like(t, memory_format=torch.contiguous_format)
    if options.tensor_format != "thd":
        cu_seqlens = None  # says what the shape says
    tensors = out, t, freqs, sin, start_positions, cu_seqlens
    launch.run(form, launches, rope_kernel, plans.rotation, tensors, options)
    return out


@functools.cache
def back(options: Options) -> Options:
    """Those of the gradient: the transposed rotation, whose gradient is the rotation."""
    return options._replace(transposed=not options.transposed, inplace=False)


class _Rotate(torch.autograd.Function):
    # The tables go in one argument: each costs some, in the backward twice, as its thread runs on a
    # cold core.
    @staticmethod
    def forward(ctx, t, tables, options):
        ctx.save_for_backward(*tables)
        ctx.options = back(options)
        return _rotate(t, tables, options)

    @staticmethod
    def backward(ctx, grad):
        tables = ctx.saved_tensors
        run = _Rotate.apply if torch.is_grad_enabled() else _rotate
        if forward_ad._current_level < 0:  # saves a function, 0.5 microseconds
            return run(grad, tables, ctx.options), None, None
        return linear(run, (grad,), tables, ctx.options), None, None


class _RotateInPlace(_Rotate):
    @staticmethod
    def forward(ctx, t, *others):
        ctx.mark_dirty(t)
        return _Rotate.forward(ctx, t, *others)


class _Transformed(torch.autograd.Function):
    @staticmethod
    def forward(t, *others):
        *tables, options = others
        return _rotate(_in_memory(t), tables, options)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[1:5])
        ctx.save_for_forward(*inputs[1:5])
        ctx.options = inputs[5]
        ctx.set_materialize_grads(False)  # a tangent of a table is None, then, if it has none

    @staticmethod
    def backward(ctx, grad):
        if any(ctx.needs_input_grad[1:3]):
            raise no_gradient_of_tables()
        if grad is not None:
            grad = _Transformed.apply(grad, *ctx.saved_tensors, back(ctx.options))
        return grad, None, None, None, None, None

    @staticmethod
    def jvp(ctx, tangent, *others):
        if any(of_a_table is not None for of_a_table in others[:2]):
            raise no_gradient_of_tables()
        return _Transformed.apply(tangent, *ctx.saved_tensors, ctx.options)

    @staticmethod
    def vmap(info, in_dims, *inputs):
        return _batched(_Transformed.apply, in_dims, *inputs)


@torch.library.custom_op(NAME, mutates_args=())
def _operator(
    t: torch.Tensor,
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
) -> torch.Tensor:
    options = Options(tensor_format, interleaved, cp_size, cp_rank, rounding, transposed)
    tables = freqs, sin, start_positions, cu_seqlens
    return _rotate(t, tables, options)


@_operator.register_fake
def _(t, *_):
    return torch.empty_like(t, memory_format=torch.contiguous_format)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs[1:5])
    ctx.options = inputs[5:]


def _backward(ctx, grad):
    *options, transposed = ctx.options
    rest = *ctx.saved_tensors, *options, not transposed
    return linear(_operator, (grad,), *rest), *[None] * 10


_operator.register_autograd(_backward, setup_context=_save)


@_operator.register_vmap
def _(info, in_dims, *inputs):
    return _batched(_operator, in_dims, *inputs)


def _batched(rotate, in_dims, t, *others):
    """Rotate a batch of ``t``: as more heads, which share everything."""
    if any(dim is not None for dim in in_dims[1:5]):
        raise NotImplementedError(
            "vmap is supported over t only, not over freqs, start_positions or cu_seqlens: "
            f"got in_dims={in_dims[:5]}"
        )
    tensor_format = others[4][0] if isinstance(others[4], Options) else others[4]
    head = tensor_format.index("h") - len(tensor_format)
    t = t.movedim(in_dims[0], head - 1)
    out = rotate(t.flatten(head - 1, head), *others)
    return out.unflatten(head, t.shape[head - 1 : head + 1]), t.dim() + head - 1


def check_device(t: torch.Tensor) -> None:
    """Raise ValueError unless ``t`` is on a device that Triton's kernels can read."""
    if not isinstance(rope_kernel, triton.runtime.JITFunction):  # the interpreter takes any device
        return
    try:
        device_type = triton.runtime.driver.active.get_active_torch_device().type
    except RuntimeError as error:  # Triton found no GPU driver
        raise ValueError(
            f"t is on {t.device} and Triton has no GPU here ({error}): "
            "pass fused=False, or set TRITON_INTERPRET=1 before the first import of rope_triton"
        ) from error
    if t.device.type != device_type:
        raise ValueError(
            f"t is on {t.device}, the kernel runs on {device_type}: "
            f"move t and freqs to {device_type}, or pass fused=False"
        )
