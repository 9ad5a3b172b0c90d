"""Names, parameters, units and cells of all metrics but GPU time. Measures nothing."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from .._engine.subject import BACKWARD, FORWARD, Eager
from .._engine.verdict import metrics
from .calls import BaseCell
from .rope.cells import DTYPE_WORDS, RopeCell, eager_cell, grid_cell, path_cell
from .rope.grid import GRIDS, PATH_GRIDS, listed_calls
from .transformer import modules

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
    "form": (*listed_calls(), *modules.listed_calls()),
    "direction": DIRECTIONS,
}
"""Of every call of the lists, at the larger of its sizes."""

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
_CALL_MIB, _STEP_MIB, _ERROR_MIB = 1 / 8, 16, 2  # of other paths

Key = tuple[str, tuple[str, ...]]
"""asv's name of a benchmark, and its parameters as texts."""


class HostMetric(NamedTuple):
    """A metric of ``host``: its parameters, and what is measured of which cell.

    ``cell``: makes it of the parameters but the step or direction; of no eager call, None.
    """

    params: Mapping[str, tuple]
    kind: Literal["seconds", "peak_bytes", "launches", "error"]
    cell: Callable[..., BaseCell] | None = None

    @property
    def unit(self) -> metrics.Unit:
        return _UNITS[self.kind]


_UNITS = {
    "seconds": metrics.SECONDS,
    "peak_bytes": metrics.BYTES,
    "launches": metrics.LAUNCHES,
    "error": metrics.ERROR,
}


def call_cell(format: str) -> RopeCell:
    """The cell whose call on the host is clocked."""
    return grid_cell(CALL_SEQ_LEN, CALL_HIDDEN_SIZE, CALL_BATCH, CALL_DTYPE, format)


def compiled_cell() -> RopeCell:
    """The cell whose kernel is compiled while the clock runs, in a process that has others.

    Of no grid: nothing else that a process calls has compiled its kernel.
    """
    return eager_cell("angles-sbhd-bf16-64x16", (CALL_SEQ_LEN,))


def _step_cell(format: str, dtype: str, layout: str) -> RopeCell:
    exchanged = "-exchanged" if layout == "transposed" else ""
    return eager_cell(f"angles-{format}-{DTYPE_WORDS[dtype]}-64x128{exchanged}", (512, 512))


def _error_cell(dtype: str, positions: str, interleaved: bool) -> RopeCell:
    name = f"angles-sbhd-{DTYPE_WORDS[dtype]}-2x128{'-il' if interleaved else ''}"
    return eager_cell(name, (2048,), POSITIONS[positions])


def _path_cell(mib: float) -> Callable[..., RopeCell]:
    return lambda path, dtype=CALL_DTYPE: path_cell(path, mib, dtype)


_STEP = {"step": STEPS, "format": FORMATS, "dtype": DTYPES, "layout": LAYOUTS}
_PATH_STEP = {"step": STEPS, "path": PATHS}
_ERROR = {
    "direction": DIRECTIONS,
    "dtype": DTYPES,
    "positions": tuple(POSITIONS),
    "interleaved": (False, True),
}
_PATH_ERROR = {"direction": DIRECTIONS, "path": PATHS, "dtype": PATH_GRIDS["full"]["dtype"]}
_CALL = HostMetric({"format": FORMATS}, "seconds", call_cell)
_PATH_CALL = HostMetric({"path": PATHS}, "seconds", _path_cell(_CALL_MIB))

HOST_METRICS = {
    "host.Call.track_forward": _CALL,
    "host.Call.track_forward_backward": _CALL,
    **dict.fromkeys(metrics.STARTS, HostMetric({}, "seconds")),
    "host.Memory.track_peak_bytes": HostMetric(_STEP, "peak_bytes", _step_cell),
    "host.Launches.track_launches": HostMetric(_STEP, "launches", _step_cell),
    "host.Error.track_error": HostMetric(_ERROR, "error", _error_cell),
    "host.PathCall.track_forward": _PATH_CALL,
    "host.PathCall.track_forward_backward": _PATH_CALL,
    "host.PathMemory.track_peak_bytes": HostMetric(_PATH_STEP, "peak_bytes", _path_cell(_STEP_MIB)),
    "host.PathLaunches.track_launches": HostMetric(_PATH_STEP, "launches", _path_cell(_STEP_MIB)),
    "host.PathError.track_error": HostMetric(_PATH_ERROR, "error", _path_cell(_ERROR_MIB)),
}
"""What ``host`` tracks, by asv's names."""


def eager(*suites: str) -> dict[Key, Eager]:
    """What is measured of eager calls, by asv's keys: all, or that of these classes of ``host``.

    A path without a backward pass has keys of its forward only.
    """
    return eager_of(HOST_METRICS, *suites)


def eager_of(metrics: Mapping[str, HostMetric], *suites: str) -> dict[Key, Eager]:
    """The same of any metrics."""
    beginnings = tuple(f"{suite}." for suite in suites) or ("",)
    items = (item for item in metrics.items() if item[0].startswith(beginnings))
    return dict(itertools.chain.from_iterable(itertools.starmap(_eager, items)))


def _eager(name: str, metric: HostMetric) -> Iterator[tuple[Key, Eager]]:
    params, kind, make_cell = metric
    if make_cell is None:
        return
    for values in itertools.product(*params.values()):
        options: dict[str, Any] = dict(zip(params, values, strict=True))
        step = options.pop("step", options.pop("direction", FORWARD))
        backward = step != FORWARD or name.endswith("_backward")
        direction, cell = BACKWARD if backward else FORWARD, make_cell(**options)
        if direction in cell.directions:
            yield (name, tuple(map(str, values))), Eager(kind, cell, direction)
