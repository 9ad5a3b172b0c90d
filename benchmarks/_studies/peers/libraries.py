"""Adapters of other libraries' functions."""

import sys
import types

from .adapter import ByToken, HeadsFirst, Peer


class TransformerEngine(Peer):
    """Takes either order, of any strides."""

    provider = "transformer-engine"
    function = "transformer_engine.pytorch.attention.rope:apply_rotary_pos_emb"
    about = "fused apply_rotary_pos_emb with angles, rounded once"
    install = "pip install --no-build-isolation 'transformer_engine[pytorch]'"
    by_angles = True

    def _find(self):
        try:
            return super()._find()
        except ModuleNotFoundError:  # where older releases have it
            from transformer_engine.pytorch.attention import apply_rotary_pos_emb

            return apply_rotary_pos_emb

    def _tables(self) -> tuple:
        import torch

        return (torch.cat((self._angles,) * 2, dim=-1),)

    def forward(self, operand):
        format = self._call.format
        return self._function(operand, *self._arguments, tensor_format=format, fused=True)


class FlashAttention(Peer):
    """Takes any strides, and its result has them too."""

    provider = "flash-attention"
    function = "flash_attn.layers.rotary:apply_rotary_emb"
    about = "apply_rotary_emb by precomputed tables, rounded once; prefers bshd"
    layer = "apply_rotary_emb of each tensor; copies channels without angles first"
    install = "pip install --no-build-isolation flash-attn"
    most = 256  # channels that its kernel takes

    def _find(self):
        try:
            return super()._find()
        except ModuleNotFoundError as error:
            # A build without CUDA kernels imports them nevertheless; its rotation is in Triton.
            if error.name != "flash_attn_2_cuda":
                raise
            sys.modules[error.name] = types.ModuleType(error.name)
            return super()._find()

    def _more(self, device) -> dict:
        first = self._rows()[:, 0]
        offsets = {"seqlen_offsets": first.int()} if first.any() else {}
        return {"interleaved": self.interleaved} | offsets


class Liger(HeadsFirst):
    """Every step is rounded to the tables' dtype.

    Where CuTe DSL is installed, which quack needs too, large gradients are by another kernel than
    Liger's own in Triton: float32 inside. Memory in the order ``[b, s, h, d]`` is overwritten,
    forward and backward; any other is copied to that order first.
    """

    provider = "liger"
    function = "liger_kernel.transformers.rope:liger_rotary_pos_emb"
    about = "liger_rotary_pos_emb of queries and keys by tables, in place in bshd, all rounded"
    layer = (
        "liger_rotary_pos_emb of queries and keys by halves, in place: channels without angles are "
        "not touched; large gradients by CuTe DSL where that is installed"
    )
    install = "pip install liger-kernel"
    in_place = True


class Fla(FlashAttention):
    """Has flash-attention's signature.

    Makes its input ``[b, s, h, d]`` contiguous, fills its output with zeros first and copies the
    gradient before it turns it back: copies and fills that count.
    """

    provider = "fla"
    function = "fla.modules.rotary:rotary_embedding"
    about = "rotary_embedding by precomputed tables, rounded once; bshd, or it copies"
    layer = (
        "rotary_embedding of each tensor; copies views, gradients and channels without angles, "
        "fills its output first, checks start positions on the GPU"
    )
    install = "pip install flash-linear-attention"


class Quack(FlashAttention):
    """Has flash-attention's signature, and a kernel in CuTe DSL; any strides whose last is 1."""

    provider = "quack"
    function = "quack.rotary:apply_rotary_emb"
    about = "apply_rotary_emb by precomputed tables, in CuTe DSL, rounded once; prefers bshd"
    layer = "apply_rotary_emb of each tensor; copies channels without angles first"
    install = "pip install quack-kernels"
    step, most = 8, 512
    aligned = True


class HuggingFace(HeadsFirst):
    """Plain PyTorch, as Llama has it. Any strides."""

    provider = "huggingface"
    function = "transformers.models.llama.modeling_llama:apply_rotary_pos_emb"
    about = "Llama's apply_rotary_pos_emb of queries and keys by tables, every step rounded"
    install = "pip install transformers"


