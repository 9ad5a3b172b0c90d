"""vLLM: its operator on this package's kernel."""

import torch

from rope_triton import api, checks
from rope_triton.integrations._errors import renamed


def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor | None,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
    rope_dim_offset: int = 0,
    inverse: bool = False,
) -> None:
    """Rotate queries and keys in place; signature of vLLM's operator ``rotary_embedding``.

    Parameters
    ----------
    positions : torch.Tensor
        Row of the cache for each token, any shape, int32 or int64. A token whose row is beyond the
        cache stays as it is.
    query, key : torch.Tensor
        ``[.., heads * head_size]`` or ``[.., heads, head_size]``, with the tokens in the first
        dimensions; float32, float16 or bfloat16; their channels must be contiguous. The numbers of
        heads may differ, and ``key`` may be None.
    head_size : int
        Channels of a head.
    cos_sin_cache : torch.Tensor
        ``[n, d2]`` with ``d2 <= head_size``: cosines, then as many sines, one for each pair of
        channels.
    is_neox : bool
        Whether the pairs are ``(i, i + d2/2)``, not ``(2i, 2i + 1)``.
    rope_dim_offset : int
        The first channel of a head that is rotated.
    inverse : bool
        Rotate back.

    Raises
    ------
    TypeError, ValueError
        As in :func:`rope_triton.apply_rotary_emb`; also if a shape is not one of these.

    References
    ----------
    ``vllm._custom_ops.rotary_embedding``.
    """
    checks.check_tensors(positions=positions, query=query, cos_sin_cache=cos_sin_cache)
    if key is not None:
        checks.check_tensors(key=key)
    if cos_sin_cache.dim() != 2 or cos_sin_cache.shape[1] % 2:
        raise ValueError(
            "cos_sin_cache must have shape [n, d2] with an even d2, "
            f"got {tuple(cos_sin_cache.shape)}"
        )
    if head_size < 1 or not 0 <= rope_dim_offset <= head_size - cos_sin_cache.shape[1]:
        raise ValueError(
            f"a head of {head_size} channels cannot be rotated in {cos_sin_cache.shape[1]}, as "
            f"cos_sin_cache has, from rope_dim_offset={rope_dim_offset} on"
        )
    cos, sin = cos_sin_cache.chunk(2, dim=-1)
    starts = positions.flatten()
    heads = {"query": _by_token("query", query, starts.numel(), head_size)}
    if key is not None:
        heads["key"] = _by_token("key", key, starts.numel(), head_size)
        _check_keys(heads["query"], heads["key"])
    for name, part in heads.items():
        x = part[:, None, :, rope_dim_offset:]  # a token is a sequence of one position
        try:
            api.rotate_tokens_(x, cos, sin, starts, interleaved=not is_neox, inverse=inverse)
        except (TypeError, ValueError) as error:
            names = dict.fromkeys(("cos and sin", "cos", "sin"), "cos_sin_cache")
            names |= {"x": name, "seqlen_offsets": "positions"}
            raise renamed(error, names) from error


def _check_keys(queries, keys):
    """Raise before the queries are rotated, unless what rotates them can rotate the keys."""
    if keys.dtype != queries.dtype or keys.device != queries.device:
        raise ValueError(
            "query and key must have one dtype and one device, got "
            f"{queries.dtype} {queries.device} and {keys.dtype} {keys.device}"
        )
    checks.check_writable(keys)


def _by_token(name, x, tokens, head_size):
    """A view ``[tokens, heads, head_size]``."""
    by_head = x.dim() > 2 and x.shape[-1] == head_size and x.shape[:-2].numel() == tokens
    if not by_head:
        if x.shape[:-1].numel() != tokens or x.shape[-1] % head_size:
            raise ValueError(
                f"{name} must have {tokens} tokens, as positions has, of heads of {head_size} "
                f"channels: got {tuple(x.shape)}"
            )
        x = x.unflatten(-1, (-1, head_size))
    return x.view(tokens, *x.shape[-2:])
