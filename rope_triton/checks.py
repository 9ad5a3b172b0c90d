"""Argument validation that never synchronizes with the device.

Only ``ROPE_TRITON_CHECK=1`` adds checks that do. Messages call the rotated tensor ``t``.
"""

import os

import torch

_FUSED_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_DTYPES = (*_FUSED_DTYPES, torch.float64)
_INDEX_DTYPES = (torch.int32, torch.int64)
_ROUNDINGS = ("once", "tables", "each")
CHECK_VALUES = os.environ.get("ROPE_TRITON_CHECK", "0") != "0"


def check_by_angles(t, freqs, start_positions, cu_seqlens, options) -> None:
    """Raise TypeError or ValueError unless both implementations accept the call by angles."""
    check_rounding(options.rounding)
    _check(t, freqs, start_positions, cu_seqlens, options, pairs=False)


def check_by_tables(t, cos, sin, start_positions, cu_seqlens, options) -> None:
    """Raise TypeError or ValueError unless both implementations accept the call by tables.

    In "bhsd", ``start_positions`` are positions by token.
    """
    check_rounding(options.rounding)
    check_tables(cos, sin)
    _check(t, cos, start_positions, cu_seqlens, options, pairs=True)
    if options.inplace:
        check_writable(t)


def check_qk(q, k, freqs, sin, start_positions, cu_seqlens, options) -> None:
    """Raise TypeError or ValueError unless one launch can rotate queries and keys."""
    check_pair(q, k, options.tensor_format)
    for t in (q, k):
        if sin is None:
            check_by_angles(t, freqs, start_positions, cu_seqlens, options)
        else:
            check_by_tables(t, freqs, sin, start_positions, cu_seqlens, options)
    if freqs.dim() == 4 and freqs.shape[2] != 1:
        raise ValueError(
            f"queries and keys must share angles, [s2, 1 or b, 1, d2], got {tuple(freqs.shape)}"
        )
    check_fused(q)


def _check(t, freqs, start_positions, cu_seqlens, options, pairs) -> None:
    """``pairs``: whether ``freqs`` is a table with one value for each pair of channels."""
    tensor_format, _, cp_size, cp_rank, *_ = options
    # Only the package itself passes "bhsd", for `rotary_embedding`.
    if not (pairs and tensor_format == "bhsd"):
        check_format(tensor_format)
    _check_options(tensor_format, cu_seqlens, cp_size, cp_rank)
    _check_tensors(t, freqs)
    if pairs and freqs.dim() == 2:  # by position alone
        freqs = freqs[:, None, None]
    given = tensor_format == "bhsd" and start_positions is not None
    _check_shapes(t, freqs, tensor_format, cp_size, pairs, given)
    if given:
        _check_ids(start_positions, t)
        return
    batch = None if tensor_format == "thd" else t.shape[tensor_format.index("b")]
    if cu_seqlens is not None:
        bounds = None if batch is None else batch + 1
        _check_index("cu_seqlens", cu_seqlens, t, "b + 1", bounds)
    if start_positions is not None:
        sequences = cu_seqlens.shape[0] - 1 if batch is None else batch
        _check_index("start_positions", start_positions, t, "b", sequences)
    if CHECK_VALUES:
        _check_values(t, freqs, start_positions, cu_seqlens, tensor_format, cp_size)


def check_qkv(qkv, q_freqs, k_freqs, start_positions, options) -> None:
    """Raise TypeError or ValueError unless the kernel can split and rotate ``qkv``."""
    tensor_format, _, cp_size, cp_rank, *_ = options
    if tensor_format not in ("sbhd", "bshd"):
        raise ValueError(f"tensor_format must be 'sbhd' or 'bshd', got {tensor_format!r}")
    _check_options(tensor_format, None, cp_size, cp_rank)
    for freqs in (q_freqs, k_freqs):
        _check_tensors(qkv, freqs)
    _check_split(qkv, options)
    heads = qkv.unflatten(3, (sum(options.counts), -1))[..., 0, :]
    for freqs in (q_freqs, k_freqs):
        _check_shapes(heads, freqs, tensor_format, cp_size)
        if freqs.shape[1:3] != (1, 1):
            raise ValueError(f"freqs must have shape [s2, 1, 1, d2], got {tuple(freqs.shape)}")
    if q_freqs.shape[::3] != k_freqs.shape[::3]:
        raise ValueError(
            "q_freqs and k_freqs must have one shape, "
            f"got {tuple(q_freqs.shape)} and {tuple(k_freqs.shape)}"
        )
    if start_positions is not None:
        batch = qkv.shape[tensor_format.index("b")]
        _check_index("start_positions", start_positions, qkv, "b", batch)
    if CHECK_VALUES:
        _check_values(heads, q_freqs, start_positions, None, tensor_format, cp_size)
    check_fused(qkv)


def check_channels(split) -> tuple[int, int, int]:
    """Channels of queries, keys and values in a group; ValueError unless three positive ints."""
    channels = tuple(split) if isinstance(split, list | tuple) else ()
    if len(channels) != 3 or not all(type(n) is int and n > 0 for n in channels):
        raise ValueError(f"qkv_split_arg_list must be three positive ints, got {split!r}")
    return channels


