"""What calls launch, while each kernel is compiled once only: for thousands of calls in seconds.

Functions for a process of the pool, which imports the benchmarked package.
"""

import copy
import functools
import itertools
import traceback
import warnings
from collections.abc import Sequence

from .._subjects.rope import grid, surface
from .._subjects.rope.forms import BACKWARD
from .._subjects.transformer import modules
from .stub_driver import Launch, StubDriver

# The grid, and other sizes that users have: one token, odd prompts, odd batches.
SWEPT_SEQ_LENS = (*grid.GRIDS["full"]["seq_len"], 1, 7, 100, 131, 1000)
_SWEPT_BATCHES = (*grid.GRIDS["full"]["batch"], 3, 5)
_SWEPT_HIDDEN_SIZE = 128
ENUMERATIONS = {
    "forms": (surface.cells, modules.cells),
    "dense": (surface.dense, modules.dense),
}
"""Calls whose launches are described: those of the surface, and those of other modules."""


def call(driver: StubDriver, cell, direction: str) -> int:
    """Run one call; afterwards ``driver.launches`` has the launches of ``direction`` alone.

    Returns the bytes of the tensors that the forward keeps for its backward, results and inputs
    among them; not of angles, tables and other arguments, which calls share.
    """
    import torch

    _skip_work()
    # Nothing is rotated, so angles and tables have a shape and no values: computing them would take
    # longer than the call.
    called, backward = cell.call("meta"), direction == BACKWARD
    shared: set[int] = set()  # addresses
    called.call_through(functools.partial(_with_memory, shared))
    kept: dict[int, int] = {}  # bytes by address
    # Memory that nothing touches costs nothing, however large the tensor.
    t, grad = (torch.empty(cell.shape, dtype=getattr(torch, cell.dtype)) for _ in range(2))
    given = called.leaf(t) if backward else called.operand(t)
    driver.launches.clear()

    def keep(tensor):
        if tensor.data_ptr() not in shared:
            kept[tensor.data_ptr()] = max(tensor.nbytes, kept.get(tensor.data_ptr(), 0))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = called.forward(given)
    if backward:
        driver.launches.clear()
        torch.autograd.grad(out, given, called.cotangent(grad))
    if not driver.launches:
        raise RuntimeError(f"the {direction} call launched no Triton kernel")
    return sum(kept.values())


@functools.cache
def _skip_work():
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
        library.impl("copy_", lambda to, given, non_blocking=False: to, "CPU")
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


def variants(arch: str, dtype: str, format: str, direction: str) -> int:
    """Kernels that a process compiles for all lengths and batches of the grid and some odd ones."""
    driver = _driver(arch)
    launchers: set[object] = set()
    for seq_len, batch in itertools.product(SWEPT_SEQ_LENS, _SWEPT_BATCHES):
        call(driver, grid.Cell(seq_len, _SWEPT_HIDDEN_SIZE, batch, dtype, format), direction)
        launchers.update(launch.kernel for launch in driver.launches)
    return len(launchers)


def reach(arch: str, which: str, part: int, parts: int) -> dict:
    """What the calls of an enumeration launch: one in ``parts`` of them, from ``part`` on.

    Those of other modules are all in the first part, whose process alone compiles their kernels.

    Parameters
    ----------
    which : {"forms", "dense"}
        One of ``ENUMERATIONS``: the listed forms, or calls of dense sizes.

    Returns
    -------
    dict
        "features": sorted texts, see :func:`features`. "failures": by the form's name and the
        direction, the last line of the error. A function that the package lacks is neither.
    """
    driver = _driver(arch)
    found: set[str] = set()
    failures: dict[str, str] = {}
    of_surface, of_modules = ENUMERATIONS[which]
    others = of_modules() if part == 0 else []
    for cell in (*of_surface()[part::parts], *others):
        for direction in cell.directions:
            try:
                call(driver, cell, direction)
            except NotImplementedError:
                continue
            except Exception:
                said = traceback.format_exc().strip().splitlines()[-1][:300]
                failures[" ".join([*grid.subject_params(cell), direction])] = said
            else:
                found |= features(driver.launches)
    return {"features": sorted(found), "failures": failures}


def features(launches: Sequence[Launch]) -> set[str]:
    """What distinguishes launches, each thing alone, and those that select code in pairs.

    Alone: a number's type and whether it divides by 16, a pointer's alignment. In pairs: constants
    of the kernel, absent arguments, types of pointers, warps, and one launch or several. Each text
    begins with the kernel's name.
    """
    found = set()
    for launch in launches:
        alone, selecting = _of_launch(launch, len(launches))
        name = launch.kernel.source.fn.__name__
        found |= {f"{name}: {each}" for each in (*alone, *selecting)}
        found |= {f"{name}: {a} with {b}" for a, b in itertools.combinations(sorted(selecting), 2)}
    return found


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


def _driver(arch: str) -> StubDriver:
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
