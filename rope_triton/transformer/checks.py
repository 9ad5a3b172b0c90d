"""What the kernels of a transformer accept."""

from collections.abc import Mapping

import torch

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def accepted(
    required: Mapping[str, object],
    optional: Mapping[str, object] | None = None,
    *,
    under_autocast: str = "lower",
) -> list:
    """The tensors of a call in the dtype that they have under autocast, once they are checked.

    ``required`` and ``optional`` are arguments by name; an optional one may be None, and stays so.
    ``under_autocast`` is the dtype that autocast gives them: "lower", its own, as to products;
    "float32", as to softmax; "same", which they have; "any", the same, but they may differ.

    Raises TypeError if one is not a tensor, or the dtypes differ or are not accepted, and
    ValueError if one is empty or on another device.
    """
    tensors: dict[str, torch.Tensor] = {}
    for name, x in (*required.items(), *(optional or {}).items()):
        if isinstance(x, torch.Tensor):
            tensors[name] = _cast(x, under_autocast)
        elif x is not None or name in required:
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    first = next(iter(tensors.values()))
    mixed = under_autocast == "any" and autocasts(first)
    for name, x in tensors.items():
        if x.dtype not in _DTYPES or (x.dtype != first.dtype and not mixed):
            dtypes = ", ".join(f"{key} {value.dtype}" for key, value in tensors.items())
            raise TypeError(f"all must be float16, bfloat16 or float32, one of these: {dtypes}")
        if x.device != first.device:
            raise ValueError(f"all must be on one device, got {first.device} and {x.device}")
        if 0 in x.shape:
            raise ValueError(f"{name} must not be empty, got {tuple(x.shape)}")
    return [tensors.get(name) for name in (*required, *(optional or ()))]


def _cast(x: torch.Tensor, under_autocast: str) -> torch.Tensor:
    if under_autocast in ("same", "any") or x.dtype not in _DTYPES or not autocasts(x):
        return x
    lower = torch.get_autocast_dtype(x.device.type)
    return x.to(torch.float32 if under_autocast == "float32" else lower)


def autocasts(x: torch.Tensor) -> bool:
    """Whether autocast is enabled for the device of ``x``; the meta device has none."""
    kind = x.device.type
    return kind != "meta" and torch.is_autocast_enabled(kind)
