"""Launch kernels: plan and compile a call once, then reuse its launch.

A specialization key is all of a call but the values in its tensors. Triton decides from the same
what to compile, so calls with one key run one compiled kernel, and all but the first go straight to
it: Triton's own runner, which inspects every argument again, takes three times as long.
"""

import copy
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

_MAX_CACHED = 4096
# Versions of Triton on which the tests passed the launcher by: NVIDIA's on a GPU too, AMD's only by
# the arguments of its C function. Any other version or backend goes through Triton's own runner.
_TESTED_TRITONS = frozenset({"3.6.0", "3.7.0", "3.7.1"})
_TESTED_BACKENDS = frozenset({"cuda", "hip"})
_HIP = torch.version.hip is not None
# ``torch.cuda.current_device`` without its initialization of CUDA.
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


class GridChunk(NamedTuple):
    """One launch of a kernel: a call needs several if it is larger than CUDA's grids.

    ``batch_dims`` has the batch dimension of each tensor argument, None for a tensor without one or
    an absent tensor, and ``begin`` is the first batch index of the chunk. ``arguments`` are the
    kernel's other arguments by name, ``options`` the compiler's.
    """

    grid: tuple[int, int, int]
    begin: int
    batch_dims: tuple[int | None, ...]
    arguments: dict
    options: dict


Plan = Callable[..., Iterable[GridChunk]]
# Repeats the launch of a chunk, given the device's index and the tensors of a call.
Launcher = Callable[[int, Sequence], None]
_launches: dict[tuple, list[Launcher]] = {}
# The launchers of an earlier call with this key, or None. A key begins with its kernel's name,
# because the options and tensors of two kernels may be equal.
cached_launches = _launches.get


def specialization_key(tensor: torch.Tensor) -> tuple:
    """All that a plan and Triton's compiler read of a tensor.

    Its last item is what Triton compiles in of an address: whether vectors are aligned; on AMD,
    also whether offsets fit 32 bits.
    """
    special: bool | tuple = not tensor.data_ptr() & 15
    if _HIP:
        special = special, tensor.untyped_storage().nbytes() < 1 << 31
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, special


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


def run(key: tuple, launches: list | None, kernel, plan: Plan, tensors, options) -> None:
    """Launch the kernel on ``tensors``, by ``launches`` if the key is cached.

    Otherwise ``plan(*tensors, options)`` gives the chunks to launch, once for each key. If the
    first two tensors are empty, all are, and nothing is launched.
    """
    device = tensors[0].get_device()
    if device >= 0 and device != _current_device():  # a tensor exists, so CUDA is initialized
        with torch.cuda.device(device):
            run(key, launches, kernel, plan, tensors, options)
    elif launches is not None:
        for launch in launches:
            launch(device, tensors)
    elif any(tensor.numel() for tensor in tensors[:2]):
        _keep(key, [_first_launch(kernel, tensors, chunk) for chunk in plan(*tensors, options)])


@functools.cache
def resources(device: torch.device) -> tuple[int, int]:
    """Multiprocessors of a GPU, and bytes of shared memory that a program can have."""
    if triton.knobs.runtime.interpret:
        return 2, 1 << 17
    about = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)
    return about["multiprocessor_count"], about["max_shared_mem"]


