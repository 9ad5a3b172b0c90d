"""Base classes of the adapters: the order of dimensions, tables, and what rounding costs.

A provider that wants another order of dimensions than its cell's gets a view in that order, and a
view of its result is taken. The copies that it makes because of the view are what its user pays,
and count; none is added for it.
"""

from typing import Any, ClassVar

from ..._subject import Unavailable
from ..._subjects.calls import leaves
from ..._subjects.rope.rotation import Rotation, one_after_the_other
from .providers import INSTALL


class Peer(Rotation):
    """A call of another library by the angles of the positions; see ``rotation.Rotation``.

    Raises
    ------
    Unavailable
        If the library is not installed, or cannot do what the cell asks for.
    """

    provider: ClassVar[str]
    checks_angles = False
    in_place: Any = False
    cell: Any  # of ``PeerCell``, which makes this

    def _public(self):
        try:
            return self._find()
        except ImportError as error:
            how = INSTALL[self.provider]
            raise Unavailable(f"{self.provider} is not there: {error}; {how}") from None

    def _more(self, device) -> dict:
        return {}

    def _bshd(self, x):
        """A view in this order of a tensor in the cell's, or the other way round."""
        return x if self.cell.format == "bshd" else x.transpose(0, 1)

    def _bhsd(self, x):
        return self._bshd(x).transpose(1, 2)

    def _from_bhsd(self, x):
        return self._bshd(x.transpose(1, 2))

    def bytes_read(self) -> int:
        return 0

    def exact(self, x, direction: str) -> tuple:
        """Of the angles: a provider's tables, as it gets them, are part of its error."""
        return self.exact_by(Rotation.cos_sin(self), x, direction)

    def _refuse_gradient(self, x) -> None:
        if x.requires_grad:
            raise Unavailable(f"{self.provider} has no backward pass")


class Tables(Peer):
    """A call by ready-made cosines and sines, which the layers of a model share.

    Of one tensor, ``[b, s, h, d]``, unless :meth:`forward` says otherwise.
    """

    whole = False  # whether the tables have a column for each channel, not for each pair
    rounds_products = False

    def __init__(self, cell, device):
        import torch

        super().__init__(cell, device)
        angle = self._angles[:, 0, 0].double()
        self._half = tuple(table.to(self._table_dtype()) for table in (angle.cos(), angle.sin()))
        columns = 2 if self.whole else 1
        self._cos, self._sin = (torch.cat([table] * columns, dim=-1) for table in self._half)
        if self.rounds_products:
            self.slack = product_rounding(getattr(torch, cell.dtype))

    def _table_dtype(self):
        import torch

        return getattr(torch, self.cell.dtype)

    def forward(self, x):
        return self._bshd(self._function(self._bshd(x), self._cos, self._sin))

    def _by_token(self) -> tuple:
        """Each token's position in the cell's order, and cosines beside sines for each position."""
        import torch

        positions = torch.arange(self.cell.seq_len, device=self._angles.device)
        tokens = self._bshd(positions[None].expand(self.cell.batch, -1)).flatten()
        return tokens, torch.cat(self._half, dim=-1)

    def cos_sin(self) -> tuple:
        """From the tables: their own rounding is an error that no other call here has."""
        return tuple(self._bshd(table.double()[None, :, None]) for table in self._half)


def product_rounding(dtype) -> float:
    """What rounding both products to ``dtype`` costs, over the length of the pair.

    With unit roundoff u, x1 cos and x2 sin err by at most u |x1 cos| + u |x2 sin|, which is at most
    u times the length of (x1, x2) times that of (cos, sin), itself 1 but for the tables' rounding.
    """
    import torch

    unit = torch.finfo(dtype).eps / 2
    return unit * (1 + 2 * unit)


class Pair(Tables):
    """Queries and keys in one call, each with its own memory.

    Each gets half of the heads of the cell, so that the two together have the bytes of the tensor
    that the others rotate. Two tensors as a projection leaves them: in the cell's order, seen as
    ``[b, h, s, d]``.
    """

    whole = True
    rounds_products = True
    rotated = (True, True)

    def __init__(self, cell, device):
        if cell.heads < 2:
            raise Unavailable(
                f"{self.provider} takes queries and keys: needs 2 heads or more, got {cell.heads}"
            )
        super().__init__(cell, device)

    def operand(self, x):
        return self.cotangent(x)

    def leaf(self, x):
        return leaves(self.cotangent(x))

    def forward(self, x):
        q, k = map(self._bhsd, x)
        return tuple(map(self._from_bhsd, self._rotate(q, k)))

    def _rotate(self, q, k) -> tuple:
        return self._function(q, k, self._cos[None], self._sin[None])

    def cotangent(self, x):
        keys = self.cell.heads // 2
        counts = self.cell.heads - keys, keys
        shapes = [self.cell.shape_of(count, self.cell.hidden_size) for count in counts]
        return one_after_the_other(x, shapes)

    def split(self, whole) -> tuple:
        return whole if isinstance(whole, tuple) else (whole,)
