"""asv: what calls, and the import, do on the host, counted. Exact, and needs no GPU.

``setup_cache`` counts everything once: see ``HostCost``. Nothing here imports torch, because asv
starts a process for each value.
"""

from collections.abc import Callable

from . import _subjects
from ._engine.machine_code import fingerprint
from ._engine.subject import BACKWARD, FORWARD
from ._engine.verdict.metrics import HOST_COST


def setup_cache():
    return fingerprint.compile_all(_subjects, host=fingerprint.host_keys(_subjects)).host


setup_cache.timeout = 900


def _answer(suite: str, costs: dict, call: tuple):
    return costs.get((suite, call), NotImplementedError("its backward is that of another call"))


def _track(suite: str, name: str, unit: str) -> Callable:
    def setup(costs, *call):
        """Raise the exception that a failed call left; asv shows NotImplementedError as n/a."""
        if isinstance(answer := _answer(suite, costs, call), Exception):
            raise answer

    def track(self, costs, *call):
        return getattr(_answer(suite, costs, call), name)

    track.setup, track.unit = setup, unit
    return track


class _Counted:
    timeout = 60
    version = "1"

    def __init_subclass__(cls) -> None:
        for metric, unit in HOST_COST.items():
            suite, _, name = metric.rpartition(".track_")
            if suite == f"host_cost.{cls.__name__}":
                setattr(cls, f"track_{name}", _track(suite, name, unit.name))


class Call(_Counted):
    """Every call of the lists, and those of ``traced_calls``."""

    param_names = ("call", "direction")
    params = (
        tuple(dict.fromkeys(name for _, (name, _) in _subjects.host_calls())),
        (FORWARD, BACKWARD),
    )


class Import(_Counted):
    """The import of the package, with torch imported before."""
