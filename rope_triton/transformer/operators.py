"""How the kernels become operators that PyTorch's dispatcher, autograd and compiler know."""

import functools
from collections.abc import Callable

import torch
from torch.library import CustomOpDef, custom_op


def operator(name: str) -> Callable[[Callable], CustomOpDef]:
    """A decorator that makes ``rope_triton::name`` of a function that changes none of its inputs.

    Triton launches on the current device: that of the first argument is, while the function runs.
    """

    def decorated(function: Callable) -> CustomOpDef:
        @functools.wraps(function)
        def on_its_device(first: torch.Tensor, *others):
            with torch.cuda.device_of(first):
                return function(first, *others)

        return custom_op(f"rope_triton::{name}", mutates_args=())(on_its_device)

    return decorated
