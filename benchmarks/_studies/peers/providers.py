"""The one list of providers: a class for each, which says what is called. Imports no torch."""

from . import libraries, plain
from .adapter import Provider
from .seed import Seed

ADAPTERS: dict[str, type[Provider]] = {
    adapter.provider: adapter
    for adapter in (
        *(plain.Angles, plain.OwnTables, plain.Copy, plain.Formula),
        *(plain.Compiled, plain.CompiledAngles, Seed),
        *(libraries.TransformerEngine, libraries.FlashAttention, libraries.Liger, libraries.Fla),
        *(libraries.Quack, libraries.HuggingFace, libraries.Vllm, libraries.FlashInfer),
        libraries.Xformers,
        libraries.Unsloth,  # last: importing it changes torch and Transformers
    )
}
PROVIDERS = {name: adapter.about for name, adapter in ADAPTERS.items()}
"""What each computes of one tensor."""

_LAYERS = ("rope-triton", "rope-triton-tables", "copy", "flash-attention", "fla", "liger", "quack")
MODEL_CALLS = {name: ADAPTERS[name].layer for name in (*_LAYERS, "vllm", "flashinfer")}
"""What is called for a layer of a model, by each provider that is measured there."""

INSTALL = {name: adapter.install for name, adapter in ADAPTERS.items() if adapter.install}
"""How to install a library."""
