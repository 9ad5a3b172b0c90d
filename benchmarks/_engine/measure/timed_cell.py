"""Time a cell on the GPU: make its inputs, check its calls, take samples."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from ..subject import FORWARD, Call, Cell
from . import gpu_timer, inputs, roofline

ROOFLINE_SAMPLES = 3
"""Roofline samples per cell; they pair with the cell's first samples."""
HELD_SHARE = 0.5
"""Share of the GPU's memory that holds recorded cells; the rest has room for a check."""
_ROUNDING_BYTES = 4 * 512  # the allocator rounds each tensor of a set up

_Cell = TypeVar("_Cell", bound=Cell)


def checked_samples(cell: Cell, directions: Sequence[str], *, copies: bool) -> list[list[float]]:
    """The samples of one cell that is timed alone, as ``asv run`` does; see :class:`TimedCell`."""
    timed = TimedCell(cell, directions, copies=copies)
    timed.sample(gpu_timer.SAMPLES, gpu_timer.SAMPLE_SECONDS)
    return timed.checked()


class TimedCell:
    """The recorded calls of a cell, and samples that only :meth:`checked` gives out.

    Everything that times a cell does it here, so nothing is timed unchecked.

    directions: all are called on the same inputs. copies: whether a copy of the same bytes is timed
    in turns with the calls, and, of calls that say what they read besides, ``ROOFLINE_SAMPLES`` of
    the roofline. arrange: reorders the list of inputs in place, and so pairs inputs and outputs in
    memory. beside: of the same point; its inputs and copies are this one's too.

    Raises torch.cuda.OutOfMemoryError if the buffers do not fit beside what is there already, and
    AssertionError if the package's own constants are wrong.
    """

    _inputs: list
    _first_values: dict
    _copied: gpu_timer.Recording

    def __init__(
        self,
        cell: Cell,
        directions: Sequence[str],
        *,
        copies: bool = False,
        arrange: Callable[[list], object] = lambda inputs: None,
        beside: "TimedCell | None" = None,
    ):
        import torch

        sets = gpu_timer.cold_sets(cell.bytes_moved)
        check_memory(cell, sets)
        piece = sets * (cell.bytes_moved // 2 + _ROUNDING_BYTES)
        torch.manual_seed(0)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            self._call = call = cell.call(inputs.DEVICE)
            if beside:
                self._inputs, self._first_values = beside._inputs, beside._first_values
            else:
                gpu_timer.reserve(piece)
                self._inputs = [inputs.random(cell) for _ in range(sets)]
                arrange(self._inputs)
                self._first_values = {i: self._inputs[i].clone() for i in (0, sets - 1)}
            functions = []
            for direction in directions:
                if direction != FORWARD:
                    gpu_timer.reserve(piece)  # for the outputs of the forward
                functions.append(list(calls(call, direction, self._inputs)))
        recordings = [gpu_timer.Recording(of_inputs, stream, piece) for of_inputs in functions]
        self._timings = dict(zip(directions, recordings, strict=True))
        self._recordings, self._roofline = recordings, []
        if copies:
            copying = [lambda x=x: call.copies(x) for x in self._inputs]
            copied = beside._copied if beside else gpu_timer.Recording(copying, stream, piece)
            self._recordings, self._copied = [*recordings, copied], copied
            self._roofline = roofline.recorded(call, self._inputs, copied.outputs, stream)
        self._samples: dict = {key: [] for key in (*self._recordings, *self._roofline)}

    def sample(self, count: int, seconds: float) -> None:
        """See :func:`sample`."""
        sample([self], count, seconds)

    def checked(self) -> list[list[float]]:
        """All samples, GPU seconds per call: each direction's, the copy's, the roofline's if any.

        Raises AssertionError if a replay writes a wrong output, or changes its input.
        """
        for direction, recording in self._timings.items():
            _check_replay(recording, self._inputs, self._first_values, self._call, direction)
        return list(self._samples.values())


def sample(cells: Sequence[TimedCell], count: int, seconds: float) -> None:
    """Take ``count`` samples of each recording of the cells, in turns, each ``seconds`` long.

    Cells that share a copy get the same samples of it.
    """
    usual = [recording for cell in cells for recording in cell._recordings]
    rooflines = [recording for cell in cells for recording in cell._roofline]
    few = min(count, ROOFLINE_SAMPLES) if rooflines else 0
    for group, times in (([*usual, *rooflines], few), (usual, count - few)):
        recordings = list(dict.fromkeys(group))  # the copy once
        taken = gpu_timer.paired_samples(recordings, times, seconds) if times else []
        for recording, more in zip(recordings, taken, strict=False):
            for cell in cells:
                if recording in cell._samples:
                    cell._samples[recording].extend(more)


def groups(cells: Sequence[_Cell]) -> list[list[_Cell]]:
    """Consecutive cells whose buffers are in memory together: as many as :data:`HELD_SHARE` holds.

    A cell that needs more than that is alone. Groups follow from sizes, not from what is free just
    now: both sides of a comparison must allocate alike, because the place in memory moves a small
    cell's time by percents.
    """
    import torch

    _, total = torch.cuda.mem_get_info()
    groups: list[list[_Cell]] = []
    held = math.inf
    for cell in cells:
        needed = needed_bytes(cell, gpu_timer.cold_sets(cell.bytes_moved))
        if held + needed > HELD_SHARE * total:
            groups.append([])
            held = 0
        groups[-1].append(cell)
        held += needed
    return groups


def _check_replay(
    recording: gpu_timer.Recording, tensors: list, first_values: dict, call: Call, direction: str
) -> None:
    """Check the outputs of one more replay, by the first values of some inputs.

    The outputs are NaN before it, so those of an eager call or another replay are not taken for its
    own. Then the inputs get their first values again: a call in place has overwritten them, and an
    output may share their memory.
    """
    for index in first_values:
        for part in call.split(recording.outputs[index]):
            part.fill_(math.nan)
    for index, x in first_values.items():
        tensors[index].copy_(x)
    recording.replay()
    for index, x in first_values.items():
        call.check(recording.outputs[index], x, direction)
        _check_untouched(tensors[index], x, call)


def check_memory(cell: Cell, sets: int) -> None:
    """Raise OutOfMemoryError before anything is allocated, if it cannot fit."""
    import torch

    needed = needed_bytes(cell, sets)
    free, _ = torch.cuda.mem_get_info()
    if needed > free:
        raise torch.cuda.OutOfMemoryError(f"needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB free")


def needed_bytes(cell: Cell, sets: int) -> int:
    """GPU memory that a cell takes with so many sets of buffers, and while it is checked."""
    # Inputs, outputs, their copies and autograd's outputs. For the check: two inputs as they were
    # given, and temporaries.
    tensors = 4 * sets + 4
    return tensors * cell.bytes_moved // 2


def calls(call: Call, direction: str, tensors: list) -> Iterator[Callable]:
    """One zero-argument call for each buffer set; in the backward the sets hold cotangents.

    All share the call's constants, as the layers of a model do.
    """
    if direction == FORWARD:
        for operand in map(call.operand, tensors):
            yield lambda operand=operand: call.forward(operand)
        return
    leaf = call.leaf(inputs.random(call.cell))
    for cotangent in map(call.cotangent, tensors):
        output = call.forward(leaf)
        yield lambda o=output, cotangent=cotangent: inputs.gradient(o, leaf, cotangent)


def check_once(call: Call, direction: str, function: Callable, x) -> None:
    """Raise AssertionError unless ``function``, a call on ``x``, returns the right result.

    ``x`` may change only if the call is in place.
    """
    before = x.clone()
    call.check(function(), before, direction)
    _check_untouched(x, before, call)


def _check_untouched(x, before, call: Call) -> None:
    import torch

    if not (call.in_place or torch.equal(x, before)):
        raise AssertionError("the call changed its input, and is not in place")
