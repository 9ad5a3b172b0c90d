"""Find the adapter that calls a provider."""

from typing import Any

from ..._subjects.rope.rotation import Rotation
from .libraries import Fla, FlashAttention, Quack, TransformerEngine, Vllm, Xformers
from .pairs import FlashInfer, HuggingFace, Liger, Unsloth
from .plain import Angles, Compiled, CompiledAngles, Copy, Formula, OwnTables
from .seed import Seed

ADAPTERS: dict[str, type[Rotation]] = {
    "rope-triton": Angles,
    "rope-triton-tables": OwnTables,
    "copy": Copy,
    "pytorch": Formula,
    "compile": Compiled,
    "compile-angles": CompiledAngles,
    "seed": Seed,
    "transformer-engine": TransformerEngine,
    "flash-attention": FlashAttention,
    "liger": Liger,
    "fla": Fla,
    "quack": Quack,
    "huggingface": HuggingFace,
    "vllm": Vllm,
    "flashinfer": FlashInfer,
    "xformers": Xformers,
    "unsloth": Unsloth,
}
FORMATS = ("sbhd", "bshd")


def of(cell: Any, device: str) -> Rotation:
    """The call of a cell, on a device; see ``rotation.Rotation``.

    Raises
    ------
    Unavailable
        If the provider is not installed, or cannot do what the cell asks for.
    ValueError
        If there is no such provider or format.
    """
    if cell.provider not in ADAPTERS:
        raise ValueError(f"provider must be one of {list(ADAPTERS)}, got {cell.provider!r}")
    if cell.format not in FORMATS:
        raise ValueError(f"format must be one of {FORMATS}, got {cell.format!r}")
    return ADAPTERS[cell.provider](cell, device)
