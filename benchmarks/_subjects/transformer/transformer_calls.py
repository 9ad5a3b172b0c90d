"""Functions of ``rope_triton.transformer``: the tensors of a call, and the same by PyTorch."""

import functools
import math
import types
from typing import ClassVar

from ..calls import gradient, leaves
from ..module_calls import BOUND, ModuleCall, shapes_of
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

    @classmethod
    def operands(cls, size, words):
        counts = {"q": size.heads, "k": size.kv_heads, "v": size.kv_heads}
        if "packed" in words:
            return {"qkv": (size.batch, size.tokens, sum(counts.values()), size.channels)}
        shapes = shapes_of(size, counts, heads_first="heads" in words)
        odd = {"q": (math.prod(shapes["q"]) + 1,)} if "misaligned" in words else {}
        return shapes | odd

    @classmethod
    def results(cls, size, words):
        return [(size.batch, size.tokens, size.heads, size.channels)]

    def _make_constants(self, device):
        if "alibi" not in self._words:
            return {}
        import torch

        heads = self._size.heads
        steps = torch.arange(1, heads + 1, dtype=torch.float32, device=device)
        return {"alibi_slopes": 2.0 ** (-8 * steps / heads)}

    def _arguments(self, **operands):
        size = self._size
        if "packed" in self._words:
            parts = operands["qkv"].split([size.heads, size.kv_heads, size.kv_heads], dim=2)
            return dict(zip("qkv", parts, strict=True))
        if "heads" in self._words:
            return {name: operand.transpose(1, 2) for name, operand in operands.items()}
        if "misaligned" in self._words:
            (shape,) = self.results(size, ())
            return operands | {"q": operands["q"][1:].view(shape)}
        return operands

    def _expected(self, q, k, v, alibi_slopes=None):
        return _attention(q, k, v, alibi_slopes)


class _RotaryAttention(ModuleCall):
    function = "rotary_attention"
    sizes = ("batch", "tokens", "inner", "heads", "kv_heads", "channels")

    @classmethod
    def operands(cls, size, words):
        rows = (size.heads + 2 * size.kv_heads) * size.channels
        return {"x": (size.batch, size.tokens, size.inner), "weight": (rows, size.inner)}

    @classmethod
    def results(cls, size, words):
        return [(size.batch, size.tokens, size.heads * size.channels)]

    def _make_constants(self, device):
        return _rotation(self._size, device)

    @staticmethod
    def _expected(x, weight, freqs, heads, kv_heads):
        qkv = (x @ weight.mT).unflatten(-1, (-1, freqs.shape[-1]))
        q, k, v = qkv.split([heads, kv_heads, kv_heads], dim=2)
        pairs = freqs[:, 0, :, ::2]
        q, k = (rotated(t, pairs.cos(), pairs.sin(), interleaved=True) for t in (q, k))
        return _attention(q, k, v).flatten(2)


class _Linear(ModuleCall):
    function = "linear"
    sizes = ("rows", "inner", "columns")
    words = ("bias", "relu", "columnfirst")  # the last: the weight's columns lie together
    bound = {**BOUND, "bfloat16": BOUND["bfloat16"] / 2}

    @classmethod
    def operands(cls, size, words):
        weight = size.columns, size.inner
        weight = weight[::-1] if "columnfirst" in words else weight
        bias = {"bias": (size.columns,)} if "bias" in words else {}
        return {"x": (size.rows, size.inner), "weight": weight} | bias

    @classmethod
    def results(cls, size, words):
        return [(size.rows, size.columns)]

    def _make_constants(self, device):
        return {"relu": "relu" in self._words}

    def _arguments(self, *, weight, **others):  # type: ignore[override]
        return others | {"weight": weight.mT if "columnfirst" in self._words else weight}

    @staticmethod
    def _expected(x, weight, bias=None, relu=False):
        import torch

        out = torch.nn.functional.linear(x, weight, bias)
        return out.relu() if relu else out

    def _uncertain(self, exact, cotangents):
        """A sum that is almost 0 may have either sign, by the order in which it is added up."""
        if "relu" not in self._words:
            return ()
        sizes = leaves(tuple(operand.detach().abs() for operand in exact))
        sums, most = (self._expected(**self.arguments(t) | {"relu": False}) for t in (exact, sizes))
        near = sums.abs() <= _ALMOST_0 * most
        return gradient(most, sizes, [near * cotangents[0].abs()])


class _Matmul(ModuleCall):
    function = "matmul"
    sizes = ("batch", "rows", "inner", "columns")  # of one pair of matrices, no batch is given
    words = ("ta", "tb")  # transposed in memory

    @classmethod
    def operands(cls, size, words):
        batch = (size.batch,) if size.batch > 1 else ()
        shapes = {"a": (size.rows, size.inner), "b": (size.inner, size.columns)}
        return {
            name: (*batch, *(shape[::-1] if f"t{name}" in words else shape))
            for name, shape in shapes.items()
        }

    @classmethod
    def results(cls, size, words):
        return [(*[size.batch] * (size.batch > 1), size.rows, size.columns)]

    def _arguments(self, **operands):
        return {name: t.mT if f"t{name}" in self._words else t for name, t in operands.items()}

    def _expected(self, a, b):
        return a @ b


