"""The metrics beside GPU time and their parameters, by asv's names. Measures nothing."""

import itertools
from collections.abc import Iterable, Mapping

from .forms import BACKWARD, FORWARD
from .grid import GRIDS, PATH_GRIDS, Cell, PathCell

DTYPES, FORMATS = GRIDS["full"]["dtype"], GRIDS["full"]["format"]
DIRECTIONS = (FORWARD, BACKWARD)

# --- machine code ---------------------------------------------------------------------------------

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942")

SIZES = {
    # Positions and batch. A package may use another kernel for tensors beyond a cache's size: these
    # lie far on either side of any, and divide by 16 as all of the grid does, so that Triton
    # specialises the kernel in the same way.
    "small": (64, 2),
    "large": (max(GRIDS["full"]["seq_len"]), max(GRIDS["full"]["batch"])),
}
VARIANT_PARAMS = {
    "arch": ARCHITECTURES,
    "dtype": DTYPES,
    "format": FORMATS,
    "direction": DIRECTIONS,
}
CODE_PARAMS = VARIANT_PARAMS | {
    "hidden_size": GRIDS["full"]["hidden_size"],
    "size": tuple(SIZES),
}

# --- host, memory and error -----------------------------------------------------------------------

# A host does the same for many sequences as for few, and for any number of channels.
_LIKE_OTHERS = ("thd-short", "partial", "head-96", "then-read")
PATHS = tuple(path for path in PATH_GRIDS["full"]["path"] if path not in _LIKE_OTHERS)

TRAINING = "training"
STEPS = (FORWARD, TRAINING)
LAYOUTS = ("contiguous", "transposed")
STEP_PARAMS = {"step": STEPS, "format": FORMATS, "dtype": DTYPES, "layout": LAYOUTS}
PATH_STEP_PARAMS = {"step": STEPS, "path": PATHS}

# First position: all angles below 2^11 rad, and those of a context of 131072 tokens.
POSITIONS = {"short": 0, "long": 131072}
ERROR_PARAMS = {
    "direction": DIRECTIONS,
    "dtype": DTYPES,
    "positions": tuple(POSITIONS),
    "interleaved": (False, True),
}
PATH_ERROR_PARAMS = {
    "direction": DIRECTIONS,
    "path": PATHS,
    "dtype": PATH_GRIDS["full"]["dtype"],
}

# Some 2 us on a GPU: never what a call on the host waits for.
CALL_SEQ_LEN, CALL_HIDDEN_SIZE, CALL_BATCH, CALL_DTYPE = 16, 64, 1, "bfloat16"
CALL_MIB = 1 / 8

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


def call_cell(format: str) -> Cell:
    """The cell whose call on the host is timed."""
    return Cell(CALL_SEQ_LEN, CALL_HIDDEN_SIZE, CALL_BATCH, CALL_DTYPE, format)


def path_call_cell(path: str) -> PathCell:
    """The same of another path."""
    return PathCell(path, CALL_MIB, CALL_DTYPE)


def call_keys() -> list[Key]:
    """Of an eager call."""
    values = itertools.product((CALL_FORWARD, CALL_FORWARD_BACKWARD), FORMATS)
    return [(metric, (format,)) for metric, format in values]


def path_call_keys() -> list[Key]:
    """Of an eager call of another path."""
    forward = path_keys(PATH_FORWARD, {"path": PATHS})
    return forward + path_keys(PATH_FORWARD_BACKWARD, {"path": PATHS})


def first_call_keys() -> list[Key]:
    """Of a process's start."""
    return [(metric, ()) for metric in (COMPILE, WARM_START, OWN_START)]


def exact_keys() -> list[Key]:
    """Of all that repeats to the last digit: memory, launches and error."""
    found = [key for metric in (PEAK_BYTES, LAUNCHES) for key in keys(metric, STEP_PARAMS)]
    found += keys(ERROR, ERROR_PARAMS)
    for metric in (PATH_PEAK_BYTES, PATH_LAUNCHES):
        found += path_keys(metric, PATH_STEP_PARAMS)
    return found + path_keys(PATH_ERROR, PATH_ERROR_PARAMS)


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
    return BACKWARD in path_call_cell(path).directions


def _needs_backward(metric: str, params: tuple[str, ...]) -> bool:
    return metric == PATH_FORWARD_BACKWARD or BACKWARD in params or TRAINING in params
