"""Exact facts of the machine code that a call compiles to, for any GPU, without a GPU.

The benchmarked package is called through its public names with CPU tensors, under a stub driver.
The kernels that it launches are compiled and counted. Nothing depends on a clock or on earlier
calls, so a result is exact: two commits that differ in it differ in their code (or in Triton's
version).

Every call is made in a process of its own; the caller's Triton is never touched, nor imported.
"""

import copy
import hashlib
import importlib
import importlib.util
import itertools
import os
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from .._cells import grid, subjects
from .._system.repository import PACKAGE
from . import disassembly, worker_pool
from .stub_driver import Launch, StubDriver

# The grid, and other sizes that users have: one token, odd prompts, odd batches.
_SWEPT_SEQ_LENS = (*grid.GRIDS["full"]["seq_len"], 1, 7, 100, 131, 1000)
_SWEPT_BATCHES = (*grid.GRIDS["full"]["batch"], 3, 5)
_SWEPT_HIDDEN_SIZE = 128

# With any of these Triton compiles something other than what users get, or nothing.
_REFUSED_VARIABLES = (
    "TRITON_INTERPRET",
    "TRITON_OVERRIDE_ARCH",
    "TRITON_KERNEL_OVERRIDE",
    "TRITON_STORE_BINARY_ONLY",
)


@dataclass(frozen=True)
class Facts:
    """Facts of the machine code of one call, over all the kernels that it launches.

    ``registers`` (32 bit) and ``stack_bytes`` are per thread, ``shared_bytes`` per program, each
    the maximum over the kernels. ``instructions``, ``spilled_bytes``, ``global_accesses`` and
    ``narrow_accesses`` (those of less than 16 bytes) are sums over the launches, as ``disassembly``
    counts them. ``digest`` is a SHA-256 of the machine code, the launch grids, warps, shared memory
    and the numbers among the arguments, such as strides: where two are equal, the GPU does the
    same work.
    """

    registers: int
    spilled_bytes: int
    stack_bytes: int
    shared_bytes: int
    instructions: int
    global_accesses: int
    narrow_accesses: int
    digest: str

    @property
    def narrow_share(self) -> float:
        """Share of the global accesses that move less than 16 bytes, 0 to 1."""
        return self.narrow_accesses / self.global_accesses


def compile_all(
    calls: Iterable[tuple],
    sweeps: Iterable[tuple] = (),
    root: str | os.PathLike | None = None,
    ledger: worker_pool.Ledger | None = None,
) -> tuple[dict[tuple, Facts | Exception], dict[tuple, int | Exception]]:
    """Compile calls, and count the variants of sweeps, on all cores, reporting progress.

    Parameters
    ----------
    calls : iterable of (arch, dtype, format, direction, hidden_size, seq_len, batch)
        E.g. ``("sm_90", "float16", "sbhd", "forward", 128, 64, 2)``: a call on 64 positions, a
        batch of 2 and 64 heads. Or ``(arch, dtype, path, direction, mib)``, a cell of another path
        of the package. Compiling is faster if calls with the same first two are neighbours. In a
        backward call only the kernels of the backward pass count.
    sweeps : iterable of (arch, dtype, format, direction)
        64 heads of 128 channels at every length and batch of the full grid and some odd ones: the
        kernels that a process compiles, each of which costs its user a compilation.
    root : path, optional
        Directory that holds the package to benchmark, e.g. another checkout; by default, the
        package that this process would import.
    ledger : worker_pool.Ledger, optional
        Holds the answers that are known already, and receives the new ones.

    Returns
    -------
    tuple of two dicts
        The facts of each call and the number of kernels of each sweep, or the exception in their
        place: ``NotImplementedError`` where the package lacks the function or says that it lacks
        the feature, ``RuntimeError`` with the traceback for any other failure.

    Raises
    ------
    ModuleNotFoundError
        If there is no package.
    worker_pool.PoolError
        If the package cannot be imported, or an environment variable changes what Triton compiles.
    ValueError
        If an architecture or a direction is not one of ``subjects``.
    """
    package = _package_file(root)
    asked = {"fingerprint": list(calls), "variants": list(sweeps)}
    _refuse([job for jobs in asked.values() for job in jobs])
    # Neighbours of one architecture and dtype have code in common, to be compiled once.
    groups = [
        [(kind, *job) for job in group]
        for kind, jobs in asked.items()
        for _, group in itertools.groupby(jobs, key=lambda job: job[:2])
    ]
    answers = worker_pool.map(_answer, groups, package, ledger or worker_pool.Ledger("codegen"))
    facts, variants = ({job: answers[kind, *job] for job in jobs} for kind, jobs in asked.items())
    return facts, variants


def compile_sizes(calls, sweeps, root=None, ledger=None):
    """:func:`compile_all` of calls that end with one of ``subjects.SIZES``, by those calls."""
    sized = {call: (*call[:-1], *subjects.SIZES[call[-1]]) for call in calls}
    facts, variants = compile_all(sized.values(), sweeps, root, ledger)
    return {call: facts[job] for call, job in sized.items()}, variants


# --- in a process for each job: calling the package ----------------------------------------------


class _Kernel(NamedTuple):
    """A launched kernel."""

    code: disassembly.Code
    shared_bytes: int
    num_warps: int
    grid: tuple[int, ...]
    numbers: tuple


def _answer(kind: str, *job) -> Facts | int:
    return _variants(*job) if kind == "variants" else _facts(_launched_kernels(*job))


