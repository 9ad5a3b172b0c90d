"""A subject for the tests of the engine: a package of one Triton kernel, which scales a tensor.

The package is in no repository but those that a test makes: see ``source``.
"""

import dataclasses
import itertools
from dataclasses import dataclass

from benchmarks._engine.subject import BACKWARD, FORWARD, Compilation, Eager
from benchmarks._engine.verdict import metrics

PACKAGE = "toy_kernel"
TARGETS, TARGET = ("sm_90", "gfx942"), "sm_90"
FACTOR = 3.0
UNITS = {
    **{f"{suite}.track_latency": metrics.SECONDS for suite in ("toy.Forward", "toy.Backward")},
    **{f"{suite}.track_latency": metrics.SECONDS for suite in ("once.Forward", "once.Backward")},
    **{f"toy.Code.track_{name}": unit for name, unit in metrics.CODE.items()},
    "toy.Variants.track_variants": metrics.VARIANTS,
    "toy.Call.track_forward": metrics.SECONDS,
    "toy.Call.track_forward_backward": metrics.SECONDS,
    "toy.Launches.track_launches": metrics.LAUNCHES,
    "toy.Error.track_error": metrics.ERROR,
}
FAMILIES = {"gpu": ("toy.Forward.", "toy.Backward.", "once."), "host": ("toy.Call.",)}
CHECKED_IF_CHANGED: list = []  # cells that are checked only if the file "costly.py" differs


def source(block: int = 1024, factor: float = FACTOR) -> str:
    """The package's only file."""
    return f"""
import torch, triton
import triton.language as tl

@triton.jit
def _scale(y_ptr, x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, {factor} * tl.load(x_ptr + i, mask=i < n), mask=i < n)

def _scaled(x):
    y = torch.empty_like(x)
    _scale[triton.cdiv(x.numel(), {block}),](y, x, x.numel(), BLOCK={block})
    return y

class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _scaled(x)

    @staticmethod
    def backward(ctx, grad):
        return _scaled(grad)

def scale(x):
    return _Scale.apply(x)
"""


class Call:
    in_place = False

    def __init__(self, cell):
        import importlib

        self.cell, self._function = cell, importlib.import_module(PACKAGE).scale

    def operand(self, x):
        return x

    def leaf(self, x):
        return x.requires_grad_()

    def forward(self, operand):
        return self._function(operand)

    def cotangent(self, x):
        return x

    def split(self, output):
        return (output,)

    def check(self, output, x, direction):
        if not (output == FACTOR * x).all():
            raise AssertionError(f"the {direction} is wrong")

    def exact(self, x, direction):
        return (FACTOR * x.double(),)

    def copies(self, x, copy=None):
        return copy(x) if copy else x.clone()

    def bytes_read(self):
        return 0

    def call_through(self, change):
        function = self._function
        self._function = lambda x: function(change(x))


@dataclass(frozen=True)
class Cell:
    elements: int
    dtype: str
    suite: str = "toy"
    deviation = 1.0

    @property
    def params(self):
        return str(self.elements), self.dtype

    @property
    def shape(self):
        return (self.elements,)

    @property
    def bytes_moved(self):
        return 2 * self.elements * (4 if self.dtype == "float32" else 2)

    @property
    def directions(self):
        return (FORWARD, BACKWARD) if self.suite == "toy" else (FORWARD,)

    @property
    def point(self):
        return self

    def call(self, device):
        return Call(self)


DTYPES = ("float32", "bfloat16")
CELLS = [Cell(*each) for each in itertools.product((1024, 1 << 20), DTYPES)]


def label(metric, params):
    return metric, ", ".join(params)


def cell(suite, params):
    elements, dtype = params
    return Cell(int(elements), dtype, suite)


def candidates():
    return CELLS


def checked(changed):
    left_out = () if changed("costly.py") else CHECKED_IF_CHANGED
    return [each for each in CELLS if each not in left_out]


def listed():
    return [[each for each in CELLS if each.elements == 1 << 20]]


def dense():
    return [[dataclasses.replace(each, elements=1000) for each in listed()[0]]]


def compilations(target):
    return [
        Compilation("toy.Code", (target, each.dtype, direction), target, (each,), direction)
        for each in listed()[0]
        for direction in each.directions
    ]


def variants(target):
    sizes = tuple(Cell(elements, "float32") for elements in (1, 1000, 1024))
    return [Compilation("toy.Variants", (target,), target, sizes, FORWARD)]


def eager():
    small = {dtype: Cell(1024, dtype) for dtype in DTYPES}
    calls = {
        (f"toy.Call.track_{name}", (dtype,)): Eager("seconds", small[dtype], direction)
        for name, direction in (("forward", FORWARD), ("forward_backward", BACKWARD))
        for dtype in DTYPES
    }
    return calls | {
        ("toy.Launches.track_launches", ()): Eager("launches", small["float32"], FORWARD),
        ("toy.Error.track_error", ("bfloat16",)): Eager("error", small["bfloat16"], FORWARD),
    }


def host_calls():
    return {}


def first():
    return CELLS[0]


def compiled():
    return Cell(1024, "float16")
