"""Call the functions of the package's other modules, and say what is right.

What is right is PyTorch's own function in float32, with its gradients.
"""

import importlib
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from .._engine.subject import FORWARD
from .calls import Call, gradient, leaves

BOUND = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}
"""Most that a row of a result may be off, as a share of its L2 norm or of the mean row's.

Rounding makes up to half of it: the gradients of attention's first queries are almost 0. A mask or
a sine that is wrong makes more than the row itself.
"""
_ALIGNED = 64  # elements: every tensor begins at a multiple of 128 bytes or more

Shape = tuple[int, ...]


class ModuleCall(Call):
    """A call of one of the functions; the tensors lie one after the other in a piece of memory.

    A subclass is a function of a module of ``rope_triton``. ``words``: options, in the order that
    they have in a name. ``with_gradients``: whether results and gradients come from one call, the
    forward. One ``in_place`` has no other result.
    """

    module: ClassVar[str] = "transformer"
    function: ClassVar[str]
    sizes: ClassVar[tuple[str, ...]]
    words: ClassVar[tuple[str, ...]] = ()
    with_gradients = False
    bound: Mapping[str, float] = BOUND

    def __init__(self, cell, device: str):
        super().__init__(cell)
        self._size, self._words = cell.size, cell.words
        self._constants = self._make_constants(device)
        self._leaf: tuple = ()

    # --- what a subclass says; ``size`` has the sizes as attributes -------------------------------

    @staticmethod
    def exists(words: Sequence[str]) -> bool:
        """Whether these words can meet."""
        return True

    @classmethod
    def operands(cls, size, words: Sequence[str]) -> dict[str, Shape]:
        """Shapes of the tensors that the call has, by the function's parameters."""
        raise NotImplementedError

    @classmethod
    def results(cls, size, words: Sequence[str]) -> list[Shape]:
        """Shapes of what it returns; by default that of the first operand."""
        return [*cls.operands(size, words).values()][:1]

    def _make_constants(self, device: str) -> dict[str, Any]:
        """The arguments that are no operands, by name."""
        return {}

    def _arguments(self, **operands) -> dict[str, Any]:
        """The function's arguments by name, where these are views of the operands."""
        return operands

    # A method from all arguments by name to the results, by PyTorch.
    _expected: Any

    def _uncertain(self, exact, cotangents) -> Sequence:
        """How far each element of the gradients may be off besides, if that is not 0 everywhere."""
        return ()

    # --- the call ---------------------------------------------------------------------------------

    def _find(self):
        return self._named(self.function)

    def _named(self, function: str):
        name = f"rope_triton.{self.module}"
        try:
            return getattr(importlib.import_module(name), function)
        except (ModuleNotFoundError, AttributeError) as error:
            if error.name == "rope_triton":
                raise
            raise ImportError(f"there is no {name}.{function}") from None

    def operand(self, x):
        parts = self._operands_in(x)
        return leaves(parts) if self.with_gradients else parts

    def leaf(self, x):
        self._leaf = leaves(self._operands_in(x))
        return self._leaf

    def _operands_in(self, x) -> tuple:
        return _cut(x, [*self.operands(self._size, self._words).values()])

    def arguments(self, operands: tuple) -> dict[str, Any]:
        """The operands as the function's arguments, by name, and its constants."""
        names = self.operands(self._size, self._words)
        return self._arguments(**dict(zip(names, operands, strict=True))) | self._constants

    def forward(self, operand):
        out = self._function(**self.arguments(operand))
        if self.in_place:
            return operand
        if not self.with_gradients:
            return out
        gradients = gradient(out, operand, None)
        return out.detach(), *gradients

    def cotangent(self, x):
        parts = _cut(x, self.results(self._size, self._words))
        return parts if len(parts) > 1 else parts[0]

    def split(self, output) -> tuple:
        return output if isinstance(output, tuple) else (output,)

    def check(self, output, x, direction: str) -> None:
        operands = self.operand(x) if direction == FORWARD else self._leaf
        exact = leaves(tuple(operand.detach().float() for operand in operands))
        expected = self._expected(**self.arguments(exact))
        besides: Iterable = itertools.repeat(0.0)
        if direction != FORWARD:
            cotangents = [part.float() for part in self.split(self.cotangent(x))]
            expected = gradient(expected, exact, cotangents)
            besides = itertools.chain(self._uncertain(exact, cotangents), besides)
        elif self.with_gradients:
            expected = expected, *gradient(expected, exact, None)
        pairs = zip(self.split(output), self.split(expected), strict=True)
        for (result, right), beside in zip(pairs, besides, strict=False):
            self._require_near(result, right.detach(), beside)

    def _require_near(self, result, right, beside) -> None:
        import torch

        if result.shape != right.shape:
            raise AssertionError(f"expected {tuple(right.shape)}, got {tuple(result.shape)}")
        columns = right.shape[-1] if right.dim() else 1
        off = ((result.float() - right).abs() - beside).clamp(min=0)
        off = off.reshape(-1, columns).norm(dim=1)
        norms = right.reshape(-1, columns).norm(dim=1)
        limits, bound = torch.finfo(result.dtype), self.bound[self.cell.dtype]
        # Of what is so small that the dtype has no more digits, the last one.
        digit = limits.smallest_normal * limits.eps * math.sqrt(columns)
        allowed = bound * norms.clamp(min=norms.mean()) + digit
        if not (off <= allowed).all():  # also of NaN
            worst = (off / allowed).max().item() * bound
            raise AssertionError(f"a row is off by {worst:.2g} of its norm, at most {bound:g}")


def shapes_of(size, heads: Mapping[str, int], heads_first: bool) -> dict[str, Shape]:
    """Shapes of tensors with so many heads, before or after the tokens."""
    b, s, d = size.batch, size.tokens, size.channels
    return {name: (b, h, s, d) if heads_first else (b, s, h, d) for name, h in heads.items()}


def stored_elements(shapes: Iterable[Shape]) -> int:
    """Elements of memory that tensors of these shapes take."""
    return sum(-(-math.prod(shape) // _ALIGNED) * _ALIGNED for shape in shapes)


def _cut(x, shapes: Sequence[Shape]) -> tuple:
    """Contiguous tensors of these shapes in the memory of ``x``, one after the other."""
    parts, begin = [], 0
    for shape in shapes:
        parts.append(x[begin : begin + math.prod(shape)].view(shape))
        begin += stored_elements([shape])
    return tuple(parts)
