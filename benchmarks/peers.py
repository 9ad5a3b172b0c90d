"""The same rotation by other libraries, forward and backward; needs an NVIDIA GPU.

Providers: ``_peers.providers``; a library that is not installed is n/a. Measured as ``rope`` is:
GPU time of all kernels that a call launches through autograd, its copies too; and the host time of
an eager call and the error beside it. None of it is part of a verdict: these are not our commits'.
"""

from ._cells.forms import BACKWARD, FORWARD
from ._measure import workload
from ._peers import host as _peer_host
from ._peers.cells import PEER_PARAM_NAMES, PeerCell, active_peers, peer_cells
from .host import _answer, _samples, _setup
from .rope import _Direction

SETUP_SECONDS = 3600  # every form of a call is compiled anew by torch.compile


class _Peer(_Direction):
    cell = PeerCell
    params = list(active_peers().values())
    param_names = list(PEER_PARAM_NAMES)
    # Of its own: the same way of measuring, but another meaning of the grid.
    version = "1"


class Forward(_Peer):
    def setup_cache(self):
        return workload.measure_cells(peer_cells(active_peers()), FORWARD)

    setup_cache.timeout = SETUP_SECONDS


class Backward(_Peer):
    # Not inherited: asv tells caches apart by the line of their setup_cache.
    def setup_cache(self):
        return workload.measure_cells(peer_cells(active_peers()), BACKWARD)

    setup_cache.timeout = SETUP_SECONDS


class Call:
    """Host time of an eager call; the GPU is never waited for."""

    version = "1"
    timeout = 60
    param_names = list(_peer_host.CALL_PARAMS)
    params = [list(values) for values in _peer_host.CALL_PARAMS.values()]

    def setup_cache(self):
        return _peer_host.call_samples()

    setup_cache.timeout = SETUP_SECONDS

    def track_forward(self, answers, provider):
        return _samples(answers, _peer_host.CALL_FORWARD, provider)

    track_forward.setup = _setup(_peer_host.CALL_FORWARD)
    track_forward.unit = "seconds"

    def track_forward_backward(self, answers, provider):
        return _samples(answers, _peer_host.CALL_FORWARD_BACKWARD, provider)

    track_forward_backward.setup = _setup(_peer_host.CALL_FORWARD_BACKWARD)
    track_forward_backward.unit = "seconds"


class Error:
    """Error against float64, over that of the exact result's rounding; 1 is perfect. Exact."""

    version = "1"
    timeout = 60
    param_names = list(_peer_host.ERROR_PARAMS)
    params = [list(values) for values in _peer_host.ERROR_PARAMS.values()]

    def setup_cache(self):
        return _peer_host.error_facts()

    setup_cache.timeout = SETUP_SECONDS

    def track_error(self, answers, *params):
        return _answer(answers, _peer_host.ERROR, params)

    track_error.setup = _setup(_peer_host.ERROR)
    track_error.unit = "x rounding"
