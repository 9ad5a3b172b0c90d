"""Exact facts of the machine code of one call, from the kernels that it launches.

NVIDIA's kernels are disassembled here, many at once, where calls were compiled elsewhere.
"""

import hashlib
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from . import disassembly
from .stub_driver import Launch

_READ_AT_ONCE, _READERS = 40, 4  # kernels for a run of the disassembler, and runs at a time


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


class Kernel(NamedTuple):
    """A launched kernel; that of an NVIDIA GPU is disassembled later, with many others.

    launched: the grid, and the numbers among the arguments.
    """

    code: disassembly.Code | None
    cubin: disassembly.Cubin | None
    shared_bytes: int
    num_warps: int
    launched: str


class Called(NamedTuple):
    """What a call launches, and the bytes that it keeps for the backward."""

    kernels: list[Kernel]
    saved_bytes: int


def kernel_of(files: dict[str, str], launch: Launch) -> Kernel:
    metadata = launch.kernel.metadata
    suffix = "cubin" if metadata.target.backend == "cuda" else "amdgcn"
    (path,) = (Path(path) for name, path in files.items() if name.endswith(f".{suffix}"))
    code = cubin = None
    if suffix == "cubin":
        cubin = disassembly.cubin(path.read_bytes(), f"SM{metadata.target.arch}")
    else:
        code = disassembly.parse_amdgcn(path.read_text(encoding="utf-8"))
    launched = repr((launch.grid, launch.numbers))
    return Kernel(code, cubin, metadata.shared, metadata.num_warps, launched)


def _facts(called: Called, codes: Sequence[disassembly.Code]) -> Facts:
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
        code=_digest([part[:3] for part in work]),
        saved_bytes=called.saved_bytes,
    )


def _digest(work: list) -> str:
    return hashlib.sha256(repr(work).encode()).hexdigest()


_CODES: dict[disassembly.Cubin, disassembly.Code] = {}
"""What was disassembled in this process: two versions have most kernels in common."""


def read(answers: Iterable[tuple[tuple, object]]) -> Iterator[tuple[tuple, object]]:
    """Jobs and their answers, with facts in place of calls: the kernels of many are read at once.

    What was called before the answers end with an error is read all the same.
    """
    waiting: dict[tuple, Called] = {}
    reading: list[Future[dict[tuple, Facts | Exception]]] = []
    interruption: BaseException | None = None
    with ThreadPoolExecutor(_READERS) as pool:
        try:
            for job, answer in answers:
                if not isinstance(answer, Called):
                    yield job, answer
                    continue
                waiting[job] = answer
                unread = len(_unread(waiting.values()))
                if unread >= _READ_AT_ONCE or not unread:
                    reading.append(pool.submit(_facts_of, waiting))
                    waiting = {}
                while reading and reading[0].done():
                    yield from reading.pop(0).result().items()
        except (Exception, KeyboardInterrupt) as error:
            interruption = error
        for done in [*reading, pool.submit(_facts_of, waiting)]:
            yield from done.result().items()
    if interruption:
        raise interruption


def _facts_of(calls: Mapping[tuple, Called]) -> dict[tuple, Facts | Exception]:
    """The facts of calls; what fails for one of them alone is no other's failure."""
    try:
        if unread := _unread(calls.values()):
            _CODES.update(disassembly.read_cubins(unread))
    except Exception:
        return dict.fromkeys(calls, RuntimeError(traceback.format_exc()))
    answers: dict[tuple, Facts | Exception] = {}
    for job, called in calls.items():
        try:
            answers[job] = _facts(called, [_code(kernel) for kernel in called.kernels])
        except ValueError:
            answers[job] = RuntimeError(traceback.format_exc())
    return answers


def _code(kernel: Kernel) -> disassembly.Code:
    code = kernel.code if kernel.cubin is None else _CODES[kernel.cubin]
    if code is None:
        raise ValueError("a kernel was launched that has no machine code")
    return code


def _unread(calls: Iterable[Called]) -> set[disassembly.Cubin]:
    """The kernels that these calls launch and that nobody has disassembled yet."""
    launched = {kernel.cubin for called in calls for kernel in called.kernels}
    return {cubin for cubin in launched if cubin} - _CODES.keys()
