"""asv: the same rotation by other libraries, forward and backward; needs an NVIDIA GPU.

The libraries are in ``_studies.peers.providers``; one that is not installed is n/a. Measured as
``rope``, over all kernels that a call launches through autograd, copies included. The host time of
an eager call and its error are measured as in ``host``. No verdict depends on these: none is of our
commits.
"""

from ._engine.subject import BACKWARD, FORWARD
from ._studies.peers import eager_calls as host
from ._studies.peers.peer_cells import PEER_GRIDS, peer_cell
from ._subjects.metric_list import HostMetric
from ._subjects.rope.grid import active
from .host import _Host
from .rope import _Direction

SETUP_SECONDS = 3600  # every form of a call is compiled anew by torch.compile


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


_METRICS = {
    host.CALL_FORWARD: HostMetric(host.CALL_PARAMS, "seconds"),
    host.CALL_FORWARD_BACKWARD: HostMetric(host.CALL_PARAMS, "seconds"),
    host.ERROR: HostMetric(host.ERROR_PARAMS, "error"),
}


class Call(_Host, metrics=_METRICS, setup_seconds=SETUP_SECONDS):
    """Host time of an eager call; the GPU is never waited for."""

    version = "2"  # shorter blocks of calls with a gradient

    def setup_cache(self):
        return host.call_samples()


class Error(_Host, metrics=_METRICS, setup_seconds=SETUP_SECONDS):
    """Error against float64, over that of the exact result's rounding; 1 is perfect. Exact."""

    def setup_cache(self):
        return host.error_facts()
