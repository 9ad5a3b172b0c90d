"""The package's functions in plain PyTorch, differentiable and in every dtype, for tests on a CPU.

Triton's interpreter takes seconds for a call and is wrong for long angles.
"""

import functools

import rope_triton
from rope_triton import reference

apply_rotary_pos_emb = functools.partial(rope_triton.apply_rotary_pos_emb, fused=False)
apply_rotary_emb = functools.partial(rope_triton.apply_rotary_emb, fused=False)
rotary_embedding = functools.partial(rope_triton.rotary_embedding, fused=False)


def apply_fused_qkv_rotary_pos_emb(qkv, q_freqs, k_freqs, qkv_split_arg_list, tensor_format):
    parts = qkv.split(qkv_split_arg_list, dim=-1)
    q, k, v = (part.reshape(*qkv.shape[:2], -1, qkv_split_arg_list[2]) for part in parts)
    return (
        apply_rotary_pos_emb(q, q_freqs, tensor_format),
        apply_rotary_pos_emb(k, k_freqs, tensor_format),
        v,
    )


def apply_qk_rotary_pos_emb(q, k, freqs, tensor_format):
    return tuple(apply_rotary_pos_emb(x, freqs, tensor_format) for x in (q, k))


def rotated(x, angle, interleaved):
    """Of ``[t, h, d]`` by ``[t, d2/2]``, in plain PyTorch."""
    tables = angle.cos()[:, None, None], angle.sin()[:, None, None]
    return reference.rotate(x[:, None], *tables, interleaved=interleaved)[:, 0]


FUNCTIONS = {
    "apply_rotary_pos_emb": apply_rotary_pos_emb,
    "apply_qk_rotary_pos_emb": apply_qk_rotary_pos_emb,
    "apply_fused_qkv_rotary_pos_emb": apply_fused_qkv_rotary_pos_emb,
    "apply_rotary_emb": apply_rotary_emb,
    "rotary_embedding": rotary_embedding,
}


def install(patch) -> None:
    """Let these be the package's, as long as the patch lasts."""
    for name, function in FUNCTIONS.items():
        patch.setattr(rope_triton, name, function)
