"""What this repository measures, as ``subject.Subject`` describes it: ``rope_triton``."""

import functools
import inspect
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from .._engine.subject import Compilation
from .._engine.verdict.metrics import BYTES, CODE, HOST_CALL, HOST_COST, SECONDS, VARIANTS
from . import metric_list, traced_calls
from .calls import BaseCell
from .labels import label as label
from .metric_list import CODE_PARAMS, SIZES, SURFACE_PARAMS, VARIANT_PARAMS
from .rope import grid
from .rope.cells import grid_cell, model_cell, named_cell, path_cell
from .transformer import modules
from .transformer.modules import ModuleCell

PACKAGE = "rope_triton"
TARGETS, TARGET = metric_list.ARCHITECTURES, "sm_90"
FAMILIES = {
    "gpu": ("rope.", "paths.", "surface.", "model_calls.", "modules."),
    "host": ("host.Call.", "host.PathCall."),
}
_LATENCIES = (
    f"{suite}{d}.track_latency" for suite in FAMILIES["gpu"] for d in ("Forward", "Backward")
)
_CODE = (("codegen.Codegen", CODE), ("codegen.Surface", CODE))
UNITS = {
    **dict.fromkeys(_LATENCIES, SECONDS),
    **{f"{suite}.track_{name}": unit for suite, units in _CODE for name, unit in units.items()},
    # Rows may be padded: that is no tensor more.
    "codegen.Surface.track_saved_bytes": replace(BYTES, tolerance=0.01),
    "codegen.Variants.track_variants": VARIANTS,
    **{name: metric.unit for name, metric in metric_list.HOST_METRICS.items()},
    **HOST_COST,
    HOST_CALL: SECONDS,
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
_PARTS = 4  # of the rotation's calls, in processes of their own

compiled, eager = metric_list.compiled_cell, metric_list.eager
_SUITES: dict[str, Callable[..., BaseCell]] = {
    "rope": grid_cell,
    "paths": path_cell,
    "surface": named_cell,
    "model_calls": model_cell,
    "modules": ModuleCell,
}
"""What makes the cells of asv's suites, by its parameters."""


def cell(suite: str, params: Sequence[str]) -> BaseCell:
    """The cell of a suite, or of a benchmark's name, that has these parameters.

    These are asv's texts, with quotes or without.

    Raises
    ------
    ValueError
        If there is none.
    """
    make = _SUITES.get(suite.partition(".")[0])
    if make is None:
        raise ValueError(f"suite must be one of {list(_SUITES)}, got {suite!r}")
    parameters = inspect.signature(make).parameters.values()
    if len(params) != len(parameters):
        raise ValueError(f"{suite} has {len(parameters)} parameters, got {list(params)}")
    values = (
        text.strip("'") if parameter.annotation is str else json.loads(text)
        for parameter, text in zip(parameters, params, strict=True)
    )
    try:
        return make(*values)
    except KeyError as error:
        raise ValueError(f"{suite} has no {error}") from None


def candidates() -> list[BaseCell]:
    """All that a comparison may time, the most telling first: the full grid comes last."""
    largest_first = sorted(grid.listed_cells(), key=lambda cell: -cell.values[1])  # MiB
    cells = [*grid.all_cells("small"), *grid.model_cells(), *largest_first, *modules.cells()]
    return list(dict.fromkeys([*cells, *grid.all_cells("full")]))


def checked(changed: Callable[[str], bool] = lambda file: True) -> list[BaseCell]:
    """The cells whose output is checked before anything is timed, a listed call at one size.

    Those of the transformer only where they may have changed: they take longer than all others.
    """
    costly = any(map(changed, OF_TRANSFORMER))
    others = [cell for cell in modules.cells() if costly or cell.module != "transformer"]
    return [*grid.all_cells("small"), *grid.model_cells(), *_smallest().values(), *others]


def _smallest() -> dict[str, BaseCell]:
    """The calls of the rotation's list at the smallest of their sizes, by name."""
    return {str(cell.call_name): cell for cell in reversed(grid.listed_cells())}


def listed_cell(name: str) -> BaseCell:
    """A call of the lists at the size at which its machine code is tracked: the largest."""
    return ModuleCell(name) if name in modules.listed_calls() else grid.largest(name)


def listed() -> list[list[BaseCell]]:
    return _in_parts(grid.listed_cells(), modules.cells())


def dense() -> list[list[BaseCell]]:
    return _in_parts(grid.dense(), modules.dense())


def _in_parts(of_rope: Sequence[BaseCell], of_modules: Sequence[BaseCell]) -> list:
    parts = [list(of_rope[part::_PARTS]) for part in range(_PARTS)]
    return [part for part in (*parts, list(of_modules)) if part]


def compilations(target: str) -> list[Compilation]:
    """Calls of asv's ``codegen.Codegen`` and, for the one target, of ``codegen.Surface``."""
    calls = []
    names = [name for name in CODE_PARAMS if name != "target"]
    for values in itertools.product(*(CODE_PARAMS[name] for name in names)):
        dtype, format, direction, hidden_size, size = values
        seq_len, batch = SIZES[size]
        one = grid_cell(seq_len, hidden_size, batch, dtype, format)
        calls.append(Compilation("codegen.Codegen", (target, *values), target, (one,), direction))
    if target not in SURFACE_PARAMS["target"]:
        return calls
    for form in SURFACE_PARAMS["form"]:
        at = listed_cell(form)
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
            tuple(grid_cell(s, _SWEPT_HIDDEN_SIZE, batch, dtype, format) for s, batch in sizes),
            direction,
        )
        for dtype, format, direction in itertools.product(*(VARIANT_PARAMS[n] for n in names))
    ]


@functools.cache
def host_calls() -> dict:
    """Each listed call at its smallest size: the host does the same for many bytes as for few."""
    return traced_calls.calls(_smallest() | modules.listed_calls())


def first() -> BaseCell:
    return metric_list.call_cell("sbhd")
