"""Launch kernels: plan and compile a call once, then reuse its launch.

A specialization key is all of a call but the values in its tensors. Triton decides from the same
what to compile, so calls with one key run one compiled kernel, and all but the first go straight to
it: Triton's own runner, which inspects every argument again, takes three times as long.
"""

import copy
import functools
import operator
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from rope_triton.kernel.kernels import rope_kernel

GRID_LIMIT = 65_535
"""CUDA's limit for the second and third dimension of a grid."""
_MAX_CACHED = 4096
_threads = threading.local()
_HIP = torch.version.hip is not None
_hooks = triton.knobs.runtime
# ``torch.cuda.current_device`` without its initialization of CUDA.
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
cache: dict[tuple, object] = {}
"""What the plan of :func:`run` or :func:`planned` returned, by key."""
cached: Callable = cache.get


def specialization_key(tensor: torch.Tensor) -> tuple:
    """All that a plan and Triton's compiler read of a tensor.

    Its last item is what Triton compiles in of an address: whether vectors are aligned; on AMD,
    also whether offsets fit 32 bits. It is "negated" of the imaginary part of a conjugate, whose
    memory holds the negated values.
    """
    special: bool | tuple | str = not tensor.data_ptr() & 15
    # To ask takes longer than all else. Imaginary parts lie behind real ones, so they begin at no
    # multiple of 16 bytes.
    if not special and tensor.is_neg():
        special = "negated"
    elif _HIP:
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


def run(key: tuple, launch: "Launch | None", plan: Callable, tensors: tuple, options) -> None:
    """Launch on ``tensors`` by ``launch``, which is ``cached(key)``, or else by a new plan.

    ``plan(*tensors, options)`` is made once for each key, or at each call if a tensor is negated,
    because it is copied first. If the first two tensors are empty, nothing is launched.
    """
    if launch is None:
        if not any(tensor.numel() for tensor in tensors[:2] if tensor is not None):
            return
        plain = tuple(None if tensor is None else tensor.resolve_neg() for tensor in tensors)
        launch = plan(*plain, options)
        if all(map(operator.is_, plain, tensors)):
            _add(key, launch)
        tensors = plain
    launch.on(*tensors)


def is_interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels.

    ``TRITON_INTERPRET`` decided that when they were defined. What it is now decides nothing.
    """
    return not isinstance(rope_kernel, triton.runtime.JITFunction)


def is_amd() -> bool:
    """Whether the kernels are compiled for a GPU of AMD."""
    if is_interpreted():
        return False
    return triton.runtime.driver.active.get_current_target().backend == "hip"


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


def power_of_2(n: int) -> int:
    """The least power of two that is at least ``n``, which is positive."""
    return 1 << (n - 1).bit_length()


class Launch:
    """A launch of a kernel, to be repeated on tensors that differ in addresses and values alone.

    The first call compiles the kernel. Later ones go straight to Triton's function in C: its runner
    looks up device and stream, describes every launch to hooks, and looks for memory to allocate,
    which takes 3 of a call's 14 microseconds.

    The kernel's arguments are the tensors, then ``values``, constexprs included. ``blocks`` has for
    each tensor None, or the shape of the blocks that the kernel loads of it: the argument is then a
    tensor descriptor. ``options`` are the compiler's, such as ``num_warps``.
    """

    def __init__(self, kernel, grid: tuple, values: tuple, blocks: tuple = (), **options):
        self.kernel, self.grid, self.values, self._blocks = kernel, grid, values, blocks
        self._options = options
        self._repeated: Callable[[int, Sequence], None] = self._first

    def on(self, *tensors) -> None:
        """Launch on tensors, the first of which is not empty; an absent one is None."""
        device = tensors[0].get_device()
        if device >= 0 and device != _current_device():
            with torch.cuda.device(device):
                self._repeated(device, tensors)
        else:
            self._repeated(device, tensors)

    def _first(self, device: int, tensors: Sequence) -> None:
        arguments = *self._described(tensors), *self.values
        compiled = self.kernel[self.grid](*arguments, **self._options)
        if compiled is not None:  # in the interpreter it is
            self._repeated = self._repetition(compiled, arguments)

    def _repetition(self, compiled, arguments: tuple) -> Callable[[int, Sequence], None]:
        """A function that launches what the first call compiled."""
        values, by_runner, blocks = self.values, compiled[self.grid], self._blocks
        straight = _straight(compiled, arguments)

        def ordinary(device: int, tensors: Sequence) -> None:
            by_runner(*self._described(tensors), *values)

        if straight is None:
            return ordinary
        launch, current_stream, before_grid, after_grid, after, as_tuple = straight
        before = *before_grid, *self.grid, *after_grid

        def repeated(device: int, tensors: Sequence) -> None:
            enter, leave = _hooks.launch_enter_hook, _hooks.launch_exit_hook
            # A hook is a chain of functions, or what a user put in its place.
            if getattr(enter, "calls", enter) or getattr(leave, "calls", leave):
                return ordinary(device, tensors)
            if blocks:
                tensors = self._described(tensors)
            if as_tuple:
                launch(*before, current_stream(device), *after, (*tensors, *values))
            else:
                launch(*before, current_stream(device), *after, *tensors, *values)

        return repeated

    def _described(self, tensors: Sequence) -> Sequence:
        """The tensors, as descriptors where the kernel loads blocks of them."""
        if not self._blocks:
            return tensors
        _bind_context()
        return [
            x if block is None else TensorDescriptor(x, [*x.shape], [*x.stride()], [*block])
            for x, block in zip(tensors, self._blocks, strict=True)
        ]


def planned(plan: Callable, *arguments):
    """``plan(*arguments)``, made once for each specialization of the tensors among them.

    It may depend on everything but the addresses and values of tensors. Raises the errors of
    :func:`check_device`.
    """
    key = (
        plan,
        *[
            specialization_key(argument) if isinstance(argument, torch.Tensor) else argument
            for argument in arguments
        ],
    )
    made = cache.get(key)
    if made is None:
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                check_device(argument)
        made = plan(*arguments)
        _add(key, made)
    return made


def is_loadable(x: torch.Tensor) -> bool:
    """Whether the GPU's bulk copies can load blocks of ``x``, as descriptors ask."""
    *outer, last = x.stride()
    steps = [step * x.element_size() for step in outer]
    return x.data_ptr() % 16 == 0 and last == 1 and all(step and step % 16 == 0 for step in steps)


