"""flash-attention's functions for packed heads on this package's kernel, and their gradients.

It is not installed here: they are called as its sources do (0251105a).
"""

import contextlib
from collections import Counter

import pytest
import torch
from torch._inductor.utils import run_fw_bw_and_get_code
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from rope_triton.integrations import flash_attention
from tests import covering
from tests.package import plain

CHANNELS = 16
TOLERANCE = {"rtol": 1.6e-2, "atol": 1e-5}

PACKED = {
    "packed": ["three", "grouped", "kv"],
    "keys_apart": [False, True],
    "interleaved": [False, True],
    "offsets": ["none", "one", "each"],
    "rotated": [CHANNELS, 8],
    "projected": [False, True],
    "inplace_gradient": [False, True],
}


@covering.parametrize(
    covering.spanning(PACKED, 2, lambda case: case["packed"] != "kv" or not case["keys_apart"])
)
def test_packed_heads_are_rotated_in_place(case, device):
    # Dimensions of heads; heads of queries, and of keys.
    heads, n_queries, n_keys = {
        **{"three": ((3, 2), 2, 2), "grouped": ((8,), 4, 2), "kv": ((2, 3), 0, 3)}
    }[case["packed"]]
    leaf = torch.randn(2, 5, *heads, CHANNELS).to(device).requires_grad_()
    angles = torch.randn(2, 20, case["rotated"] // 2).to(device)
    starts = {"none": [0, 0], "one": [3, 3], "each": [1, 7]}[case["offsets"]]
    offsets = torch.tensor(starts, device=device) if case["offsets"] == "each" else starts[0]
    options = {name: case[name] for name in ("interleaved", "inplace_gradient")}
    if case["keys_apart"]:
        options |= {"cos_k": angles[1].cos(), "sin_k": angles[1].sin()}
    if case["packed"] == "grouped":
        options["num_heads_q"] = 4
    x = (leaf.flatten(2) * 1).view(leaf.shape) if case["projected"] else leaf * 1
    kv = case["packed"] == "kv"
    call = flash_attention.apply_rotary_emb_kv_ if kv else flash_attention.apply_rotary_emb_qkv_
    out = call(x, angles[0].cos(), angles[0].sin(), seqlen_offsets=offsets, **options)
    assert out.data_ptr() == x.data_ptr() and (out is x) != case["projected"]
    flat = leaf.flatten(2, -2)  # [b, s, heads, d]
    parts = list(flat.split([n_queries, n_keys, flat.shape[2] - n_queries - n_keys], 2))
    for index, table in ((0, angles[0]), (1, angles[int(case["keys_apart"])])):
        rows = [table[start : start + 5] for start in starts]
        sequences = zip(parts[index], rows, strict=True)
        parts[index] = torch.stack(
            [plain.rotated(t, row, case["interleaved"]) for t, row in sequences]
        )
    expected = torch.cat(parts, 2).reshape(leaf.shape)
    torch.testing.assert_close(out, expected, **TOLERANCE)
    weights = torch.randn(leaf.shape).to(device)
    *gradients, right = (
        torch.autograd.grad(y, leaf, weights.clone(), retain_graph=True)[0]
        for y in (out, x, expected)
    )
    for gradient in gradients:
        torch.testing.assert_close(gradient, right, **TOLERANCE)


class Counted(TorchDispatchMode):
    """Counts the operations of PyTorch by their names."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.counts[operation.name().partition("::")[2]] += 1
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize("inplace_gradient", [False, True])
@pytest.mark.parametrize("kv", [False, True])
def test_the_gradient_of_packed_heads_is_copied_once_or_not_at_all(kv, inplace_gradient, device):
    """Where autograd records a change of a view, it makes three more tensors."""
    packed = 2 if kv else 3
    call = flash_attention.apply_rotary_emb_kv_ if kv else flash_attention.apply_rotary_emb_qkv_
    leaf = torch.randn(2, 5, packed * 3 * CHANNELS, device=device, requires_grad=True)
    tables = torch.randn(2, 5, CHANNELS // 2, device=device)
    x = leaf.clone()
    out = call(x.view(2, 5, packed, 3, CHANNELS), *tables, inplace_gradient=inplace_gradient)
    grad = torch.randn_like(out)
    with Counted() as run:
        (result,) = torch.autograd.grad(out, leaf, grad)
    assert run.counts["clone"] == (not inplace_gradient)
    assert not run.counts.keys() & {"new_zeros", "new_empty_strided", "zeros", "empty_strided"}
    assert (result.data_ptr() == grad.data_ptr()) == inplace_gradient


# Cached code may be that of an earlier version: its key says nothing of what autograd traces.
@torch._inductor.config.patch(force_disable_caches=True)
@pytest.mark.parametrize("packed", ["three", "keys_apart", "kv"])
def test_compiled_packed_heads_are_rotated_without_a_copy(packed, device):
    """Between two products, forward and backward: code with a copy would have a fused kernel."""
    n = 2 if packed == "kv" else 3
    call = flash_attention.apply_rotary_emb_kv_ if n == 2 else flash_attention.apply_rotary_emb_qkv_
    cos, sin = torch.randn(2, 5, CHANNELS // 2, device=device)
    keys = {"cos_k": sin, "sin_k": cos} if packed == "keys_apart" else {}

    def model(x, before, after):
        packed = (x @ before).view(2, 5, n, 3, CHANNELS)
        return call(packed, cos, sin, **keys).view(10, -1) @ after

    torch.compiler.reset()
    shapes = (10, 32), (32, n * 3 * CHANNELS), (n * 3 * CHANNELS, 32)
    factors = [torch.randn(shape, device=device, requires_grad=True) for shape in shapes]
    compiled, weights = torch.compile(model, fullgraph=True), torch.randn(10, 32, device=device)
    out, codes = run_fw_bw_and_get_code(lambda: compiled(*factors) * weights)
    expected = model(*factors) * weights
    torch.testing.assert_close(out, expected)
    gradients = torch.autograd.grad(expected.sum(), factors)
    torch.testing.assert_close([factor.grad for factor in factors], list(gradients))
    for code in codes:
        assert code.count("rope_triton.rotate_.default(") == 1 + bool(keys)
        assert "rope_triton.rotate.default(" not in code and "fused" not in code
    assert len(codes) == 2


def test_queries_and_keys_are_rotated_in_one_launch(device, monkeypatch):
    calls = []
    monkeypatch.setattr(
        flash_attention.api, "apply_rotary_emb", lambda x, *_, **__: calls.append(x)
    )
    qkv = torch.randn(1, 2, 3, 4, CHANNELS, device=device)
    flash_attention.apply_rotary_emb_qkv_(qkv, *torch.ones(2, 2, CHANNELS // 2, device=device))
    (both,) = calls
    assert both.shape == (1, 2, 8, CHANNELS) and both.data_ptr() == qkv.data_ptr()


TABLE = torch.full((2, 8), 2.0)
QKV = (1, 2, 3, 4, 16)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((1, 2, 2, 4, 16), {}, r"qkv must have shape \[b, s, 3, h, d\], got \(1, 2, 2, 4, 16\)"),
        ((1, 2, 12, 16), {}, r"shape \[b, s, 3, h, d\]"),
        ((1, 2, 9, 16), {"num_heads_q": 4}, r"shape \[b, s, 4 \+ 2 k, d\] with num_heads_q=4"),
        ((1, 2, 3, 16), {"num_heads_q": 4}, "num_heads_q=4"),
        (QKV, {"qkv": None}, "qkv must be a torch.Tensor, got NoneType"),
        (QKV, {"qkv": torch.ones(1, 2, 4, 3, 16).transpose(2, 3)}, "must lie at equal distances"),
        (QKV, {"qkv": torch.ones(QKV).int()}, r"^qkv must be one of"),
        (QKV, {"qkv": torch.ones(QKV).double()}, r"^qkv is .* the kernel does not compute$"),
        ((1, 3, 3, 4, 16), {}, "positions from the first token's on, the sequence of qkv with"),
        (QKV, {"cos_k": TABLE}, "cos_k and sin_k must be given together"),
        # The queries are left alone.
        (QKV, dict.fromkeys(("cos_k", "sin_k"), torch.ones(3, 8)), "got .3, 8. on .* and .2, 8. o"),
        (QKV, {"cos_k": TABLE, "sin_k": TABLE[:, :4]}, "cos and sin must have one shape"),
        (QKV, dict.fromkeys(("cos_k", "sin_k"), TABLE.int()), "cos must be one of"),
        (QKV, {"cos_k": TABLE, "sin_k": TABLE.clone().requires_grad_()}, "have a gradient"),
        *(
            (QKV, dict.fromkeys(("cos_k", "sin_k"), TABLE) | {"dual": n}, "or a tangent")
            for n in ("cos_k", "sin_k")
        ),
    ],
)
def test_bad_arguments_are_refused(shape, options, message, device):
    arguments = {"qkv": torch.ones(shape), "cos": TABLE, "sin": TABLE} | options
    arguments = {
        name: x.detach().to(device).requires_grad_(x.requires_grad) if torch.is_tensor(x) else x
        for name, x in arguments.items()
    }
    dual = arguments.pop("dual", None)
    with forward_ad.dual_level() if dual else contextlib.nullcontext():
        if dual:
            arguments[dual] = forward_ad.make_dual(arguments[dual], arguments[dual])
        with pytest.raises((TypeError, ValueError), match=message):
            flash_attention.apply_rotary_emb_qkv_(**arguments)
    assert arguments["qkv"] is None or (arguments["qkv"] == 1).all()


@pytest.mark.parametrize(
    ("kv", "message"),
    [
        (torch.ones(QKV), r"kv must have shape \[b, s, 2, h, d\]"),
        (None, "kv must be a torch.Tensor, got NoneType"),
        (torch.ones(1, 2, 2, 4, 16, requires_grad=True), "a leaf that requires a gradient"),
        (torch.ones(1, 2, 2, 4, 16).double(), r"^kv is .* the kernel does not compute$"),
    ],
)
def test_bad_keys_and_values_are_refused(kv, message):
    with pytest.raises((TypeError, ValueError), match=message):
        flash_attention.apply_rotary_emb_kv_(kv, TABLE, TABLE)


def test_one_head_of_several(device):
    """Which lies at any distance from the next of the same kind."""
    qkv = torch.randn(1, 2, 3, 4, CHANNELS, device=device)
    tables = torch.rand(2, 2, CHANNELS // 2, device=device)
    expected = flash_attention.apply_rotary_emb_qkv_(qkv[:, :, :, :1].clone(), *tables)
    result = flash_attention.apply_rotary_emb_qkv_(qkv[:, :, :, :1], *tables)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
