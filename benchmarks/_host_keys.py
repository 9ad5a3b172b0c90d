"""What is asked of a host: the names of its metrics, and their parameters. Measures nothing."""

import itertools
from collections.abc import Iterable, Mapping

from . import _host_error as _errors
from . import _host_inputs as _inputs
from . import _host_steps as _steps
from ._grid import BACKWARD, FORWARD

Key = tuple[str, tuple[str, ...]]
"""asv's name of a benchmark, and its parameters as asv's texts."""

CALL_FORWARD = "host.Call.track_forward"
CALL_FORWARD_BACKWARD = "host.Call.track_forward_backward"
COMPILE = "host.FirstCall.track_compile"
WARM_START = "host.FirstCall.track_warm_start"
OWN_START = "host.FirstCall.track_own_start"
PEAK_BYTES = "host.Memory.track_peak_bytes"
LAUNCHES = "host.Launches.track_launches"
ERROR = "host.Error.track_error"
PATH_FORWARD = "host.PathCall.track_forward"
PATH_FORWARD_BACKWARD = "host.PathCall.track_forward_backward"
PATH_PEAK_BYTES = "host.PathMemory.track_peak_bytes"
PATH_LAUNCHES = "host.PathLaunches.track_launches"
PATH_ERROR = "host.PathError.track_error"
YARDSTICKS = {direction: f"host.Yardstick.{direction}" for direction in (FORWARD, BACKWARD)}
PATH_METRICS = (*(PATH_FORWARD, PATH_FORWARD_BACKWARD, PATH_PEAK_BYTES, PATH_LAUNCHES, PATH_ERROR),)


def call_keys() -> list[Key]:
    """Of an eager call."""
    values = itertools.product((CALL_FORWARD, CALL_FORWARD_BACKWARD), _inputs.FORMATS)
    return [(metric, (format,)) for metric, format in values]


def path_call_keys() -> list[Key]:
    """Of an eager call of another path."""
    forward = path_keys(PATH_FORWARD, {"path": _inputs.PATHS})
    return forward + path_keys(PATH_FORWARD_BACKWARD, {"path": _inputs.PATHS})


def first_call_keys() -> list[Key]:
    """Of a process's start."""
    return [(metric, ()) for metric in (COMPILE, WARM_START, OWN_START)]


def exact_keys() -> list[Key]:
    """Of all that repeats to the last digit: memory, launches and error."""
    found = [key for metric in (PEAK_BYTES, LAUNCHES) for key in keys(metric, _steps.PARAMS)]
    found += keys(ERROR, _errors.PARAMS)
    for metric in (PATH_PEAK_BYTES, PATH_LAUNCHES):
        found += path_keys(metric, _steps.PATH_PARAMS)
    return found + path_keys(PATH_ERROR, _errors.PATH_PARAMS)


def keys(metric: str, params: Mapping[str, Iterable]) -> list[Key]:
    return [(metric, tuple(map(str, values))) for values in itertools.product(*params.values())]


def path_keys(metric: str, params: Mapping[str, Iterable]) -> list[Key]:
    """Those of a path that has no backward pass only of its forward."""
    axis = list(params).index("path")
    return [
        (metric, values)
        for metric, values in keys(metric, params)
        if _has_backward(values[axis]) or not _needs_backward(metric, values)
    ]


def _has_backward(path: str) -> bool:
    return BACKWARD in _inputs.path_call_cell(path).directions


def _needs_backward(metric: str, params: tuple[str, ...]) -> bool:
    return metric == PATH_FORWARD_BACKWARD or BACKWARD in params or _steps.TRAINING in params
