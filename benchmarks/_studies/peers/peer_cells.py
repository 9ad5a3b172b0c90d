"""The cells in which every provider is measured, and the bytes a call must move. No torch."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..._subjects.rope.cells import (
    ANGLES,
    DTYPE_WORDS,
    TABLES,
    BaseModelCell,
    RopeCell,
    SizedCell,
)
from ..._subjects.rope.grid import Grid
from ..._subjects.rope.names import CallName
from .adapter import Provider
from .providers import ADAPTERS, PROVIDERS

FORMATS = ("sbhd", "bshd")


class _Peer(RopeCell):
    """What one provider is measured in; its fields are those of a frozen dataclass."""

    provider: str
    # Where it rotates one tensor.
    seq_len: int
    hidden_size: int
    heads: int
    batch: int
    format: str

    @property
    def adapter(self) -> type[Provider]:
        if self.provider not in ADAPTERS:
            raise ValueError(f"provider must be one of {list(ADAPTERS)}, got {self.provider!r}")
        return ADAPTERS[self.provider]

    def call(self, device) -> Provider:
        """The provider's call on a device.

        Raises
        ------
        Unavailable
            If the provider is not installed, or cannot do what the cell asks for.
        ValueError
            If there is no such provider or format.
        """
        return self.adapter(self, device)

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
    def call_name(self) -> CallName:
        if self.format not in FORMATS:
            raise ValueError(f"format must be one of {FORMATS}, got {self.format!r}")
        keys = self.heads // 2
        pairs, by_angles = (self.adapter.pairs, self.adapter.by_angles) if self.provider else (0, 1)
        heads = (self.heads - keys, keys) if pairs else (self.heads,)
        function = "qktables" if pairs else ANGLES if by_angles else TABLES
        channels = self.hidden_size, self.hidden_size
        return CallName(function, self.format, DTYPE_WORDS[self.dtype], heads, *channels)

    @property
    def lengths(self) -> tuple[int, ...]:  # type: ignore[override]
        return (self.seq_len,) * self.batch


class _ModelCall(_Peer, SizedCell):
    """What a layer rotates."""

    @property
    def takes(self) -> str:  # type: ignore[override]
        return ANGLES if self.provider == "rope-triton" else TABLES


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
KINDS: dict[str, Callable[..., AnyCell]] = {
    kind.suite: kind for kind in (PeerCell, PeerModelCell, PeerNamedCell)
}


# 16 cells for each provider, inside an L2 and far beyond it; a batch of four tells the formats
# apart. torch.compile takes seconds for each: the study has the finer steps.
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
