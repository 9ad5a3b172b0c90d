"""Megatron Core: the functions that it takes from TransformerEngine, on this package's kernel."""

import importlib
import warnings

import torch

from rope_triton import api
from rope_triton.integrations._patching import Patch

_MODULE = "megatron.core.models.common.embeddings.rope_utils"


def patch() -> Patch:
    """Let Megatron Core rotate by this package, with or without TransformerEngine.

    What is replaced are the functions that a model calls whose configuration has
    ``apply_rope_fusion``: ``fused_apply_rotary_pos_emb`` and ``fused_apply_rotary_pos_emb_thd``.

    Returns
    -------
    Patch
        Its ``close()`` restores the functions; in a ``with`` statement, the end of the block does.

    Raises
    ------
    ModuleNotFoundError
        If Megatron Core is not installed.
    """
    module = importlib.import_module(_MODULE)
    functions = fused_apply_rotary_pos_emb, fused_apply_rotary_pos_emb_thd
    return Patch({(module, function.__name__): function for function in functions})


def fused_apply_rotary_pos_emb(
    t: torch.Tensor,
    freqs: torch.Tensor,
    transpose_output_memory: bool = False,
    interleaved: bool = False,
) -> torch.Tensor:
    """Rotate ``[s, b, h, d]`` with angles ``[s, 1, 1, d2]``; Megatron Core's function of this name.

    ``transpose_output_memory`` is ignored with a warning, as TransformerEngine's is.

    Errors are as of :func:`rope_triton.apply_rotary_pos_emb`.

    References
    ----------
    ``megatron.core.extensions.transformer_engine.fused_apply_rotary_pos_emb``.
    """
    if transpose_output_memory:
        warnings.warn("transpose_output_memory is not supported and is ignored", stacklevel=2)
    return api.apply_rotary_pos_emb(t, freqs, tensor_format="sbhd", interleaved=interleaved)


def fused_apply_rotary_pos_emb_thd(
    t: torch.Tensor,
    cu_seqlens: torch.Tensor,
    freqs: torch.Tensor,
    cp_size: int = 1,
    cp_rank: int = 0,
    interleaved: bool = False,
) -> torch.Tensor:
    """Rotate packed sequences ``[t, h, d]``; Megatron Core's function of this name.

    ``cu_seqlens`` are the bounds of the whole sequences, ``[b + 1]``, and ``freqs`` the angles of
    the longest, ``[s, 1, 1, d2]``.

    Errors are as of :func:`rope_triton.apply_rotary_pos_emb`.

    References
    ----------
    ``megatron.core.extensions.transformer_engine.fused_apply_rotary_pos_emb_thd``.
    """
    return api.apply_rotary_pos_emb(
        *(t, freqs, "thd"),
        interleaved=interleaved,
        cu_seqlens=cu_seqlens,
        cp_size=cp_size,
        cp_rank=cp_rank,
    )
