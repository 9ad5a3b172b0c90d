"""Exact facts of the machine code that a call compiles to, for any GPU, without a GPU.

The benchmarked package is called through its public names with CPU tensors, under a stub driver.
The kernels that it launches are compiled and counted. Nothing depends on a clock or on calls of
other forms, so a result is exact: two commits that differ in it differ in their code (or in
Triton's version).

Every form is called in a process of its own, in all its sizes and directions; the caller's Triton
is never touched, nor imported.
"""

import functools
import hashlib
import importlib
import importlib.util
import itertools
import os
import traceback
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple, TypedDict

from .._subjects.rope import grid, models, subjects, surface
from .._subjects.rope.forms import BaseCell
from .._subjects.transformer import modules
from .._system.repository import PACKAGE
from .._system.untrusted import Size
from . import disassembly, uncompiled, worker_pool
from .stub_driver import Launch, StubDriver

_READ_AT_ONCE, _READERS = 40, 4  # kernels for a run of the disassembler, and runs at a time
_PARTS = 4  # of an enumeration, each in a process of its own

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
    same work. ``code`` is one of the machine code, warps and shared memory alone, which calls of
    several sizes have in common. ``saved_bytes``: see ``uncompiled.call``.
    """

    registers: int
    spilled_bytes: int
    stack_bytes: int
    shared_bytes: int
    instructions: int
    global_accesses: int
    narrow_accesses: int
    digest: str
    code: str
    saved_bytes: int

    @property
    def narrow_share(self) -> float:
        """Share of the global accesses that move less than 16 bytes, 0 to 1."""
        return self.narrow_accesses / self.global_accesses


class Answers(NamedTuple):
    """What :func:`compile_all` found.

    ``NotImplementedError`` in place of an answer: the package lacks the function or says that it
    lacks the feature. ``RuntimeError``, with the traceback: any other failure.

    facts: of each call. variants: the number of kernels of each sweep. reach: what the calls of
    each enumeration launch, see ``uncompiled.reach``; a failed part is an exception in a list.
    """

    facts: dict[tuple, Facts | Exception]
    variants: dict[tuple, int | Exception]
    reach: dict[tuple, list[dict | Exception]]


def compile_all(
    calls: Iterable[tuple] = (),
    sweeps: Iterable[tuple] = (),
    root: str | os.PathLike | None = None,
    ledger: worker_pool.Ledger | None = None,
    enumerations: Iterable[tuple] = (),
) -> Answers:
    """Compile calls, and count the variants of sweeps, on all cores, reporting progress.

    Parameters
    ----------
    calls : iterable of (target, dtype, format, direction, hidden_size, seq_len, batch)
        E.g. ``("sm_90", "float16", "sbhd", "forward", 128, 64, 2)``: a call on 64 positions, a
        batch of 2 and 64 heads. Or ``(target, dtype, name, direction, mib)``, a cell of another
        path or a form of ``surface``, or ``(target, dtype, model, direction, step, takes)``, one of
        ``models``, or ``(target, dtype, form, direction)``, one of ``modules``. Compiling is
        faster if calls with the same first three are neighbours. In a backward call only the
        kernels of the backward pass count.
    sweeps : iterable of (target, dtype, format, direction)
        64 heads of 128 channels at every length and batch of the full grid and some odd ones: the
        kernels that a process compiles, each of which costs its user a compilation.
    root : path, optional
        Directory that holds the package to benchmark, e.g. another checkout; by default, the
        package that this process would import.
    ledger : worker_pool.Ledger, optional
        Holds the answers that are known already, and receives the new ones.
    enumerations : iterable of (target, "forms" or "dense")
        Calls of ``surface`` whose launches are described, with nothing compiled.

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
    calls, sweeps, enumerations = list(calls), list(sweeps), list(enumerations)
    _refuse(calls + sweeps, enumerations)
    # Neighbours of one architecture, dtype and form have code in common, to be compiled once.
    groups = [
        [("fingerprint", *call) for call in group]
        for _, group in itertools.groupby(calls, key=lambda call: call[:3])
    ]
    groups.sort(key=len, reverse=True)  # no core is left with a long one at the end
    parts = {
        each: [("reach", *each, part, _PARTS) for part in range(_PARTS)] for each in enumerations
    }
    # These take longest, so they begin first, each in a process that nothing else changes.
    alone = itertools.chain(*parts.values(), (("variants", *job) for job in sweeps))
    groups = [[job] for job in alone] + groups
    reading = _Reading(ledger or worker_pool.Ledger("codegen"))
    found = worker_pool.map(_answer, groups, package, reading, _KINDS) | reading.answers
    return Answers(
        {job: found["fingerprint", *job] for job in calls},
        {job: found["variants", *job] for job in sweeps},
        {each: [found[job] for job in jobs] for each, jobs in parts.items()},
    )


