"""Each function of ``rope_triton.transformer``: its tensors, and the same by PyTorch."""

import functools
import math
import types
from typing import ClassVar

from ..calls import gradient, leaves
from ..module_calls import BOUND, ModuleCall
from ..rope import angles
from ..rope.formula import rotated

# float32 may give either sign to a sum of at most this share of its terms' absolute values.
_ALMOST_0 = 2.0**-20


class _Attention(ModuleCall):
    function = "causal_attention"
    sizes = ("batch", "tokens", "heads", "kv_heads", "channels")
    # Slopes; and in memory: queries, keys and values in one row of a token; the tokens of a head
    # one after the other; queries that begin at an odd element, which are copied.
    words = ("alibi", "packed", "heads", "misaligned")

    @staticmethod
    def exists(words):
        return len({"packed", "heads", "misaligned"} & {*words}) <= 1

    @staticmethod
    def operands(size, words):
        counts = size.heads, size.kv_heads, size.kv_heads
        if "packed" in words:
            return [(size.batch, size.tokens, sum(counts), size.channels)]
        if "heads" in words:
            return [(size.batch, count, size.tokens, size.channels) for count in counts]
        shapes = [(size.batch, size.tokens, count, size.channels) for count in counts]
        return [(math.prod(shapes[0]) + 1,), *shapes[1:]] if "misaligned" in words else shapes

    @staticmethod
    def results(size, words):
        return [(size.batch, size.tokens, size.heads, size.channels)]

    def _more(self, device):
        if "alibi" not in self._words:
            return {}
        import torch

        heads = self._size.heads
        steps = torch.arange(1, heads + 1, dtype=torch.float32, device=device)
        return {"alibi_slopes": 2.0 ** (-8 * steps / heads)}

    def _arguments(self, *operands):
        size, qkv = self._size, list(operands)
        if "packed" in self._words:
            qkv = operands[0].split([size.heads, size.kv_heads, size.kv_heads], dim=2)
        elif "heads" in self._words:
            qkv = [each.transpose(1, 2) for each in operands]
        elif "misaligned" in self._words:
            qkv[0] = operands[0][1:].view(self.results(size, ())[0])
        return dict(zip("qkv", qkv, strict=True))

    def _expected(self, q, k, v, alibi_slopes=None):
        return _attention(q, k, v, alibi_slopes)


class _RotaryAttention(ModuleCall):
    function = "rotary_attention"
    sizes = ("batch", "tokens", "inner", "heads", "kv_heads", "channels")

    @staticmethod
    def operands(size, words):
        rows = (size.heads + 2 * size.kv_heads) * size.channels
        return [(size.batch, size.tokens, size.inner), (rows, size.inner)]

    @staticmethod
    def results(size, words):
        return [(size.batch, size.tokens, size.heads * size.channels)]

    def _more(self, device):
        return _rotation(self, device)

    def _arguments(self, x, weight):
        return {"x": x, "weight": weight}

    @staticmethod
    def _expected(x, weight, freqs, heads, kv_heads):
        qkv = (x @ weight.mT).unflatten(-1, (-1, freqs.shape[-1]))
        q, k, v = qkv.split([heads, kv_heads, kv_heads], dim=2)
        pairs = freqs[:, 0, :, ::2]
        q, k = (rotated(each, pairs.cos(), pairs.sin(), interleaved=True) for each in (q, k))
        return _attention(q, k, v).flatten(2)


class _Linear(ModuleCall):
    function = "linear"
    sizes = ("rows", "inner", "columns")
    words = ("bias", "relu", "columnfirst")  # the last: the weight's columns lie together
    bound = {**BOUND, "bfloat16": BOUND["bfloat16"] / 2}

    @staticmethod
    def operands(size, words):
        weight = size.columns, size.inner
        weight = weight[::-1] if "columnfirst" in words else weight
        return [(size.rows, size.inner), weight, *[(size.columns,)] * ("bias" in words)]

    @staticmethod
    def results(size, words):
        return [(size.rows, size.columns)]

    def _more(self, device):
        return {"relu": "relu" in self._words}

    def _arguments(self, x, weight, bias=None):
        return {"x": x, "weight": weight.mT if "columnfirst" in self._words else weight} | (
            {} if bias is None else {"bias": bias}
        )

    @staticmethod
    def _expected(x, weight, bias=None, relu=False):
        import torch

        out = torch.nn.functional.linear(x, weight, bias)
        return out.relu() if relu else out

    def _uncertain(self, exact, cotangents):
        """A sum that is almost 0 may have either sign, by the order in which it is added up."""
        if "relu" not in self._words:
            return ()
        sizes = leaves(tuple(each.detach().abs() for each in exact))
        sums, most = (self._expected(**self._arguments(*each)) for each in (exact, sizes))
        near = sums.abs() <= _ALMOST_0 * most
        return gradient(most, sizes, [near * cotangents[0].abs()])


