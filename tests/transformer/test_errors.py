"""What the functions refuse, with a message that says so, before anything is launched."""

import pytest
import torch
from torch import empty

from rope_triton.transformer import (
    causal_attention,
    cross_entropy,
    interleaved_rows,
    layer_norm,
    linear,
    linear_cross_entropy,
    matmul,
    rotary_attention,
    softmax,
    swiglu,
)

X, W = empty(4, 3), empty(5, 3)
TARGETS = torch.zeros(4, dtype=torch.int64)
Q, KV = empty(1, 4, 4, 16), empty(1, 4, 2, 16)
FREQS, QKV_ROWS = empty(4, 1, 1, 16), empty(8 * 16, 24)
ROTARY = {"x": empty(1, 4, 24), "weight": QKV_ROWS, "freqs": FREQS, "heads": 4, "kv_heads": 2}


def learned(tensor):
    return tensor.clone().requires_grad_()


# Function -> valid arguments, and changes of them with the error that each is.
REFUSED = {
    swiglu: (
        {"gate": X, "up": X},
        [
            ({"gate": None}, TypeError, "gate must be a tensor, got NoneType"),
            ({"up": X.half()}, TypeError, "up torch.float16"),
            ({"up": empty(3)}, ValueError, r"got \(4, 3\) and \(3,\)"),
            ({"gate": empty(()), "up": empty(())}, ValueError, r"must be \[\.\.\., n\] both"),
            ({"gate": empty(2, 0), "up": empty(2, 0)}, ValueError, "gate must not be empty"),
            (dict.fromkeys(("gate", "up"), empty(1).expand(2**30 + 1)), ValueError, "at most 107"),
        ],
    ),
    softmax: (
        {"x": X},
        [
            ({"x": 3}, TypeError, "x must be a tensor, got int"),
            ({"x": X.long()}, TypeError, "x torch.int64"),
            ({"x": empty(2, 0)}, ValueError, "x must not be empty"),
            ({"x": empty(())}, ValueError, r"x must be \[\.\.\., n\]"),
            ({"x": empty(2, 16_385)}, ValueError, r"at most 16384, got \(2, 16385\)"),
        ],
    ),
    layer_norm: (
        {"x": X, "weight": empty(3)},
        [
            ({"x": None}, TypeError, "x must be a tensor, got NoneType"),
            ({"weight": 1.0}, TypeError, "weight must be a tensor, got float"),
            ({"x": X.double()}, TypeError, "x torch.float64, weight torch.float32"),
            ({"residual": X.half()}, TypeError, "residual torch.float16"),
            ({"weight": empty(3).to("meta")}, ValueError, "one device, got cpu and meta"),
            ({"x": empty(0, 3)}, ValueError, r"x must not be empty, got \(0, 3\)"),
            ({"x": empty(())}, ValueError, r"x must be \[\.\.\., n\]"),
            ({"x": empty(2, 16_385)}, ValueError, r"at most 16384, got \(2, 16385\)"),
            ({"weight": empty(4)}, ValueError, r"weight must be \[3\], got \(4,\)"),
            ({"bias": empty(1, 3)}, ValueError, r"bias must be \[3\], got \(1, 3\)"),
            ({"residual": empty(3)}, ValueError, r"the shape of x, \(4, 3\), got \(3,\)"),
            ({"eps": -1e-5}, ValueError, "eps must not be negative, got -1e-05"),
        ],
    ),
    linear: (
        {"x": X, "weight": W},
        [
            ({"x": None}, TypeError, "x must be a tensor, got NoneType"),
            ({"x": X.double()}, TypeError, "x torch.float64, weight torch.f"),
            ({"weight": W.half()}, TypeError, "weight torch.float16"),
            ({"weight": W.mT}, ValueError, r"got \(4, 3\) and \(3, 5\)"),
            ({"x": empty(0, 3)}, ValueError, r"x must not be empty, got \(0, 3\)"),
            ({"bias": empty(3)}, ValueError, r"bias must be \[5\], got \(3,\)"),
        ],
    ),
    matmul: (
        {"a": X, "b": W.mT},
        [
            ({"b": W}, ValueError, r"got \(4, 3\) and \(5, 3\)"),
            ({"a": X.expand(2, 4, 3)}, ValueError, "both with a batch"),
            ({"a": X.expand(2, 4, 3), "b": W.mT[None]}, ValueError, "both with a batch"),
        ],
    ),
    cross_entropy: (
        {"logits": X, "targets": TARGETS},
        [
            ({"logits": None}, TypeError, "logits must be a tensor, got NoneType"),
            ({"logits": X.double()}, TypeError, "logits torch.float64"),
            ({"logits": X[None]}, ValueError, r"vocabulary\], got \(1, 4, 3\)"),
            ({"logits": empty(4, 0)}, ValueError, r"not be empty, got \(4, 0\)"),
            ({"targets": [0] * 4}, TypeError, "targets must be a tensor of int64, got list"),
            ({"targets": TARGETS.int()}, TypeError, "int64, got torch.int32"),
            ({"targets": TARGETS[:3]}, ValueError, r"be \[4\] on cpu, got \(3,\) on cpu"),
            ({"targets": TARGETS.to("meta")}, ValueError, r"on cpu, got \(4,\) on meta"),
            ({"ignore_index": None}, TypeError, "ignore_index must be an int, got NoneType"),
            ({"ignore_index": True}, TypeError, "ignore_index must be an int, got bool"),
            ({"reduction": "none"}, ValueError, "'mean' or 'sum', got 'none'"),
        ],
    ),
    linear_cross_entropy: (
        {"x": X, "weight": W, "targets": TARGETS},
        [
            ({"weight": W.half()}, TypeError, "weight torch.float16"),
            ({"weight": W.mT}, ValueError, r"got \(4, 3\) and \(3, 5\)"),
            ({"x": X[None]}, ValueError, r"got \(1, 4, 3\) and \(5, 3\)"),
            ({"targets": TARGETS[:3]}, ValueError, r"must be \[4\] on cpu"),
        ],
    ),
    causal_attention: (
        {"q": Q, "k": KV, "v": KV},
        [
            ({"q": None}, TypeError, "q must be a tensor, got NoneType"),
            ({"q": Q.double()}, TypeError, "q torch.float64"),
            ({"q": Q.half()}, TypeError, "q torch.float16, k torch"),
            ({"q": Q[0]}, ValueError, r"got \(4, 4, 16\)"),
            ({"q": Q[:, :0]}, ValueError, "q must not be empty"),
            (dict.fromkeys("kv", empty(1, 4, 3, 16)), ValueError, "h_kv that divides"),
            (dict.fromkeys("kv", empty(1, 5, 2, 16)), ValueError, "h_kv that divides"),
            ({"v": KV[:, :, :1]}, ValueError, "h_kv that divides"),
            ({"q": empty(1, 4, 4, 24)} | dict.fromkeys("kv", empty(1, 4, 2, 24)), ValueError, "24"),
            (dict.fromkeys("qkv", empty(65_536, 1, 1, 16)), ValueError, "at most 65535 sequences"),
            (
                dict.fromkeys("qkv", empty(1, 1, 1, 16).expand(2**12, 65, 2**12, 16)),
                *(ValueError, "at most 1073741"),
            ),
            (
                dict.fromkeys("qkv", empty(1, 1, 1, 16).expand(65_535, 1, 520, 16)),
                *(ValueError, "times 64: 1 rounded up"),
            ),
            ({"alibi_slopes": 1.0}, TypeError, "got 1.0"),
            ({"alibi_slopes": empty(2)}, ValueError, r"be \[4\]"),
            ({"alibi_slopes": learned(empty(4))}, ValueError, "need no gradient"),
            ({"scale": 0}, ValueError, "positive and finite, got 0"),
        ],
    ),
    rotary_attention: (
        ROTARY,
        [
            ({"x": None}, TypeError, "x must be a tensor"),
            ({"weight": QKV_ROWS.half()}, TypeError, "weight torch.float16"),
            ({"heads": 4.0}, TypeError, "must be ints, got 4.0 and"),
            ({"kv_heads": 3}, ValueError, "kv_heads must divide heads, got 4 and 3"),
            ({"kv_heads": 0}, ValueError, "got 4 and 0"),
            ({"x": empty(4, 24)}, ValueError, r"x must be \[b, s, width\]"),
            ({"weight": QKV_ROWS[:-1]}, ValueError, r"weight \[8 \* d, width\]"),
            ({"weight": QKV_ROWS[:, 1:]}, ValueError, r"weight \[8 \* d, width\]"),
            ({"weight": QKV_ROWS[: 8 * 12]}, ValueError, "channels, got 12"),
            ({"freqs": FREQS.double()}, TypeError, "got torch.float64"),
            ({"freqs": FREQS[:3]}, ValueError, "with s2 >= 4"),
            ({"freqs": FREQS[..., 1:]}, ValueError, r"\[s2, 1, 1, 16\]"),
            ({"freqs": learned(FREQS)}, ValueError, "need no gradient"),
        ],
    ),
    interleaved_rows: (
        {"weight": empty(30, 2), "channels": 2},
        [({"channels": n}, ValueError, f"heads of {n} channels") for n in (16, 15, 0, -2)],
    ),
}


@pytest.mark.parametrize(
    ("function", "change", "error", "message"),
    [(function, *case) for function, (_, cases) in REFUSED.items() for case in cases],
)
def test_bad_input_is_refused(function, change, error, message):
    with pytest.raises(error, match=message):
        function(**(REFUSED[function][0] | change))
