"""Measure the host time of a provider's eager call, and the error of its result.

Functions for a process that may use the GPU, answered as ``host`` answers.
"""

import itertools

from ..._engine.measure import call_costs
from ..._engine.subject import BACKWARD, FORWARD, Eager
from ..._subjects import metric_list
from ..._subjects.rope.cells import HEADS
from ..._subjects.rope.names import ITEM_BYTES
from .peer_cells import peer_cell
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


def call_samples() -> dict[call_costs.Key, list[float] | Exception]:
    """Host seconds of an eager call, forward, and forward and backward, of each provider.

    All are on a tensor so small that the GPU is never waited for.
    """
    size = metric_list.CALL_SEQ_LEN, metric_list.CALL_HIDDEN_SIZE, HEADS, metric_list.CALL_BATCH
    cells = {name: peer_cell(name, *size, metric_list.CALL_DTYPE, _FORMAT) for name in PROVIDERS}
    asked: dict[call_costs.Key, Eager] = {
        (metric, (name,)): Eager("seconds", cell, direction)
        for metric, direction in ((CALL_FORWARD, FORWARD), (CALL_FORWARD_BACKWARD, BACKWARD))
        for name, cell in cells.items()
    }
    return call_costs.answers("peers.Call", asked)


def error_facts() -> dict[call_costs.Key, float | Exception]:
    """Error of each provider's result against float64, of the angles: see ``accuracy``. Exact."""
    directions, providers, dtypes = ERROR_PARAMS.values()
    asked: dict[call_costs.Key, Eager] = {
        (ERROR, (direction, name, dtype)): Eager(
            "error", peer_cell(name, *_ERROR_SHAPE, dtype, _FORMAT), direction
        )
        for name, direction, dtype in itertools.product(providers, directions, dtypes)
    }
    return call_costs.answers("peers.Error", asked)