class _Matmul(ModuleCall):
    function = "matmul"
    sizes = ("batch", "rows", "inner", "columns")  # of one pair of matrices, no batch is given
    words = ("ta", "tb")  # transposed in memory

    @staticmethod
    def operands(size, words):
        leading = (size.batch,) if size.batch > 1 else ()
        shapes = {"ta": (size.rows, size.inner), "tb": (size.inner, size.columns)}
        return [(*leading, *(shape[::-1] if t in words else shape)) for t, shape in shapes.items()]

    @staticmethod
    def results(size, words):
        return [(*[size.batch] * (size.batch > 1), size.rows, size.columns)]

    def _arguments(self, a, b):
        turned = (each.mT if t in self._words else each for t, each in (("ta", a), ("tb", b)))
        return dict(zip("ab", turned, strict=True))

    def _expected(self, a, b):
        return a @ b


class _RmsNorm(ModuleCall):
    function = "rms_norm"
    sizes = ("rows", "columns")
    words: ClassVar[tuple[str, ...]] = ("residual",)

    @staticmethod
    def operands(size, words):
        x, weight = (size.rows, size.columns), (size.columns,)
        return [x, weight, *[weight] * ("bias" in words), *[x] * ("residual" in words)]

    @staticmethod
    def results(size, words):
        return [(size.rows, size.columns)] * (2 if "residual" in words else 1)

    def _arguments(self, *operands):
        return dict(zip(("x", "weight", *self._words), operands, strict=True))

    @classmethod
    def _expected(cls, x, weight, bias=None, residual=None):
        total = x if residual is None else x + residual
        out = cls._normalized(total, weight, bias)
        return out if residual is None else (out, total)

    @staticmethod
    def _normalized(x, weight, bias):
        import torch

        return torch.nn.functional.rms_norm(x, weight.shape, weight, 1e-5)


class _LayerNorm(_RmsNorm):
    function = "layer_norm"
    words = ("bias", "residual")

    @staticmethod
    def _normalized(x, weight, bias):
        import torch

        return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, 1e-5)


class _Softmax(ModuleCall):
    function = "softmax"
    sizes = ("rows", "columns")

    @staticmethod
    def operands(size, words):
        return [(size.rows, size.columns)]

    results = operands

    def _arguments(self, x):
        return {"x": x}

    def _expected(self, x):
        return x.softmax(-1)


class _Swiglu(ModuleCall):
    function = "swiglu"
    sizes = ("rows", "columns")
    words = ("halves",)  # of the rows of one tensor

    @staticmethod
    def operands(size, words):
        one = size.rows, size.columns
        return [(size.rows, 2 * size.columns)] if "halves" in words else [one, one]

    @staticmethod
    def results(size, words):
        return [(size.rows, size.columns)]

    def _arguments(self, *operands):
        both = operands[0].chunk(2, dim=-1) if "halves" in self._words else operands
        return dict(zip(("gate", "up"), both, strict=True))

    @staticmethod
    def _expected(gate, up):
        import torch

        return torch.nn.functional.silu(gate) * up


class _Loss(ModuleCall):
    words: ClassVar[tuple[str, ...]] = ("sum",)  # instead of the mean

    @staticmethod
    def results(size, words):
        return [()]

    def _more(self, device):
        import torch

        tokens, vocabulary = self._tokens, self._size.vocabulary
        targets = torch.arange(tokens, device=device) * 7919 % vocabulary  # all over it
        every_16th = torch.arange(0, tokens, 16, device=device)
        targets = targets.index_fill(0, every_16th, -100)  # counts for nothing
        return {"targets": targets, "reduction": "sum" if "sum" in self._words else "mean"}

    @property
    def _tokens(self) -> int:
        return self._size.tokens


class _CrossEntropy(_Loss):
    function = "cross_entropy"
    sizes = ("tokens", "vocabulary")

    @staticmethod
    def operands(size, words):
        return [(size.tokens, size.vocabulary)]

    def _arguments(self, logits):
        return {"logits": logits}

    def _expected(self, logits, targets, reduction):
        import torch

        return torch.nn.functional.cross_entropy(logits, targets, reduction=reduction)


