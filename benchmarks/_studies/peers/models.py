"""Adapters that make a model's calls: what a layer rotates, by what its user has to call.

Each gets the tensors of the cell as they lie in memory, and ready-made tables. See
``providers.MODEL_CALLS``.
"""

from typing import Any, ClassVar

from ..._subject import Unavailable
from ..._subjects.rope.names import UNALIGNED
from ..._subjects.rope.rotation import Rotation
from .adapter import Peer, product_rounding
from .libraries import Fla, FlashAttention, Quack, Vllm
from .pairs import FlashInfer, Liger
from .plain import Copy


class ModelCall(Rotation):
    """A library's calls on the tensors of a cell.

    Sequences that have tables of their own have them in one table, one after the other: each token
    has a row of it.

    Raises
    ------
    Unavailable
        If the library is not installed, or cannot do what the model asks for.
    """

    peer: ClassVar[Any]  # the adapter of the same function in the cells of one tensor
    rounds_products = False
    backward = True
    # What it cannot do.
    halves_only = False
    pairs_only = False
    step, most = 2, 512  # what divides the channels that are rotated; most channels of a head
    aligned = False  # whether rows must begin at multiples of 16 bytes

    _public = Peer._public

    def __init__(self, cell, device):
        import torch

        self.provider = self.peer.provider
        self._refuse(cell)
        super().__init__(cell, device)
        self.in_place = self.peer.in_place
        # A library has one way to round, whatever the package is asked for.
        self.rounding = "once"
        self.slack = product_rounding(getattr(torch, cell.dtype)) if self.rounds_products else 0.0

    def _refuse(self, cell) -> None:
        channels, rotated = cell.call_name.channels, cell.call_name.rotated
        cannot = {
            "has no interleaved rotation": self.halves_only and cell.call_name.interleaved,
            "takes queries and keys, not one tensor": self.pairs_only and len(cell.shapes) == 1,
            f"takes multiples of {self.step} channels, got {rotated}": rotated % self.step,
            f"takes up to {self.most} channels, got {channels}": channels > self.most,
            "takes memory aligned to 16 bytes": self.aligned and cell.call_name.layout in UNALIGNED,
        }
        for what, found in cannot.items():
            if found:
                raise Unavailable(f"{self.provider} {what}")

    def _find(self):
        return self.peer._find(self)

    def _more(self, device) -> dict:
        return {}

    def _tables(self) -> tuple:
        return tuple(table.flatten(0, -2) for table in super()._tables())

    def _rows(self, device):
        """Each token's row of the tables, ``[b, s]``."""
        import torch

        rows, of_each = self._positions(device), self.cell.positions
        if self._call.parallel:  # the tables have the rank's rows alone
            of_each = rows.shape[1]
            rows = torch.arange(of_each, device=device).expand(rows.shape)
        if not self._call.tables:
            return rows
        return rows + torch.arange(len(rows), device=device)[:, None] * of_each

    bytes_read = Peer.bytes_read

    def leaf(self, x):
        if not self.backward:
            raise Unavailable(f"{self.provider} has no backward pass")
        return super().leaf(x)


class _EachTensor(ModelCall):
    """One call for each tensor, with flash-attention's signature."""

    def _more(self, device) -> dict:
        first = self._rows(device)[:, 0]
        moved = {"seqlen_offsets": first.int()} if first.any() else {}
        return {"interleaved": self.interleaved} | moved

    def forward(self, x):
        if not isinstance(x, tuple):
            return self._function(x, *self._arguments, **self._options)
        return tuple(self._function(each, *self._arguments, **self._options) for each in x)


class _FlashAttention(_EachTensor):
    peer = FlashAttention
    most = FlashAttention.most


class _Fla(_FlashAttention):
    peer = Fla


class _Quack(_EachTensor):
    peer = Quack
    step, most = Quack.step, Quack.most
    aligned = True


class _Copy(_EachTensor):
    peer = Copy

    def __init__(self, cell, device):
        super().__init__(cell, device)
        self.rotated = (False,) * len(self.rotated)
        self._arguments, self._options = (), {}


class _Liger(ModelCall):
    """Tables as a model makes them: a row for each token, ``[1 or b, s, rotated]``."""

    peer = Liger
    rounds_products = True
    halves_only = pairs_only = True

    def _tables(self) -> tuple:
        import torch

        rows = self._rows(self._angles.device)
        rows = rows if (rows != rows[0]).any() else rows[:1]
        return tuple(torch.cat((table[rows],) * 2, dim=-1) for table in super()._tables())

    def forward(self, x):
        heads_first = (each.transpose(1, 2) for each in x)
        out = self._function(*heads_first, *self._arguments)
        return tuple(each.transpose(1, 2) for each in out)


class _ByToken(ModelCall):
    """By each token's row of a cache, which has cosines beside sines."""

    backward = False

    def _tables(self) -> tuple:
        import torch

        cache = torch.cat(super()._tables(), dim=-1)
        return self._rows(cache.device).flatten(), cache


class _Vllm(_ByToken):
    peer = Vllm
    rounds_products = True

    def forward(self, x):
        rows, cache = self._arguments
        tensors = x if isinstance(x, tuple) else (x, None)
        head = tensors[0].shape[-1]
        # A view also of the last channels of a row; it fails if that were a copy.
        tokens = (None if t is None else t.view(len(rows), *t.shape[2:]) for t in tensors)
        self._function(rows, *tokens, head, cache, not self.interleaved)
        return x


class _FlashInfer(_ByToken):
    peer = FlashInfer
    pairs_only = True
    step = FlashInfer.step

    _table_dtype = FlashInfer._table_dtype

    def forward(self, x):
        rows, cache = self._arguments
        tokens = (each.view(len(rows), -1) for each in x)
        out = self._function(rows, *tokens, x[0].shape[-1], cache, not self.interleaved)
        return tuple(each.view(given.shape) for each, given in zip(out, x, strict=True))


ADAPTERS: dict[str, type[Rotation]] = {
    "rope-triton": Rotation,
    "rope-triton-tables": Rotation,
    **{adapter.peer.provider: adapter for adapter in (_Copy, _FlashAttention, _Fla, _Liger)},
    **{adapter.peer.provider: adapter for adapter in (_Quack, _Vllm, _FlashInfer)},
}
