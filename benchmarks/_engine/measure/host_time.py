"""Time eager calls on the host. For a process that may use the GPU."""

import contextlib
import gc
import itertools
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from ..subject import BACKWARD, FORWARD, Cell
from . import cell_outcomes, inputs, timed_cell

WARM_CALLS, BLOCKS = 50, 40
# Some 3 ms of each. Processes on an H200's host differed by 2.7 % forward and by 8.3 % with the
# gradient in blocks of 200 calls, by 6.1 and 1.9 % in blocks of 20: short blocks find cold caches,
# and long ones are far in time from the reference call's. With two launches a call, 200 calls are
# far from the thousand launches that fill the queue to the GPU, where the host would wait.
BLOCK_CALLS = {FORWARD: 200, BACKWARD: 20}
_REFERENCE_ELEMENTS = 1 << 16  # so few that the host never waits for the GPU
_Key = TypeVar("_Key", bound=Hashable)


class EagerCall(NamedTuple):
    """A call that has been warmed up, and how many of it make a block."""

    function: Callable[[], object]
    block_calls: int


def reference_call(direction: str) -> EagerCall:
    """A call of PyTorch alone, clocked in turns with the others: a slow host slows both.

    Forward a copy; backward an identity ``autograd.Function``, and the gradient.
    """
    import torch

    class Identity(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            return t.view_as(t)

        @staticmethod
        def backward(ctx, grad):
            return grad

    x = torch.ones(_REFERENCE_ELEMENTS, dtype=torch.bfloat16, device=inputs.DEVICE)
    if direction == FORWARD:
        return _warm(x.clone, direction)
    t = x.clone().requires_grad_()
    return _warm(lambda: torch.autograd.grad(Identity.apply(t), t, x), direction)


def eager_call(cell: Cell, direction: str) -> EagerCall:
    """A cell's call to be clocked; its tensor must be so small that the host never waits.

    In the backward that is the forward, and the gradient by ``torch.autograd.grad``. Raises
    AssertionError if the call's result is wrong.
    """
    call, x = cell.call(inputs.DEVICE), inputs.values(cell)
    function = inputs.step(call, direction, x)
    timed_cell.check_once(call, direction, function, x)
    return _warm(function, direction)


def _warm(function: Callable[[], object], direction: str) -> EagerCall:
    for _ in range(WARM_CALLS):
        function()
    return EagerCall(function, BLOCK_CALLS[direction])


def times(calls: Mapping[_Key, EagerCall]) -> dict[_Key, list[float] | Exception]:
    """Host seconds of each call, ``BLOCKS`` samples, a block of each in turns.

    So a host that is slow for a while spoils few samples of any call. After a fault that ends the
    use of the GPU there are only failures.
    """
    samples: dict[_Key, list[float]] = {key: [] for key in calls}
    failures: dict[_Key, list[float] | Exception] = {}
    with _uncollected():
        for key, call in itertools.chain.from_iterable([calls.items()] * BLOCKS):
            if key in failures:
                continue
            seconds = cell_outcomes.attempt(_block_seconds, call)
            if isinstance(seconds, Exception):
                failures[key] = seconds
                if cell_outcomes.ends_use(seconds):
                    return failures
            else:
                samples[key].append(seconds)
    return {**samples, **failures}


def _block_seconds(call: EagerCall) -> float:
    """Host seconds of a call, over a block of calls; the GPU's queue is empty before and after."""
    import torch

    function, block_calls = call
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(block_calls):
        function()
    seconds = (time.perf_counter() - start) / block_calls
    torch.cuda.synchronize()
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
