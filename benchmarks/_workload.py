"""From a cell to samples: inputs, the call through the public API, its check, its time."""

import contextlib
import gc
import pickle
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import _clock, _process, _progress
from ._grid import Cell

FORWARD, BACKWARD = "forward", "backward"

CHECKED_BYTES = 512 << 20  # moved by the positions that are checked at once, in float64 at times


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


def measure_cells(cells: list[Cell], direction: str) -> dict[Cell, Outcome]:
    """Measure cells in the given order in this process; a bad cell costs only itself.

    After a fault that ends a process's use of the GPU, a fresh process measures the cells that are
    left.
    """
    reason = why_no_gpu()
    if reason:
        _progress.report(f"rope.{direction.capitalize()}: n/a, {reason}")
        return dict.fromkeys(cells, Outcome(unavailable=reason))
    _clock.warm_up()
    outcomes, start = {}, time.monotonic()
    for count, cell in enumerate(cells, 1):
        outcomes[cell] = _outcome(cell, direction)
        if count % 12 == 0 or count == len(cells):
            seconds = time.monotonic() - start
            _progress.report(f"rope {direction}: {count}/{len(cells)} cells, {seconds:.0f} s")
        if outcomes[cell].error and gpu_is_lost():
            return outcomes | _measure_in_fresh_process(cells[count:], direction)
    return outcomes


def gpu_is_lost() -> bool:
    """Whether a kernel's fault, an illegal address say, fails every later call of this process."""
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


_MEASURE = """
import pathlib, pickle
from benchmarks import _workload
answer = pathlib.Path(sys.argv[2])
answer.write_bytes(pickle.dumps(_workload.measure_cells(*pickle.loads(answer.read_bytes()))))
"""


def _measure_in_fresh_process(cells: list[Cell], direction: str) -> dict[Cell, Outcome]:
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


def _outcome(cell: Cell, direction: str) -> Outcome:
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
    if isinstance(error, (NotImplementedError, ImportError)):
        return f"this commit cannot: {error!r}"
    return f"does not fit in the GPU's memory: {error}"


def _samples(cell: Cell, direction: str) -> list[list[float]]:
    import torch

    sets = _clock.cold_sets(cell.bytes_moved)
    check_memory(cell, sets)
    torch.manual_seed(0)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        freqs = angles(cell)
        inputs = [random_tensor(cell) for _ in range(sets)]
        rotations = list(calls(cell, direction, inputs, freqs))
    rope = _clock.Recording(rotations, stream)
    copy = _clock.Recording([x.clone for x in inputs], stream)
    samples = _clock.paired_samples([rope, copy])
    for index in (0, sets - 1):
        check(rope.outputs[index], inputs[index], freqs, cell, direction)
    return samples


def check_memory(cell: Cell, sets: int) -> None:
    """Raise OutOfMemoryError before anything is allocated that cannot fit."""
    import torch

    tensors = 4 * sets + 2  # input, output, its copy, autograd's output; the check's temporaries
    needed = tensors * cell.bytes_moved // 2
    free, _ = torch.cuda.mem_get_info()
    if needed > free:
        raise torch.cuda.OutOfMemoryError(f"needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB free")


def angles(cell: Cell):
    """Angles of the cell, float32 ``[seq_len, 1, 1, hidden_size]``, in half-rotation order."""
    from rope_triton import RotaryPositionEmbedding

    return RotaryPositionEmbedding(cell.hidden_size).to("cuda")(cell.seq_len)


def random_tensor(cell: Cell):
    import torch

    return torch.randn(cell.shape, device="cuda", dtype=getattr(torch, cell.dtype))


def calls(cell: Cell, direction: str, inputs: list, freqs) -> Iterator:
    """One zero-argument call for each buffer set; in the backward the inputs are cotangents.

    All share one table of angles, as the layers of a model do.
    """
    import torch

    from rope_triton import apply_rotary_pos_emb

    def forward(x):
        return apply_rotary_pos_emb(x, freqs, tensor_format=cell.format)

    if direction == FORWARD:
        for x in inputs:
            yield lambda x=x: forward(x)
        return
    t = random_tensor(cell).requires_grad_()
    for grad in inputs:
        out = forward(t)
        yield lambda out=out, grad=grad: torch.autograd.grad(out, t, grad, retain_graph=True)[0]


def check(output, x, freqs, cell: Cell, direction: str) -> None:
    """Raise AssertionError unless ``output`` is the rotation of ``x``, slice by slice.

    Its own float32 formula, not the measured commit's, with torch.testing.assert_close's tolerance
    for the dtype.
    """
    import torch

    seq_dim = 0 if cell.format == "sbhd" else 1
    rows = max(1, CHECKED_BYTES // (cell.bytes_moved // cell.seq_len))
    for start in range(0, cell.seq_len, rows):
        length = min(rows, cell.seq_len - start)
        part = x.narrow(seq_dim, start, length)
        expected = _rotated(part, freqs[start : start + length], seq_dim, direction)
        torch.testing.assert_close(output.narrow(seq_dim, start, length), expected.to(part.dtype))


def _rotated(x, freqs, seq_dim: int, direction: str):
    import torch

    first, second = x.float().chunk(2, dim=-1)
    angle = freqs.transpose(0, seq_dim)[..., : first.shape[-1]].double()
    cos, sin = angle.cos().float(), angle.sin().float()
    if direction == BACKWARD:
        sin = -sin
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
