"""Launching: what follows from the form of a call is found once, and kept.

The form of a call is all of it but the values in its tensors. Triton decides from the same what to
compile, so calls of one form run one compiled kernel, and the next goes straight to it: Triton's
own way, which looks at every argument again, takes three times as long.
"""

import contextlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
import triton

_KEPT_FORMS = 4096
_HIP = torch.version.hip is not None


class Part(NamedTuple):
    """One launch of the kernel: most calls have one, some more than CUDA's grids hold.

    ``numbers`` are the kernel's arguments after its tensors. ``begin`` is where the part begins in
    the dimension of each tensor that ``dims`` gives, None where the tensor has no such dimension.
    ``options`` are the compiler's.
    """

    grid: tuple[int, int, int]
    begin: int
    dims: tuple[int | None, ...]
    numbers: tuple
    options: dict


# What launches a part again: called with the index of the device and the tensors of the call.
_Again = Callable[[int, tuple], None]
_launches: dict[tuple, list[_Again]] = {}


def form(tensor: torch.Tensor) -> tuple:
    """What there is to know of a tensor, but its values.

    The last is what Triton compiles in of an address: that vectors are aligned; on AMD, also that
    offsets have 32 bits.
    """
    aligned = not tensor.data_ptr() & 15
    special = (aligned, tensor.untyped_storage().nbytes() < 1 << 31) if _HIP else aligned
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, special


def forms(tables: tuple) -> tuple:
    """The same of angles or cosines, sines, starts and bounds; None of those that there are not."""
    freqs, sin, start_positions, cu_seqlens = tables
    return (
        form(freqs),
        None if sin is None else form(sin),
        None if start_positions is None else form(start_positions),
        None if cu_seqlens is None else form(cu_seqlens),
    )


def known(form: tuple) -> list | None:
    """The launches of a call of this form, for :func:`again`, if there was one before."""
    return _launches.get(form)


def again(launches: list, tensors) -> None:
    """Launch what was launched before for a call of the same form."""
    device = tensors[0].get_device()
    if device >= 0 and device != torch._C._cuda_getDevice():  # it has begun: there is a tensor
        with torch.cuda.device(device):
            return again(launches, tensors)
    for launch in launches:
        launch(device, tensors)
    return None


def first(form: tuple, kernel, plan: Callable[..., Iterable[Part]], tensors, options) -> None:
    """Launch the kernel on the tensors as ``plan(*tensors, options)`` says, and keep that."""
    device = tensors[0].get_device()
    with torch.cuda.device(device) if device >= 0 else contextlib.nullcontext():
        launches = [_first(kernel, tensors, part) for part in plan(*tensors, options)]
    if len(_launches) >= _KEPT_FORMS:
        _launches.clear()
    _launches[form] = launches


def _first(kernel, tensors, part) -> _Again:
    """Launch through Triton, which compiles, and return what goes straight to it."""
    run = kernel[part.grid]
    compiled = run(*_from(part, tensors), *part.numbers, **part.options)
    if compiled is not None:
        return _straight(compiled, part)

    def interpreted(_, tensors):
        run(*_from(part, tensors), *part.numbers, **part.options)

    return interpreted


def _straight(compiled, part) -> _Again:
    """As Triton's runner of a compiled kernel, without what that does for hooks if there are none.

    It asks for device and stream anew, and describes every launch to hooks: 2 of a call's 14
    microseconds. torch.compile's launchers go the same way.
    """
    hooks, run_with_hooks = triton.knobs.runtime, compiled[part.grid]
    current_stream = triton.runtime.driver.active.get_current_stream
    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    grid, begin, numbers = part.grid, part.begin, part.numbers

    def straight(device, tensors):
        if begin:
            tensors = _from(part, tensors)
        enter, leave = hooks.launch_enter_hook, hooks.launch_exit_hook
        # Chains of hooks, or what their user put in place of one.
        if getattr(enter, "calls", enter) or getattr(leave, "calls", leave):
            run_with_hooks(*tensors, *numbers)
            return
        stream = current_stream(device)
        run(*grid, stream, function, metadata, None, None, None, *tensors, *numbers)

    return straight


def _from(part, tensors):
    """The tensors from where the part begins."""
    return [
        tensor
        if tensor is None or dim is None
        else tensor.narrow(dim, part.begin, tensor.shape[dim] - part.begin)
        for tensor, dim in zip(tensors, part.dims, strict=True)
    ]