def compile_sizes(calls, sweeps, root=None, ledger=None) -> Answers:
    """:func:`compile_all` of calls that end with one of ``subjects.SIZES``, by those calls."""
    sized = {call: (*call[:-1], *subjects.SIZES[call[-1]]) for call in calls}
    answers = compile_all(sized.values(), sweeps, root, ledger)
    return answers._replace(facts={call: answers.facts[job] for call, job in sized.items()})


def compile_forms(calls: Iterable[tuple]) -> dict[tuple, Facts | Exception]:
    """The facts of calls (target, form, direction), each at the largest size of the form."""
    jobs, found = {}, {}
    for call in calls:
        target, form, direction = call
        cell = grid.form_cell(form)
        if direction in cell.directions:
            jobs[call] = call_of(target, cell, direction)
        else:
            found[call] = NotImplementedError("its backward launches nothing of its own")
    facts = compile_all(sorted(jobs.values())).facts
    return found | {call: facts[job] for call, job in jobs.items()}


def call_of(target: str, cell: BaseCell, direction: str) -> tuple:
    """The call of a cell as :func:`compile_all` takes it."""
    if isinstance(cell, grid.Cell):
        size = cell.hidden_size, cell.seq_len, cell.batch
        return target, cell.dtype, cell.format, direction, *size
    if isinstance(cell, models.ModelCell):
        return target, cell.dtype, cell.model, direction, cell.step, cell.takes
    if isinstance(cell, modules.ModuleCell):
        return target, cell.dtype, cell.form, direction
    assert isinstance(cell, grid.PathCell | surface.SurfaceCell)
    name = cell.path if isinstance(cell, grid.PathCell) else cell.form
    return target, cell.dtype, name, direction, cell.mib


_CODES: dict[disassembly.Cubin, disassembly.Code] = {}
"""What was disassembled in this process: two versions have most kernels in common."""


class _Reading(worker_pool.Ledger):
    """Disassembles the kernels of many calls at once, and passes their facts on to a ledger."""

    def __init__(self, ledger: worker_pool.Ledger):
        self._ledger, self.cache = ledger, ledger.cache
        self._waiting: dict[tuple, _Called] = {}
        self._pool = ThreadPoolExecutor(_READERS)
        self._read: list[tuple[dict[tuple, _Called], Future]] = []
        self.answers: dict[tuple, Facts | Exception] = {}

    def begin(self, jobs: Sequence[tuple]) -> dict[tuple, object]:
        return self._ledger.begin(jobs)

    def require_time(self) -> None:
        self._ledger.require_time()

    def add(self, job: tuple, answer: object) -> None:
        if not isinstance(answer, _Called):
            self._ledger.add(job, answer)
            return
        if not _unread([answer]):
            self._note(job, self._facts(answer))
            return
        self._waiting[job] = answer
        if len(_unread(self._waiting.values())) >= _READ_AT_ONCE:
            self._begin_to_read()
        while self._read and self._read[0][1].done():
            self._end_to_read(*self._read.pop(0))

    def end(self) -> None:
        self._begin_to_read()
        self._pool.shutdown()
        for each in self._read:
            self._end_to_read(*each)
        self._ledger.end()

    def _begin_to_read(self) -> None:
        unread = _unread(self._waiting.values())
        self._read.append((self._waiting, self._pool.submit(disassembly.read_cubins, unread)))
        self._waiting = {}

    def _end_to_read(self, calls: Mapping[tuple, "_Called"], reading: Future) -> None:
        failure = None
        try:
            _CODES.update(reading.result())
        except Exception:
            failure = RuntimeError(traceback.format_exc())
        for job, called in calls.items():
            self._note(job, failure or self._facts(called))

    def _note(self, job: tuple, answer: Facts | Exception) -> None:
        self.answers[job] = answer
        self._ledger.add(job, answer)

    def _facts(self, called: "_Called") -> Facts | Exception:
        try:
            return _facts(called, [self._code(each) for each in called.kernels])
        except ValueError:
            return RuntimeError(traceback.format_exc())

    def _code(self, kernel: "_Kernel") -> disassembly.Code:
        if kernel.cubin is not None:
            return _CODES[kernel.cubin]
        if kernel.code is None:
            raise ValueError("a kernel was launched that has no machine code")
        return kernel.code


def _unread(calls: Iterable["_Called"]) -> set[disassembly.Cubin]:
    """The kernels that these calls launch and that nobody has disassembled yet."""
    launched = {kernel.cubin for called in calls for kernel in called.kernels}
    return {cubin for cubin in launched if cubin} - _CODES.keys()


# --- in a process for each group of jobs: calling the package -------------------------------------


class _Kernel(NamedTuple):
    """A launched kernel; that of an NVIDIA GPU is disassembled later, with many others.

    launched: the grid, and the numbers among the arguments.
    """

    code: disassembly.Code | None
    cubin: disassembly.Cubin | None
    shared_bytes: int
    num_warps: int
    launched: str


