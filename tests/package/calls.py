"""Each of the package's functions as a call on one tensor, ``[BATCH, SEQ, HEADS, CHANNELS]``.

Each is linear in it, and gives one tensor or several. Angles, tables and positions have strides
that no copy of them has.
"""

import torch

import rope_triton

BATCH, SEQ, HEADS, CHANNELS = 2, 4, 3, 16


_ANGLES = torch.linspace(-25, 25, SEQ * 2 * CHANNELS).view(SEQ, 1, 1, -1)


def angles(device):
    return _ANGLES.to(device)[..., ::2]


def tables(device):
    half = angles(device)[:, 0, 0, : CHANNELS // 2]
    return half.cos().mT.contiguous().mT, half.sin()


def indices(values, device):
    return torch.tensor(values, dtype=torch.int32, device=device).repeat_interleave(2, -1)[..., ::2]


def by_angles(x, **options):
    return rope_triton.apply_rotary_pos_emb(x, angles(x.device), "bshd", **options)


def moved(x, **options):
    return by_angles(x, start_positions=indices([1, -9], x.device), **options)


def packed(x, **options):
    options.setdefault("cu_seqlens", indices([0, 1, SEQ], x.device))
    return rope_triton.apply_rotary_pos_emb(x[0], angles(x.device), "thd", **options)


def by_tables(x, **options):
    return rope_triton.apply_rotary_emb(x, *tables(x.device), **options)


def in_place(x, **options):
    return by_tables(x.clone(), inplace=True, **options)


def heads_first(x, **options):
    return rope_triton.rotary_embedding(x.transpose(1, 2), *tables(x.device), **options)


def heads_first_by_ids(x, **options):
    ids = indices([[0, 3, 1, 1], [9, -1, 2, 0]], x.device)
    return heads_first(x, position_ids=ids, **options)


def both_by_angles(x, **options):
    return rope_triton.apply_qk_rotary_pos_emb(x, x[:, :, :1], angles(x.device), "bshd", **options)


def both_by_tables(x, **options):
    return rope_triton.apply_qk_rotary_emb(x, x[:, :, :1], *tables(x.device), **options)


def joined(x, split=(2 * CHANNELS, CHANNELS, CHANNELS), **options):
    """A group of two heads of queries, one of keys and one of values."""
    full = torch.cat([x] * 4, dim=-1) if isinstance(x, torch.Tensor) else x
    freqs = angles(x.device)
    return rope_triton.apply_fused_qkv_rotary_pos_emb(full, freqs, freqs, split, "bshd", **options)


CALLS = {
    call.__name__: call
    for call in (
        *(by_angles, moved, packed, by_tables, in_place, heads_first, heads_first_by_ids),
        *(both_by_angles, both_by_tables, joined),
    )
}
WITHOUT_PLAIN = both_by_tables, joined
"""Those that have no argument ``fused``."""


def parts(result):
    """A tuple of the tensors of a result."""
    return result if isinstance(result, tuple) else (result,)


def random(device, dtype=torch.float32):
    return torch.randn(BATCH, SEQ, HEADS, CHANNELS, device=device, dtype=dtype)
