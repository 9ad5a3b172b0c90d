"""What is refused: the exception, what its message names, and that nothing was computed before."""

import pytest
import torch

import rope_triton
from rope_triton import RotaryPositionEmbedding, apply_rotary_pos_emb
from rope_triton.kernel import launch


class Launched(AssertionError):
    pass


@pytest.fixture(autouse=True)
def _nothing_launches(monkeypatch):
    def compute(*args, **kwargs):
        raise Launched

    monkeypatch.setattr(launch, "run", compute)
    monkeypatch.setattr(rope_triton.reference, "rotate", compute)


both_paths = pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])


def valid(device, **changes):
    """Arguments of a valid call, with changes; a tensor may be a function of the valid one."""
    arguments = {"t": torch.ones(4, 2, 3, 8), "freqs": torch.ones(6, 1, 1, 8)}
    arguments = {name: tensor.to(device) for name, tensor in arguments.items()}
    for name, change in changes.items():
        if isinstance(change, torch.Tensor) and not change.is_meta:
            change = change.to(device)
        arguments[name] = change(arguments[name]) if callable(change) else change
    return arguments


@both_paths
def test_the_guard_sees_a_valid_call(fused, device):
    with pytest.raises(Launched):
        apply_rotary_pos_emb(**valid(device), fused=fused)


def integer(x):
    return x.int()


def shaped(*shape):
    return lambda x: x.new_ones(shape)


TENSORS = {
    "t_is_a_list": ({"t": [1.0]}, TypeError, r"t must be a torch\.Tensor, got list"),
    "t_is_none": ({"t": None}, TypeError, r"t must be a torch\.Tensor, got NoneType"),
    "freqs_is_a_float": ({"freqs": 1.0}, TypeError, r"freqs must be a torch\.Tensor, got float"),
    "t_is_integer": ({"t": integer}, TypeError, r"t must be .*float32.*got torch\.int32"),
    "t_is_complex": (
        {"t": torch.Tensor.cfloat},
        TypeError,
        r"t must be .*float32.*got torch\.complex64",
    ),
    "freqs_is_integer": (
        {"freqs": integer},
        TypeError,
        r"freqs must be floating point.*radians.*got torch\.int32",
    ),
    "freqs_is_complex": (
        {"freqs": torch.Tensor.cfloat},
        TypeError,
        r"freqs must be floating point.*got torch\.complex64",
    ),
    "another_device": (
        {"freqs": lambda x: x.to("meta")},
        ValueError,
        r"t and freqs must share a device, got c\w+(:0)? and meta",
    ),
}

SHAPES = {
    "t_has_3_dimensions": (
        {"t": shaped(4, 3, 8)},
        r"4 dimensions for tensor_format='sbhd', got shape \(4, 3, 8\)",
    ),
    "t_has_5_dimensions": (
        {"t": shaped(1, 4, 2, 3, 8), "tensor_format": "bshd"},
        r"4 dimensions for tensor_format='bshd', got shape \(1, 4, 2, 3, 8\)",
    ),
    "freqs_has_2_dimensions": (
        {"freqs": shaped(6, 8)},
        r"freqs must have shape \[s2, 1 or b=2, 1 or h=3, d2\], got \(6, 8\)",
    ),
    "freqs_has_another_batch": (
        {"freqs": shaped(6, 3, 1, 8)},
        r"freqs must have shape \[s2, 1 or b=2, 1 or h=3, d2\], got \(6, 3, 1, 8\)",
    ),
    "freqs_has_other_heads": (
        {"freqs": shaped(6, 1, 2, 8)},
        r"freqs must have shape \[s2, 1 or b=2, 1 or h=3, d2\], got \(6, 1, 2, 8\)",
    ),
    "freqs_is_short_sbhd": (
        {"freqs": shaped(3, 1, 1, 8)},
        r"freqs covers 3 positions.*\(4, 2, 3, 8\) \(sbhd\) has 4",
    ),
    "freqs_is_short_bshd": (
        {"freqs": shaped(1, 1, 1, 8), "tensor_format": "bshd"},
        r"freqs covers 1 positions.*\(4, 2, 3, 8\) \(bshd\) has 2",
    ),
    "freqs_is_empty": (
        {"freqs": shaped(6, 1, 1, 0)},
        r"freqs must be an even number of channels wide, from 2 to d=8, got 0",
    ),
    "freqs_is_odd": (
        {"freqs": shaped(6, 1, 1, 7)},
        r"freqs must be an even number of channels wide, from 2 to d=8, got 7",
    ),
    "freqs_is_wide": (
        {"freqs": shaped(6, 1, 1, 10)},
        r"freqs must be an even number of channels wide, from 2 to d=8, got 10",
    ),
}

