"""What this repository measures, as ``_subject.Subject`` describes it: ``rope_triton``."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from .._subject import Compilation, Eager
from .._verdict.metrics import BYTES, CODE, ERROR, LAUNCHES, SECONDS, VARIANTS
from .rope import grid, subjects, surface
from .rope.forms import BACKWARD, FORWARD, BaseCell
from .rope.subjects import CODE_PARAMS, SIZES, SURFACE_PARAMS, VARIANT_PARAMS
from .transformer import modules

PACKAGE = "rope_triton"
TARGETS, TARGET = subjects.ARCHITECTURES, "sm_90"
FAMILIES = {
    "gpu": ("rope.", "paths.", "surface.", "model_calls.", "modules."),
    "host": ("host.Call.", "host.PathCall."),
}
_LATENCIES = (
    f"{suite}{d}.track_latency" for suite in FAMILIES["gpu"] for d in ("Forward", "Backward")
)
_UNITS = {"seconds": SECONDS, "bytes": BYTES, "launches": LAUNCHES, "x rounding": ERROR}
_CODE = (("codegen.Codegen", CODE), ("codegen.Surface", CODE))
UNITS = {
    **dict.fromkeys(_LATENCIES, SECONDS),
    **{f"{suite}.track_{name}": unit for suite, units in _CODE for name, unit in units.items()},
    # Rows may be padded: that is no tensor more.
    "codegen.Surface.track_saved_bytes": replace(BYTES, tolerance=0.01),
    "codegen.Variants.track_variants": VARIANTS,
    **{name: _UNITS[metric.unit] for name, metric in subjects.HOST_METRICS.items()},
}
# All that the transformer's calls run of the package.
OF_TRANSFORMER = (
    *("transformer", "kernel/launch.py", "kernel/rotation.py"),
    *("ops/dispatch.py", "ops/operators.py"),
)
# The grid, and other sizes that users have: one token, odd prompts, odd batches.
SWEPT_SEQ_LENS = (*grid.GRIDS["full"]["seq_len"], 1, 7, 100, 131, 1000)
SWEPT_BATCHES = (*grid.GRIDS["full"]["batch"], 3, 5)
_SWEPT_HIDDEN_SIZE = 128
_STEP_SIZE, _STEP_MIB = (512, 128, 2), 16
ERROR_MIB = 2
_PARTS = 4  # of the surface's cells, each described in a process of its own

cell = grid.cell_of
candidates = grid.candidates
compiled = subjects.compiled_cell


def checked(changed: Callable[[str], bool]) -> Sequence[BaseCell]:
    """Those of the transformer only where they may have changed: they take the longest."""
    cells = [*grid.checked_cells()]
    if any(map(changed, OF_TRANSFORMER)):
        return cells
    costly = {cell for cell in modules.cells() if cell.module == "transformer"}
    return [cell for cell in cells if cell not in costly]


def listed() -> list[list[BaseCell]]:
    return _in_parts(surface.cells(), modules.cells())


def dense() -> list[list[BaseCell]]:
    return _in_parts(surface.dense(), modules.dense())


def _in_parts(of_surface: Sequence[BaseCell], of_modules: Sequence[BaseCell]) -> list:
    parts = [list(of_surface[part::_PARTS]) for part in range(_PARTS)]
    return [part for part in (*parts, list(of_modules)) if part]


def compilations(target: str) -> list[Compilation]:
    """Calls of asv's ``codegen.Codegen`` and, for the one target, of ``codegen.Surface``."""
    calls = []
    names = [name for name in CODE_PARAMS if name != "target"]
    for values in itertools.product(*(CODE_PARAMS[name] for name in names)):
        dtype, format, direction, hidden_size, size = values
        seq_len, batch = SIZES[size]
        one = grid.Cell(seq_len, hidden_size, batch, dtype, format)
        calls.append(Compilation("codegen.Codegen", (target, *values), target, (one,), direction))
    if target not in SURFACE_PARAMS["target"]:
        return calls
    for form in SURFACE_PARAMS["form"]:
        at = grid.form_cell(form)
        calls += [
            Compilation("codegen.Surface", (target, form, direction), target, (at,), direction)
            for direction in at.directions
        ]
    return calls


def variants(target: str) -> list[Compilation]:
    """64 heads of 128 channels at every length and batch of the full grid and some odd ones."""
    names = [name for name in VARIANT_PARAMS if name != "target"]
    sizes = list(itertools.product(SWEPT_SEQ_LENS, SWEPT_BATCHES))
    return [
        Compilation(
            "codegen.Variants",
            (target, dtype, format, direction),
            target,
            tuple(grid.Cell(s, _SWEPT_HIDDEN_SIZE, batch, dtype, format) for s, batch in sizes),
            direction,
        )
        for dtype, format, direction in itertools.product(*(VARIANT_PARAMS[n] for n in names))
    ]


def first() -> BaseCell:
    return subjects.call_cell("sbhd")


def eager() -> dict[subjects.Key, Eager]:
    """What asv's ``host`` tracks of eager calls."""
    keys = subjects.host_keys(*subjects.CALLS, *subjects.EXACT)
    return {(metric, params): _eager(metric, params) for metric, params in keys}


def _eager(metric: str, texts: tuple[str, ...]) -> Eager:
    values = dict(zip(subjects.HOST_METRICS[metric].params, texts, strict=True))
    step = values.get("step", values.get("direction"))
    direction = BACKWARD if step in (subjects.TRAINING, BACKWARD) else FORWARD
    match metric.rpartition("track_")[2]:
        case "error":
            return Eager("error", _error_cell(**values), direction)
        case "peak_bytes" | "launches" as kind:
            layout = values.get("layout", "contiguous")
            return Eager(kind, _step_cell(**values), direction, layout)
        case name:
            direction = BACKWARD if name == "forward_backward" else FORWARD
            return Eager("seconds", _call_cell(**values), direction)


def _call_cell(format: str = "", path: str = "") -> BaseCell:
    return subjects.path_call_cell(path) if path else subjects.call_cell(format)


def _step_cell(
    step: str, layout: str = "", format: str = "", dtype: str = "", path: str = ""
) -> BaseCell:
    if path:
        return grid.PathCell(path, _STEP_MIB, "bfloat16")
    return grid.Cell(*_STEP_SIZE, dtype, format)


def _error_cell(
    direction: str, dtype: str, positions: str = "", interleaved: str = "", path: str = ""
) -> BaseCell:
    if path:
        return grid.PathCell(path, ERROR_MIB, dtype)
    return subjects.error_cell(dtype, positions, interleaved == "True")
