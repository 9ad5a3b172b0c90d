"""flash-attention's functions for packed heads on this package's kernel, and their gradients.

It is not installed here: they are called as its sources do (0251105a).
"""

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
def test_flash_attention_rotates_packed_heads_in_place(case, device):
    heads = {"three": (3, 2), "grouped": (8,), "kv": (2, 3)}[case["packed"]]
    before = torch.randn(2, 5, *heads, CHANNELS).to(device).requires_grad_()
    angles = torch.randn(2, 20, case["rotated"] // 2).to(device)
    starts = {"none": [0, 0], "one": [3, 3], "each": [1, 7]}[case["offsets"]]
    at = torch.tensor(starts, device=device)
    offsets = {"none": 0, "one": 3, "each": at}[case["offsets"]]
    apart = {"cos_k": angles[1].cos(), "sin_k": angles[1].sin()} if case["keys_apart"] else {}
    more = {"num_heads_q": 4} if case["packed"] == "grouped" else {}
    given = (before.flatten(2) * 1).view(before.shape) if case["projected"] else before * 1
    kv = case["packed"] == "kv"
    call = flash_attention.apply_rotary_emb_kv_ if kv else flash_attention.apply_rotary_emb_qkv_
    tables = angles[0].cos(), angles[0].sin()
    more |= {name: case[name] for name in ("interleaved", "inplace_gradient")}
    out = call(given, *tables, seqlen_offsets=offsets, **more, **apart)
    assert out.data_ptr() == given.data_ptr() and (out is given) != case["projected"]
    flat = before.flatten(2, -2)  # [b, s, heads, d]
    n_queries, n_keys = {"three": (2, 2), "grouped": (4, 2), "kv": (0, 3)}[case["packed"]]
    parts = list(flat.split([n_queries, n_keys, flat.shape[2] - n_queries - n_keys], 2))
    for index, table in ((0, angles[0]), (1, angles[1 if apart else 0])):
        rows = [table[start : start + 5] for start in starts]
        turned = [
            plain.rotated(x, row, case["interleaved"])
            for x, row in zip(parts[index], rows, strict=True)
        ]
        parts[index] = torch.stack(turned)
    expected = torch.cat(parts, 2).reshape(before.shape)
    torch.testing.assert_close(out, expected, **TOLERANCE)
    weights = torch.randn(before.shape).to(device)
    gradients = [
        torch.autograd.grad(each, before, weights.clone(), retain_graph=True)[0]
        for each in (out, given, expected)
    ]
    torch.testing.assert_close(gradients[0], gradients[2], **TOLERANCE)
    torch.testing.assert_close(gradients[1], gradients[2], **TOLERANCE)


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
    whole = leaf.clone()
    out = call(whole.view(2, 5, packed, 3, CHANNELS), *tables, inplace_gradient=inplace_gradient)
    grad = torch.randn_like(out)
    with Counted() as run:
        (found,) = torch.autograd.grad(out, leaf, grad)
    assert run.counts["clone"] == (not inplace_gradient)
    assert not run.counts.keys() & {"new_zeros", "new_empty_strided", "zeros", "empty_strided"}
    assert (found.data_ptr() == grad.data_ptr()) == inplace_gradient


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
        given = (x @ before).view(2, 5, n, 3, CHANNELS)
        return call(given, cos, sin, **keys).view(10, -1) @ after

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


def test_flash_attention_rotates_queries_and_keys_in_one_launch(device, monkeypatch):
    calls = []
    monkeypatch.setattr(
        flash_attention.api, "apply_rotary_emb", lambda x, *_, **__: calls.append(x)
    )
    qkv = torch.randn(1, 2, 3, 4, CHANNELS, device=device)
    tables = torch.ones(2, 2, CHANNELS // 2, device=device)
    flash_attention.apply_rotary_emb_qkv_(qkv, *tables)
    (both,) = calls
    assert both.shape == (1, 2, 8, CHANNELS) and both.data_ptr() == qkv.data_ptr()


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((1, 2, 2, 4, 16), {}, r"shape \[b, s, 3, h, d\], got \(1, 2, 2, 4, 16\)"),
        ((1, 2, 12, 16), {}, r"shape \[b, s, 3, h, d\]"),
        ((1, 2, 9, 16), {"num_heads_q": 4}, r"shape \[b, s, 4 \+ 2 k, d\] with num_heads_q=4"),
        ((1, 2, 3, 16), {"num_heads_q": 4}, "num_heads_q=4"),
        ((1, 2, 3, 4, 16), {"cos_k": torch.ones(2, 8)}, "cos_k and sin_k must be given together"),
    ],
)
def test_flash_attention_bad_arguments_are_refused(shape, options, message, device):
    tables = torch.ones(2, 2, CHANNELS // 2, device=device)
    with pytest.raises(ValueError, match=message):
        flash_attention.apply_rotary_emb_qkv_(torch.ones(shape, device=device), *tables, **options)
    with pytest.raises(ValueError, match=r"kv must have shape \[b, s, 2, h, d\]"):
        flash_attention.apply_rotary_emb_kv_(torch.ones(1, 2, 3, 4, 16, device=device), *tables)
    for name in ("qkv", "kv"):
        with pytest.raises(TypeError, match=f"{name} must be a torch.Tensor, got NoneType"):
            getattr(flash_attention, f"apply_rotary_emb_{name}_")(None, *tables)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ([torch.ones(3, 8)] * 2, "must have the shape .* got .3, 8. on .* and .2, 8. on"),
        ([torch.ones(2, 8), torch.ones(2, 4)], "cos and sin must have one shape"),
        ([torch.ones(2, 8, dtype=torch.int32)] * 2, "cos must be one of"),
        ([torch.ones(2, 8), torch.ones(2, 8, requires_grad=True)], "cannot have a gradient"),
    ],
)
def test_flash_attention_bad_tables_of_the_keys_leave_the_queries_alone(tables, message, device):
    qkv = torch.ones(1, 2, 3, 4, CHANNELS, device=device)
    given = [torch.full((2, CHANNELS // 2), 2.0, device=device)] * 2
    given += [table.to(device) for table in tables]
    with pytest.raises((TypeError, ValueError), match=message):
        flash_attention.apply_rotary_emb_qkv_(qkv, *given)
    assert (qkv == 1).all()


@pytest.mark.parametrize("learned", ["cos_k", "sin_k"])
def test_flash_attention_tangents_of_the_keys_tables_leave_the_queries_alone(learned, device):
    qkv = torch.ones(1, 2, 3, 4, CHANNELS, device=device)
    table = torch.full((2, CHANNELS // 2), 2.0, device=device)
    given = dict.fromkeys(("cos", "sin", "cos_k", "sin_k"), table)
    with forward_ad.dual_level():
        given[learned] = forward_ad.make_dual(table, table)
        with pytest.raises(ValueError, match="cannot have a gradient or a tangent"):
            flash_attention.apply_rotary_emb_qkv_(qkv, **given)
    assert (qkv == 1).all()


def test_flash_attention_one_head_of_several(device):
    """Which lies at any distance from the next of the same kind."""
    qkv = torch.randn(1, 2, 3, 4, CHANNELS, device=device)
    tables = torch.rand(2, 2, CHANNELS // 2, device=device)
    expected = flash_attention.apply_rotary_emb_qkv_(qkv[:, :, :, :1].clone(), *tables)
    found = flash_attention.apply_rotary_emb_qkv_(qkv[:, :, :, :1], *tables)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_flash_attention_heads_at_other_distances_are_refused(device):
    qkv = torch.ones(1, 2, 4, 3, 16, device=device).transpose(2, 3)
    tables = torch.ones(2, 2, CHANNELS // 2, device=device)
    with pytest.raises(ValueError, match="must lie at equal distances, got strides"):
        flash_attention.apply_rotary_emb_qkv_(qkv, *tables)
