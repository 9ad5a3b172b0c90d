"""asv: the same rotation by other libraries, forward and backward; needs an NVIDIA GPU.

The libraries are in ``_studies.peers.providers``; one that is not installed is n/a. Measured as
``rope``, over all kernels that a call launches through autograd, copies included. The host time of
an eager call and its error are measured as in ``host``. No verdict depends on these: none is of our
commits.
"""

from ._engine.measure import call_costs
from ._engine.subject import BACKWARD, FORWARD
from ._studies.peers.peer_cells import PEER_GRIDS, PeerCell, peer_cell
from ._studies.peers.providers import PROVIDERS
from ._subjects import metric_list
from ._subjects.metric_list import HostMetric
from ._subjects.rope.cells import HEADS
from ._subjects.rope.grid import active
from ._subjects.rope.names import ITEM_BYTES
from .host import _Host
from .rope import _Direction

SETUP_SECONDS = 3600  # every form of a call is compiled anew by torch.compile
_ERROR_SHAPE = 2048, 128, 2, 1  # seq_len, hidden_size, heads, batch
_FORMAT = "bshd"  # which most providers prefer


class _Peer(_Direction):
    cell = staticmethod(peer_cell)
    grid = active(PEER_GRIDS)
    # Not that of ``rope``: the way of measuring is the same, the meaning of the grid is another.
    version = "1"


class Forward(_Peer, direction=FORWARD, setup_seconds=SETUP_SECONDS):
    def setup_cache(self):
        return self.measured()


class Backward(_Peer, direction=BACKWARD, setup_seconds=SETUP_SECONDS):
    # In every class: asv tells caches apart by the line of their setup_cache.
    def setup_cache(self):
        return self.measured()


def _call_cell(provider: str) -> PeerCell:
    """On a tensor so small that the GPU is never waited for."""
    size = metric_list.CALL_SEQ_LEN, metric_list.CALL_HIDDEN_SIZE, HEADS, metric_list.CALL_BATCH
    return peer_cell(provider, *size, metric_list.CALL_DTYPE, _FORMAT)


def _error_cell(provider: str, dtype: str) -> PeerCell:
    return peer_cell(provider, *_ERROR_SHAPE, dtype, _FORMAT)


_CALL = HostMetric({"provider": tuple(PROVIDERS)}, "seconds", _call_cell)
_ERROR_PARAMS = {
    "direction": (FORWARD, BACKWARD),
    "provider": tuple(name for name in PROVIDERS if name != "copy"),  # it rounds nothing
    "dtype": tuple(ITEM_BYTES),
}
_METRICS = {
    "peers.Call.track_forward": _CALL,
    "peers.Call.track_forward_backward": _CALL,
    "peers.Error.track_error": HostMetric(_ERROR_PARAMS, "error", _error_cell),
}


def _answers(suite: str) -> dict:
    return call_costs.answers(suite, metric_list.eager_of(_METRICS, suite))


class Call(_Host, metrics=_METRICS, setup_seconds=SETUP_SECONDS):
    """Host time of an eager call; the GPU is never waited for."""

    version = "2"  # shorter blocks of calls with a gradient

    def setup_cache(self):
        return _answers("peers.Call")


class Error(_Host, metrics=_METRICS, setup_seconds=SETUP_SECONDS):
    """Error against float64, over that of the exact result's rounding; 1 is perfect. Exact."""

    def setup_cache(self):
        return _answers("peers.Error")
