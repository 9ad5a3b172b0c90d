"""The cells in which every provider is measured, and the bytes a call must move. No torch."""

from collections.abc import Callable

from ..._subjects.rope import models
from ..._subjects.rope.cells import ANGLES, DTYPE_WORDS, TABLES, RopeCell, sized
from ..._subjects.rope.grid import Grid
from ..._subjects.rope.names import CallName
from .adapter import Provider
from .providers import ADAPTERS, PROVIDERS

FORMATS = ("sbhd", "bshd")


class PeerCell(RopeCell):
    """One provider's call: the first of the values is its name."""

    @property
    def provider(self) -> str:
        return self.values[0]

    def call(self, device: str) -> Provider:
        """The provider's call on a device.

        Raises
        ------
        Unavailable
            If the provider is not installed, or cannot do what the cell asks for.
        """
        return ADAPTERS[self.provider](self, device)

    @property
    def point(self) -> tuple:
        return self.suite, self.values[1:]

    def by(self, provider: str) -> "PeerCell":
        """Another provider's cell at the same point."""
        return SUITES[self.suite](provider, *self.values[1:])


def peer_cell(
    provider: str, seq_len: int, hidden_size: int, heads: int, batch: int, dtype: str, format: str
) -> PeerCell:
    """One provider's rotation of one tensor of queries, forward or backward.

    Raises
    ------
    ValueError
        If there is no such provider or format.
    """
    if format not in FORMATS:
        raise ValueError(f"format must be one of {FORMATS}, got {format!r}")
    values = provider, seq_len, hidden_size, heads, batch, dtype, format
    keys, pairs = heads // 2, _adapter(provider).pairs
    call = CallName(
        "qktables" if pairs else _takes(provider),
        *(format, DTYPE_WORDS[dtype]),
        (heads - keys, keys) if pairs else (heads,),
        *(hidden_size, hidden_size),
    )
    return PeerCell("peers", values, call, (seq_len,) * batch, (0,) * batch)


def peer_model_cell(provider: str, model: str, step: str) -> PeerCell:
    """What a layer of a model rotates in the step "training" or "decode"."""
    sizes = sized(models.sized_name(model, step), _takes(provider))
    return PeerCell("peer_models", (provider, model, step), **sizes)


def peer_named_cell(provider: str, name: str) -> PeerCell:
    """What a layer rotates, by its name with a size: see ``names.parse_sized``."""
    return PeerCell("peer_named", (provider, name), **sized(name, _takes(provider)))


def _takes(provider: str) -> str:
    return ANGLES if _adapter(provider).by_angles else TABLES


def _adapter(provider: str) -> type[Provider]:
    if provider not in ADAPTERS:
        raise ValueError(f"provider must be one of {list(ADAPTERS)}, got {provider!r}")
    return ADAPTERS[provider]


SUITES: dict[str, Callable[..., PeerCell]] = {
    "peers": peer_cell,
    "peer_models": peer_model_cell,
    "peer_named": peer_named_cell,
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