class Vllm(ByToken):
    """Today's kernel computes in float32 and rounds once; older ones round every product."""

    provider = "vllm"
    function = "vllm._custom_ops:rotary_embedding"
    about = "the operator rotary_embedding by tables, in place, forward only"
    layer = (
        "the operator rotary_embedding of all tensors, in place: channels without angles are not "
        "touched; forward only"
    )
    install = "pip install vllm"
    in_place = True
    rounds_products = True

    def forward(self, operand):
        rows, cache = self._arguments
        tensors = operand if isinstance(operand, tuple) else (operand, None)
        head = tensors[0].shape[-1]
        # A view also of the last channels of a row; it fails if that were a copy.
        tokens = (None if t is None else t.view(len(rows), *t.shape[2:]) for t in tensors)
        self._function(rows, *tokens, head, cache, not self.interleaved)
        return operand


class FlashInfer(ByToken):
    """Computes in float32, into new memory. The first call compiles the kernel by nvcc."""

    provider = "flashinfer"
    function = "flashinfer.rope:apply_rope_with_cos_sin_cache"
    about = (
        "apply_rope_with_cos_sin_cache of queries and keys, by float32 tables, rounded once; half "
        "precision, forward only"
    )
    layer = "apply_rope_with_cos_sin_cache of queries and keys by float32 tables; forward only"
    install = "pip install flashinfer-python"
    pairs = half_precision_only = float32_tables = True
    step = 32  # a thread reads 16 cosines, which must not reach beyond a half

    def forward(self, operand):
        rows, cache = self._arguments
        tokens = (x.view(len(rows), -1) for x in operand)
        head = operand[0].shape[-1]
        results = self._function(rows, *tokens, head, cache, not self.interleaved)
        return tuple(y.view(x.shape) for y, x in zip(results, operand, strict=True))


class Xformers(Peer):
    """Sequences one after the other, ``[1, b s, h, d]``; no backward.

    Takes no angles but computes those of base 10000 inside. It always rotates a key and copies a
    value into a cache, here of one head each: 2 / heads more bytes than are counted. A batch in
    sbhd is copied first, because its sequences must lie one after the other.
    """

    provider = "xformers"
    function = "xformers.ops.rope_padded:rope_padded"
    about = "rope_padded by positions, forward only; bshd, or it is copied"
    install = "pip install xformers"
    by_angles = True
    backward = False

    def __init__(self, cell, device):
        super().__init__(cell, device)
        # Of pow some 8 units in the last place, which the position multiplies, and of our angles.
        self.slack = cell.positions * 2.0**-20

    def _tables(self) -> tuple:
        """Keys, values, the cache of each, and the lengths of the sequences."""
        import torch
        from xformers.ops.fmha.attn_bias import BlockDiagonalCausalWithOffsetPaddedKeysMask

        lengths, device = list(self.cell.lengths), self._angles.device
        shape = (1, sum(lengths), 1, self._call.channels)
        dtype = getattr(torch, self.cell.dtype)
        others = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(4)]
        mask = BlockDiagonalCausalWithOffsetPaddedKeysMask.from_seqlens(
            q_seqlen=lengths, kv_padding=lengths[0], kv_seqlen=lengths, device=device
        )
        return *others, mask

    def _rotate(self, *tensors) -> tuple:
        (x,) = tensors
        rows = x.reshape(1, -1, *x.shape[2:])
        return (self._function(rows, *self._arguments, adjacents=False).view(x.shape),)


class Unsloth(HeadsFirst):
    """A launch for each tensor; every step rounded to the tables' dtype.

    Memory in the order ``[b, s, h, d]`` is overwritten, forward and backward; any other is copied
    to that order first. Where several GPUs can be seen it waits for them, and cannot be recorded.
    """

    provider = "unsloth"
    function = "unsloth.kernels.rope_embedding:fast_rope_embedding"
    about = "fast_rope_embedding of queries and keys by tables, in place in bshd, all rounded"
    install = "pip install unsloth"
    in_place = True

    def _tables(self) -> tuple:
        return tuple(table[0] for table in super()._tables())
