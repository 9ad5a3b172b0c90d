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


def test_one_head_of_several(device):
    """Which lies at any distance from the next of the same kind."""
    qkv = torch.randn(1, 2, 3, 4, CHANNELS, device=device)
    tables = torch.rand(2, 2, CHANNELS // 2, device=device)
    expected = flash_attention.apply_rotary_emb_qkv_(qkv[:, :, :, :1].clone(), *tables)
    result = flash_attention.apply_rotary_emb_qkv_(qkv[:, :, :, :1], *tables)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["cos_k", "sin_k"])
def test_tangents_of_tables_of_keys_are_refused(name, device):
    qkv, table = torch.ones(1, 2, 3, 4, CHANNELS, device=device), torch.ones(2, 8, device=device)
    keys = {"cos_k": table, "sin_k": table}
    with forward_ad.dual_level():
        keys[name] = forward_ad.make_dual(table, table)
        with pytest.raises(ValueError, match="or a tangent"):
            flash_attention.apply_rotary_emb_qkv_(qkv, table, table, **keys)
    assert (qkv == 1).all()
