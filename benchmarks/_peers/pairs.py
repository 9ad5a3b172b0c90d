"""Adapters of other libraries' functions of queries and keys, ``[b, h, s, d]``.

Each gets half of the heads as queries and half as keys, see ``adapter.Pair``: no head is rotated
for nothing, none twice, and no part of a kernel's tile is masked out.
"""

from .adapter import Pair


class Liger(Pair):
    """``liger_rotary_pos_emb``: both in one launch; every step rounded to the tables' dtype.

    Memory in the order ``[b, s, h, d]`` is overwritten, forward and backward; any other is copied
    to that order first.
    """

    provider = "liger"
    in_place = True

    def _find(self):
        from liger_kernel.transformers.rope import liger_rotary_pos_emb

        return liger_rotary_pos_emb


class HuggingFace(Pair):
    """Llama's ``apply_rotary_pos_emb``, plain PyTorch; every step rounded. Any strides."""

    provider = "huggingface"

    def _find(self):
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        return apply_rotary_pos_emb


class Unsloth(Pair):
    """``fast_rope_embedding``: a launch each; every step rounded to the tables' dtype.

    Memory in the order ``[b, s, h, d]`` is overwritten, forward and backward; any other is copied
    to that order first. Where several GPUs can be seen it waits for them, and cannot be recorded.
    """

    provider = "unsloth"
    in_place = True

    def _find(self):
        from unsloth.kernels.rope_embedding import fast_rope_embedding

        return fast_rope_embedding

    def _rotate(self, q, k) -> tuple:
        return self._function(q, k, self._cos, self._sin)
