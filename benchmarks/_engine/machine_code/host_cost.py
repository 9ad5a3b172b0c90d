"""What a call does on the host, counted: exact, and needs neither a clock nor a GPU.

A call is made under the stub driver, on the CPU, and every instruction that Python executes is
traced. Where the instructions of two versions are the same, one by one, so is the host's work. What
this cannot see: the time that C functions take and wait, CUDA's allocator, autograd's thread.
"""

import dis
import functools
import gc
import hashlib
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, NamedTuple

from ..subject import FORWARD, Cell, Countable, Subject
from ..system import process
from ..system.untrusted import Number, Text
from .stub_driver import StubDriver

Step = Callable[[], object]
_Count = Annotated[int, Number(0, 2**53)]

IMPORT = "host_cost.Import"
_WARM_CALLS = 3  # after which nothing is done for the first time
# Frames of this suite, and of the import system, which does more where no bytecode is cached.
_NOT_TRACED = (f"{process.SUITE}/", "<frozen importlib")
# Nanoseconds on an H100's host: of an instruction, a call of a C function, a PyTorch operator.
_WEIGHTS = {"bytecodes": 25, "c_calls": 100, "operators": 1000}
# Instructions whose argument is a local variable: its index says which, whatever its name.
_LOCALS = frozenset((*dis.haslocal, *dis.hasfree))
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))


class HostCost(NamedTuple):
    """What a call does on the host.

    digest: SHA-256 of the instructions that Python executes, with the names and constants that they
    use, and of the names of C functions that they call. bytecodes: these instructions. c_calls:
    calls of C functions. operators: of PyTorch's, those in others among them. launches: of kernels.
    """

    digest: Annotated[str, Text(r"[0-9a-f]{64}")]
    bytecodes: _Count
    c_calls: _Count
    operators: _Count
    launches: _Count

    @property
    def nominal_ns(self) -> int:
        """About how long it takes: a sum of the counts, with fixed weights."""
        return sum(weight * getattr(self, name) for name, weight in _WEIGHTS.items())


def of_call(driver: StubDriver, step: Step) -> HostCost:
    """Trace a call without arguments, after it has been made a few times."""
    from torch.autograd import profiler_legacy  # the other one writes to the terminal

    for _ in range(_WARM_CALLS):
        step()
    with profiler_legacy.profile() as profile:
        step()
    driver.launches.clear()
    with _traced() as trace:
        step()
    operators, launches = len(profile.function_events), len(driver.launches)
    return HostCost(trace.digest.hexdigest(), trace.bytecodes, trace.c_calls, operators, launches)


def of_cell(cell: Cell, direction: str) -> Step:
    """A cell's call on the CPU; in the backward, forward and gradient. Values are never set."""
    import torch

    call = cell.call("cpu")
    x, other = (torch.empty(cell.shape, dtype=getattr(torch, cell.dtype)) for _ in range(2))
    if direction == FORWARD:
        operand = call.operand(x)
        return lambda: call.forward(operand)
    leaf, cotangent = call.leaf(x), call.cotangent(other)
    return lambda: torch.autograd.grad(call.forward(leaf), leaf, cotangent)


def all_calls(subject: Subject) -> dict[tuple[str, tuple[str, ...]], Countable]:
    """The calls of ``host_calls``, and by metric the calls that are always timed."""
    timed = {
        key: (eager.cell, eager.direction)
        for key, eager in subject.eager().items()
        if eager.kind == "seconds"
    }
    return {**timed, **subject.host_calls()}


def step(call: Countable) -> Step:
    """A call on the CPU."""
    return of_cell(*call) if isinstance(call, tuple) else call()


def of_import(package: str) -> HostCost:
    """The cost of importing a package in a fresh process, which has imported torch and Triton."""
    return HostCost(*process.call(_imported, package))


def _imported(package: str) -> tuple:
    for name in ("torch", "triton"):
        importlib.import_module(name)
    with _traced() as trace:
        importlib.import_module(package)
    return trace.digest.hexdigest(), trace.bytecodes, trace.c_calls, 0, 0


class _Trace:
    """Counts, and feeds to a digest, what the package executes and what it calls."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.bytecodes = self.c_calls = 0

    def begin_frame(self, frame: types.FrameType, event: str, argument: object):
        code = frame.f_code
        if code.co_filename.startswith(_NOT_TRACED):
            return None
        instructions, update = _instructions(code), self.digest.update
        update(code.co_qualname.encode())

        def follow(frame: types.FrameType, event: str, argument: object):
            if event == "opcode":
                self.bytecodes += 1
                update(instructions[frame.f_lasti])
            return follow

        # From Python 3.13 on opcodes are traced of a frame that has a trace function already.
        frame.f_trace = follow
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return follow

    def profile(self, frame: types.FrameType, event: str, argument: object) -> None:
        if event == "c_call" and not frame.f_code.co_filename.startswith(_NOT_TRACED):
            self.c_calls += 1
            self.digest.update(getattr(argument, "__qualname__", "").encode())


@contextmanager
def _traced() -> Iterator[_Trace]:
    trace, collecting, before = _Trace(), gc.isenabled(), (sys.gettrace(), sys.getprofile())
    gc.disable()  # what is collected may run Python
    # Python 3.12 traces opcodes only if a frame asked for them before.
    sys._getframe().f_trace_opcodes = True
    sys.setprofile(trace.profile)
    sys.settrace(trace.begin_frame)
    try:
        yield trace
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
        if collecting:
            gc.enable()
    if not trace.bytecodes:
        raise RuntimeError("no instruction was traced: this Python traces none")


@functools.cache
def _instructions(code: types.CodeType) -> dict[int, bytes]:
    """What identifies each instruction, by its offset: not where it stands in its function.

    So a changed comment, message or branch that is not executed changes nothing.
    """
    return {
        one.offset: hashlib.blake2b(_identity(one).encode(), digest_size=8).digest()
        for one in dis.get_instructions(code)
    }


def _identity(one: dis.Instruction) -> str:
    if one.opcode in _JUMPS:
        return one.opname  # what is executed next says where to
    if one.opcode in _LOCALS:
        return f"{one.opname} {one.arg}"
    return f"{one.opname} {_text(one.argval)}"


def _text(constant: object) -> str:
    """A constant of a code object as a text that is the same in every process."""
    if isinstance(constant, types.CodeType):
        return constant.co_qualname
    if isinstance(constant, tuple):
        return f"({', '.join(map(_text, constant))})"
    if isinstance(constant, frozenset):
        return f"{{{', '.join(sorted(map(_text, constant)))}}}"
    return repr(constant)