SOME_TENSOR = torch.zeros(2, dtype=torch.int32)


def one_batch(t):
    return t[:, 0]


def no_rows(freqs):
    return freqs[:0]


OPTIONS = {
    "unknown_format": (
        {"tensor_format": "hdsb"},
        ValueError,
        r"tensor_format must be 'sbhd', 'bshd' or 'thd', got 'hdsb'",
    ),
    "format_of_attention": (
        {"tensor_format": "bhsd"},
        ValueError,
        r"tensor_format must be 'sbhd', 'bshd' or 'thd', got 'bhsd'",
    ),
    "format_is_none": ({"tensor_format": None}, ValueError, r"'sbhd', 'bshd' or 'thd', got None"),
    "cu_seqlens_of_another_batch": (
        {"cu_seqlens": SOME_TENSOR},
        ValueError,
        r"cu_seqlens must have shape \[b \+ 1\] = \(3,\), got \(2,\)",
    ),
    "thd_without_cu_seqlens": (
        {"tensor_format": "thd"},
        ValueError,
        r"tensor_format='thd' needs cu_seqlens, got None",
    ),
    "thd_of_4_dimensions": (
        {"tensor_format": "thd", "cu_seqlens": SOME_TENSOR},
        ValueError,
        r"3 dimensions for tensor_format='thd', got shape \(4, 2, 3, 8\)",
    ),
    "thd_without_sequences": (
        {"t": one_batch, "tensor_format": "thd", "cu_seqlens": SOME_TENSOR[:1]},
        ValueError,
        r"cu_seqlens must bound every token of t, got 1 values",
    ),
    "thd_without_angles": (
        {"t": one_batch, "freqs": no_rows, "tensor_format": "thd", "cu_seqlens": SOME_TENSOR},
        ValueError,
        r"freqs covers 0 positions",
    ),
    "cu_seqlens_is_a_list": (
        {"t": one_batch, "tensor_format": "thd", "cu_seqlens": [0, 4]},
        TypeError,
        r"cu_seqlens must be a torch\.Tensor, got list",
    ),
    "cu_seqlens_is_float": (
        {"t": one_batch, "tensor_format": "thd", "cu_seqlens": SOME_TENSOR.float()},
        TypeError,
        r"cu_seqlens must be .*int32.*got torch\.float32",
    ),
    "cu_seqlens_has_2_dimensions": (
        {"t": one_batch, "tensor_format": "thd", "cu_seqlens": SOME_TENSOR[None]},
        ValueError,
        r"cu_seqlens must have shape \[b \+ 1\], got \(1, 2\)",
    ),
    "cu_seqlens_on_another_device": (
        {"t": one_batch, "tensor_format": "thd", "cu_seqlens": SOME_TENSOR.to("meta")},
        ValueError,
        r"t and cu_seqlens must share a device, got c\w+(:0)? and meta",
    ),
    "start_positions_is_an_int": (
        {"start_positions": 3},
        TypeError,
        r"start_positions must be a torch\.Tensor, got int",
    ),
    "start_positions_of_another_batch": (
        {"start_positions": torch.zeros(3, dtype=torch.int64)},
        ValueError,
        r"start_positions must have shape \[b\] = \(2,\), got \(3,\)",
    ),
    "start_positions_of_other_sequences": (
        {
            **{"t": one_batch, "tensor_format": "thd", "cu_seqlens": SOME_TENSOR},
            "start_positions": SOME_TENSOR,
        },
        ValueError,
        r"start_positions must have shape \[b\] = \(1,\), got \(2,\)",
    ),
    "odd_length_on_two_ranks": (
        {"t": lambda t: t[:3], "cp_size": 2},
        ValueError,
        r"\(3, 2, 3, 8\) \(sbhd\) has 3 tokens, cp_size=2 needs two equal chunks",
    ),
    "freqs_is_short_for_all_ranks": (
        {"cp_size": 2, "cp_rank": 1},
        ValueError,
        r"freqs covers 6 positions, .* has 4 on each of cp_size=2 ranks",
    ),
    "cp_size_is_a_float": ({"cp_size": 1.0}, TypeError, r"cp_size must be an int, got float"),
    "cp_rank_is_a_string": ({"cp_rank": "0"}, TypeError, r"cp_rank must be an int, got str"),
    "cp_size_is_0": ({"cp_size": 0}, ValueError, r"cp_rank < cp_size, got cp_rank=0, cp_size=0"),
    "cp_rank_is_negative": (
        {"cp_rank": -1},
        ValueError,
        r"0 <= cp_rank < cp_size, got cp_rank=-1, cp_size=1",
    ),
    "cp_rank_is_cp_size": (
        {"cp_size": 2, "cp_rank": 2},
        ValueError,
        r"0 <= cp_rank < cp_size, got cp_rank=2, cp_size=2",
    ),
}


