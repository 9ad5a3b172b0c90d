"""What a call costs besides its GPU time; needs an NVIDIA GPU.

Host time of an eager call, the first call of a process, and what is exact: memory, launches and
error. ``host`` measures, once a class; the tracks only pick theirs.
"""

from collections.abc import Callable

from ._cells import subjects
from ._measure import host

SETUP_SECONDS = 1800


def _setup(metric: str) -> Callable:
    """A setup for a track: of what stands for a failure, asv shows NotImplementedError as n/a.

    Each track has its own, because one may fail without the other.
    """

    def setup(answers, *params):
        answer = _answer(answers, metric, params)
        if isinstance(answer, Exception):
            raise answer

    return setup


def _answer(answers: dict, metric: str, params: tuple):
    """Of parameters that name nothing there is, such as a backward pass in place, n/a."""
    nothing = NotImplementedError("a rotation in place has no backward pass of its own")
    key = metric, tuple(map(str, params))
    return answers.get(key, nothing) if metric in host.PATH_METRICS else answers[key]


def _samples(answers: dict, metric: str, *params) -> dict:
    return {"samples": _answer(answers, metric, params), "number": 1}


class Call:
    """Host time of an eager call; the GPU is never waited for."""

    # Of every class: the way of measuring. Raise it when host or what it measures changes.
    version = "1"
    timeout = 60
    param_names = ["format"]
    params = [list(subjects.FORMATS)]

    def setup_cache(self):
        return host.call_samples()

    setup_cache.timeout = SETUP_SECONDS

    def track_forward(self, answers, format):
        return _samples(answers, host.CALL_FORWARD, format)

    track_forward.setup = _setup(host.CALL_FORWARD)
    track_forward.unit = "seconds"

    def track_forward_backward(self, answers, format):
        return _samples(answers, host.CALL_FORWARD_BACKWARD, format)

    track_forward_backward.setup = _setup(host.CALL_FORWARD_BACKWARD)
    track_forward_backward.unit = "seconds"


class FirstCall:
    """Wall time of a process's first call: Triton's cache empty, and filled by another's.

    The own start is what is left of the latter once another kernel was launched, and Triton begun.
    """

    version = "1"
    timeout = 60

    def setup_cache(self):
        return host.first_call_samples()

    setup_cache.timeout = SETUP_SECONDS

    def track_compile(self, answers):
        return _samples(answers, host.COMPILE)

    track_compile.setup = _setup(host.COMPILE)
    track_compile.unit = "seconds"

    def track_warm_start(self, answers):
        return _samples(answers, host.WARM_START)

    track_warm_start.setup = _setup(host.WARM_START)
    track_warm_start.unit = "seconds"

    def track_own_start(self, answers):
        return _samples(answers, host.OWN_START)

    track_own_start.setup = _setup(host.OWN_START)
    track_own_start.unit = "seconds"


class Memory:
    """GPU memory that a call asks for at most. Exact."""

    version = "1"
    timeout = 60
    param_names = list(subjects.STEP_PARAMS)
    params = [list(values) for values in subjects.STEP_PARAMS.values()]

    def setup_cache(self):
        return host.memory_facts()

    setup_cache.timeout = SETUP_SECONDS

    def track_peak_bytes(self, answers, *params):
        return _answer(answers, host.PEAK_BYTES, params)

    track_peak_bytes.setup = _setup(host.PEAK_BYTES)
    track_peak_bytes.unit = "bytes"


class Launches:
    """Kernels, copies and fills that a call asks the GPU for. Exact."""

    version = "1"
    timeout = 60
    param_names = list(subjects.STEP_PARAMS)
    params = [list(values) for values in subjects.STEP_PARAMS.values()]

    def setup_cache(self):
        return host.launch_facts()

    setup_cache.timeout = SETUP_SECONDS

    def track_launches(self, answers, *params):
        return _answer(answers, host.LAUNCHES, params)

    track_launches.setup = _setup(host.LAUNCHES)
    track_launches.unit = "launches"


class Error:
    """Error against float64, over that of the exact result's rounding; 1 is perfect. Exact."""

    version = "1"
    timeout = 60
    param_names = list(subjects.ERROR_PARAMS)
    params = [list(values) for values in subjects.ERROR_PARAMS.values()]

    def setup_cache(self):
        return host.error_facts()

    setup_cache.timeout = SETUP_SECONDS

    def track_error(self, answers, *params):
        return _answer(answers, host.ERROR, params)

    track_error.setup = _setup(host.ERROR)
    track_error.unit = "x rounding"


class PathCall:
    """Host time of an eager call of the package's other paths; the GPU is never waited for."""

    version = "1"
    timeout = 60
    param_names = ["path"]
    params = [list(subjects.PATHS)]

    def setup_cache(self):
        return host.path_call_samples()

    setup_cache.timeout = SETUP_SECONDS

    def track_forward(self, answers, path):
        return _samples(answers, host.PATH_FORWARD, path)

    track_forward.setup = _setup(host.PATH_FORWARD)
    track_forward.unit = "seconds"

    def track_forward_backward(self, answers, path):
        return _samples(answers, host.PATH_FORWARD_BACKWARD, path)

    track_forward_backward.setup = _setup(host.PATH_FORWARD_BACKWARD)
    track_forward_backward.unit = "seconds"


class PathMemory:
    """GPU memory that a call of another path asks for at most. Exact."""

    version = "1"
    timeout = 60
    param_names = list(subjects.PATH_STEP_PARAMS)
    params = [list(values) for values in subjects.PATH_STEP_PARAMS.values()]

    def setup_cache(self):
        return host.path_memory_facts()

    setup_cache.timeout = SETUP_SECONDS

    def track_peak_bytes(self, answers, *params):
        return _answer(answers, host.PATH_PEAK_BYTES, params)

    track_peak_bytes.setup = _setup(host.PATH_PEAK_BYTES)
    track_peak_bytes.unit = "bytes"


class PathLaunches:
    """Kernels, copies and fills that a call of another path asks the GPU for. Exact."""

    version = "1"
    timeout = 60
    param_names = list(subjects.PATH_STEP_PARAMS)
    params = [list(values) for values in subjects.PATH_STEP_PARAMS.values()]

    def setup_cache(self):
        return host.path_launch_facts()

    setup_cache.timeout = SETUP_SECONDS

    def track_launches(self, answers, *params):
        return _answer(answers, host.PATH_LAUNCHES, params)

    track_launches.setup = _setup(host.PATH_LAUNCHES)
    track_launches.unit = "launches"


class PathError:
    """Another path's error against float64, over that of the exact result's rounding. Exact."""

    version = "1"
    timeout = 60
    param_names = list(subjects.PATH_ERROR_PARAMS)
    params = [list(values) for values in subjects.PATH_ERROR_PARAMS.values()]

    def setup_cache(self):
        return host.path_error_facts()

    setup_cache.timeout = SETUP_SECONDS

    def track_error(self, answers, *params):
        return _answer(answers, host.PATH_ERROR, params)

    track_error.setup = _setup(host.PATH_ERROR)
    track_error.unit = "x rounding"
