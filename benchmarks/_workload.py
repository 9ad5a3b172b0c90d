"""From a cell to samples: inputs, the call, its check, its time."""

import contextlib
import gc
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from . import _calls, _clock, _process, _progress
from ._grid import FORWARD, Measured
from ._peers import calls as _peers
from ._peers.cells import PeerCell
from ._peers.providers import Unavailable

_Cell = TypeVar("_Cell", bound=Measured)


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: samples, or why there are none.

    ``latency`` and ``copy`` are paired samples in seconds a call, of RoPE and of ``copy_`` of the
    same bytes. ``unavailable`` says why the cell cannot be measured here (n/a), ``error`` what went
    wrong.
    """

    latency: tuple[float, ...] = ()
    copy: tuple[float, ...] = ()
    unavailable: str = ""
    error: str = ""


def measure_cells(
    cells: Sequence[_Cell],
    direction: str,
    finished: Callable[[_Cell, Outcome], object] = lambda cell, outcome: None,
) -> dict[_Cell, Outcome]:
    """Measure cells of one suite in the given order in this process; a bad cell costs only itself.

    After a fault that ends a process's use of the GPU, a fresh process measures the cells that are
    left. ``finished`` is told of each cell as soon as its outcome is known here.
    """
    reason = why_no_gpu()
    if reason:
        for suite in dict.fromkeys(cell.suite for cell in cells):
            _progress.report(f"{suite}.{direction.capitalize()}: n/a, {reason}")
        return _all_finished(dict.fromkeys(cells, Outcome(unavailable=reason)), finished)
    _clock.warm_up()
    outcomes: dict[_Cell, Outcome] = {}
    start = time.monotonic()
    for count, cell in enumerate(cells, 1):
        outcomes[cell] = _outcome(cell, direction)
        finished(cell, outcomes[cell])
        if count % 12 == 0 or count == len(cells):
            seconds = time.monotonic() - start
            done = f"{count}/{len(cells)} cells, {seconds:.0f} s"
            _progress.report(f"{cell.suite} {direction}: {done}")
        if outcomes[cell].error and gpu_is_lost():
            rest = _measure_in_fresh_process(cells[count:], direction)
            return outcomes | _all_finished(rest, finished)
    return outcomes


def _all_finished(outcomes: dict[_Cell, Outcome], finished: Callable) -> dict[_Cell, Outcome]:
    for cell, outcome in outcomes.items():
        finished(cell, outcome)
    return outcomes


def gpu_is_lost() -> bool:
    """Whether a kernel's fault, an illegal address say, fails every later call of this process."""
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def ends_use(answer) -> bool:
    """Whether what :func:`attempt` returned is a fault that ended the process's use of the GPU."""
    return isinstance(answer, RuntimeError) and gpu_is_lost()


_MEASURE = """
import pathlib, pickle
from benchmarks import _workload
answer = pathlib.Path(sys.argv[2])
answer.write_bytes(pickle.dumps(_workload.measure_cells(*pickle.loads(answer.read_bytes()))))
"""


def _measure_in_fresh_process(cells: Sequence[_Cell], direction: str) -> dict[_Cell, Outcome]:
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch, "cells.pickle")
        answer.write_bytes(pickle.dumps((cells, direction)))
        status = _process.start(_MEASURE, str(answer)).wait()
        if status:
            problem = f"a fresh process, started after another cell's fault, ended with {status}"
            return dict.fromkeys(cells, Outcome(error=problem))
        return pickle.loads(answer.read_bytes())


def why_no_gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        return "no NVIDIA GPU: torch.cuda.is_available() is False"
    return ""


def _outcome(cell: Measured, direction: str) -> Outcome:
    import torch

    try:
        latency, copy = _samples(cell, direction)
        return Outcome(latency=tuple(latency), copy=tuple(copy))
    except Exception as error:
        if cannot_be_had(error):
            return Outcome(unavailable=why_not(error))
        return Outcome(error=why_not(error))
    finally:
        gc.collect()
        with contextlib.suppress(RuntimeError):  # of a GPU that is lost, see gpu_is_lost
            torch.cuda.empty_cache()