def _add(key: tuple, value) -> None:
    if len(cache) >= _MAX_CACHED:  # drop many of the oldest at once: finding them is slow
        for oldest in list(cache)[: _MAX_CACHED // 16 + 1]:
            cache.pop(oldest, None)
    cache[key] = value


def _bind_context() -> None:
    """Let this thread have CUDA's context, as the encoding of tensor maps needs.

    A thread of autograd whose first call of CUDA that is would have none.
    """
    if not getattr(_threads, "bound", False):
        if torch.cuda.is_initialized():
            torch.cuda.Event().record()
        _threads.bound = True


# --- past Triton's runner and launcher ------------------------------------------------------------

_straights: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
"""What :func:`_straight` returned of a compiled kernel: calls of many lengths launch the same."""
_RECORDED_GRID = 2, 3, 5  # no flag is one of these


def _straight(compiled, arguments: tuple) -> tuple | None:
    """Triton's function in C, which gives the current stream of a device, and the function's
    arguments: before the grid, from there to the stream, from there to the kernel's, and whether
    these are one tuple.

    None if only Triton itself can launch the kernel: where Triton allocates memory for each launch,
    and, with a warning, where it calls its function in C in a way that is not understood here.
    """
    if compiled not in _straights:
        _straights[compiled] = _understood(compiled, arguments)
    return _straights[compiled]


def _understood(compiled, arguments: tuple) -> tuple | None:
    launcher = compiled.run
    sizes = (size for name, size in vars(launcher).items() if name.endswith("scratch_size"))
    if any(sizes):
        return None
    try:
        passed = _arguments_in_c(compiled, arguments)
    except Exception as error:  # whatever a version of Triton does differently
        warnings.warn(  # once: Python shows a warning of one line and text once
            f"rope_triton does not know how Triton {triton.__version__} launches a compiled kernel "
            f"({error!r}): every call takes some microseconds longer",
            RuntimeWarning,
            stacklevel=1,
        )
        return None
    return launcher.launch, triton.runtime.driver.active.get_current_stream, *passed


def _arguments_in_c(compiled, arguments: tuple) -> tuple[tuple, tuple, tuple, bool]:
    """What Triton's runner passes to the function in C: before the grid, from there to the stream,
    from there to the kernel's arguments, which come last; and whether these are one tuple.

    Versions of Triton differ in it, so Triton's own code is run, on a copy of its launcher whose
    function in C only records. Hooks are replaced by None. Raises what that code raises, or
    LookupError.
    """
    recorded: list[tuple] = []
    launcher = copy.copy(compiled.run)
    if not hasattr(launcher, "launch"):
        raise LookupError("the launcher has no function to record")
    launcher.launch = lambda *arguments: recorded.append(arguments)
    replaced = {"run": launcher, "launch_metadata": lambda *_: None, "_init_handles": lambda: None}
    stream, enter, leave = object(), _hooks.launch_enter_hook, _hooks.launch_exit_hook
    # No copy of the kernel: when that is deleted, Triton unloads the machine code of both.
    runner = type(compiled).__getitem__(
        SimpleNamespace(**vars(compiled) | replaced), _RECORDED_GRID
    )
    runner(*arguments, stream=stream)
    (passed,) = recorded
    at = [item is stream for item in passed].index(True)
    rest: list[Any] = [
        None if item is enter or item is leave else item for item in passed[at + 1 :]
    ]
    as_tuple, n = isinstance(rest[-1], tuple), len(arguments)
    after, last = (rest[:-1], rest[-1]) if as_tuple else (rest[:-n], rest[-n:])
    if len(last) != n or not all(map(operator.is_, last, arguments)):
        raise LookupError("the kernel's arguments are not the last")
    before, first = passed[:at], passed[:at].index(_RECORDED_GRID[0])
    if before[first : first + 3] != _RECORDED_GRID:
        raise LookupError("the grid is not before the stream")
    return before[:first], before[first + 3 :], tuple(after), as_tuple
