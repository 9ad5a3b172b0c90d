"""Names, parameters and units of all metrics but GPU time. Measures nothing."""

import itertools
from typing import NamedTuple

from ..transformer import modules
from . import surface
from .forms import BACKWARD, FORWARD
from .grid import GRIDS, PATH_GRIDS, Cell, ErrorCell, PathCell

DTYPES, FORMATS = GRIDS["full"]["dtype"], GRIDS["full"]["format"]
DIRECTIONS = (FORWARD, BACKWARD)

# --- machine code ---------------------------------------------------------------------------------

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942")

SIZES = {
    # Positions and batch. A package may use another kernel for tensors larger than a cache: these
    # are far smaller and far larger than any, and divide by 16 as all of the grid does, so that
    # Triton specialises the kernel in the same way.
    "small": (64, 2),
    "large": (max(GRIDS["full"]["seq_len"]), max(GRIDS["full"]["batch"])),
}
VARIANT_PARAMS = {
    "target": ARCHITECTURES,
    "dtype": DTYPES,
    "format": FORMATS,
    "direction": DIRECTIONS,
}
CODE_PARAMS = VARIANT_PARAMS | {
    "hidden_size": GRIDS["full"]["hidden_size"],
    "size": tuple(SIZES),
}

SURFACE_PARAMS = {
    "target": ("sm_90",),
    "form": (*surface.forms(), *modules.forms()),
    "direction": DIRECTIONS,
}
"""Of every form of a call, at the larger of its sizes."""

# --- host, memory and error -----------------------------------------------------------------------

# The host does the same for many sequences as for few, and for any number of channels.
_LIKE_OTHERS = ("thd-short", "partial", "head-96", "then-read")
PATHS = tuple(path for path in PATH_GRIDS["full"]["path"] if path not in _LIKE_OTHERS)

TRAINING = "training"
STEPS = (FORWARD, TRAINING)
LAYOUTS = ("contiguous", "transposed")
# First position: all angles below 2^11 rad, and those of a context of 131072 tokens.
POSITIONS = {"short": 0, "long": 131072}

# A call whose host time is clocked takes some 2 us on a GPU: the host never waits for that.
CALL_SEQ_LEN, CALL_HIDDEN_SIZE, CALL_BATCH, CALL_DTYPE = 16, 64, 1, "bfloat16"
CALL_MIB = 1 / 8
_ERROR_SIZE = 2048, 128, 1
# Of no grid: nothing else that a process calls has compiled its kernel.
COMPILED_HIDDEN_SIZE = 16

Key = tuple[str, tuple[str, ...]]
"""asv's name of a benchmark, and its parameters as texts."""


class HostMetric(NamedTuple):
    """The parameters of a metric, and its unit."""

    params: dict[str, tuple]
    unit: str


CALL_FORWARD = "host.Call.track_forward"
CALL_FORWARD_BACKWARD = "host.Call.track_forward_backward"
IMPORT = "host.FirstCall.track_import"
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

_STEP = {"step": STEPS, "format": FORMATS, "dtype": DTYPES, "layout": LAYOUTS}
_PATH_STEP = {"step": STEPS, "path": PATHS}
_ERROR = {
    "direction": DIRECTIONS,
    "dtype": DTYPES,
    "positions": tuple(POSITIONS),
    "interleaved": (False, True),
}
_PATH_ERROR = {"direction": DIRECTIONS, "path": PATHS, "dtype": PATH_GRIDS["full"]["dtype"]}

HOST_METRICS = {
    CALL_FORWARD: HostMetric({"format": FORMATS}, "seconds"),
    CALL_FORWARD_BACKWARD: HostMetric({"format": FORMATS}, "seconds"),
    IMPORT: HostMetric({}, "seconds"),
    COMPILE: HostMetric({}, "seconds"),
    WARM_START: HostMetric({}, "seconds"),
    OWN_START: HostMetric({}, "seconds"),
    PEAK_BYTES: HostMetric(_STEP, "bytes"),
    LAUNCHES: HostMetric(_STEP, "launches"),
    ERROR: HostMetric(_ERROR, "x rounding"),
    PATH_FORWARD: HostMetric({"path": PATHS}, "seconds"),
    PATH_FORWARD_BACKWARD: HostMetric({"path": PATHS}, "seconds"),
    PATH_PEAK_BYTES: HostMetric(_PATH_STEP, "bytes"),
    PATH_LAUNCHES: HostMetric(_PATH_STEP, "launches"),
    PATH_ERROR: HostMetric(_PATH_ERROR, "x rounding"),
}
"""What ``host`` tracks, by asv's names; what measures each is in ``_measure.host``."""

CALLS = ("host.Call", "host.PathCall")
FIRST_CALL = "host.FirstCall"
EXACT = tuple(
    f"host.{path}{name}" for path in ("", "Path") for name in ("Memory", "Launches", "Error")
)
"""asv's classes of what repeats to the last digit."""


def host_keys(*suites: str) -> list[Key]:
    """Every key of these classes of asv's ``host``, class by class.

    A path without a backward pass has those of its forward only.
    """
    return [
        (name, tuple(map(str, values)))
        for suite in suites
        for name, metric in HOST_METRICS.items()
        if name.startswith(f"{suite}.")
        for values in itertools.product(*metric.params.values())
        if _exists(name, dict(zip(metric.params, values, strict=True)))
    ]


def _exists(name: str, params: dict) -> bool:
    if "path" not in params or BACKWARD in path_call_cell(params["path"]).directions:
        return True
    return name != PATH_FORWARD_BACKWARD and not {BACKWARD, TRAINING} & {*params.values()}


def call_cell(format: str) -> Cell:
    """The cell whose call on the host is clocked."""
    return Cell(CALL_SEQ_LEN, CALL_HIDDEN_SIZE, CALL_BATCH, CALL_DTYPE, format)


def compiled_cell() -> Cell:
    """The cell whose kernel is compiled while the clock runs, in a process that has others."""
    return Cell(CALL_SEQ_LEN, COMPILED_HIDDEN_SIZE, CALL_BATCH, CALL_DTYPE, FORMATS[0])


def error_cell(dtype: str, positions: str, interleaved: bool) -> ErrorCell:
    """The cell whose error is measured, in "sbhd"."""
    seq_len, hidden_size, batch = _ERROR_SIZE
    cell = seq_len, hidden_size, batch, dtype, "sbhd"
    return ErrorCell(*cell, first=POSITIONS[positions], interleaved=interleaved)


def path_call_cell(path: str) -> PathCell:
    """The cell of another path whose call on the host is clocked."""
    return PathCell(path, CALL_MIB, CALL_DTYPE)