def cannot_be_had(error: Exception) -> bool:
    """Whether what was asked for is n/a here or at this commit, rather than gone wrong."""
    import torch

    if isinstance(error, ModuleNotFoundError):  # the package is not installed: no commit's property
        return False
    return isinstance(error, (NotImplementedError, ImportError, torch.cuda.OutOfMemoryError))


def why_not(error: Exception) -> str:
    """Why there is no figure: in a line where it cannot be had, else with the traceback."""
    if not cannot_be_had(error):
        return "".join(traceback.format_exception(error))
    if isinstance(error, Unavailable):
        return str(error)
    if isinstance(error, (NotImplementedError, ImportError)):
        return f"this commit cannot: {error}"
    return f"does not fit in the GPU's memory: {error}"


def attempt(function: Callable, *args):
    """The function's result, or what stands for its exception: not every exception pickles.

    ``NotImplementedError`` for what cannot be had, else ``RuntimeError`` with the traceback.
    """
    try:
        return function(*args)
    except Exception as error:
        kind = NotImplementedError if cannot_be_had(error) else RuntimeError
        return kind(why_not(error))


def _samples(cell: Measured, direction: str) -> list[list[float]]:
    import torch

    sets = _clock.cold_sets(cell.bytes_moved)
    check_memory(cell, sets)
    torch.manual_seed(0)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call = call_of(cell)
        inputs = [random_tensor(cell) for _ in range(sets)]
        rotations = list(calls(call, direction, inputs))
    rope = _clock.Recording(rotations, stream)
    copy = _clock.Recording([lambda x=x: call.copies(x) for x in inputs], stream)
    samples = _clock.paired_samples([rope, copy])
    given = {index: inputs[index] for index in (0, sets - 1)}
    if call.in_place:  # what was given is overwritten: what is there now, once more
        given = {index: x.clone() for index, x in given.items()}
        rope.time(1)
    for index, x in given.items():
        _calls.check(rope.outputs[index], x, call, direction)
    return samples


def call_of(cell: Measured):
    """The call of a cell of any suite, by the angles of its positions."""
    module = _peers if isinstance(cell, PeerCell) else _calls
    return module.of(cell, angles(cell))


def check_memory(cell: Measured, sets: int) -> None:
    """Raise OutOfMemoryError before anything is allocated that cannot fit."""
    import torch

    tensors = 4 * sets + 2  # input, output, its copy, autograd's output; the check's temporaries
    needed = tensors * cell.bytes_moved // 2
    free, _ = torch.cuda.mem_get_info()
    if needed > free:
        raise torch.cuda.OutOfMemoryError(f"needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB free")


def angles(cell: Measured):
    """Angles of the cell, float32 ``[positions, 1, 1, hidden_size]``, in half-rotation order."""
    from rope_triton import RotaryPositionEmbedding

    return RotaryPositionEmbedding(cell.hidden_size).to("cuda")(cell.positions)


def random_tensor(cell: Measured):
    import torch

    return torch.randn(cell.shape, device="cuda", dtype=getattr(torch, cell.dtype))


def calls(call, direction: str, inputs: list) -> Iterator[Callable]:
    """One zero-argument call for each buffer set; in the backward the inputs hold cotangents.

    ``call`` is one of ``_calls``: all share its tables, as the layers of a model do.
    """
    if direction == FORWARD:
        for x in map(call.operand, inputs):
            yield lambda x=x: call.forward(x)
        return
    leaf = call.leaf(random_tensor(call.cell))
    for grad in map(call.cotangent, inputs):
        out = call.forward(leaf)
        yield lambda out=out, grad=grad: _calls.gradient(out, leaf, grad)


def check_once(call, direction: str, rotate: Callable, x) -> None:
    """Raise AssertionError unless ``rotate``, a call on ``x``, returns what is right."""
    given = x.clone() if call.in_place else x
    _calls.check(rotate(), given, call, direction)
