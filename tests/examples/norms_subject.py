"""What ``compare --subject norms_subject`` measures: ``norms.rms_norm``.

The protocols of a call, a cell and a subject, with the meaning of every member, are in the module
that this one imports.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from benchmarks._engine.subject import FORWARD, Compilation, Eager
from benchmarks._engine.verdict import metrics

PACKAGE = "norms"
# Architectures to compile for, and the one that is compared where there is no GPU.
TARGETS, TARGET = ("sm_90",), "sm_90"
UNITS = {
    "norms.Forward.track_latency": metrics.SECONDS,
    "norms.Call.track_forward": metrics.SECONDS,
    "norms.Memory.track_peak_bytes": metrics.BYTES,
    "norms.Error.track_error": metrics.ERROR,
    **{f"norms.Code.track_{name}": unit for name, unit in metrics.CODE.items()},
}
# Timings of a family are tested together; here the beginnings of their metrics.
FAMILIES = {"gpu": ("norms.Forward.",), "host": ("norms.Call.",)}
EPS = 1e-6
DTYPES = ("bfloat16", "float32")


class Call:
    """``rms_norm(x, weight)``; ``device`` is "meta" where it is only compiled."""

    in_place = False

    def __init__(self, cell: "Cell", device: str):
        import norms
        import torch

        self.cell, self._function = cell, norms.rms_norm
        self._weight = torch.ones(cell.columns, dtype=getattr(torch, cell.dtype), device=device)

    def operand(self, x):
        return x

    def forward(self, operand):
        return self._function(operand, self._weight)

    def split(self, output) -> tuple:
        return (output,)

    def check(self, output, x, direction: str) -> None:
        import torch

        (expected,) = self.exact(x, direction)
        torch.testing.assert_close(output, expected.to(output.dtype))

    def exact(self, x, direction: str) -> tuple:
        x = x.double()
        return (x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * self._weight.to(x),)

    def copies(self, x, copy: Callable | None = None):
        return copy(x) if copy else x.clone()

    def bytes_read(self) -> int:
        return self._weight.numel() * self._weight.element_size()

    def call_through(self, change: Callable) -> None:
        function = self._function
        self._function = lambda *tensors: function(*map(change, tensors))


@dataclass(frozen=True)
class Cell:
    """A call at one size; the fields are its parameters."""

    rows: int
    columns: int
    dtype: str
    suite: ClassVar[str] = "norms"
    deviation: ClassVar[float] = 1.0
    directions: ClassVar[tuple[str, ...]] = (FORWARD,)

    @property
    def params(self) -> tuple[str, ...]:
        return str(self.rows), str(self.columns), self.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows, self.columns

    @property
    def bytes_moved(self) -> int:
        return 2 * self.rows * self.columns * (4 if self.dtype == "float32" else 2)

    @property
    def point(self) -> "Cell":
        return self

    def call(self, device: str) -> Call:
        return Call(self, device)


CELLS = [Cell(*size) for size in itertools.product((16384, 1024), (4096, 1000), DTYPES)]


def label(metric: str, params: tuple[str, ...]) -> tuple[str, str]:
    """A metric and its parameters in words, for reports."""
    return metric.rpartition("track_")[2].replace("_", " "), ", ".join(params)


def cell(suite: str, params) -> Cell:
    rows, columns, dtype = params
    return Cell(int(rows), int(columns), dtype)


def candidates():
    return CELLS


def checked(changed: Callable[[str], bool]):
    return CELLS


def listed():
    return [CELLS]


def dense():
    return []


def compilations(target: str):
    suite = "norms.Code"
    return [Compilation(suite, (target, *one.params), target, (one,), FORWARD) for one in CELLS]


def variants(target: str):
    return []


def eager():
    one = CELLS[0]
    measured = {"Call.track_forward": "seconds", "Memory.track_peak_bytes": "peak_bytes"}
    measured["Error.track_error"] = "error"
    return {
        (f"norms.{name}", one.params): Eager(kind, one, FORWARD) for name, kind in measured.items()
    }


def host_calls():
    return {}


def first() -> Cell:
    return CELLS[0]


def compiled() -> Cell:
    return Cell(64, 512, "float16")  # no other cell compiles its kernel
