"""What is measured of every provider, and the bytes each call must move. Imports no torch."""

from dataclasses import dataclass

from .._grid import ITEM_BYTES, Timed


@dataclass(frozen=True)
class PeerCell(Timed):
    """One provider's rotation of one tensor of queries, forward or backward."""

    suite = "peers"
    provider: str
    seq_len: int
    hidden_size: int
    heads: int
    batch: int
    dtype: str
    format: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor that is rotated, in the order of ``format``."""
        leading = (self.seq_len, self.batch)
        ordered = leading if self.format == "sbhd" else leading[::-1]
        return (*ordered, self.heads, self.hidden_size)

    @property
    def lengths(self) -> tuple[int, ...]:
        return (self.seq_len,) * self.batch

    @property
    def bytes_moved(self) -> int:
        """Bytes a call must move: the input once and the output once (not angles or tables)."""
        elements = self.seq_len * self.batch * self.heads * self.hidden_size
        return 2 * elements * ITEM_BYTES[self.dtype]
