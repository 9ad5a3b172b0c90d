"""Base classes of the adapters: what a provider gets, and what rounding costs.

A provider that wants another order of dimensions than its cell's gets a view in that order, and a
view of its result is taken. The copies that it makes because of the view are what its user pays,
and count; none is added for it. Sequences that have positions or tables of their own each begin at
a row of one table. What a library copies, fills and checks besides is its own, and counts.
"""

import importlib
from typing import ClassVar

from ..._engine.subject import Unavailable
from ..._subjects.rope.names import UNALIGNED
from ..._subjects.rope.rotation_calls import Rotation


class Provider(Rotation):
    """A provider's calls on the tensors of a cell.

    Unavailable if its library is not installed, or cannot do what the cell asks for.
    """

    provider: ClassVar[str]
    about: ClassVar[str]  # what it computes of one tensor
    layer: ClassVar[str] = ""  # what is called for a layer of a model, if that is measured
    install: ClassVar[str] = ""
    by_angles = False  # takes angles, not precomputed tables
    # Takes queries and keys. Each then has half of the heads of a cell of one tensor: no head is
    # rotated for nothing, and none twice.
    pairs = False

    def exact(self, x, direction: str) -> tuple:
        """Of the angles: a provider's tables, as it gets them, are part of its error."""
        token = self.token_angles().double()
        return self.exact_by((token.cos(), token.sin()), x, direction)

    def _ordered(self, x):
        """A view, batch first, of a tensor in the cell's order, or the other way round."""
        return x.transpose(0, 1) if self._call.format == "sbhd" else x


class Peer(Provider):
    """A provider that is not this package."""

    function: ClassVar[str] = ""  # where it is: "module:name"
    checks_angles = False
    in_place: bool = False
    rounds_products = False  # to the tensor's dtype
    float32_tables = False
    either_order = False  # of dimensions
    # What it cannot do.
    backward = True
    halves_only = False  # no neighbouring pairs
    half_precision_only = False
    step, most = 2, 512  # what divides the channels that are rotated; most channels of a head
    aligned = False  # rows must begin at multiples of 16 bytes

    def __init__(self, cell, device):
        import torch

        self._refuse(cell)
        super().__init__(cell, device)
        # A library has one way, whatever the package is asked for.
        self.rounding, self.slack = "once", 0.0
        if self.rounds_products:
            # With unit roundoff u, x1 cos and x2 sin err by at most u |x1 cos| + u |x2 sin|, which
            # is at most u times the length of (x1, x2) times that of (cos, sin), itself 1 but for
            # the tables' rounding.
            unit = torch.finfo(getattr(torch, cell.dtype)).eps / 2
            self.slack = unit * (1 + 2 * unit)

    def _refuse(self, cell) -> None:
        call = cell.call_name
        channels, rotated = call.channels, call.rotated
        one = len(call.heads) == 1 or not min(call.heads)
        cannot = {
            "has no interleaved rotation": self.halves_only and call.interleaved,
            "takes queries and keys, not one tensor or head": self.pairs and one,
            f"takes multiples of {self.step} channels, got {rotated}": rotated % self.step,
            f"takes up to {self.most} channels, got {channels}": channels > self.most,
            f"takes float16 and bfloat16, got {cell.dtype}": self.half_precision_only
            and cell.dtype == "float32",
            "takes memory aligned to 16 bytes": self.aligned and call.layout in UNALIGNED,
        }
        for what, does_not in cannot.items():
            if does_not:
                raise Unavailable(f"{self.provider} {what}")

    def _public(self):
        try:
            return self._find()
        except ImportError as error:
            raise Unavailable(f"{self.provider} is not there: {error}; {self.install}") from None

    def _find(self):
        module, _, name = self.function.partition(":")
        if function := getattr(importlib.import_module(module), name, None):
            return function
        raise ImportError(f"cannot import name {name!r} from {module!r}")

    def _ordered(self, x):
        return x if self.either_order else super()._ordered(x)

    def _more(self, device) -> dict:
        return {}

    def _table_dtype(self):
        import torch

        return torch.float32 if self.float32_tables else super()._table_dtype()

    def _tables(self) -> tuple:
        """Cosines and sines ``[rows, pairs]``."""
        return tuple(table.flatten(0, -2) for table in super()._tables())

    def _rows(self):
        """Each token's row of the tables, ``[b, s]``."""
        import torch

        device, rows_of_each = self._angles.device, self.cell.positions
        rows = self._positions(device)
        if self._call.parallel:  # the tables have the rank's rows alone
            rows_of_each = rows.shape[1]
            rows = torch.arange(rows_of_each, device=device).expand(rows.shape)
        if not self._call.tables:
            return rows
        return rows + torch.arange(len(rows), device=device)[:, None] * rows_of_each

    def leaf(self, x):
        if not self.backward:
            raise Unavailable(f"{self.provider} has no backward pass")
        return super().leaf(x)

    def forward(self, operand):
        tensors = operand if isinstance(operand, tuple) else (operand,)
        results = tuple(map(self._ordered, self._rotate(*map(self._ordered, tensors))))
        return results if isinstance(operand, tuple) else results[0]

    def _rotate(self, *tensors) -> tuple:
        """Of tensors ``[b, s, h, d]``: one call for each."""
        return tuple(self._function(x, *self._arguments, **self._options) for x in tensors)

    def bytes_read(self) -> int:
        return 0


class HeadsFirst(Peer):
    """Queries and keys as a model has them, ``[b, h, s, d]``, in one call.

    Tables as a model makes them: a row for each token and a column for each channel, ``[1 or b, s,
    rotated]``. Two tensors as a projection leaves them: in the cell's order, each with its memory.
    """

    pairs = halves_only = True
    rounds_products = True

    def _tables(self) -> tuple:
        import torch

        rows = self._rows()
        rows = rows if (rows != rows[0]).any() else rows[:1]
        return tuple(torch.cat((table[rows],) * 2, dim=-1) for table in super()._tables())

    def _rotate(self, *tensors) -> tuple:
        results = self._function(*(x.transpose(1, 2) for x in tensors), *self._arguments)
        return tuple(x.transpose(1, 2) for x in results)


class ByToken(Peer):
    """By each token's row of a cache, which has cosines beside sines; no backward pass.

    Tokens come in the cell's order, so nothing is copied in either.
    """

    backward = False

    def _tables(self) -> tuple:
        import torch

        return self._ordered(self._rows()).flatten(), torch.cat(super()._tables(), dim=-1)
