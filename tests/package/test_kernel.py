"""The kernel and the plain path against the float64 oracle, forward and backward."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rope_triton
from rope_triton.kernel import plans
from tests import covering, oracle
from tests.oracle import LAYOUTS, MODES, Mode

SEQ, BATCH, HEADS, CHANNELS = 3, 2, 5, 24

all_modes = pytest.mark.parametrize("mode", MODES, ids=str)
both_paths = pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])


def apply(t, freqs, mode, fused=True):
    return rope_triton.apply_rotary_pos_emb(
        t, freqs, mode.tensor_format, interleaved=mode.interleaved, fused=fused
    )


def case(mode, device, seq=SEQ, batch=BATCH, heads=HEADS):
    """A contiguous random tensor and its random angles."""
    t = oracle.contiguous(mode.shape(seq, batch, heads, CHANNELS), mode.dtype, device)
    return t, oracle.random_angles(seq, mode.width(CHANNELS), device)


def equal_angles(mode, device):
    """The angles of a model: the same at both channels of a pair."""
    width = mode.width(CHANNELS)
    module = rope_triton.RotaryPositionEmbedding(width, interleaved=mode.interleaved).to(device)
    return module(SEQ, offset=7)


def longer(freqs):
    return torch.cat((freqs, torch.full_like(freqs, torch.nan)))


def sliced(freqs):
    seq, _, _, width = freqs.shape
    memory = freqs.new_full((2 * seq, 2, 3, 2 * width + 1), torch.nan)
    return memory[::2, 1:, 2:, 1::2].copy_(freqs)


FREQS = {
    "contiguous": lambda freqs: freqs,
    "longer_than_the_sequence": longer,
    "sliced_amid_nan": sliced,
    "transposed": lambda freqs: freqs.transpose(0, 3).contiguous().transpose(0, 3),
    "one_row_expanded": lambda freqs: freqs[:1].expand_as(freqs),
    "one_channel_expanded": lambda freqs: freqs[..., :1].expand_as(freqs),
    "float64": torch.Tensor.double,
}


@both_paths
@covering.pairs(
    {"mode": MODES, "layout": list(LAYOUTS), "gradient": list(LAYOUTS), "freqs": list(FREQS)}
)
def test_layouts(case, fused, device):
    """Of what is rotated, of its gradient and of the angles, each with each."""
    mode = case["mode"]
    shape = mode.shape(SEQ, BATCH, HEADS, CHANNELS)
    t, cotangent = (LAYOUTS[case[x]](shape, mode.dtype, device) for x in ("layout", "gradient"))
    freqs = FREQS[case["freqs"]](oracle.random_angles(SEQ, mode.width(CHANNELS), device))
    oracle.check(t, freqs, mode, cotangent, fused)


@all_modes
@pytest.mark.parametrize(
    ("channels", "width"),
    [(2, 2), (7, 2), (24, 24), (40, 20), (72, 20), (80, 40), (96, 96), (600, 520)],
)
def test_width_that_is_no_power_of_two(channels, width, mode, device):
    shape = mode.shape(2, 2, 3, channels)
    t = oracle.sliced(shape, mode.dtype, device)
    oracle.check(t, oracle.random_angles(2, width, device), mode, oracle.random_like(t))


@all_modes
@pytest.mark.parametrize(
    ("seq", "batch", "heads"),
    [(1, 3, 5), (1, 1, 1), (5, 1, 3), (7, 3, 1), (2, 5, 1), (2, 1, 17), (2, 2, 8)],
)
def test_shape(seq, batch, heads, mode, device):
    t, freqs = case(mode, device, seq, batch, heads)
    oracle.check(t, freqs, mode, oracle.random_like(t))


@both_paths
@all_modes
@pytest.mark.parametrize(
    ("seq", "batch", "heads"), [(0, 2, 3), (2, 0, 3), (2, 3, 0)], ids=["seq", "batch", "heads"]
)
def test_empty(seq, batch, heads, mode, fused, device):
    t, freqs = case(mode, device, seq, batch, heads)
    t.requires_grad_()
    out = apply(t, freqs, mode, fused)
    out.backward(torch.zeros_like(out))
    for result in (out, t.grad):
        assert (result.shape, result.dtype) == (t.shape, t.dtype)


@all_modes
def test_rest_of_the_channels_is_copied_bit_by_bit(mode, device):
    t, _ = case(mode, device)
    width = CHANNELS - 6
    special = [torch.inf, -torch.inf, -0.0, torch.finfo(mode.dtype).max, 1e-7, -1.0]
    t[..., width:] = torch.tensor(special, dtype=mode.dtype, device=device)
    out = apply(t, oracle.random_angles(SEQ, width, device), mode)
    bits = torch.int32 if mode.dtype == torch.float32 else torch.int16
    assert torch.equal(out[..., width:].view(bits), t[..., width:].contiguous().view(bits))


@all_modes
def test_nan_stays_in_its_pair(mode, device):
    t, freqs = case(mode, device)
    t[1, 0, 2, 1] = torch.nan
    expected = oracle.rotate(t, freqs, mode.tensor_format, mode.interleaved).to(mode.dtype)
    assert expected.isnan().sum() == 2
    torch.testing.assert_close(apply(t, freqs, mode), expected, equal_nan=True)


@all_modes
def test_double_backward_is_forward(mode, device):
    t, freqs = case(mode, device)
    t.requires_grad_()
    u, v = oracle.random_like(t).requires_grad_(), oracle.random_like(t)
    (grad,) = torch.autograd.grad(apply(t, freqs, mode), t, u, create_graph=True)
    (grad_of_grad,) = torch.autograd.grad(grad, u, v)
    expected = oracle.rotate(v, freqs, mode.tensor_format, mode.interleaved)
    torch.testing.assert_close(grad_of_grad, expected.to(mode.dtype))


@all_modes
def test_inverse_rotation_undoes_and_norms_stay(mode, device):
    t, _ = case(mode, device)
    freqs = equal_angles(mode, device)
    out = apply(t, freqs, mode)
    back = apply(out, -freqs, mode)
    # Rounding is relative to the size of a pair, not to each of its two channels.
    error = 2 * torch.finfo(mode.dtype).eps * t.double().norm(dim=-1, keepdim=True)
    assert ((back.double() - t.double()).abs() <= error).all()
    norms = out.double().norm(dim=-1, keepdim=True) - t.double().norm(dim=-1, keepdim=True)
    assert (norms.abs() <= error).all()


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_output_needs_a_gradient_only_if_the_input_does(context, device):
    t, freqs = case(MODES[0], device)
    with context():
        assert not apply(t, freqs, MODES[0]).requires_grad
        out = apply(t.requires_grad_(), freqs, MODES[0])
    assert out.requires_grad == (context is torch.enable_grad)


def test_input_may_change_before_backward(device):
    mode = MODES[0]
    t, freqs = case(mode, device)
    leaf, cotangent = t.clone().requires_grad_(), oracle.random_like(t)
    x = leaf * 1
    out = apply(x, freqs, mode)
    x.zero_()
    (grad,) = torch.autograd.grad(out, leaf, cotangent)
    expected = oracle.gradient(t, freqs, mode.tensor_format, mode.interleaved, cotangent)
    torch.testing.assert_close(grad, expected.to(mode.dtype))


def test_autocast_changes_nothing(device):
    t, freqs = case(MODES[0], device)
    with torch.autocast(device, dtype=torch.bfloat16):
        out = apply(t, freqs, MODES[0])
    torch.testing.assert_close(out, apply(t, freqs, MODES[0]), rtol=0, atol=0)


def test_default_arguments_are_fused_sbhd_halves(device):
    mode = Mode(torch.float32, "sbhd", False, 1.0)
    t, freqs = case(mode, device)
    out = rope_triton.apply_rotary_pos_emb(t, freqs)
    torch.testing.assert_close(out, apply(t, freqs, mode), rtol=0, atol=0)


WITHOUT_A_GPU = """
import torch, rope_triton
t, freqs = torch.ones(2, 1, 1, 4), torch.ones(2, 1, 1, 4)
print(rope_triton.apply_rotary_pos_emb(t, freqs, fused=False).shape)
rope_triton.apply_rotary_pos_emb(t, freqs, fused=True)
"""


def test_no_gpu_and_no_interpreter_is_an_error():
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", WITHOUT_A_GPU]
    root = Path(rope_triton.__file__).parents[1]
    python = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    assert python.stdout == "torch.Size([2, 1, 1, 4])\n"
    assert python.returncode == 1
    message = python.stderr.splitlines()[-1]
    assert message.startswith("ValueError: a tensor is on cpu and Triton finds no GPU here: pass")
    for way_out in ("fused=False", "TRITON_INTERPRET=1"):
        assert way_out in message


# --- the heads of all sequences as heads of one ---------------------------------------------------


@pytest.mark.parametrize("second", [0.0, -0.0, 1.5, -1.5, torch.nan])
def test_one_head_has_the_bits_of_many(second, device):
    """One head computes the sines of a pair once where both angles of every pair are the same."""
    members = torch.tensor([[0.0, -0.0, 1.0, -1.0] * 8, [1.0, 1.0, -0.0, 0.0] * 8], device=device)
    t = members.flatten().repeat(16, 1, 16, 1)
    angles = torch.tensor([0.0, 0.0, 0.0, 1.5] * 8, device=device).repeat(16, 1, 1, 2)
    angles[1, ..., 32:36], angles[9, ..., 63] = second, second
    many = rope_triton.apply_rotary_pos_emb(t, angles)
    one = rope_triton.apply_rotary_pos_emb(t[:, :, :1], angles)
    assert torch.equal(one.view(torch.int32), many[:, :, :1].view(torch.int32))


def _one(t, freqs, tensor_format, **options):
    return (rope_triton.apply_rotary_pos_emb(t, freqs, tensor_format, **options),)


def _qk(t, freqs, tensor_format, **options):
    return rope_triton.apply_qk_rotary_pos_emb(t, t[:, :, :1], freqs, tensor_format, **options)


def _qkv(t, freqs, tensor_format, rounding, **options):
    """Of each group two heads of queries, one of keys and one of values; rounded once."""
    freqs = freqs[..., :16]
    return rope_triton.apply_fused_qkv_rotary_pos_emb(
        t, freqs, freqs, [32, 16, 16], tensor_format, **options
    )


def _packed(grad):
    return [part.reshape(*grad.shape[:2], -1, 16) for part in grad.split([32, 16, 16], -1)]


CALLS = {
    "one": (_one, lambda grad: (grad,)),
    "qk": (_qk, lambda grad: (grad, grad[:, :, :1])),
    "qkv": (_qkv, _packed),
}
"""Calls of a tensor, and the gradients of what they return."""


@covering.pairs(
    {
        "call": list(CALLS),
        "dtype": [torch.float32, torch.bfloat16],
        "tensor_format": ["sbhd", "bshd"],
        "heads": [1, 3],
        "seq": [1, 6],
        "cp_size": [1, 2],
        "rounding": ["once", "tables", "each"],
        "layout": list(LAYOUTS),
    }
)
def test_a_batch_has_the_bits_of_its_sequences(case, device):
    """Few heads share a program with those of other sequences, which a sequence alone has not."""
    call, parts = CALLS[case["call"]]
    mode = Mode(case["dtype"], case["tensor_format"], False, 1.0)
    t, cotangent = (
        LAYOUTS[case["layout"]](mode.shape(case["seq"], 5, case["heads"], 64), mode.dtype, device)
        for _ in range(2)
    )
    freqs = oracle.random_angles(2 * case["seq"], 64, device)
    parallel = {"cp_size": 2, "cp_rank": 1} if case["cp_size"] == 2 and case["seq"] > 1 else {}

    def turned(t, cotangent):
        leaf = t.detach().requires_grad_()
        outs = call(leaf, freqs, mode.tensor_format, rounding=case["rounding"], **parallel)
        return *(x.detach() for x in outs), *torch.autograd.grad(outs, leaf, parts(cotangent))

    batch = mode.tensor_format.index("b")
    alone = map(turned, t.split(1, batch), cotangent.split(1, batch))
    bits = torch.int32 if mode.dtype == torch.float32 else torch.int16
    for whole, *each in zip(turned(t, cotangent), *alone, strict=True):
        assert torch.equal(whole.view(bits), torch.cat(each, batch).view(bits))


def arguments_of(launch):
    """Those of its kernel that are no tensors, by name."""
    names = launch.kernel.arg_names[-len(launch.values) :]
    return dict(zip(names, launch.values, strict=True))


def planned(tensor_format, sizes, freqs=(1, 1), starts=None, layout="contiguous"):
    """How many heads a call's launch has, and whether they come before the positions."""
    shape = Mode(torch.bfloat16, tensor_format, False, 1.0).shape(*sizes, 64)
    out, t = torch.empty(shape), LAYOUTS[layout](shape, torch.bfloat16, "cpu")
    options = plans.Options(tensor_format, False, 1, 0)
    angles = torch.empty(sizes[0], *freqs, 64)
    arguments = arguments_of(
        plans.rotation(out, None, t, None, angles, None, starts, None, options)
    )
    return arguments["n_heads"], bool(arguments["HEADS_FIRST"])


