"""Argument validation that never synchronizes with the device.

Only ``ROPE_TRITON_CHECK=1`` adds checks that do, where ``values`` can be read: not of fake tensors,
nor in a trace or a transform. ``name`` is what the public function calls the rotated tensor. What
is raised is a TypeError or a ValueError.
"""

import os

import torch

_FUSED_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_DTYPES = (*_FUSED_DTYPES, torch.float64)
_ANGLE_DTYPES = (torch.float32, torch.float64)
_INDEX_DTYPES = (torch.int32, torch.int64)
_ROUNDINGS = ("once", "tables", "each")
CHECK_VALUES = os.environ.get("ROPE_TRITON_CHECK", "0") != "0"


def check_rotation(
    t, freqs, sin, start_positions, cu_seqlens, options, name="", *, values=False
) -> None:
    """Raise unless both implementations accept a call, which is by angles if ``sin`` is None."""
    tensor_format, interleaved, cp_size, cp_rank, rounding, *_ = options
    by_angles = sin is None
    name = name or ("t" if by_angles else "x")
    table, starts = ("freqs", "start_positions") if by_angles else ("cos", "seqlen_offsets")
    if rounding not in _ROUNDINGS:
        raise ValueError(f"rounding must be one of {_ROUNDINGS}, got {rounding!r}")
    if not by_angles:
        check_tables(freqs, sin)
    # Only the package itself passes "bhsd", for `rotary_embedding`.
    if by_angles or tensor_format != "bhsd":
        _check_format(tensor_format)
    if cu_seqlens is None and tensor_format == "thd":
        raise ValueError("tensor_format='thd' needs cu_seqlens, got None")
    _check_parallel(cp_size, cp_rank)
    _check_tensors(name, t, table, freqs, _ANGLE_DTYPES if by_angles else _DTYPES)
    _check_dims(name, t, tensor_format)
    batch = None if tensor_format == "thd" else t.shape[tensor_format.index("b")]
    if by_angles:
        _check_angles(table, freqs, batch or 1, t.shape[tensor_format.index("h")], t.shape[-1])
    else:
        freqs = freqs[:, None, None] if freqs.dim() == 2 else freqs
        _check_table(name, t, freqs, tensor_format, interleaved)
    if tensor_format == "bhsd" and start_positions is not None:
        tokens = t.shape[0], t.shape[2]
        _check_positions(t, table, freqs)
        _check_index("position_ids", start_positions, name, t, "b, s", tokens)
    else:
        _check_length(name, t, table, freqs, tensor_format, cp_size)
        if cu_seqlens is not None:
            bounds = None if batch is None else (batch + 1,)
            _check_index("cu_seqlens", cu_seqlens, name, t, "b + 1", bounds)
        if start_positions is not None:
            sequences = cu_seqlens.shape[0] - 1 if batch is None else batch
            _check_index(starts, start_positions, name, t, "b", (sequences,))
        if CHECK_VALUES and values:
            tables = table, freqs, starts, start_positions, cu_seqlens
            _check_values(t, *tables, tensor_format, cp_size)
    if options.inplace:
        check_writable(t)


def check_pair(q, k, freqs, sin, start_positions, cu_seqlens, options, *, values=False) -> None:
    """Raise unless queries and keys, which may differ in strides and heads, can be rotated."""
    tensor_format = options.tensor_format
    _check_format(tensor_format)
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
    others = freqs, sin, start_positions, cu_seqlens, options
    check_rotation(q, *others, "q", values=values)
    check_rotation(k, *others, "k", values=values)


def check_qk(q, k, freqs, sin, start_positions, cu_seqlens, options, *, values=False) -> None:
    """Raise unless one launch can rotate queries and keys."""
    check_pair(q, k, freqs, sin, start_positions, cu_seqlens, options, values=values)
    if freqs.dim() == 4 and freqs.shape[2] != 1:
        raise ValueError(
            f"queries and keys must share angles, [s2, 1 or b, 1, d2], got {tuple(freqs.shape)}"
        )
    check_fused(q, "q", has_plain=sin is None)