class _LinearCrossEntropy(_Loss):
    function = "linear_cross_entropy"
    sizes = ("tokens", "inner", "vocabulary")
    with_gradients = True  # the forward computes them

    @staticmethod
    def operands(size, words):
        return [(size.tokens, size.inner), (size.vocabulary, size.inner)]

    def _arguments(self, x, weight):
        return {"x": x, "weight": weight}

    @staticmethod
    def _expected(x, weight, targets, reduction):
        import torch

        return torch.nn.functional.cross_entropy(x @ weight.mT, targets, reduction=reduction)


class _Step(_Loss):
    """A training step without its embedding: layers as ``_training`` has them, head and loss."""

    sizes = ("batch", "tokens", "layers", "heads", "kv_heads", "channels", "inner", "vocabulary")
    words = ()
    with_gradients = True
    # The roundings of all layers add up: in PyTorch's own bfloat16, to 0.05 of a row of a gradient.
    bound = {**BOUND, "bfloat16": 2e-1}

    @staticmethod
    def operands(size, words):
        width, keys = size.heads * size.channels, size.kv_heads * size.channels
        norm, hidden = (width,), (size.inner, width)
        layer = [(width + 2 * keys, width), (width, width), norm]
        layer += [hidden, hidden, hidden[::-1], norm]
        head = size.vocabulary, width
        return [(size.batch, size.tokens, width), norm, *size.layers * layer, head]

    def _find(self):
        functions = {name: self._named(name) for name in vars(_BY_PYTORCH)}
        return functools.partial(_step, types.SimpleNamespace(**functions))

    @property
    def _tokens(self) -> int:
        return self._size.batch * self._size.tokens

    def _more(self, device):
        return super()._more(device) | _rotation(self, device)

    def _arguments(self, x, *weights):
        return {"x": x, "weights": weights}

    def _expected(self, **arguments):
        return _step(_BY_PYTORCH, **arguments)


def _step(f, x, weights, targets, reduction, freqs, heads, kv_heads):
    """The loss, by functions that have the names and arguments of the package's."""
    norm, *layers, head = weights
    normed = f.rms_norm(x, norm)
    while layers:
        (qkv, out, mlp_norm, gate, up, down, next_norm), layers = layers[:7], layers[7:]
        mixed = f.linear(f.rotary_attention(normed, qkv, freqs, heads, kv_heads), out)
        normed, x = f.rms_norm(mixed, mlp_norm, residual=x)
        inner = f.swiglu(f.linear(normed, gate), f.linear(normed, up))
        normed, x = f.rms_norm(f.linear(inner, down), next_norm, residual=x)
    return f.linear_cross_entropy(normed.flatten(0, 1), head, targets, reduction=reduction)


_BY_PYTORCH = types.SimpleNamespace(
    **{each.function: each._expected for each in (_RmsNorm, _Linear, _RotaryAttention, _Swiglu)},
    linear_cross_entropy=_LinearCrossEntropy._expected,
)


def _rotation(call: ModuleCall, device: str):
    """What ``rotary_attention`` takes besides tensors: neighbouring channels are a pair."""
    size = call.cell.size
    pairs = angles.exact(0, size.tokens, size.channels, device).float()
    freqs = angles.by_channel(pairs, interleaved=True)
    return {"freqs": freqs, "heads": size.heads, "kv_heads": size.kv_heads}


def _attention(q, k, v, slopes=None):
    """Causal attention of ``[b, s, h, d]``, by PyTorch."""
    import torch

    shared, tokens = q.shape[2] // k.shape[2], q.shape[1]
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    q = q.clone()  # PyTorch's memory-efficient attention faults where it is not aligned
    k, v = (each.repeat_interleave(shared, dim=1) for each in (k, v))
    attend = torch.nn.functional.scaled_dot_product_attention
    if slopes is None:
        return attend(q, k, v, is_causal=True).transpose(1, 2)
    at = torch.arange(tokens, device=q.device)
    distance = (at - at[:, None]).float()
    bias = slopes[:, None, None] * distance.masked_fill(distance > 0, -math.inf)
    return attend(q, k, v, attn_mask=bias).transpose(1, 2)


FUNCTIONS: dict[str, type[ModuleCall]] = {
    **{"attention": _Attention, "rotaryattention": _RotaryAttention},
    **{"linear": _Linear, "matmul": _Matmul, "rmsnorm": _RmsNorm, "layernorm": _LayerNorm},
    **{"softmax": _Softmax, "swiglu": _Swiglu, "crossentropy": _CrossEntropy},
    "linearcrossentropy": _LinearCrossEntropy,
}
"""Names in a form, and how each function is called."""

COMPOSED: dict[str, type[ModuleCall]] = {"step": _Step}
"""The same of several functions together."""