@pytest.mark.parametrize(
    ("tensor_format", "sizes", "heads", "heads_first"),
    [
        *(("sbhd", (9, 8, 1), 8, False), ("sbhd", (9, 8, 3), 24, False)),
        *(("bshd", (9, 8, 1), 8, True), ("bshd", (1, 8, 3), 24, False)),
    ],
)
def test_few_heads_share_programs_with_those_of_other_sequences(
    tensor_format, sizes, heads, heads_first
):
    assert planned(tensor_format, sizes) == (heads, heads_first)
    alone = sizes[2], False
    assert planned(tensor_format, sizes, freqs=(8, 1)) == alone
    if sizes[2] > 1:
        assert planned(tensor_format, sizes, freqs=(1, sizes[2])) == alone
    assert planned(tensor_format, sizes, starts=torch.zeros(8, dtype=torch.int32)) == alone


def test_queries_and_keys_share_programs_with_those_of_other_sequences():
    """Where the heads of outputs are then contiguous."""
    freqs, moved = torch.empty(9, 1, 1, 64), torch.zeros(8, dtype=torch.int32)

    def heads(tensor_format, n_heads, starts=None, table=freqs):
        shape = Mode(torch.bfloat16, tensor_format, False, 1.0).shape(9, 8, n_heads, 64)
        q, k = torch.empty(shape), torch.empty(shape)[:, :, :1]
        options = plans.Options(tensor_format, False, 1, 0)
        launch = plans.rotation(q, k, q, k.contiguous(), table, None, starts, None, options)
        arguments = arguments_of(launch)
        return arguments["n_heads"], arguments["k_heads"], launch.grid[1]

    assert heads("sbhd", 2) == (16, 8, 1)
    assert heads("bshd", 1)[:2] == (1, 1)
    assert heads("sbhd", 64) == (64, 1, 8)  # a program has enough of them
    assert heads("sbhd", 2, moved) == heads("sbhd", 2, None, freqs.expand(9, 8, 1, 64)) == (2, 1, 8)