def check_qkv(qkv, q_freqs, k_freqs, start_positions, options, *, values=False) -> None:
    """Raise unless the kernel can split and rotate ``qkv``."""
    tensor_format, _, cp_size, cp_rank, *channels, _ = options
    if tensor_format not in ("sbhd", "bshd"):
        raise ValueError(f"tensor_format must be 'sbhd' or 'bshd', got {tensor_format!r}")
    _check_parallel(cp_size, cp_rank)
    tables = {"q_freqs": q_freqs, "k_freqs": k_freqs}
    for name, freqs in tables.items():
        _check_tensors("qkv", qkv, name, freqs, _ANGLE_DTYPES)
    _check_dims("qkv", qkv, tensor_format)
    width = options.v_channels
    if sum(channels) != qkv.shape[3] or channels[0] % width or channels[1] % width:
        raise ValueError(
            "qkv_split_arg_list must be channels of queries, keys and values, the first two "
            f"multiples of the last, {qkv.shape[3]} together, got {channels}"
        )
    for name, freqs in tables.items():
        _check_angles(name, freqs, 1, 1, width)
        _check_length("qkv", qkv, name, freqs, tensor_format, cp_size)
    if q_freqs.shape[::3] != k_freqs.shape[::3]:
        raise ValueError(
            "q_freqs and k_freqs must have one shape, "
            f"got {tuple(q_freqs.shape)} and {tuple(k_freqs.shape)}"
        )
    if start_positions is not None:
        batch = qkv.shape[tensor_format.index("b")]
        _check_index("start_positions", start_positions, "qkv", qkv, "b", (batch,))
    if CHECK_VALUES and values:
        starts = "start_positions", start_positions, None
        _check_values(qkv, "q_freqs", q_freqs, *starts, tensor_format, cp_size)
    check_fused(qkv, "qkv", has_plain=False)


def check_channels(split) -> tuple[int, int, int]:
    """Channels of queries, keys and values in a group; ValueError unless three positive ints."""
    channels = tuple(split) if isinstance(split, list | tuple) else ()
    if len(channels) != 3 or not all(type(n) is int and n > 0 for n in channels):
        raise ValueError(f"qkv_split_arg_list must be three positive ints, got {split!r}")
    return channels


def check_tensors(**values: object) -> None:
    """Raise TypeError unless all are tensors."""
    for name, value in values.items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")


def _check_floating(name, value, dtypes=_DTYPES):
    check_tensors(**{name: value})
    if value.dtype not in dtypes:
        raise TypeError(f"{name} must be one of {dtypes}, got {value.dtype}")