class _RmsNorm(ModuleCall):
    function = "rms_norm"
    sizes = ("rows", "columns")
    words: ClassVar[tuple[str, ...]] = ("residual",)

    @classmethod
    def operands(cls, size, words):
        x, weight = (size.rows, size.columns), (size.columns,)
        more = {name: x if name == "residual" else weight for name in words}
        return {"x": x, "weight": weight} | more

    @classmethod
    def results(cls, size, words):
        return [(size.rows, size.columns)] * (2 if "residual" in words else 1)

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

    @classmethod
    def operands(cls, size, words):
        return {"x": (size.rows, size.columns)}

    def _expected(self, x):
        return x.softmax(-1)


class _Swiglu(ModuleCall):
    function = "swiglu"
    sizes = ("rows", "columns")
    words = ("halves",)  # of the rows of one tensor

    @classmethod
    def operands(cls, size, words):
        one = size.rows, size.columns
        return {"both": (size.rows, 2 * size.columns)} if words else {"gate": one, "up": one}

    @classmethod
    def results(cls, size, words):
        return [(size.rows, size.columns)]

    def _arguments(self, both=None, **apart):
        return apart if both is None else dict(zip(("gate", "up"), both.chunk(2, -1), strict=True))

    @staticmethod
    def _expected(gate, up):
        import torch

        return torch.nn.functional.silu(gate) * up


class _Loss(ModuleCall):
    words: ClassVar[tuple[str, ...]] = ("sum",)  # instead of the mean

    @classmethod
    def results(cls, size, words):
        return [()]

    def _make_constants(self, device):
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

    @classmethod
    def operands(cls, size, words):
        return {"logits": (size.tokens, size.vocabulary)}

    @staticmethod
    def _expected(logits, targets, reduction):
        import torch

        return torch.nn.functional.cross_entropy(logits, targets, reduction=reduction)


class _LinearCrossEntropy(_Loss):
    function = "linear_cross_entropy"
    sizes = ("tokens", "inner", "vocabulary")
    with_gradients = True  # the forward computes them

    @classmethod
    def operands(cls, size, words):
        return {"x": (size.tokens, size.inner), "weight": (size.vocabulary, size.inner)}

    @staticmethod
    def _expected(x, weight, targets, reduction):
        return _CrossEntropy._expected(x @ weight.mT, targets, reduction)


class _Step(_Loss):
    """A training step without its embedding: layers as the training study's, head and loss."""

    sizes = ("batch", "tokens", "layers", "heads", "kv_heads", "channels", "inner", "vocabulary")
    words = ()
    with_gradients = True
    # The roundings of all layers add up: in PyTorch's own bfloat16, to 0.05 of a row of a gradient.
    bound = {**BOUND, "bfloat16": 2e-1}

    @classmethod
    def operands(cls, size, words):
        width, keys = size.heads * size.channels, size.kv_heads * size.channels
        norm, hidden = (width,), (size.inner, width)
        layer = [(width + 2 * keys, width), (width, width), norm]
        layer += [hidden, hidden, hidden[::-1], norm]
        weights = [norm, *size.layers * layer, (size.vocabulary, width)]
        named = {f"weight{index}": shape for index, shape in enumerate(weights)}
        return {"x": (size.batch, size.tokens, width)} | named

    def _find(self):
        functions = {name: self._named(name) for name in vars(_BY_PYTORCH)}
        return functools.partial(_step, types.SimpleNamespace(**functions))

    @property
    def _tokens(self) -> int:
        return self._size.batch * self._size.tokens

    def _make_constants(self, device):
        return super()._make_constants(device) | _rotation(self._size, device)

    def _arguments(self, x, **weights):  # type: ignore[override]
        return {"x": x, "weights": tuple(weights.values())}

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
    **{call.function: call._expected for call in (_RmsNorm, _Linear, _RotaryAttention, _Swiglu)},
    linear_cross_entropy=_LinearCrossEntropy._expected,
)


def _rotation(size, device: str):
    """What ``rotary_attention`` takes besides tensors: neighbouring channels are a pair."""
    pairs = angles.exact(0, size.tokens, size.channels, device).float()
    freqs = angles.by_channel(pairs, interleaved=True)
    return {"freqs": freqs, "heads": size.heads, "kv_heads": size.kv_heads}


def _attention(q, k, v, slopes=None):
    """Causal attention of ``[b, s, h, d]``, by PyTorch."""
    import torch

    shared, tokens = q.shape[2] // k.shape[2], q.shape[1]
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    q = q.clone()  # PyTorch's memory-efficient attention faults where it is not aligned
    k, v = (t.repeat_interleave(shared, dim=1) for t in (k, v))
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
"""Names in a call, and how each function is called."""

COMPOSED: dict[str, type[ModuleCall]] = {"step": _Step}
"""The same of several functions together."""