def _launched_kernels(arch: str, dtype: str, form: str, direction: str, *size) -> list[_Kernel]:
    """The kernels of a call; ``form``: a format or a path; ``size``: see :func:`fingerprint`."""
    import triton

    files = {}
    triton.knobs.compilation.listener = lambda *, metadata, metadata_group, **_: files.update(
        {metadata["hash"]: metadata_group}
    )
    driver = StubDriver.activate(arch)
    _call(driver, _cell(dtype, form, *size), direction)
    return [_kernel(files[launch.kernel.metadata.hash], launch) for launch in driver.launches]


def _cell(dtype: str, form: str, first, *others) -> grid.AnyCell:
    if not others:
        return grid.PathCell(form, first, dtype)
    seq_len, batch = others
    return grid.Cell(seq_len, first, batch, dtype, form)


def _kernel(files: dict[str, str], launch: Launch) -> _Kernel:
    metadata = launch.kernel.metadata
    form = "cubin" if metadata.target.backend == "cuda" else "amdgcn"
    (path,) = (Path(path) for name, path in files.items() if name.endswith(f".{form}"))
    code = _code(form, path)
    return _Kernel(code, metadata.shared, metadata.num_warps, launch.grid, launch.numbers)


def _code(form: str, binary: Path) -> disassembly.Code:
    """Counts of a kernel's code, kept beside it: disassembling takes longer than reading them."""
    kept = binary.with_suffix(".code")
    if not kept.exists():
        scratch = kept.with_suffix(f".{os.getpid()}")
        scratch.write_bytes(pickle.dumps(disassembly.read(form, binary.read_bytes())))
        scratch.replace(kept)  # whole, whoever else writes it
    return pickle.loads(kept.read_bytes())


def _facts(kernels: Sequence[_Kernel]) -> Facts:
    codes = [kernel.code for kernel in kernels]
    if not any(code.global_accesses for code in codes):  # then the parser missed something
        raise ValueError("found no access to global memory in the machine code")
    work = [(kernel.code.digest, *kernel[1:]) for kernel in kernels]
    return Facts(
        registers=max(code.registers for code in codes),
        spilled_bytes=sum(code.spilled_bytes for code in codes),
        stack_bytes=max(code.stack_bytes for code in codes),
        shared_bytes=max(kernel.shared_bytes for kernel in kernels),
        instructions=sum(code.instructions for code in codes),
        global_accesses=sum(code.global_accesses for code in codes),
        narrow_accesses=sum(code.narrow_accesses for code in codes),
        digest=hashlib.sha256(repr(work).encode()).hexdigest(),
    )


def _variants(arch: str, dtype: str, format: str, direction: str) -> int:
    _compile_each_kernel_once()
    driver = StubDriver.activate(arch)
    launchers: set[object] = set()
    for seq_len, batch in itertools.product(_SWEPT_SEQ_LENS, _SWEPT_BATCHES):
        _call(driver, grid.Cell(seq_len, _SWEPT_HIDDEN_SIZE, batch, dtype, format), direction)
        launchers.update(launch.kernel for launch in driver.launches)
    return len(launchers)


def _compile_each_kernel_once() -> None:
    """Reuse the first variant of a kernel for the others, which are only counted.

    Otherwise it would take hours to find a kernel that is compiled anew for every length.
    """
    import triton.compiler

    compile, compiled = triton.compiler.compile, {}

    def compile_or_copy(src, *args, **kwargs):
        if src.fn not in compiled:
            compiled[src.fn] = compile(src, *args, **kwargs)
        return copy.copy(compiled[src.fn])  # it never ran, so each copy gets its own launcher

    triton.compiler.compile = compile_or_copy


def _call(driver: StubDriver, cell: grid.AnyCell, direction: str) -> None:
    """Run one call; afterwards ``driver.launches`` has the launches of ``direction`` alone."""
    import torch

    call, backward = _call_of(cell), direction == "backward"
    # Memory that nothing touches costs nothing, however large the tensor.
    t, grad = (torch.empty(cell.shape, dtype=getattr(torch, cell.dtype)) for _ in range(2))
    given = call.leaf(t) if backward else call.operand(t)
    driver.launches.clear()
    out = call.forward(given)
    if backward:
        driver.launches.clear()
        torch.autograd.grad(out, given, call.cotangent(grad))
    if not driver.launches:
        raise RuntimeError(f"the {direction} call launched no Triton kernel")


def _call_of(cell: grid.AnyCell):
    import torch

    angles = torch.zeros(cell.positions, cell.hidden_size)  # nothing is rotated by them
    return cell.call(angles[:, None, None])


# --- in the caller's process: validation ----------------------------------------------------------


def _refuse(jobs: list[tuple]) -> None:
    variables = [name for name in _REFUSED_VARIABLES if name in os.environ]
    if variables:
        names = ", ".join(variables)
        raise worker_pool.PoolError(f"unset {names}: Triton would not compile what users get")
    for arch, _, _, direction, *_ in jobs:
        if arch not in subjects.ARCHITECTURES or direction not in subjects.DIRECTIONS:
            raise ValueError(
                f"expected one of {subjects.ARCHITECTURES} and of {subjects.DIRECTIONS}, got "
                f"{arch!r}, {direction!r}"
            )


def _package_file(root) -> Path:
    if root is not None:
        file = Path(root).resolve() / PACKAGE / "__init__.py"
        if not file.is_file():
            raise ModuleNotFoundError(f"no {PACKAGE} in {root}")
        return file
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            f"{PACKAGE}, which is to be benchmarked, cannot be imported: "
            "install it or put its directory on PYTHONPATH (under asv, ASV_PYTHONPATH)"
        )
    return Path(spec.origin).resolve()