def check_tables(cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Raise TypeError or ValueError unless these are tables of cosines and of sines."""
    _check_floating("cos", cos)
    _check_floating("sin", sin)
    if cos.shape != sin.shape:
        raise ValueError(f"cos and sin must have one shape, got {cos.shape} and {sin.shape}")
    if cos.device != sin.device:
        raise ValueError(f"cos and sin must share a device, got {cos.device} and {sin.device}")


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


def check_fused(t: torch.Tensor, name: str, has_plain: bool = True) -> None:
    """Raise unless the kernel computes the dtype; ``has_plain``: there is ``fused=False``."""
    if t.dtype not in _FUSED_DTYPES:
        otherwise = ": pass fused=False" if has_plain else ""
        raise TypeError(f"{name} is {t.dtype}, which the kernel does not compute{otherwise}")


def _check_format(tensor_format):
    if tensor_format not in ("sbhd", "bshd", "thd"):
        raise ValueError(f"tensor_format must be 'sbhd', 'bshd' or 'thd', got {tensor_format!r}")


def _check_parallel(cp_size, cp_rank):
    for name, value in (("cp_size", cp_size), ("cp_rank", cp_rank)):
        if not isinstance(value, int):
            raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if cp_size < 1 or not 0 <= cp_rank < cp_size:
        raise ValueError(f"expected 0 <= cp_rank < cp_size, got {cp_rank=}, {cp_size=}")


def _check_tensors(name, t, table, freqs, dtypes):
    _check_floating(name, t)
    _check_floating(table, freqs, dtypes)
    _check_device(name, t, table, freqs)


def _check_device(name, t, other, value):
    if t.device != value.device:
        raise ValueError(
            f"{name} and {other} must share a device, got {t.device} and {value.device}"
        )


def _check_dims(name, t, tensor_format):
    if t.dim() != len(tensor_format):
        raise ValueError(
            f"{name} must have {len(tensor_format)} dimensions for tensor_format="
            f"{tensor_format!r}, got shape {tuple(t.shape)}"
        )


def _check_angles(name, freqs, batch, heads, channels):
    """Raise unless these are ``[s2, 1 or b, 1 or h, d2]``."""
    if freqs.dim() != 4 or freqs.shape[1] not in (1, batch) or freqs.shape[2] not in (1, heads):
        sizes = (
            "1" if size == 1 else f"1 or {letter}={size}"
            for letter, size in (("b", batch), ("h", heads))
        )
        raise ValueError(
            f"{name} must have shape [s2, {', '.join(sizes)}, d2], got {tuple(freqs.shape)}"
        )
    width = freqs.shape[3]
    if width == 0 or width % 2 or width > channels:
        raise ValueError(
            f"{name} must be an even number of channels wide, from 2 to d={channels}, got {width}"
        )


def _check_table(name, t, cos, tensor_format, interleaved):
    """Raise unless a table, ``[s2, 1 or b, 1 or h, d2/2]`` by now, fits ``t``."""
    batch = 1 if tensor_format == "thd" else t.shape[tensor_format.index("b")]
    heads = t.shape[tensor_format.index("h")]
    length, of_batch, of_heads, width = cos.shape
    if of_batch not in (1, batch) or of_heads not in (1, heads):
        if tensor_format == "bhsd":
            expected = f"must broadcast to [b={batch}, h={heads}, s, d2/2] of {name}"
            shape: tuple = of_batch, of_heads, length, width
        else:
            expected = f"must have shape [s2, d2/2] or [1 or b={batch}, s2, d2/2]"
            shape = of_batch, length, width
        raise ValueError(f"cos and sin {expected}, got {shape}")
    limit = t.shape[-1] // 2
    if not 0 < width <= limit:
        half = "::2" if interleaved else f":{width // 2}"
        doubled = f": pass cos[..., {half}] and sin[..., {half}] if they have one for each channel"
        raise ValueError(
            "cos and sin must have a value for each rotated pair of channels, from 1 to "
            f"{limit} of d={t.shape[-1]}, got {width}"
            + (doubled if 0 < width <= 2 * limit and width % 2 == 0 else "")
        )


def _check_positions(t, table, freqs):
    if t.numel() and not freqs.shape[0]:
        raise ValueError(f"{table} covers 0 positions")


def _check_length(name, t, table, freqs, tensor_format, cp_size):
    if tensor_format == "thd":  # its sequences may have any lengths
        _check_positions(t, table, freqs)
        return
    length = t.shape[tensor_format.index("s")]
    sequence = f"the sequence of {name} with shape {tuple(t.shape)} ({tensor_format})"
    if cp_size > 1 and length % 2:
        raise ValueError(f"{sequence} has {length} tokens, {cp_size=} needs two equal chunks")
    if freqs.shape[0] < length * cp_size:
        needed = f"{length} on each of cp_size={cp_size} ranks" if cp_size > 1 else f"{length}"
        since = " from the first token's on" if table == "cos" else ""  # an offset is cut off
        raise ValueError(
            f"{table} covers {freqs.shape[0]} positions{since}, {sequence} has {needed}"
        )


def _check_index(name, value, owner, t, axes, shape):
    """``shape`` is None for the bounds of packed sequences, which may have any length."""
    check_tensors(**{name: value})
    if value.dtype not in _INDEX_DTYPES:
        raise TypeError(f"{name} must be one of {_INDEX_DTYPES}, got {value.dtype}")
    _check_device(owner, t, name, value)
    if value.dim() != 1 if shape is None else value.shape != shape:
        expected = f"[{axes}]" if shape is None else f"[{axes}] = {shape}"
        raise ValueError(f"{name} must have shape {expected}, got {tuple(value.shape)}")
    if shape is None and value.shape[0] < (2 if t.shape[0] else 1):
        raise ValueError(f"{name} must bound every token of {owner}, got {value.shape[0]} values")


def _check_values(t, table, freqs, name, start_positions, cu_seqlens, tensor_format, cp_size):
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
        raise ValueError(f"{name} must not be negative, got {starts.tolist()}")
    needed = int((starts + lengths).max()) if (starts + lengths).numel() else 0
    if needed > freqs.shape[0]:
        raise ValueError(f"{table} covers {freqs.shape[0]} positions, a sequence ends at {needed}")
