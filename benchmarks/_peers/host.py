"""Measure the host time of a provider's eager call, and the error of its result.

Functions for a process that may use the GPU, answered as ``host`` answers.
"""

import functools
import itertools
from collections.abc import Callable

from .._measure import accuracy, host, host_time, inputs, timed_cell
from .._subjects.rope import angles, subjects
from .._subjects.rope.forms import BACKWARD, FORWARD, HEADS, ITEM_BYTES
from .cells import PeerCell
from .providers import PROVIDERS

CALL_FORWARD = "peers.Call.track_forward"
CALL_FORWARD_BACKWARD = "peers.Call.track_forward_backward"
ERROR = "peers.Error.track_error"

CALL_PARAMS = {"provider": tuple(PROVIDERS)}
ERROR_PARAMS = {
    "direction": (FORWARD, BACKWARD),
    "provider": tuple(name for name in PROVIDERS if name != "copy"),  # it rounds nothing
    "dtype": tuple(ITEM_BYTES),
}
_ERROR_SHAPE = 2048, 128, 2, 1  # seq_len, hidden_size, heads, batch
_FORMAT = "bshd"  # which most providers prefer


def call_samples() -> dict[host.Key, list[float] | Exception]:
    """Host seconds of an eager call of :func:`call`, once all providers are imported."""
    values = itertools.product((CALL_FORWARD, CALL_FORWARD_BACKWARD), PROVIDERS)
    keys: list[host.Key] = [(metric, (provider,)) for metric, provider in values]
    return host.answers_or_reason("peers.Call", keys, MEASURES)


def error_facts() -> dict[host.Key, float | Exception]:
    """Error of the result against float64: see :func:`error`. Exact."""
    directions, providers, dtypes = ERROR_PARAMS.values()
    values = itertools.product(providers, directions, dtypes)
    keys: list[host.Key] = [
        (ERROR, (direction, provider, dtype)) for provider, direction, dtype in values
    ]
    return host.answers_or_reason("peers.Error", keys, MEASURES)


def call(direction: str, provider: str) -> host_time.EagerCall:
    """A call on a tensor so small that the GPU is never waited for, to be clocked.

    Parameters
    ----------
    direction : str
        ``FORWARD``: of a tensor without gradient; ``BACKWARD``: forward, and the gradient by
        ``torch.autograd.grad``.
    provider : str
        One of ``PROVIDERS``.

    Raises
    ------
    AssertionError
        If the call's result is wrong.
    Unavailable
        If the provider is not installed, or has no backward pass.
    """
    size = subjects.CALL_SEQ_LEN, subjects.CALL_HIDDEN_SIZE, HEADS, subjects.CALL_BATCH
    cell = PeerCell(provider, *size, subjects.CALL_DTYPE, _FORMAT)
    return host_time.eager_call(inputs.call_of(cell), direction)


def error(direction: str, provider: str, dtype: str) -> float:
    """Root mean square error over that of the exact result rounded to ``dtype``.

    As ``accuracy.error``: exact is float64, of the angles. A provider's tables, as it gets them,
    are part of its error.

    Parameters
    ----------
    direction, provider, dtype : str
        Values of ``ERROR_PARAMS``.

    Raises
    ------
    ValueError
        If the result is not finite.
    Unavailable
        If the provider is not installed, or has no backward pass.
    """
    import torch

    cell = PeerCell(provider, *_ERROR_SHAPE, dtype, _FORMAT)
    call, x = inputs.call_of(cell), accuracy.random(cell.shape, getattr(torch, dtype))
    (rotate,) = timed_cell.calls(call, direction, [x.to(inputs.DEVICE, copy=True)])
    results = call.split(rotate())
    given = call.split(x if direction == FORWARD else call.cotangent(x))
    radians = angles.exact(0, cell.positions, cell.hidden_size).float()[None, :, 0]
    exact = [accuracy.exact_rotation(part, radians, direction, interleaved=False) for part in given]
    return accuracy.relative(results, exact, x.dtype)


MEASURES: dict[str, Callable] = {
    CALL_FORWARD: functools.partial(call, FORWARD),
    CALL_FORWARD_BACKWARD: functools.partial(call, BACKWARD),
    ERROR: error,
}
