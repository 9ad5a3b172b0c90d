"""asv: what a call costs besides its GPU time; needs an NVIDIA GPU.

Host time of an eager call, the first call of a process, and what is exact: memory, launches and
error. Each class gets its parameters and tracks from ``HOST_METRICS``, and measures once.
"""

from collections.abc import Callable, Mapping

from . import _subjects
from ._engine.measure import call_costs
from ._subjects import metric_list


def _track(metric: str, unit: str) -> Callable:
    """A track that picks its answers; its setup raises the exception that a failure left.

    asv shows NotImplementedError as n/a. Each track has a setup of its own, because one may fail
    without the other.
    """

    def setup(answers, *params):
        if isinstance(error := _answer(answers, metric, params), Exception):
            raise error

    def track(self, answers, *params):
        answer = _answer(answers, metric, params)
        return {"samples": answer, "number": 1} if isinstance(answer, list) else answer

    track.setup, track.unit = setup, unit
    return track


def _answer(answers: dict, metric: str, params: tuple):
    """Return n/a for combinations that do not exist."""
    missing = NotImplementedError("a rotation in place has no backward pass of its own")
    key = metric, tuple(map(str, params))
    return answers.get(key, missing) if metric.startswith("host.Path") else answers[key]


def _answers(name: str) -> dict:
    """The answers of a class, and of that of other calls."""
    return call_costs.answers(f"host.{name}", metric_list.eager(f"host.{name}", f"host.Path{name}"))


class _Host:
    # The way of measuring: a class whose measures change has a version of its own.
    version = "1"
    timeout = 60

    def __init_subclass__(
        cls, metrics: Mapping = metric_list.HOST_METRICS, setup_seconds: int = 1800
    ) -> None:
        module = cls.__module__.rpartition(".")[2]
        for name, metric in metrics.items():
            suite, _, track = name.rpartition(".")
            if suite == f"{module}.{cls.__name__}":
                setattr(cls, track, _track(name, metric.unit.name))
                cls.param_names = list(metric.params)
                cls.params = [list(values) for values in metric.params.values()]
        cls.setup_cache.timeout = setup_seconds


# setup_cache is in every class: asv tells caches apart by the line of their setup_cache.


class Call(_Host):
    """Host time of an eager call; the GPU is never waited for."""

    version = "2"  # shorter blocks of calls with a gradient

    def setup_cache(self):
        return _answers("Call")


class FirstCall(_Host):
    """Wall time until a process's first result: the import, and the first call.

    The import is the package's, with torch imported before. The call is made with Triton's cache
    empty, and filled by another process; the own start is the latter after another kernel was
    launched, which starts Triton.
    """

    def setup_cache(self):
        return call_costs.first_call_samples(_subjects)


class Memory(_Host):
    """GPU memory that a call asks for at most. Exact."""

    def setup_cache(self):
        return _answers("Memory")


class Launches(_Host):
    """Kernels, copies and fills that a call asks the GPU for. Exact."""

    def setup_cache(self):
        return _answers("Launches")


class Error(_Host):
    """Error against float64, over that of the exact result's rounding; 1 is perfect. Exact."""

    def setup_cache(self):
        return _answers("Error")


# The same of the package's other calls, from the same caches.
for _class in (Call, Memory, Launches, Error):
    _name = f"Path{_class.__name__}"
    _members = {"__module__": __name__, "__doc__": f"{_class.__doc__} Of other calls."}
    globals()[_name] = type(_name, (_class,), _members)
