"""A transformer with RoPE, written once: a provider supplies the functions that it is made of.

RMSNorm before attention and before the SwiGLU, no biases, embedding and head untied, as in Llama. A
layer ends with the norm that the next one, or the head, begins with: so each norm but the first is
of a sum, for kernels that compute both.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from ..._subjects.rope import angles
from .. import compiling
from .sizes import Point, Size

EPS = 1e-5


class Functions(NamedTuple):
    """What a network calls. Queries, keys and values are ``[b, s, h, d]``.

    tables(angles, dtype): what ``rope`` takes, from angles ``[s, 1, 1, d]`` in radians, float32.
    rope(q, k, tables): rotated queries and keys. norm(x, weight): RMSNorm of ``[..., width]``.
    linear(x, weight): ``x @ weight.T``. attention(q, k, v): causal; fewer heads of keys and values
    are shared. activation(gate, up): of the SwiGLU. loss(logits, targets): the mean cross-entropy
    of ``[tokens, vocabulary]``.

    Fused ones, where a provider has them: split_rope(qkv, tables, heads, kv_heads), rotated queries
    and keys, and values, of a projection; rotary_attention(x, weight, tables, heads, kv_heads), the
    projection, rope and attention, ``[b, s, h * d]``; add_norm(x, added, weight), the norm of the
    sum and the sum; linear_loss(x, weight, targets), the loss of ``linear``.
    """

    tables: Callable
    rope: Callable
    norm: Callable
    linear: Callable
    attention: Callable
    activation: Callable
    loss: Callable
    split_rope: Callable | None = None
    rotary_attention: Callable | None = None
    add_norm: Callable | None = None
    linear_loss: Callable | None = None


class Layer(NamedTuple):
    """The weights of a layer: matrices are ``[out, in]``.

    ``qkv``: the rows of queries, keys and values one after the other, each by head. ``next_norm``:
    of the next layer, or of the head.
    """

    qkv: Any
    out: Any
    mlp_norm: Any
    gate: Any
    up: Any
    down: Any
    next_norm: Any


class Weights(NamedTuple):
    """All weights of a network, leaves of autograd."""

    embedding: Any
    norm: Any
    layers: tuple[Layer, ...]
    head: Any

    def leaves(self) -> list:
        inner = (weight for layer in self.layers for weight in layer)
        return [self.embedding, self.norm, *inner, self.head]


def in_float32(tensors):
    """The same values as leaves of their own, in tuples and dicts as they were; not integers."""
    from torch.utils import _pytree as pytree

    def leaf(tensor):
        return tensor.detach().float().requires_grad_() if tensor.is_floating_point() else tensor

    return pytree.tree_map(leaf, tensors)


def random_weights(size: Size, dtype, device: str, seed: int = 0) -> Weights:
    """Normal with a variance of 1 / inputs, so that scores of attention have one of about 1.

    Matrices that add to the residual are smaller by ``sqrt(2 layers)``, as in GPT-2.
    """
    import torch

    torch.manual_seed(seed)
    options = {"device": device, "dtype": torch.float32}

    def matrix(rows: int, columns: int, scale: float = 1.0):
        values = torch.randn(rows, columns, **options) * (scale * columns**-0.5)
        return values.to(dtype).requires_grad_()

    def norm():
        return (1 + 0.1 * torch.randn(size.width, **options)).to(dtype).requires_grad_()

    residual = (2 * size.layers) ** -0.5
    projected = (size.heads + 2 * size.kv_heads) * size.channels
    layers = tuple(
        Layer(
            matrix(projected, size.width),
            *(matrix(size.width, size.heads * size.channels, residual), norm()),
            *(matrix(size.mlp_width, size.width), matrix(size.mlp_width, size.width)),
            *(matrix(size.width, size.mlp_width, residual), norm()),
        )
        for _ in range(size.layers)
    )
    embedding = torch.randn(size.vocabulary, size.width, **options).to(dtype).requires_grad_()
    return Weights(embedding, norm(), layers, matrix(size.vocabulary, size.width))


def _attention(f: Functions, size: Size, weights: Layer, x, tables):
    """Without its norm and residual."""
    heads = size.heads, size.kv_heads
    if f.rotary_attention:
        return f.linear(f.rotary_attention(x, weights.qkv, tables, *heads), weights.out)
    qkv = f.linear(x, weights.qkv)
    if f.split_rope:
        q, k, v = f.split_rope(qkv, tables, *heads)
    else:
        qkv = qkv.unflatten(-1, (-1, size.channels))
        q, k, v = qkv.split([*heads, size.kv_heads], dim=2)
        q, k = f.rope(q, k, tables)
    return f.linear(f.attention(q, k, v).flatten(2), weights.out)


def _layer(f: Functions, size: Size, weights: Layer, normed, x, tables):
    """Of ``x`` and its norm: the norm of the result, and the result."""
    mixed = _attention(f, size, weights, normed, tables)
    normed, x = _add_norm(f, x, mixed, weights.mlp_norm)
    inner = f.activation(f.linear(normed, weights.gate), f.linear(normed, weights.up))
    return _add_norm(f, x, f.linear(inner, weights.down), weights.next_norm)


def _add_norm(f: Functions, x, added, weight):
    if f.add_norm:
        return f.add_norm(x, added, weight)
    return f.norm(x + added, weight), x + added


class Network:
    """A provider's network on weights that any number of networks may share.

    By a ``backend`` of torch.compile the first norm, a layer, the attention sublayer, and the head
    with the loss are compiled, each once for static shapes and as a whole. ``linear`` and
    ``causal``, the provider's product and attention, never are. Tensors are ``[b, s, width]``.
    """

    def __init__(
        self, functions: Functions, point: Point, weights: Weights, backend: str | None = None
    ):
        f, size = functions, point.shape
        self.weights, self._functions = weights, functions
        at = angles.exact(0, point.context, size.channels, weights.head.device)
        self.tables = f.tables(angles.by_channel(at).float(), weights.head.dtype)

        def attention(weights, normed, tables):
            return _attention(f, size, weights, normed, tables)

        def layer(weights, normed, x, tables):
            return _layer(f, size, weights, normed, x, tables)

        self.norm = compiling.alone(lambda x, weight: f.norm(x, weight), backend)
        self.attention = compiling.alone(attention, backend)
        self.layer = compiling.alone(layer, backend)
        self.linear, self.causal = f.linear, f.attention
        self.head = _head(f.linear_loss or _apart(f.linear, f.loss), backend)

    def logits(self, tokens):
        """``[b, s, vocabulary]``; the head is not compiled here."""
        return self._functions.linear(self._hidden(tokens), self.weights.head)

    def loss(self, tokens, targets):
        return self.head(self.weights.head, self._hidden(tokens), targets)

    def _hidden(self, tokens):
        import torch

        x = torch.nn.functional.embedding(tokens, self.weights.embedding)
        normed = self.norm(x, self.weights.norm)
        for weights in self.weights.layers:
            normed, x = self.layer(weights, normed, x, self.tables)
        return normed


@functools.cache
def _apart(linear: Callable, loss: Callable) -> Callable:
    return lambda x, head, targets: loss(linear(x, head), targets)


@functools.cache
def _head(linear_loss: Callable, backend: str | None) -> Callable:
    """Providers whose head is the same have one, which is compiled once."""

    def head(weight, normed, targets):
        return linear_loss(normed.flatten(0, 1), weight, targets.flatten())

    return compiling.alone(head, backend)