@both_paths
@pytest.mark.parametrize(("changes", "error", "message"), TENSORS.values(), ids=TENSORS)
def test_tensors(changes, error, message, fused, device):
    with pytest.raises(error, match=message):
        apply_rotary_pos_emb(**valid(device, **changes), fused=fused)


@both_paths
@pytest.mark.parametrize(("changes", "message"), SHAPES.values(), ids=SHAPES)
def test_shapes(changes, message, fused, device):
    with pytest.raises(ValueError, match=message):
        apply_rotary_pos_emb(**valid(device, **changes), fused=fused)


@both_paths
@pytest.mark.parametrize(("changes", "error", "message"), OPTIONS.values(), ids=OPTIONS)
def test_options(changes, error, message, fused, device):
    with pytest.raises(error, match=message):
        apply_rotary_pos_emb(**valid(device, **changes), fused=fused)


def test_float64_has_no_kernel(device):
    with pytest.raises(TypeError, match=r"t is torch\.float64.*pass fused=False"):
        apply_rotary_pos_emb(**valid(device, t=torch.Tensor.double))


MODULE = {
    "percent_is_0": ({"rotary_percent": 0.0}, r"rotary_percent must be in \(0, 1\], got 0\.0"),
    "percent_is_negative": ({"rotary_percent": -0.5}, r"\(0, 1\], got -0\.5"),
    "percent_is_large": ({"rotary_percent": 1.5}, r"\(0, 1\], got 1\.5"),
    "percent_is_nan": ({"rotary_percent": float("nan")}, r"\(0, 1\], got nan"),
    "rotated_size_is_odd": (
        {"dim": 6, "rotary_percent": 0.5},
        r"positive even number, got 3 from dim=6, rotary_percent=0\.5",
    ),
    "rotated_size_is_0": ({"dim": 0}, r"positive even number, got 0 from dim=0"),
    "dim_is_negative": ({"dim": -8}, r"positive even number, got -8 from dim=-8"),
    "base_is_0": ({"rotary_base": 0}, r"rotary_base must be positive, got 0"),
    "factor_is_negative": (
        {"seq_len_interpolation_factor": -2, "pretrained_max_position_embeddings": 8},
        r"seq_len_interpolation_factor must be positive, got -2",
    ),
    "pretrained_is_0": (
        {"seq_len_interpolation_factor": 2, "pretrained_max_position_embeddings": 0},
        r"pretrained_max_position_embeddings must be positive, got 0",
    ),
    "factor_alone": (
        {"seq_len_interpolation_factor": 2},
        r"seq_len_interpolation_factor and pretrained_max.* together, got 2 and None",
    ),
    "pretrained_alone": (
        {"pretrained_max_position_embeddings": 8},
        r"seq_len_interpolation_factor and pretrained_max.* together, got None and 8",
    ),
}


@pytest.mark.parametrize(("changes", "message"), MODULE.values(), ids=MODULE)
def test_module(changes, message):
    with pytest.raises(ValueError, match=message):
        RotaryPositionEmbedding(**({"dim": 8} | changes))


def test_negative_length():
    with pytest.raises(ValueError, match=r"max_seq_len must not be negative, got -1"):
        RotaryPositionEmbedding(8)(-1)
