"""What calls launch, while each kernel is compiled once only: for thousands of calls in seconds.

Functions for a process of the pool, which imports the benchmarked package.
"""

import contextlib
import copy
import functools
import itertools
import traceback
import warnings
from collections.abc import Iterable, Sequence

from ..subject import BACKWARD, Cell, load
from .stub_driver import Launch, StubDriver


def prepare(subject: str) -> None:
    """Do once what each process of a pool would repeat: what the first calls import and ask."""
    from triton.compiler import make_backend

    for arch in load(subject).TARGETS:
        make_backend(StubDriver(arch).get_current_target()).hash()  # runs ptxas for its version
    for group in load(subject).listed():
        with contextlib.suppress(Exception):  # a process that makes the call says why
            group[0].call("meta")


def call(driver: StubDriver, cell: Cell, direction: str) -> int:
    """Run one call; afterwards ``driver.launches`` has the launches of ``direction`` alone.

    Returns the bytes of the tensors that the forward keeps for its backward, results and inputs
    among them; not of tables and other constants, which calls share.
    """
    import torch

    skip_work()
    # Nothing is computed, so constants have a shape and no values: making those would take longer.
    called, backward = cell.call("meta"), direction == BACKWARD
    shared: set[int] = set()  # addresses
    called.call_through(functools.partial(_with_memory, shared))
    saved: dict[int, int] = {}  # bytes by address
    # Memory that nothing touches costs nothing, however large the tensor.
    t, grad = (torch.empty(cell.shape, dtype=getattr(torch, cell.dtype)) for _ in range(2))
    operand = called.leaf(t) if backward else called.operand(t)
    driver.launches.clear()

    def keep(tensor):
        if tensor.data_ptr() not in shared:
            saved[tensor.data_ptr()] = max(tensor.nbytes, saved.get(tensor.data_ptr(), 0))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = called.forward(operand)
    if backward:
        driver.launches.clear()
        torch.autograd.grad(out, operand, called.cotangent(grad))
    if not driver.launches:
        raise RuntimeError(f"the {direction} call launched no Triton kernel")
    return sum(saved.values())


@functools.cache
def skip_work():
    """Let PyTorch's products and copies on the CPU write nothing: no launch depends on the values.

    The products of a head with 50,304 tokens in its vocabulary would take minutes.
    """
    import torch

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that PyTorch's own are replaced
        library.impl("mm", lambda a, b: a.new_empty(a.shape[0], b.shape[1]), "CPU")
        library.impl("mm.out", lambda a, b, *, out: out, "CPU")
        library.impl("addmm.out", lambda total, a, b, *, out, **factors: out, "CPU")
        library.impl("mul.out", lambda a, b, *, out: out, "CPU")
        library.impl("copy_", lambda to, source, non_blocking=False: to, "CPU")
    return library  # whose end would end this


def _with_memory(addresses: set[int], argument):
    """A tensor in memory, of any values, in place of one that has a shape only.

    Its address is added to ``addresses``.
    """
    import torch

    if not isinstance(argument, torch.Tensor) or not argument.is_meta:
        return argument
    elements = argument.untyped_storage().nbytes() // argument.element_size()
    memory = torch.empty(elements, dtype=argument.dtype)
    made = memory.as_strided(argument.shape, argument.stride(), argument.storage_offset())
    addresses.add(made.data_ptr())
    return made


def variants(arch: str, cells: Iterable[Cell], direction: str) -> int:
    """Kernels that a process compiles for all of these calls."""
    driver = counting_driver(arch)
    kernels: set[object] = set()
    for cell in cells:
        call(driver, cell, direction)
        kernels.update(launch.kernel for launch in driver.launches)
    return len(kernels)


def reach(arch: str, cells: Iterable[Cell]) -> dict:
    """What these calls launch.

    "features": sorted texts, see :func:`features`. "failures": by the cell's parameters and the
    direction, the last line of the error. A function that the package lacks is neither.
    """
    driver = counting_driver(arch)
    reached: set[str] = set()
    failures: dict[str, str] = {}
    calls = [(cell, direction) for cell in cells for direction in cell.directions]
    for called, direction in calls:
        try:
            call(driver, called, direction)
        except NotImplementedError:
            continue
        except Exception:
            error = traceback.format_exc().strip().splitlines()[-1][:300]
            failures[" ".join([*called.params, direction])] = error
        else:
            reached |= features(driver.launches)
    return {"features": sorted(reached), "failures": failures}


def features(launches: Sequence[Launch]) -> set[str]:
    """What distinguishes launches, each thing alone, and those that select code in pairs.

    Alone: a number's type and whether it divides by 16, a pointer's alignment. In pairs: constants
    of the kernel, absent arguments, types of pointers, warps, and one launch or several. Each text
    begins with the kernel's name.
    """
    texts = set()
    for launch in launches:
        alone, selecting = _of_launch(launch, len(launches))
        name = launch.kernel.source.fn.__name__
        texts |= {f"{name}: {feature}" for feature in (*alone, *selecting)}
        texts |= {f"{name}: {a} with {b}" for a, b in itertools.combinations(sorted(selecting), 2)}
    return texts


def _of_launch(launch: Launch, launches: int) -> tuple[set[str], set[str]]:
    source, metadata = launch.kernel.source, launch.kernel.metadata
    names = source.fn.arg_names
    constants = {names[path[0]]: value for path, value in source.constants.items()}
    alone: set[str] = set()
    selecting = {
        f"warps={metadata.num_warps}",
        f"fusion={getattr(metadata, 'enable_fp_fusion', True)}",
        f"launches={'one' if launches == 1 else 'several'}",
    }
    for param in source.fn.params:
        name = param.name
        if name in constants:
            value = constants[name]
            chooses = param.is_constexpr or value is None
            (selecting if chooses else alone).add(f"{name}={value}")
        else:
            kind = source.signature[name]
            divides = ", aligned" if source.attrs.get((param.num,)) else ""
            alone.add(f"{name} is {kind}{divides}")
            if kind.startswith("*"):
                selecting.add(f"{name} is {kind}")
    return alone, selecting


@functools.cache
def counting_driver(arch: str) -> StubDriver:
    """The driver of a process that compiles each kernel once."""
    compile_each_kernel_once()
    return StubDriver.activate(arch)


def compile_each_kernel_once() -> None:
    """Reuse the first variant of a kernel for the others, which are only counted and described.

    Otherwise it would take hours to find a kernel that is compiled anew for every length.
    """
    import triton.compiler

    compile, compiled = triton.compiler.compile, {}

    def compile_or_copy(src, *args, options: dict | None = None, **kwargs):
        if src.fn not in compiled:
            compiled[src.fn] = compile(src, *args, options=options, **kwargs)
        copied = copy.copy(compiled[src.fn])  # it never ran, so each copy gets its own launcher
        metadata = copied.metadata
        asked = {key: value for key, value in (options or {}).items() if key in metadata._fields}
        copied.src, copied.metadata = src, metadata._replace(**asked)
        return copied

    triton.compiler.compile = compile_or_copy
