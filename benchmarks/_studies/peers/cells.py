"""The cells in which every provider is measured, and the bytes a call must move. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from ..._subjects.rope import names
from ..._subjects.rope.cells import (
    ANGLES,
    DTYPE_WORDS,
    TABLES,
    BaseModelCell,
    RopeCell,
    SizedCell,
)
from ..._subjects.rope.grid import Grid, cells_of
from . import calls, models
from .providers import PROVIDERS


class _Peer(RopeCell):
    """What one provider is measured in; its fields are those of a frozen dataclass."""

    # Where it rotates one tensor of queries.
    seq_len: int
    hidden_size: int
    heads: int
    batch: int
    format: str

    @property
    def point(self):
        return replace(self, provider="")  # type: ignore[type-var]


@dataclass(frozen=True)
class PeerCell(_Peer):
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
    def call_name(self) -> names.CallName:
        dtype = DTYPE_WORDS[self.dtype]
        return names.named(ANGLES, self.format, dtype, self.heads, self.hidden_size)

    @property
    def lengths(self) -> tuple[int, ...]:  # type: ignore[override]
        return (self.seq_len,) * self.batch

    def call(self, device):
        """The provider's call on a device: see ``calls.of``."""
        return calls.of(self, device)


class _ModelCall(_Peer, SizedCell):
    """What a layer rotates, by one of ``models.ADAPTERS``."""

    provider: str

    @property
    def takes(self) -> str:  # type: ignore[override]
        return ANGLES if self.provider == "rope-triton" else TABLES

    def call(self, device):
        """The provider's calls on a device."""
        return models.ADAPTERS[self.provider](self, device)


@dataclass(frozen=True)
class PeerModelCell(_ModelCall, BaseModelCell):
    """A call of a model."""

    suite = "peer_models"
    provider: str
    model: str
    step: str


@dataclass(frozen=True)
class PeerNamedCell(_ModelCall):
    """A call whose name has its size: see ``names.parse_sized``."""

    suite = "peer_named"
    provider: str
    name: str

    @property
    def sized_name(self) -> str:  # type: ignore[override]
        return self.name


AnyCell = PeerCell | PeerModelCell | PeerNamedCell
_KINDS = {len(fields(kind)): kind for kind in (PeerCell, PeerModelCell, PeerNamedCell)}


def of_values(values: Sequence) -> AnyCell:
    """The cell that has these values; their number says of which kind it is.

    Raises
    ------
    ValueError
        If no kind has so many.
    """
    if len(values) not in _KINDS:
        raise ValueError(f"no cell has {len(values)} values")
    return _KINDS[len(values)](*values)


# 16 cells for each provider, inside an L2 and far beyond it; a batch of four tells the formats
# apart. torch.compile takes seconds for each: `sweep` has the finer steps.
_FULL = {
    "provider": tuple(PROVIDERS),
    "seq_len": (256, 4096),
    "hidden_size": (128,),
    "heads": (64,),
    "batch": (1, 4),
    "dtype": ("float32", "bfloat16"),
    "format": ("sbhd", "bshd"),
}
PEER_GRIDS: dict[str, Grid] = {
    "full": _FULL,
    "small": _FULL | {"seq_len": (4096,), "dtype": ("bfloat16",)},
}


def peer_cells(grid: Grid) -> list[PeerCell]:
    """Every cell of a grid, provider by provider, in the fixed order in which it is measured."""
    return cells_of(PeerCell, grid)
