"""The kernel and the plain path against the float64 oracle, forward and backward."""

import pytest
import torch

import rope_triton
from tests import covering, oracle
from tests.conftest import COMPILED
from tests.oracle import LAYOUTS, MODES, Mode

pytestmark = [pytest.mark.gpu_or_interpreter, pytest.mark.public]

SEQ, BATCH, HEADS, CHANNELS = (129, 5, 33, 80) if COMPILED else (3, 2, 5, 24)
SHAPES = [(1, 3, 5), (1, 1, 1), (5, 1, 3), (7, 3, 1), (2, 5, 1), (2, 1, 17), (2, 2, 8)]
SHAPES = [(*shape, 24) for shape in SHAPES]
if COMPILED:
    SHAPES += [(515, 3, 7, 128), (1024, 2, 64, 64), (300, 1, 12, 256), (64, 2, 3, 1024)]

all_modes = pytest.mark.parametrize("mode", MODES, ids=str)
both_paths = pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])


def apply(t, freqs, mode, fused=True):
    return rope_triton.apply_rotary_pos_emb(
        t, freqs, mode.tensor_format, interleaved=mode.interleaved, fused=fused
    )


def case(mode, device, seq=3, batch=2, heads=5, channels=24):
    """A contiguous random tensor and its random angles."""
    t = oracle.contiguous(mode.shape(seq, batch, heads, channels), mode.dtype, device)
    return t, oracle.random_angles(seq, mode.width(channels), device)


def sliced(freqs):
    seq, _, _, width = freqs.shape
    memory = freqs.new_full((2 * seq, 2, 3, 2 * width + 1), torch.nan)
    return memory[::2, 1:, 2:, 1::2].copy_(freqs)


FREQS = {
    "contiguous": lambda freqs: freqs,
    "longer_than_the_sequence": lambda freqs: torch.cat((freqs, freqs * torch.nan)),
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
    """Of what is rotated, of its gradient and of the angles, in all pairs."""
    mode = case["mode"]
    shape = mode.shape(SEQ, BATCH, HEADS, CHANNELS)
    t, cotangent = (LAYOUTS[case[x]](shape, mode.dtype, device) for x in ("layout", "gradient"))
    freqs = FREQS[case["freqs"]](oracle.random_angles(SEQ, mode.width(CHANNELS), device))
    oracle.check(t, freqs, mode, cotangent, fused)


@pytest.mark.memcheck
@all_modes
@pytest.mark.parametrize(
    ("layout", "gradient_layout", "shape", "width"),
    [
        ("contiguous", "contiguous", (5, 3, 17, 40), 20),
        ("sliced_amid_nan", "expanded_all", (3, 2, 5, 96), 96),
        ("transposed_2_3", "sliced_amid_nan", (7, 1, 3, 72), 20),
        *(
            ("sliced_amid_nan", "contiguous", (2, 2, 3, channels), width)
            for channels, width in [(2, 2), (7, 2), (24, 24), (80, 40), (600, 520)]
        ),
    ],
)
def test_widths_that_are_no_power_of_two(layout, gradient_layout, shape, width, mode, device):
    shape = mode.shape(*shape)
    t = LAYOUTS[layout](shape, mode.dtype, device)
    cotangent = LAYOUTS[gradient_layout](shape, mode.dtype, device)
    seq = shape[mode.tensor_format.index("s")]
    oracle.check(t, oracle.random_angles(seq, width, device), mode, cotangent)


@all_modes
@pytest.mark.parametrize(("seq", "batch", "heads", "channels"), SHAPES)
def test_shape(seq, batch, heads, channels, mode, device):
    shape = mode.shape(seq, batch, heads, channels)
    t = LAYOUTS["packed_amid_nan"](shape, mode.dtype, device)
    freqs = oracle.random_angles(seq, mode.width(channels), device)
    oracle.check(t, freqs, mode, oracle.random_like(t))


@both_paths
@all_modes
@pytest.mark.parametrize(("seq", "batch", "heads"), [(0, 2, 3), (2, 0, 3), (2, 3, 0)])
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
    width = 18
    special = [torch.inf, -torch.inf, -0.0, torch.finfo(mode.dtype).max, 1e-7, -1.0]
    t[..., width:] = torch.tensor(special, dtype=mode.dtype, device=device)
    out = apply(t, oracle.random_angles(3, width, device), mode)
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
    # The same angle at both channels of a pair, as in models.
    width = mode.width(24)
    module = rope_triton.RotaryPositionEmbedding(width, interleaved=mode.interleaved).to(device)
    freqs = module(3, offset=7)
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


@pytest.mark.parametrize("second", [0.0, -0.0, 1.5, -1.5, torch.nan])
def test_one_head_has_the_bits_of_many(second, device):
    """One head computes the sines of a pair once if both angles of every pair are equal."""
    members = torch.tensor([[0.0, -0.0, 1.0, -1.0] * 8, [1.0, 1.0, -0.0, 0.0] * 8], device=device)
    t = members.flatten().repeat(16, 1, 16, 1)
    angles = torch.tensor([0.0, 0.0, 0.0, 1.5] * 8, device=device).repeat(16, 1, 1, 2)
    angles[1, ..., 32:36], angles[9, ..., 63] = second, second
    many = rope_triton.apply_rotary_pos_emb(t, angles)
    one = rope_triton.apply_rotary_pos_emb(t[:, :, :1], angles)
    assert torch.equal(one.view(torch.int32), many[:, :, :1].view(torch.int32))


def one(t, freqs, tensor_format, **options):
    return (rope_triton.apply_rotary_pos_emb(t, freqs, tensor_format, **options),)


def qk(t, freqs, tensor_format, **options):
    return rope_triton.apply_qk_rotary_pos_emb(t, t[:, :, :1], freqs, tensor_format, **options)


def qkv(t, freqs, tensor_format, rounding, **options):
    """In a group are two heads of queries, one of keys and one of values; rounded once."""
    freqs = freqs[..., :16]
    return rope_triton.apply_fused_qkv_rotary_pos_emb(
        t, freqs, freqs, [32, 16, 16], tensor_format, **options
    )


def heads_of_groups(x):
    return [part.reshape(*x.shape[:2], -1, 16) for part in x.split([32, 16, 16], -1)]


CALLS = {
    "one": (one, lambda x: (x,)),
    "qk": (qk, lambda x: (x, x[:, :, :1])),
    "qkv": (qkv, heads_of_groups),
}
"""Calls of a tensor, and cotangents of their results."""


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
    shape = mode.shape(case["seq"], 5, case["heads"], 64)
    t, cotangent = (LAYOUTS[case["layout"]](shape, mode.dtype, device) for _ in range(2))
    freqs = oracle.random_angles(2 * case["seq"], 64, device)
    options = {"rounding": case["rounding"]}
    if case["cp_size"] == 2 and case["seq"] > 1:
        options |= {"cp_size": 2, "cp_rank": 1}

    def rotated(t, cotangent):
        leaf = t.detach().requires_grad_()
        outs = call(leaf, freqs, mode.tensor_format, **options)
        return *(x.detach() for x in outs), *torch.autograd.grad(outs, leaf, parts(cotangent))

    batch = mode.tensor_format.index("b")
    alone = map(rotated, t.split(1, batch), cotangent.split(1, batch))
    bits = torch.int32 if mode.dtype == torch.float32 else torch.int16
    for together, *one_by_one in zip(rotated(t, cotangent), *alone, strict=True):
        assert torch.equal(together.view(bits), torch.cat(one_by_one, batch).view(bits))
