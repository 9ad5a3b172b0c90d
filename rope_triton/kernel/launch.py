"""Launch kernels: plan and compile a call once, then reuse its launch.

A specialization key is all of a call but the values in its tensors. Triton decides from the same
what to compile, so calls with one key run one compiled kernel, and all but the first go straight to
it: Triton's own runner, which inspects every argument again, takes three times as long.
"""

import copy
import functools
import operator
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from rope_triton.kernel.kernels import rope_kernel

GRID_LIMIT = 65_535
"""CUDA's limit for the second and third dimension of a grid."""
_MAX_CACHED = 4096
_threads = threading.local()
# Versions of Triton on which the tests passed the launcher by: NVIDIA's on a GPU too, AMD's only by
# the arguments of its C function. Any other version or backend goes through Triton's own runner.
_TESTED_TRITONS = frozenset({"3.6.0", "3.7.0", "3.7.1"})
_TESTED_BACKENDS = frozenset({"cuda", "hip"})
_HIP = torch.version.hip is not None
# ``torch.cuda.current_device`` without its initialization of CUDA.
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


class Plan(NamedTuple):
    """A kernel's grid, its arguments other than tensors by name, and the compiler's options."""

    grid: tuple[int, int, int]
    arguments: dict
    options: dict


# Repeats a launch, given the device's index and the tensors of a call.
Launcher = Callable[[int, Sequence], None]
_launches: dict[tuple, "Prepared"] = {}
_plans: dict[tuple, object] = {}  # of :func:`planned`
# The launch of an earlier call with this key, or None. A key begins with its kernel's name, because
# the options and tensors of two kernels may be equal.
cached_launches = _launches.get


def specialization_key(tensor: torch.Tensor) -> tuple:
    """All that a plan and Triton's compiler read of a tensor.

    Its last item is what Triton compiles in of an address: whether vectors are aligned; on AMD,
    also whether offsets fit 32 bits. It is "negated" of the imaginary part of a conjugate, whose
    memory holds the negated values.
    """
    special: bool | tuple | str = not tensor.data_ptr() & 15
    strides = tensor.stride()
    # To ask takes longer than all else. Imaginary parts lie between real ones: they begin at no
    # multiple of 16 bytes, and have steps of two elements, or any in a dimension of size 1.
    if (not special or strides[-1:] != (1,)) and tensor.is_neg():
        special = "negated"
    elif _HIP:
        special = special, tensor.untyped_storage().nbytes() < 1 << 31
    return tensor.shape, strides, tensor.dtype, tensor.device, special


def table_keys(tables: tuple) -> tuple:
    """The keys of angles or cosines, sines, start positions and bounds; None for an absent one."""
    freqs, sin, start_positions, cu_seqlens = tables
    if sin is start_positions is cu_seqlens is None:
        return specialization_key(freqs)
    return (
        specialization_key(freqs),
        None if sin is None else specialization_key(sin),
        None if start_positions is None else specialization_key(start_positions),
        None if cu_seqlens is None else specialization_key(cu_seqlens),
    )


def run(
    key: tuple, cached: "Prepared | None", kernel, plan: Callable[..., Plan], tensors, options
) -> None:
    """Launch the kernel on ``tensors``, by ``cached`` if the key is cached.

    Otherwise by ``plan(*tensors, options)``, which is made once for each key, or at each call if a
    tensor is negated: it is copied. If the first two tensors are empty, all are, and nothing is
    launched.
    """
    if cached is not None:
        cached(*tensors)
    elif any(tensor.numel() for tensor in tensors[:2]):
        given = [None if tensor is None else tensor.resolve_neg() for tensor in tensors]
        grid, arguments, compile_options = plan(*given, options)
        values = tuple(arguments[name] for name in kernel.arg_names[len(given) :])
        made = Prepared(kernel, grid, values, **compile_options)
        made(*given)
        if all(map(operator.is_, given, tensors)):
            _keep(_launches, key, made)


