"""Adapters of other libraries' functions of queries and keys.

Each gets half of the heads as queries and half as keys, see ``adapter.Pair``: no head is rotated
for nothing, none twice, and no part of a kernel's tile is masked out.
"""

from ..._subject import Unavailable
from .adapter import Pair


class Liger(Pair):
    """``liger_rotary_pos_emb``: both in one launch; every step rounded to the tables' dtype.

    Where CuTe DSL is installed, which quack needs too, large gradients are by another kernel than
    Liger's own in Triton: float32 inside.

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


class FlashInfer(Pair):
    """``apply_rope_with_cos_sin_cache``: both in one launch, by token; no backward.

    float32 tables, float32 inside, rounded once, into new memory. Tokens come in the cell's order,
    so nothing is copied in either. The first call compiles the kernel by nvcc.
    """

    provider = "flashinfer"
    rounds_products = False
    step = 32  # a thread reads 16 cosines, which must not reach beyond a half

    def __init__(self, cell, device):
        if cell.dtype == "float32":
            raise Unavailable(f"{self.provider} takes float16 and bfloat16, got {cell.dtype}")
        if cell.hidden_size % self.step:
            raise Unavailable(
                f"{self.provider} takes multiples of {self.step} channels, got {cell.hidden_size}"
            )
        super().__init__(cell, device)
        self._tokens, self._cache = self._by_token()

    def _find(self):
        from flashinfer.rope import apply_rope_with_cos_sin_cache

        return apply_rope_with_cos_sin_cache

    def _table_dtype(self):
        import torch

        return torch.float32

    def forward(self, x):
        self._refuse_gradient(x[0])
        tokens = [each.view(len(self._tokens), -1) for each in x]
        head = self.cell.hidden_size
        out = self._function(self._tokens, *tokens, head, self._cache, True)
        return tuple(each.view(given.shape) for each, given in zip(out, x, strict=True))
