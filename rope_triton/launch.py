"""Launching: what follows from the form of a call is found once, and kept.

The form of a call is all of it but the values in its tensors. Triton decides from the same what to
compile, so calls of one form run one compiled kernel, and the next goes straight to it: Triton's
own way, which looks at every argument again, takes three times as long.
"""

import copy
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
import triton

_KEPT_FORMS = 4096
# Versions of Triton, as they call themselves, on which the tests have shown how to go past its
# launcher: NVIDIA's on a GPU too, AMD's only by what its function in C is given. On any other
# version or backend a call goes through Triton's own runner, which takes longer.
_SHOWN_TRITONS = frozenset({"3.6.0", "3.7.0", "3.7.1"})
_SHOWN_BACKENDS = frozenset({"cuda", "hip"})
_HIP = torch.version.hip is not None
# Without what ``current_device`` does to begin with CUDA.
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


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


Plan = Callable[..., Iterable[Part]]
# What launches a part again: called with the index of the device and the tensors of the call.
_Again = Callable[[int, tuple], None]
_launches: dict[tuple, list[_Again]] = {}
# The launches of a call of this form, for ``run``, if there was one before. A form begins with the
# name of its kernel: others may have options and tensors that look the same.
known = _launches.get


def form(tensor: torch.Tensor) -> tuple:
    """What there is to know of a tensor, but its values.

    The last is what Triton compiles in of an address: that vectors are aligned; on AMD, also that
    offsets have 32 bits.
    """
    special: bool | tuple = not tensor.data_ptr() & 15
    if _HIP:
        special = special, tensor.untyped_storage().nbytes() < 1 << 31
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, special


def forms(tables: tuple) -> tuple:
    """The same of angles or cosines, sines, starts and bounds; None of those that there are not."""
    freqs, sin, start_positions, cu_seqlens = tables
    if sin is start_positions is cu_seqlens is None:
        return form(freqs)
    return (
        form(freqs),
        None if sin is None else form(sin),
        None if start_positions is None else form(start_positions),
        None if cu_seqlens is None else form(cu_seqlens),
    )


def run(form: tuple, launches: list | None, kernel, plan: Plan, tensors, options) -> None:
    """Launch the kernel on the tensors: as before for a call of this form, or for the first time.

    ``launches`` is what is :func:`known` of the form. ``plan(*tensors, options)`` says how to
    launch, and is asked once. Where the first two tensors are empty, all are, and nothing is.
    """
    device = tensors[0].get_device()
    if device >= 0 and device != _current_device():  # CUDA has begun: there is a tensor
        with torch.cuda.device(device):
            run(form, launches, kernel, plan, tensors, options)
    elif launches is not None:
        for launch in launches:
            launch(device, tensors)
    elif any(tensor.numel() for tensor in tensors[:2]):
        launches = [_first(kernel, tensors, part) for part in plan(*tensors, options)]
        if len(_launches) >= _KEPT_FORMS:  # the oldest go, some at once, as they are all listed
            for oldest in list(_launches)[: _KEPT_FORMS // 16 + 1]:
                _launches.pop(oldest, None)
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
    """As Triton's runner of a compiled kernel, without what that does for those who need it.

    It asks for device and stream anew, describes every launch to hooks, and looks whether there is
    memory to allocate: 3 of a call's 14 microseconds. torch.compile's launchers do without, too.
    """
    hooks, run_with_hooks = triton.knobs.runtime, compiled[part.grid]
    begin, numbers = part.begin, part.numbers
    if not _is_shown(compiled):

        def by_runner(_, tensors):
            run_with_hooks(*(_from(part, tensors) if begin else tensors), *numbers)

        return by_runner

    current_stream = triton.runtime.driver.active.get_current_stream
    launch, before, after, in_one = _innermost(compiled, part.grid)

    def straight(device, tensors):
        if begin:
            tensors = _from(part, tensors)
        enter, leave = hooks.launch_enter_hook, hooks.launch_exit_hook
        # Chains of hooks, or what their user put in place of one.
        if getattr(enter, "calls", enter) or getattr(leave, "calls", leave):
            run_with_hooks(*tensors, *numbers)
        elif in_one:
            launch(*before, current_stream(device), *after, (*tensors, *numbers))
        else:
            launch(*before, current_stream(device), *after, *tensors, *numbers)

    return straight


def _is_shown(compiled) -> bool:
    """Whether the tests have shown, for the Triton that compiled this, how to launch it."""
    backend = compiled.metadata.target.backend
    return triton.__version__ in _SHOWN_TRITONS and backend in _SHOWN_BACKENDS


def _innermost(compiled, grid) -> tuple[Callable, tuple, tuple, bool]:
    """What launches a kernel in the end, what it is given before the stream, and what after that.

    And whether the kernel's own arguments follow in one tuple, instead of one by one. Triton's
    launcher calls a function in C; with what, besides, differs from version to version, and is read
    off a copy of the launcher that calls another.
    """
    launcher, stream, noted = compiled.run, object(), []
    own = compiled.function, compiled.packed_metadata, None, None, None
    sizes = [getattr(launcher, f"{kind}_scratch_size", 0) for kind in ("global", "profile")]
    if not any(sizes) and hasattr(launcher, "launch"):
        noting = copy.copy(launcher)
        noting.launch = lambda *given: noted.append(given)
        noting(*grid, stream, *own)
    if len(noted) != 1:  # memory to allocate for each launch, or a launcher of another kind
        return launcher, grid, own, False
    at = noted[0].index(stream)
    before, after = noted[0][:at], noted[0][at + 1 :]
    if after[-1] == ():
        return launcher.launch, before, after[:-1], True
    return launcher.launch, before, after, False


def _from(part, tensors):
    """The tensors from where the part begins."""
    return [
        tensor
        if tensor is None or dim is None
        else tensor.narrow(dim, part.begin, tensor.shape[dim] - part.begin)
        for tensor, dim in zip(tensors, part.dims, strict=True)
    ]
