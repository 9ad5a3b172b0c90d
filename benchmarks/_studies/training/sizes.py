"""The models whose training step is measured, and its floating-point operations. Imports no torch.

Tritonformer (github.com/fattorib/tritonformer) measures 410M, 840M and 1.4B at contexts of 2048 and
4096, and gives no shapes. Here they are GPT-NeoX's, 24 layers and 50,304 tokens in the vocabulary
(Pythia 410M and 1.4B), with Llama's SwiGLU of 8/3 of the width, rounded up to a multiple of 128.
"""

from typing import NamedTuple

STEP, ATTENTION = "step", "attention"
PRODUCTS, CAUSAL_FORWARD, CAUSAL = "products", "causal-forward", "causal"
KERNELS = (PRODUCTS, CAUSAL_FORWARD, CAUSAL)
"""A layer's products with their gradients; causal attention without and with its gradients."""
PARTS = (STEP, ATTENTION, *KERNELS)
"""First forward and backward of the network and loss, and of one attention sublayer."""

PEAK_FLOPS = {"NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H200": 989e12}
"""Dense bfloat16 FLOP/s, by NVIDIA's data sheets. PCIe and NVL cards have other clocks."""


class Size(NamedTuple):
    """A model. ``channels`` of each head, ``tokens`` of a step over all sequences."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    channels: int
    mlp_width: int
    vocabulary: int
    tokens: int = 16384


SIZES = {
    "410M": Size(24, 1024, 16, 16, 64, 2816, 50304),
    "840M": Size(24, 1536, 12, 12, 128, 4096, 50304),
    "1.4B": Size(24, 2048, 16, 16, 128, 5504, 50304),
    # Trained for the loss curves of parity.py, on bytes.
    "parity": Size(4, 256, 4, 4, 64, 768, 256, tokens=2048),
    # For tests on a CPU: two heads of queries share one of keys and values.
    "tiny": Size(2, 32, 4, 2, 16, 48, 64, tokens=48),
}


class Point(NamedTuple):
    """A size at a context: the tokens of each sequence."""

    size: str
    context: int

    def __str__(self) -> str:
        return f"{self.size}-{self.context}"

    @property
    def shape(self) -> Size:
        return SIZES[self.size]

    @property
    def batch(self) -> int:
        return self.shape.tokens // self.context

    def flops(self, part: str) -> int:
        """Floating-point operations that a part of the model needs, forward and backward.

        ``6 N T + 6 L S H D T`` for ``N`` matrix elements, ``T`` tokens in sequences of ``S``, and
        ``L`` layers of ``H`` heads of ``D`` channels. A product of matrices takes 2 operations an
        element and token forward and 4 backward. The two products of attention take ``2 S H D`` a
        token each, half of that under the causal mask, and twice as much again backward. What is
        computed anew, as attention does in its backward, does not count, nor does the lookup of
        embeddings. The head does.

        Source: A. Chowdhery et al., PaLM, https://arxiv.org/abs/2204.02311, appendix B; there
        attention is counted without the mask, ``12 L H D S`` a token.
        """
        size = self.shape
        layers = size.layers if part == STEP else 1
        attention = size.width * size.channels * 2 * (size.heads + size.kv_heads)
        mlp = 3 * size.width * size.mlp_width
        matrices = {STEP: attention + mlp, PRODUCTS: attention + mlp, ATTENTION: attention}
        elements = layers * matrices.get(part, 0)
        elements += size.width * size.vocabulary if part == STEP else 0
        scores = 0 if part == PRODUCTS else layers * self.context * size.heads * size.channels
        directions = 2 if part == CAUSAL_FORWARD else 6
        return directions * size.tokens * (elements + scores)


POINTS = {
    str(point): point
    for point in (Point(size, context) for size in SIZES for context in (2048, 4096))
    if point.size not in ("parity", "tiny")
}
"""What ``python -m benchmarks study training`` measures, by name."""

PARITY = Point("parity", 256)
TINY = Point("tiny", 24)