class _Called(NamedTuple):
    """What a call launches, and the bytes that it keeps for the backward."""

    kernels: list[_Kernel]
    saved_bytes: int


class _Reach(TypedDict):
    """See ``uncompiled.reach``."""

    features: Annotated[list[str], Size(0, 1_000_000)]
    failures: Annotated[dict[str, str], Size(0, 1_000_000)]


_KINDS = {"fingerprint": _Called, "variants": int, "reach": _Reach}


def _answer(kind: str, *job) -> "_Called | int | dict":
    if kind == "fingerprint":
        return _called(*job)
    return uncompiled.variants(*job) if kind == "variants" else uncompiled.reach(*job)


def _called(arch: str, dtype: str, form: str, direction: str, *size) -> _Called:
    """Make a call; ``form``, ``size``: see :func:`compile_all`."""
    driver, files = _compiling(arch)
    saved = uncompiled.call(driver, _cell(dtype, form, *size), direction)
    launches = driver.launches
    return _Called([_kernel(files[each.kernel.metadata.hash], each) for each in launches], saved)


@functools.cache
def _compiling(arch: str) -> tuple[StubDriver, dict[str, dict[str, str]]]:
    """The driver of a process, and the files of each kernel that it compiles, by the kernel's hash.

    Triton keeps a kernel for later calls, with the driver that it was compiled by.
    """
    import triton

    files: dict[str, dict[str, str]] = {}
    triton.knobs.compilation.listener = lambda *, metadata, metadata_group, **_: files.update(
        {metadata["hash"]: metadata_group}
    )
    return StubDriver.activate(arch), files


def _cell(dtype: str, form: str, *size) -> BaseCell:
    """The cell of a call, see :func:`call_of`."""
    if not size:
        return modules.ModuleCell(form)
    first, *others = size
    if form in models.MODELS:
        return models.ModelCell(form, first, *others)
    if not others:
        is_path = form in grid.PATHS
        return grid.PathCell(form, first, dtype) if is_path else surface.SurfaceCell(form, first)
    seq_len, batch = others
    return grid.Cell(seq_len, first, batch, dtype, form)


def _kernel(files: dict[str, str], launch: Launch) -> _Kernel:
    metadata = launch.kernel.metadata
    form = "cubin" if metadata.target.backend == "cuda" else "amdgcn"
    (path,) = (Path(path) for name, path in files.items() if name.endswith(f".{form}"))
    code = cubin = None
    if form == "cubin":
        cubin = disassembly.cubin(path.read_bytes(), f"SM{metadata.target.arch}")
    else:
        code = disassembly.parse_amdgcn(path.read_text(encoding="utf-8"))
    launched = repr((launch.grid, launch.numbers))
    return _Kernel(code, cubin, metadata.shared, metadata.num_warps, launched)


def _facts(called: _Called, codes: Sequence[disassembly.Code]) -> Facts:
    kernels = called.kernels
    if not any(code.global_accesses for code in codes):  # then the parser missed something
        raise ValueError("found no access to global memory in the machine code")
    work = [(code.digest, *kernel[2:]) for code, kernel in zip(codes, kernels, strict=True)]
    return Facts(
        registers=max(code.registers for code in codes),
        spilled_bytes=sum(code.spilled_bytes for code in codes),
        stack_bytes=max(code.stack_bytes for code in codes),
        shared_bytes=max(kernel.shared_bytes for kernel in kernels),
        instructions=sum(code.instructions for code in codes),
        global_accesses=sum(code.global_accesses for code in codes),
        narrow_accesses=sum(code.narrow_accesses for code in codes),
        digest=_digest(work),
        code=_digest([each[:3] for each in work]),
        saved_bytes=called.saved_bytes,
    )


def _digest(of: list) -> str:
    return hashlib.sha256(repr(of).encode()).hexdigest()


# --- in the caller's process: validation ----------------------------------------------------------


def _refuse(jobs: list[tuple], enumerations: list[tuple]) -> None:
    variables = [name for name in _REFUSED_VARIABLES if name in os.environ]
    if variables:
        names = ", ".join(variables)
        raise worker_pool.PoolError(f"unset {names}: Triton would not compile what users get")
    for target, _, _, direction, *_ in jobs:
        if target not in subjects.ARCHITECTURES or direction not in subjects.DIRECTIONS:
            raise ValueError(
                f"expected one of {subjects.ARCHITECTURES} and of {subjects.DIRECTIONS}, got "
                f"{target!r}, {direction!r}"
            )
    for target, which in enumerations:
        if target not in subjects.ARCHITECTURES or which not in uncompiled.ENUMERATIONS:
            raise ValueError(
                f"expected one of {subjects.ARCHITECTURES} and of {list(uncompiled.ENUMERATIONS)}, "
                f"got {target!r}, {which!r}"
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