def _check_split(qkv, options):
    if qkv.dim() != 4:
        raise ValueError(
            f"qkv must have 4 dimensions for tensor_format={options.tensor_format!r}, "
            f"got shape {tuple(qkv.shape)}"
        )
    channels = options.channels
    width = channels[2]
    if sum(channels) != qkv.shape[3] or channels[0] % width or channels[1] % width:
        raise ValueError(
            "qkv_split_arg_list must be channels of queries, keys and values, the first two "
            f"multiples of the last, {qkv.shape[3]} together, got {list(channels)}"
        )


def check_tensors(**given: object) -> None:
    """Raise TypeError unless all are tensors."""
    for name, value in given.items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")


def _check_floating(**given):
    check_tensors(**given)
    for name, value in given.items():
        if value.dtype not in _DTYPES:
            raise TypeError(f"{name} must be one of {_DTYPES}, got {value.dtype}")


def check_tables(cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Raise TypeError or ValueError unless these are tables of cosines and of sines."""
    _check_floating(cos=cos, sin=sin)
    if cos.shape != sin.shape:
        raise ValueError(f"cos and sin must have one shape, got {cos.shape} and {sin.shape}")
    if cos.device != sin.device:
        raise ValueError(f"cos and sin must share a device, got {cos.device} and {sin.device}")


def check_rounding(rounding: str) -> None:
    """Raise ValueError unless ``rounding`` is a numeric mode."""
    if rounding not in _ROUNDINGS:
        raise ValueError(f"rounding must be one of {_ROUNDINGS}, got {rounding!r}")


def check_format(tensor_format: str) -> None:
    """Raise ValueError unless the public functions take tensors of this format."""
    if tensor_format not in ("sbhd", "bshd", "thd"):
        raise ValueError(f"tensor_format must be 'sbhd', 'bshd' or 'thd', got {tensor_format!r}")


def check_pair(q: torch.Tensor, k: torch.Tensor, tensor_format: str) -> None:
    """Raise TypeError or ValueError unless these differ only in strides and heads."""
    check_format(tensor_format)
    check_tensors(q=q, k=k)
    shapes = [list(x.shape) for x in (q, k)]
    for shape in shapes:
        if len(shape) == len(tensor_format):
            shape[tensor_format.find("h")] = 0
    if shapes[0] != shapes[1] or q.dtype != k.dtype or q.device != k.device:
        raise ValueError(
            "q and k must have one shape but for the heads, one dtype and one device, got "
            f"{tuple(q.shape)} {q.dtype} {q.device} and {tuple(k.shape)} {k.dtype} {k.device}"
        )


def is_writable(t: torch.Tensor) -> bool:
    """Whether the kernel can write its result to ``t``."""
    strides = zip(t.shape, t.stride(), strict=True)
    return t.stride(-1) == 1 and all(step or n <= 1 for n, step in strides)


def check_writable(t: torch.Tensor) -> None:
    """Raise ValueError unless the kernel and autograd can write the result to ``t``."""
    if not is_writable(t):
        raise ValueError(
            "in place, the channels must be contiguous and no two elements at one address, "
            f"got strides {t.stride()} of shape {tuple(t.shape)}"
        )
    check_in_place(t)


def check_in_place(t: torch.Tensor) -> None:
    """Raise ValueError if autograd forbids writing to ``t``, which it says after the launch."""
    if not (t.requires_grad and torch.is_grad_enabled()):
        return
    base = t._base
    if t.is_leaf or (base is not None and base.is_leaf and base.requires_grad):
        raise ValueError(
            "a leaf that requires a gradient, or a view of one, cannot be changed in place"
        )
    if base is None or torch.compiler.is_compiling():  # there autograd checks first
        return
    autograd = torch._C._autograd
    made = autograd._get_creation_meta(t)
    if made == autograd.CreationMeta.MULTI_OUTPUT_NODE:
        raise ValueError(
            "autograd does not let this view be changed in place, because the function that made "
            "it returns several views, such as chunk, split and unbind: slice the tensor instead"
        )
    if made != autograd.CreationMeta.DEFAULT:
        raise ValueError(
            "autograd does not let this view be changed in place, because a custom "
            "autograd.Function, or code without gradients, made it: clone it first"
        )


def check_fused(t: torch.Tensor) -> None:
    """Raise TypeError unless the kernel computes the dtype of ``t``."""
    if t.dtype not in _FUSED_DTYPES:
        raise TypeError(f"t is {t.dtype}, which the kernel does not compute: pass fused=False")


def _check_options(tensor_format, cu_seqlens, cp_size, cp_rank):
    if cu_seqlens is None and tensor_format == "thd":
        raise ValueError("tensor_format='thd' needs cu_seqlens, got None")
    for name, value in (("cp_size", cp_size), ("cp_rank", cp_rank)):
        if not isinstance(value, int):
            raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if cp_size < 1 or not 0 <= cp_rank < cp_size:
        raise ValueError(f"expected 0 <= cp_rank < cp_size, got {cp_rank=}, {cp_size=}")


def _check_tensors(t, freqs):
    _check_floating(t=t, freqs=freqs)
    if t.device != freqs.device:
        raise ValueError(f"t and freqs must share a device, got {t.device} and {freqs.device}")


def _check_shapes(t, freqs, tensor_format, cp_size, pairs=False, any_length=False):
    if t.dim() != len(tensor_format):
        raise ValueError(
            f"t must have {len(tensor_format)} dimensions for tensor_format={tensor_format!r}, "
            f"got shape {tuple(t.shape)}"
        )
    batch = 1 if tensor_format == "thd" else t.shape[tensor_format.index("b")]
    heads = t.shape[tensor_format.index("h")]
    if freqs.dim() != 4 or freqs.shape[1] not in (1, batch) or freqs.shape[2] not in (1, heads):
        raise ValueError(
            f"freqs must have shape [s2, 1 or b={batch}, 1 or h={heads}, d2], "
            f"got {tuple(freqs.shape)}"
        )
    if tensor_format != "thd" and not any_length:
        _check_length(t, freqs, tensor_format, cp_size)
    elif t.numel() and not freqs.shape[0]:
        raise ValueError("freqs covers 0 positions")
    width = 2 * freqs.shape[3] if pairs else freqs.shape[3]
    if pairs and not 0 < width <= t.shape[-1]:
        raise ValueError(
            "cos and sin must have a value for each rotated pair of channels, from 1 to "
            f"{t.shape[-1] // 2} of d={t.shape[-1]}, got {freqs.shape[3]}"
        )
    if width == 0 or width % 2 or width > t.shape[-1]:
        raise ValueError(
            f"freqs must be an even number of channels wide, from 2 to d={t.shape[-1]}, got {width}"
        )


def _check_length(t, freqs, tensor_format, cp_size):
    length = t.shape[tensor_format.index("s")]
    sequence = f"the sequence of t with shape {tuple(t.shape)} ({tensor_format})"
    if cp_size > 1 and length % 2:
        raise ValueError(f"{sequence} has {length} tokens, {cp_size=} needs two equal chunks")
    if freqs.shape[0] < length * cp_size:
        whole = f"{length} on each of cp_size={cp_size} ranks" if cp_size > 1 else f"{length}"
        raise ValueError(f"freqs covers {freqs.shape[0]} positions, {sequence} has {whole}")


def _check_index(name, value, t, shape, length):
    _check_integers(name, value, t)
    if value.dim() != 1 or length not in (None, value.shape[0]):
        expected = f"[{shape}]" if length is None else f"[{shape}] = ({length},)"
        raise ValueError(f"{name} must have shape {expected}, got {tuple(value.shape)}")
    if length is None and value.shape[0] < (2 if t.shape[0] else 1):
        raise ValueError(f"{name} must bound every token of t, got {value.shape[0]} values")


def _check_ids(ids, t):
    """Raise unless these are positions for each token of ``t``, ``[b, h, s, d]``."""
    _check_integers("position_ids", ids, t)
    if ids.shape != (t.shape[0], t.shape[2]):
        expected = t.shape[0], t.shape[2]
        raise ValueError(
            f"position_ids must have shape [b, s] = {expected}, got {tuple(ids.shape)}"
        )


def _check_integers(name, value, t):
    check_tensors(**{name: value})
    if value.dtype not in _INDEX_DTYPES:
        raise TypeError(f"{name} must be one of {_INDEX_DTYPES}, got {value.dtype}")
    if value.device != t.device:
        raise ValueError(f"t and {name} must share a device, got {t.device} and {value.device}")


def _check_values(t, freqs, start_positions, cu_seqlens, tensor_format, cp_size):
    """Wait for the device and check the values that decide the position of a token."""
    if tensor_format == "thd":
        bounds = cu_seqlens.long()
        lengths = bounds.diff()
        if int(bounds[0]) != 0 or int(bounds[-1]) != t.shape[0] * cp_size:
            raise ValueError(
                f"cu_seqlens must lead from 0 to t * cp_size = {t.shape[0] * cp_size}, "
                f"got {int(bounds[0])} to {int(bounds[-1])}"
            )
        if bool((lengths < 0).any()):
            raise ValueError(f"cu_seqlens must not decrease, got {bounds.tolist()}")
        if cp_size > 1 and bool((lengths % (2 * cp_size)).any()):
            raise ValueError(
                f"every sequence must be cut into 2 * cp_size = {2 * cp_size} equal chunks, "
                f"got lengths {lengths.tolist()}"
            )
    else:
        lengths = torch.tensor(t.shape[tensor_format.index("s")] * cp_size, device=t.device)
    starts = torch.zeros_like(lengths) if start_positions is None else start_positions.long()
    if bool((starts < 0).any()):
        raise ValueError(f"start_positions must not be negative, got {starts.tolist()}")
    needed = int((starts + lengths).max()) if (starts + lengths).numel() else 0
    if needed > freqs.shape[0]:
        raise ValueError(f"freqs covers {freqs.shape[0]} positions, a sequence ends at {needed}")
