"""The operator on packed queries, keys and values: split and rotated, or turned back and joined.

Both are linear, and each is the transpose of the other and so its gradient. As in ``ops``, plain
tensors go straight to the launch and the rest through PyTorch's dispatcher.
"""

import torch

from rope_triton import launch, plans
from rope_triton.kernels import rope_qkv_kernel
from rope_triton.ops import check_device, is_plain, transforming
from rope_triton.plans import QkvOptions


def rotate(
    qkv: torch.Tensor,
    q_freqs: torch.Tensor,
    k_freqs: torch.Tensor,
    start_positions: torch.Tensor | None,
    options: QkvOptions,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values; see :func:`rope_triton.apply_fused_qkv_rotary_pos_emb`."""
    if start_positions is not None:
        start_positions = start_positions.contiguous()
    call = qkv, q_freqs, k_freqs, start_positions
    if is_plain(*call):
        if qkv.requires_grad and torch.is_grad_enabled():
            return _Split.apply(*call, options)
        return _split(*call, options)
    if transforming():
        raise NotImplementedError(
            "the transforms of torch.func are not supported: call apply_rotary_pos_emb on q and k"
        )
    return _split_operator(*call, *options[:-1])


def _split(qkv, q_freqs, k_freqs, start_positions, options):
    parts = [qkv.new_empty(shape) for shape in _part_shapes(qkv, options.counts)]
    tables = q_freqs, k_freqs, start_positions
    _launch((qkv, *tables), (qkv, *parts, *tables), options)
    return tuple(parts)


def _join(q, k, v, q_freqs, k_freqs, start_positions, options):
    qkv = q.new_empty(_qkv_shape(q, options.counts))
    tables = q_freqs, k_freqs, start_positions
    _launch((q, k, v, *tables), (qkv, q, k, v, *tables), options._replace(join=True))
    return qkv


def _part_shapes(qkv, counts):
    groups, width = qkv.shape[2], qkv.shape[3] // sum(counts)
    return [(*qkv.shape[:2], groups * count, width) for count in counts]


def _qkv_shape(q, counts):
    return *q.shape[:2], q.shape[2] // counts[0], sum(counts) * q.shape[3]


def _launch(given, tensors, options):
    form = options, *(None if tensor is None else launch.form(tensor) for tensor in given)
    launches = launch.known(form)
    if launches is not None:
        return launch.again(launches, tensors)
    check_device(given[0])
    if tensors[0].numel():
        launch.first(form, rope_qkv_kernel, plans.qkv_rotation, tensors, options)
    return None


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx, qkv, q_freqs, k_freqs, start_positions, options):
        ctx.save_for_backward(q_freqs, k_freqs, start_positions)
        ctx.options = options
        return _split(qkv, q_freqs, k_freqs, start_positions, options)

    @staticmethod
    def backward(ctx, *grads):
        run = _Join.apply if torch.is_grad_enabled() else _join
        return run(*grads, *ctx.saved_tensors, ctx.options), None, None, None, None


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, q_freqs, k_freqs, start_positions, options):
        ctx.save_for_backward(q_freqs, k_freqs, start_positions)
        ctx.options = options
        return _join(q, k, v, q_freqs, k_freqs, start_positions, options)

    @staticmethod
    def backward(ctx, grad):
        run = _Split.apply if torch.is_grad_enabled() else _split
        return *run(grad, *ctx.saved_tensors, ctx.options), None, None, None, None


@torch.library.custom_op("rope_triton::split_qkv", mutates_args=())
def _split_operator(
    qkv: torch.Tensor,
    q_freqs: torch.Tensor,
    k_freqs: torch.Tensor,
    start_positions: torch.Tensor | None,
    tensor_format: str,
    interleaved: bool,
    cp_size: int,
    cp_rank: int,
    q_heads: int,
    k_heads: int,
    v_heads: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    options = tensor_format, interleaved, cp_size, cp_rank, q_heads, k_heads, v_heads
    return _split(qkv, q_freqs, k_freqs, start_positions, QkvOptions(*options))


@torch.library.custom_op("rope_triton::join_qkv", mutates_args=())
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
    q_heads: int,
    k_heads: int,
    v_heads: int,
) -> torch.Tensor:
    options = tensor_format, interleaved, cp_size, cp_rank, q_heads, k_heads, v_heads
    return _join(q, k, v, q_freqs, k_freqs, start_positions, QkvOptions(*options))


@_split_operator.register_fake
def _(qkv, q_freqs, k_freqs, start_positions, *options):
    return tuple(qkv.new_empty(shape) for shape in _part_shapes(qkv, options[-3:]))


@_join_operator.register_fake
def _(q, k, v, q_freqs, k_freqs, start_positions, *options):
    return q.new_empty(_qkv_shape(q, options[-3:]))


def _save(first):
    def save(ctx, inputs, output):
        ctx.save_for_backward(*inputs[first : first + 3])
        ctx.options = inputs[first + 3 :]

    return save


def _split_backward(ctx, *grads):
    return _join_operator(*grads, *ctx.saved_tensors, *ctx.options), *[None] * 10


def _join_backward(ctx, grad):
    return *_split_operator(grad, *ctx.saved_tensors, *ctx.options), *[None] * 10


_split_operator.register_autograd(_split_backward, setup_context=_save(1))
_join_operator.register_autograd(_join_backward, setup_context=_save(3))
