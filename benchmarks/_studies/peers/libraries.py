"""Adapters of other libraries' functions of one tensor."""

import sys
import types

from ..._subject import Unavailable
from .adapter import Peer, Tables


class TransformerEngine(Peer):
    """``apply_rotary_pos_emb(..., fused=True)``: angles, float32 inside, rounded once.

    Takes either order, of any strides.
    """

    provider = "transformer-engine"

    def _find(self):
        try:
            from transformer_engine.pytorch.attention.rope import apply_rotary_pos_emb
        except ModuleNotFoundError:  # where older releases have it
            from transformer_engine.pytorch.attention import apply_rotary_pos_emb
        return apply_rotary_pos_emb

    def _more(self, device) -> dict:
        return {"tensor_format": self.cell.format, "fused": True}


class FlashAttention(Tables):
    """``apply_rotary_emb``: tables in the tensor's dtype, float32 inside, rounded once.

    Prefers ``[b, s, h, d]``; takes any strides, and its result has them too.
    """

    provider = "flash-attention"
    step, most = 2, 256  # channels that its kernel takes

    def __init__(self, cell, device):
        if cell.hidden_size > self.most or cell.hidden_size % self.step:
            raise Unavailable(
                f"{self.provider} takes multiples of {self.step} channels up to {self.most}, "
                f"got {cell.hidden_size}"
            )
        super().__init__(cell, device)

    def _find(self):
        try:
            return _flash_attention()
        except ModuleNotFoundError as error:
            # A build without CUDA kernels imports them nevertheless; its rotation is in Triton.
            if error.name != "flash_attn_2_cuda":
                raise
            sys.modules[error.name] = types.ModuleType(error.name)
            return _flash_attention()


def _flash_attention():
    from flash_attn.layers.rotary import apply_rotary_emb

    return apply_rotary_emb


class Fla(FlashAttention):
    """``rotary_embedding``: tables in the tensor's dtype, float32 inside, rounded once.

    Makes its input ``[b, s, h, d]`` contiguous, fills its output with zeros first and copies the
    gradient before it turns it back: copies and fills that count.
    """

    provider = "fla"

    def _find(self):
        from fla.modules.rotary import rotary_embedding

        return rotary_embedding


class Quack(FlashAttention):
    """``apply_rotary_emb``: flash-attention's signature, by a kernel in CuTe DSL.

    Tables in the tensor's dtype, as the others get them; float32 inside, rounded once. Takes any
    strides whose last is 1.
    """

    provider = "quack"
    step, most = 8, 512

    def _find(self):
        from quack.rotary import apply_rotary_emb

        return apply_rotary_emb


class Vllm(Tables):
    """The operator ``rotary_embedding`` on the queries alone, by token, in place; no backward.

    Tables in the tensor's dtype. Today's kernel computes in float32 and rounds once; older ones
    round every product, hence the tolerance. Tokens come in the cell's order.
    """

    provider = "vllm"
    in_place = True
    rounds_products = True

    def __init__(self, cell, device):
        super().__init__(cell, device)
        self._tokens, self._cache = self._by_token()

    def _find(self):
        from vllm._custom_ops import rotary_embedding

        return rotary_embedding

    def forward(self, x):
        self._refuse_gradient(x)
        tokens = x.view(len(self._tokens), -1)
        self._function(self._tokens, tokens, None, self.cell.hidden_size, self._cache, True)
        return x


class Xformers(Peer):
    """``rope_padded``: sequences one after the other, ``[1, b s, h, d]``; no backward.

    Takes no angles but computes those of base 10000 inside; rounded once. It always rotates a key
    and copies a value into a cache, here of one head each: 2 / heads more bytes than are counted.
    A batch in sbhd is copied first, because its sequences must lie one after the other.
    """

    provider = "xformers"

    def __init__(self, cell, device):
        import torch

        super().__init__(cell, device)
        dtype = getattr(torch, cell.dtype)
        shape = (1, cell.batch * cell.seq_len, 1, cell.hidden_size)
        # Keys, values, and the cache of each.
        self._others = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(4)]
        self._bias = self._sequences(device)
        # Of pow some 8 units in the last place, which the position multiplies, and of our angles.
        self.slack = cell.positions * 2.0**-20

    def _find(self):
        from xformers.ops.rope_padded import rope_padded

        return rope_padded

    def _sequences(self, device):
        from xformers.ops.fmha.attn_bias import BlockDiagonalCausalWithOffsetPaddedKeysMask

        lengths = list(self.cell.lengths)
        return BlockDiagonalCausalWithOffsetPaddedKeysMask.from_seqlens(
            q_seqlen=lengths, kv_padding=self.cell.seq_len, kv_seqlen=lengths, device=device
        )

    def forward(self, x):
        self._refuse_gradient(x)
        sequences = self._bshd(x)
        rows = sequences.reshape(1, -1, *x.shape[2:])
        out = self._function(rows, *self._others, self._bias, adjacents=False)
        return self._bshd(out.view(sequences.shape))
