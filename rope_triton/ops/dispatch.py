"""Decide which dispatch path a call takes, and what all paths share.

- Eager: plain tensors, with or without autograd, go straight to the launch.
- Operator: torch.compile, export, modes and fake tensors need PyTorch's dispatcher: 6 microseconds
  a call, 10 with autograd.
- torch.func: its transforms need an autograd.Function of another form, 40 microseconds.
"""

from collections.abc import Callable, Sequence

import torch
from torch._C._dynamo import eval_frame
from torch._compile import _disable_dynamo
from torch.autograd import forward_ad

_EXACT_TYPES = frozenset((str, int, bool))
# Every call needs these, and each attribute lookup on the way to them takes some 30 ns.
_TENSOR, _PARAMETER = torch.Tensor, torch.nn.Parameter
compiling = torch.compiler.is_compiling
_tracing = torch._C._is_tracing  # torch.jit.trace, whose sizes are tensors
_dispatch_modes = torch._C._len_torch_dispatch_stack
_transform = torch._C._functorch.peek_interpreter_stack
_FUNCTIONALIZE = torch._C._functorch.TransformType.Functionalize
# Its first is the mode of ``make_fx(pre_dispatch=True)`` or None. That is in no other stack, and to
# look here takes 5 ns. Without the attribute, which is private, the mode goes unnoticed.
_state = getattr(torch._ops, "_mode_stack_state_for_pre_dispatch", None)
_before_dispatch = getattr(_state, "_ModeStackStateForPreDispatch__infra_modes", (None,))


def is_plain(required: Sequence, *optional) -> bool:
    """Whether the eager path can take the call: plain tensors or parameters (``optional`` may be
    None), no tangents, and nothing but autograd watching."""
    if compiling():
        return False
    for tensor in required:
        if type(tensor) is not _TENSOR and type(tensor) is not _PARAMETER:
            return False
    for tensor in optional:
        if tensor is not None and type(tensor) is not _TENSOR:
            return False
    if _dispatch_modes() or _before_dispatch[0] is not None or _transform() is not None:
        return False
    if _tracing():
        return False
    return forward_ad._current_level < 0 or not has_tangent(*required)


def hidden(function: Callable) -> Callable:
    """Let Dynamo leave the function alone, and all that it calls.

    As ``torch.compiler.disable``, whose wrapper takes a microsecond at every call.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    skip = eval_frame._FrameAction.SKIP
    strategy = eval_frame._FrameExecStrategy(skip, skip)
    eval_frame.set_code_exec_strategy(function.__code__, strategy)
    return function


def has_exact_types(options: tuple) -> bool:
    """Whether equal options mean the same call: 1.0 equals 1, but is no valid ``cp_size``."""
    return _EXACT_TYPES.issuperset(map(type, options))


def transforming() -> bool:
    """Whether a transform of torch.func is active, and not only ``functionalize``."""
    transform = None if compiling() else _transform()
    return transform is not None and transform.key() != _FUNCTIONALIZE


def has_tangent(*tensors: object) -> bool:
    """Whether forward-mode differentiation has a tangent of one of these."""
    return forward_ad._current_level >= 0 and _has_tangent(*tensors)


@_disable_dynamo  # dynamo does not see tangents
def _has_tangent(*tensors):
    tensors = [_unbatched(tensor) for tensor in tensors if isinstance(tensor, _TENSOR)]
    return any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def _unbatched(tensor):
    """What vmap made a batch of: that has the tangent, and the batch itself cannot be asked."""
    functorch = torch._C._functorch
    while functorch.is_batchedtensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


# What a batch ends with where memory is needed: PyTorch's error, or that of a compiled launch.
NO_MEMORY = RuntimeError, TypeError


def is_batch(*tensors: object) -> bool:
    """Whether one of these is a batch that vmap made, which has no memory of its own.

    Eager code may meet such gradients in a backward, as ``is_grads_batched=True`` makes them
    without a transform of torch.func. It asks only after ``NO_MEMORY``: to ask takes 100 ns.
    """
    functorch = torch._C._functorch
    return any(
        functorch.is_legacy_batchedtensor(x) or functorch.is_batchedtensor(x)
        for x in tensors
        if isinstance(x, _TENSOR)
    )


def linear(rotate: Callable, tensors: tuple, *others):
    """``rotate(*tensors, *others)``, also of tangents, if there are any: a rotation is linear."""
    if forward_ad._current_level < 0:
        return rotate(*tensors, *others)
    return _with_tangents(rotate, tensors, others)


@_disable_dynamo
def _with_tangents(rotate, tensors, others):
    if not has_tangent(*tensors):
        return rotate(*tensors, *others)
    unpacked = [forward_ad.unpack_dual(tensor) for tensor in tensors]
    out = rotate(*(tensor for tensor, _ in unpacked), *others)
    tangents = (torch.zeros_like(a) if b is None else materialized(b) for a, b in unpacked)
    tangents = rotate(*tangents, *others)
    if isinstance(out, _TENSOR):
        return forward_ad.make_dual(out, tangents)
    return tuple(map(forward_ad.make_dual, out, tangents))


def linear_in_batch(operator: Callable, tensors: tuple, *others):
    """``linear(operator, tensors, *others)`` where a batch caused the error that is being handled.

    PyTorch calls the operator once for each gradient of a batch. Any other error is raised again.
    A batch among ``others`` does not say whether it needs a gradient, which would be lost.
    """
    if is_batch(*others):
        raise NotImplementedError(
            "a batch of gradients can only be rotated, it cannot be angles, tables or positions"
        )
    if not is_batch(*tensors):
        raise
    return linear(operator, tensors, *others)


def as_tuple(out) -> tuple:
    """The results of a function, also if it returns one tensor."""
    return out if isinstance(out, tuple) else (out,)


def materialized(tangent: torch.Tensor) -> torch.Tensor:
    """A tangent that a kernel can read: some of PyTorch's zeros have no memory."""
    return torch.zeros_like(tangent) if tangent._is_zerotensor() else tangent


def no_gradient_of_tables() -> NotImplementedError:
    """The error of a call whose tables cannot be differentiated."""
    return NotImplementedError(
        "the gradient of angles or tables is not supported under torch.compile and torch.func: "
        "pass fused=False, or detach them"
    )


def normalize_tables(tables: tuple) -> tuple:
    """Tables as the kernels read them: equal strides of cosines and sines, contiguous indices.

    The backward needs this too: hooks on saved tensors may return other strides, as
    ``torch.autograd.graph.save_on_cpu`` does.
    """
    freqs, sin, start_positions, cu_seqlens = tables
    if sin is start_positions is cu_seqlens is None:
        return tables
    if sin is not None:
        strides = sin.stride()
        # A launch would copy a negated one; only imaginary parts are, see specialization_key.
        negated = (freqs.data_ptr() | sin.data_ptr()) & 15 and (freqs.is_neg() or sin.is_neg())
        if negated or freqs.stride() != strides:
            freqs, sin = freqs.contiguous(), sin.contiguous()
    return freqs, sin, contiguous(start_positions), contiguous(cu_seqlens)


def contiguous(index: torch.Tensor | None) -> torch.Tensor | None:
    """A contiguous index tensor, or None."""
    return None if index is None else index.contiguous()