def test_groups_share_programs_with_those_of_other_sequences():
    freqs, moved = torch.empty(9, 1, 1, 64), torch.zeros(8, dtype=torch.int32)

    def groups(tensor_format, n_groups, starts=None):
        shape = Mode(torch.bfloat16, tensor_format, False, 1.0).shape(9, 8, n_groups, 384)
        qkv = torch.empty(shape)
        parts = [qkv.new_empty(*shape[:2], n_groups * n, 64) for n in (4, 1, 1)]
        options = plans.QkvOptions(tensor_format, False, 1, 0, 256, 64, 64)
        launch = plans.qkv_rotation(qkv, *parts, freqs, freqs, starts, options)
        return arguments_of(launch)["n_groups"], launch.grid[1]

    assert groups("sbhd", 1) == (8, 1)
    assert groups("bshd", 1)[0] == groups("sbhd", 1, moved)[0] == 1
    assert groups("sbhd", 16) == (16, 8)  # a program has enough of them


@pytest.mark.parametrize(
    ("tensor_format", "sizes", "layout"),
    [
        ("sbhd", (9, 8, 64), "contiguous"),  # a program has enough of them
        ("sbhd", (9, 1, 1), "contiguous"),
        ("bshd", (9, 8, 2), "contiguous"),
        ("sbhd", (9, 8, 2), "sliced_amid_nan"),  # no stride leads from one to the next
        ("bshd", (1, 8, 2), "sliced_amid_nan"),
    ],
)
def test_other_heads_keep_to_their_sequence(tensor_format, sizes, layout):
    assert planned(tensor_format, sizes, layout=layout) == (sizes[2], False)


@pytest.mark.parametrize(
    ("tensor_format", "shape"),
    [
        *(("sbhd", (1 << 20, 2, 8, 64)), ("sbhd", (3, 1 << 20, 32, 64))),
        *(("bshd", (2, 1 << 20, 8, 64)), ("bshd", (1 << 20, 3, 32, 64))),
        *(("bhsd", (2, 1 << 20, 3, 64)), ("bhsd", (1 << 20, 2, 3, 64)), ("thd", (1 << 20, 8, 64))),
    ],
)
def test_only_the_first_dimension_of_a_grid_has_no_limit(tensor_format, shape):
    t = torch.empty(shape, dtype=torch.bfloat16, device="meta")
    freqs, bounds = t.new_empty(1 << 20, 1, 1, 32), t.new_empty(3) if t.dim() == 3 else None
    options = plans.Options(tensor_format, False, 1, 0)
    grid = plans.rotation(t, None, t, None, freqs, freqs, None, bounds, options).grid
    assert grid[0] > 65_535 >= max(grid[1:])