def cdiv(n: int, block: int) -> int:
    """Blocks of ``n``: ``triton.cdiv`` takes 4 microseconds."""
    return -(-n // block)


class Blocks(NamedTuple):
    """A tensor that a kernel gets as a descriptor, and the shape of the blocks that it loads."""

    tensor: torch.Tensor
    shape: tuple[int, ...]


def run_planned(kernel, grid: tuple, arguments: tuple, values: tuple, **options: int) -> None:
    """Launch a kernel whose grid is known.

    Parameters
    ----------
    arguments : tuple
        The kernel's first arguments: tensors, ``Blocks`` or None. The first is neither empty nor
        None.
    values : tuple
        Its other arguments. A call with other ones has another launcher.
    options
        The compiler's.
    """
    tensors = [each.tensor if isinstance(each, Blocks) else each for each in arguments]
    device = tensors[0].get_device()
    if device >= 0 and device != _current_device():
        with torch.cuda.device(device):
            return run_planned(kernel, grid, arguments, values, **options)
    key = kernel, grid, values, *options.values(), *map(_argument_key, arguments)
    launches = _launches.get(key)
    if launches is not None:
        return launches[0](device, tensors)
    given = [_descriptor(each) if isinstance(each, Blocks) else each for each in arguments]
    compiled = kernel[grid](*given, *values, **options)
    if compiled is not None:  # not by the interpreter
        direct = _direct(compiled, GridChunk(grid, 0, (), {}, options), values)
        templates = [vars(each) if isinstance(each, TensorDescriptor) else None for each in given]
        _keep(key, [_with_descriptors(direct, templates) if any(templates) else direct])


def _argument_key(argument) -> tuple | None:
    if argument is None:
        return None
    if isinstance(argument, Blocks):
        return *specialization_key(argument.tensor), argument.shape
    return specialization_key(argument)


def _descriptor(blocks: Blocks) -> TensorDescriptor:
    x = blocks.tensor
    return TensorDescriptor(x, list(x.shape), list(x.stride()), list(blocks.shape))


def _with_descriptors(launch: Launcher, templates: list[dict | None]) -> Launcher:
    """A launch that gets descriptors of the tensors for which ``templates`` have the attributes.

    Triton's class would check again what the launcher's key says, 4 microseconds a tensor.
    """
    templates = [each and {**each, "base": None} for each in templates]  # keeps no tensor alive

    def described(device, tensors):
        given = []
        for tensor, template in zip(tensors, templates, strict=True):
            if template is not None:
                descriptor = object.__new__(TensorDescriptor)
                descriptor.__dict__ = {**template, "base": tensor}
                tensor = descriptor
            given.append(tensor)
        launch(device, given)

    return described


def _keep(key: tuple, launches: list[Launcher]) -> None:
    if len(_launches) >= _MAX_CACHED:  # drop many of the oldest at once: finding them is slow
        for oldest in list(_launches)[: _MAX_CACHED // 16 + 1]:
            _launches.pop(oldest, None)
    _launches[key] = launches


def _first_launch(kernel, tensors, chunk: GridChunk) -> Launcher:
    """Launch through Triton, which compiles, and return what repeats the launch."""
    run = kernel[chunk.grid]
    compiled = run(*_narrowed(chunk, tensors), **chunk.arguments, **chunk.options)
    if compiled is not None:
        names = kernel.arg_names[len(tensors) :]
        return _direct(compiled, chunk, tuple(chunk.arguments[name] for name in names))

    def interpreted(_, tensors):
        run(*_narrowed(chunk, tensors), **chunk.arguments, **chunk.options)

    return interpreted


def _direct(compiled, chunk: GridChunk, values: tuple) -> Launcher:
    """Launch a compiled kernel as Triton's runner does, without its generality.

    The runner looks up device and stream, describes every launch to hooks, and looks for memory to
    allocate: 3 of a call's 14 microseconds. torch.compile's launchers leave that out, too.
    ``values`` are the kernel's arguments after its tensors.
    """
    hooks, run_with_hooks, begin = triton.knobs.runtime, compiled[chunk.grid], chunk.begin
    if not _is_tested(compiled):

        def by_runner(_, tensors):
            run_with_hooks(*(_narrowed(chunk, tensors) if begin else tensors), *values)

        return by_runner

    current_stream = triton.runtime.driver.active.get_current_stream
    launch, before, after, as_tuple = _innermost(compiled, chunk.grid)

    def direct(device, tensors):
        if begin:
            tensors = _narrowed(chunk, tensors)
        enter, leave = hooks.launch_enter_hook, hooks.launch_exit_hook
        # A chain of hooks, or what a user put in its place.
        if getattr(enter, "calls", enter) or getattr(leave, "calls", leave):
            run_with_hooks(*tensors, *values)
        elif as_tuple:
            launch(*before, current_stream(device), *after, (*tensors, *values))
        else:
            launch(*before, current_stream(device), *after, *tensors, *values)

    return direct


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


def _narrowed(chunk: GridChunk, tensors):
    """The tensors from the first batch index of the chunk on."""
    return [
        tensor
        if tensor is None or dim is None
        else tensor.narrow(dim, chunk.begin, tensor.shape[dim] - chunk.begin)
        for tensor, dim in zip(tensors, chunk.batch_dims, strict=True)
    ]