def is_interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels.

    ``TRITON_INTERPRET`` decided that when they were defined. What it is now decides nothing.
    """
    return not isinstance(rope_kernel, triton.runtime.JITFunction)


@functools.cache
def resources(device: torch.device) -> tuple[int, int]:
    """Multiprocessors of a GPU, and bytes of shared memory that a program can have."""
    if is_interpreted():
        return 2, 1 << 17
    about = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)
    return about["multiprocessor_count"], about["max_shared_mem"]


def check_device(tensor: torch.Tensor, otherwise: str = "") -> None:
    """Raise ValueError unless the tensor is on a device that Triton's kernels can read.

    Triton itself checks neither a descriptor's address nor 0, as of the meta device. ``otherwise``:
    what else the caller can do, for the message.
    """
    if is_interpreted() and not tensor.is_meta:  # the interpreter takes any device with memory
        return
    try:
        device_type = triton.runtime.driver.active.get_active_torch_device().type
    except RuntimeError as error:
        raise ValueError(
            f"a tensor is on {tensor.device} and Triton finds no GPU here: "
            f"{otherwise}set TRITON_INTERPRET=1 before the first import of rope_triton"
        ) from error
    if tensor.device.type != device_type:
        raise ValueError(
            f"a tensor is on {tensor.device}, the kernel runs on {device_type}: "
            f"{otherwise}move all tensors to {device_type}"
        )


def cdiv(n: int, block: int) -> int:
    """Blocks of ``n``: ``triton.cdiv`` takes 4 microseconds."""
    return -(-n // block)


class Prepared:
    """A launch of a kernel whose grid and other arguments than tensors are known.

    The first call compiles the kernel. Later ones, whose tensors may differ in addresses alone, go
    straight to it.

    Parameters
    ----------
    values : tuple
        The kernel's arguments after its tensors.
    blocks : tuple
        For each tensor None, or the shape of the blocks that the kernel loads of it: it gets a
        descriptor then.
    options
        The compiler's.
    """

    def __init__(self, kernel, grid: tuple, values: tuple, blocks: tuple = (), **options: int):
        self._kernel, self._grid, self._values = kernel, grid, values
        self._blocks, self._options = blocks, options
        self._launch: Launcher | None = None

    def __call__(self, *tensors: torch.Tensor | None) -> None:
        """Launch on tensors, the first of which is not empty; an absent one is None."""
        device = tensors[0].get_device()  # type: ignore[union-attr]
        if device >= 0 and device != _current_device():
            with torch.cuda.device(device):
                self(*tensors)
        elif self._launch is not None:
            self._launch(device, tensors)
        else:
            given = _described(tensors, self._blocks)
            compiled = self._kernel[self._grid](*given, *self._values, **self._options)
            if compiled is not None:  # not by the interpreter
                self._launch = _direct(compiled, self._grid, self._values, self._blocks)


def planned(plan: Callable, *arguments):
    """``plan(*arguments)``, made once for each specialization of the tensors among them.

    It may depend on all of them but addresses and values of tensors. Raises what
    :func:`check_device` does.
    """
    key = (
        plan,
        *[
            specialization_key(each) if isinstance(each, torch.Tensor) else each
            for each in arguments
        ],
    )
    made = _plans.get(key)
    if made is None:
        for each in arguments:
            if isinstance(each, torch.Tensor):
                check_device(each)
        made = plan(*arguments)
        _keep(_plans, key, made)
    return made


def is_loadable(x: torch.Tensor) -> bool:
    """Whether the GPU's bulk copies can load blocks of ``x``, as descriptors ask."""
    *outer, last = x.stride()
    steps = [step * x.element_size() for step in outer]
    return x.data_ptr() % 16 == 0 and last == 1 and all(step and step % 16 == 0 for step in steps)


def _described(tensors: Sequence, blocks: tuple) -> list:
    """The tensors, as descriptors where the kernel loads blocks of them."""
    given = list(tensors)
    if blocks:
        _bind_context()
    for at, block in enumerate(blocks):
        if block is not None:
            x = given[at]
            given[at] = TensorDescriptor(x, list(x.shape), list(x.stride()), list(block))
    return given


def _keep(kept: dict, key, value) -> None:
    if len(kept) >= _MAX_CACHED:  # drop many of the oldest at once: finding them is slow
        for oldest in list(kept)[: _MAX_CACHED // 16 + 1]:
            kept.pop(oldest, None)
    kept[key] = value


def _direct(compiled, grid: tuple, values: tuple, blocks: tuple = ()) -> Launcher:
    """Launch a compiled kernel as Triton's runner does, without its generality.

    The runner looks up device and stream, describes every launch to hooks, and looks for memory to
    allocate: 3 of a call's 14 microseconds. torch.compile's launchers leave that out, too.
    ``values`` are the kernel's arguments after its tensors; ``blocks`` are as of :class:`Prepared`.
    """
    hooks, run_with_hooks = triton.knobs.runtime, compiled[grid]

    def by_runner(_, tensors):
        run_with_hooks(*_described(tensors, blocks), *values)

    if not _is_tested(compiled):
        return by_runner

    current_stream = triton.runtime.driver.active.get_current_stream
    launch, before, after, as_tuple = _innermost(compiled, grid)

    def direct(device, tensors):
        enter, leave = hooks.launch_enter_hook, hooks.launch_exit_hook
        # A chain of hooks, or what a user put in its place.
        if getattr(enter, "calls", enter) or getattr(leave, "calls", leave):
            return by_runner(device, tensors)
        if blocks:
            tensors = _described(tensors, blocks)
        if as_tuple:
            launch(*before, current_stream(device), *after, (*tensors, *values))
        else:
            launch(*before, current_stream(device), *after, *tensors, *values)

    return direct


def _bind_context() -> None:
    """Let this thread have CUDA's context, as the encoding of tensor maps needs.

    A thread of autograd whose first call of CUDA that is would have none.
    """
    if not getattr(_threads, "bound", False):
        if torch.cuda.is_initialized():
            torch.cuda.Event().record()
        _threads.bound = True


def _is_tested(compiled) -> bool:
    """Whether the tests passed the launcher of the Triton that compiled this by."""
    backend = compiled.metadata.target.backend
    return triton.__version__ in _TESTED_TRITONS and backend in _TESTED_BACKENDS


def _innermost(compiled, grid) -> tuple[Callable, tuple, tuple, bool]:
    """The function that finally launches a kernel, its arguments before the stream and after it.

    The last item is whether it takes the kernel's own arguments as one tuple. Triton's launcher
    calls a C function whose other arguments differ between versions: a copy of the launcher that
    calls a recording function instead shows them.
    """
    launcher, stream, recorded = compiled.run, object(), []
    own = compiled.function, compiled.packed_metadata, None, None, None
    sizes = [getattr(launcher, f"{kind}_scratch_size", 0) for kind in ("global", "profile")]
    if not any(sizes) and hasattr(launcher, "launch"):
        recording = copy.copy(launcher)
        recording.launch = lambda *given: recorded.append(given)
        recording(*grid, stream, *own)
    if len(recorded) != 1:  # it allocates memory at each launch, or is another kind of launcher
        return launcher, grid, own, False
    at = recorded[0].index(stream)
    before, after = recorded[0][:at], recorded[0][at + 1 :]
    if after[-1] == ():
        return launcher.launch, before, after[:-1], True
    return launcher.launch, before, after, False
