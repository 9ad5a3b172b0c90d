"""Time eager calls on the host. For a process that may use the GPU."""

import contextlib
import gc
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from ..subject import BACKWARD, FORWARD, Cell, Countable
from . import cell_outcomes, inputs, timed_cell

WARM_CALLS, BLOCKS = 50, 40
# Some 3 ms of each. Processes on an H200's host differed by 2.7 % forward and by 8.3 % with the
# gradient in blocks of 200 calls, by 6.1 and 1.9 % in blocks of 20: short blocks find cold caches,
# and in long ones the host may slow down. With two launches a call, 200 calls are far from the
# thousand launches that fill the queue to the GPU, where the host would wait.
BLOCK_CALLS = {FORWARD: 200, BACKWARD: 20}
# Of versions in one process. A block with the gradient varies by 19 % from one to the next: part of
# it runs in autograd's thread.
BLOCKS_IN_TURNS = {FORWARD: 40, BACKWARD: 160}
_FEW_CALLS, _FEWEST_BLOCKS, _BLOCK_SECONDS, _CLOCKED_SECONDS = 3, 20, 3e-3, 2.0
_Key = TypeVar("_Key", bound=Hashable)


class EagerCall(NamedTuple):
    """A call that has been warmed up, and how it is clocked: calls of a block, blocks in turns."""

    function: Callable[[], object]
    block_calls: int
    blocks: int = BLOCKS


def eager_call(cell: Cell, direction: str) -> EagerCall:
    """A cell's call to be clocked; its tensor must be so small that the host never waits.

    In the backward that is the forward, and the gradient by ``torch.autograd.grad``. Raises
    AssertionError if the call's result is wrong.
    """
    call, x = cell.call(inputs.DEVICE), inputs.values(cell)
    function = inputs.step(call, direction, x)
    timed_cell.check_once(call, direction, function, x)
    for _ in range(WARM_CALLS):
        function()
    return EagerCall(function, BLOCK_CALLS[direction], BLOCKS_IN_TURNS[direction])


def on_gpu(call: Countable) -> Callable[[], object]:
    """A call without arguments, on the GPU."""
    import torch

    if isinstance(call, tuple):
        cell, direction = call
        return inputs.step(cell.call(inputs.DEVICE), direction, inputs.values(cell))
    with torch.device(inputs.DEVICE):
        return call()


def counted_call(function: Callable[[], object], direction: str) -> EagerCall:
    """A call of any size and speed, whose result is not checked.

    It is clocked in blocks as long as those of others, and for two seconds at most if that gives
    enough of them. The host waits where the call launches more than the queue to the GPU holds.
    """
    for _ in range(_FEW_CALLS):
        function()
    seconds = max(_block_seconds(EagerCall(function, _FEW_CALLS)), 1e-9)
    block_calls = min(max(1, round(_BLOCK_SECONDS / seconds)), BLOCK_CALLS[direction])
    blocks = round(_CLOCKED_SECONDS / (block_calls * seconds))
    most = BLOCKS_IN_TURNS[direction]
    return EagerCall(function, block_calls, min(max(_FEWEST_BLOCKS, blocks), most))


def times(calls: Mapping[_Key, EagerCall]) -> dict[_Key, list[float] | Exception]:
    """``BLOCKS`` host seconds of each call, or what it raised, see :func:`times_in_turns`."""
    alone = {key: {"": call._replace(blocks=BLOCKS)} for key, call in calls.items()}
    answers = times_in_turns(alone, lambda order: None)
    return {
        key: answer if isinstance(answer, Exception) else answer[""]
        for key, answer in answers.items()
    }


def times_in_turns(
    calls: Mapping[_Key, Mapping[str, EagerCall]], shuffle: Callable[[list], None]
) -> dict[_Key, dict[str, list[float]] | Exception]:
    """Host seconds of several versions of each call, by version: a block of each after the other.

    ``shuffle`` draws their order, block by block. A block of each call in turns, so a host that is
    slow for a while spoils few samples of any call. What a version raises is the call's answer;
    after a fault that ends the use of the GPU there are only such answers.
    """
    samples: dict[_Key, dict[str, list[float]]] = {
        key: {version: [] for version in versions} for key, versions in calls.items()
    }
    failures: dict[_Key, dict[str, list[float]] | Exception] = {}
    blocks = {key: max(call.blocks for call in calls[key].values()) for key in calls}
    with _uncollected():
        for block in range(max(blocks.values(), default=0)):
            for key in (key for key in calls if block < blocks[key] and key not in failures):
                order = [*calls[key].items()]
                shuffle(order)
                for version, call in order:
                    seconds = cell_outcomes.attempt(_block_seconds, call)
                    if isinstance(seconds, Exception):
                        failures[key] = seconds
                        if cell_outcomes.ends_use(seconds):
                            return failures
                        break
                    samples[key][version].append(seconds)
    return {**samples, **failures}


def _block_seconds(call: EagerCall) -> float:
    """Host seconds of a call, over a block of calls; the GPU's queue is empty before and after."""
    import torch

    function, block_calls, _ = call
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    wait()
    start = time.perf_counter()
    for _ in range(block_calls):
        function()
    seconds = (time.perf_counter() - start) / block_calls
    wait()
    return seconds


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection meanwhile."""
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
