"""A call of a form that was there before goes straight to the launch; what is no such call is not.

The form of a call is all of it but the values in its tensors, see ``launch``.
"""

import functools

import pytest
import torch

import rope_triton
from rope_triton import checks
from rope_triton.kernel import launch
from tests import oracle

BATCH, SEQ, HEADS, CHANNELS = 2, 4, 3, 16


@functools.cache
def angles(device):
    return oracle.random_angles(SEQ, CHANNELS, device)


def table(device):
    return angles(device)[:, 0, 0, : CHANNELS // 2].contiguous()


def ids(device):
    return torch.arange(SEQ, device=device).expand(BATCH, -1).contiguous()


def starts(device):
    return torch.zeros(BATCH, dtype=torch.int32, device=device)


def bounds(device):
    return torch.tensor([0, SEQ], dtype=torch.int32, device=device)


def by_angles(x, **options):
    return rope_triton.apply_rotary_pos_emb(x, angles(x.device), "bshd", **options)


def packed_by_angles(x, **options):
    options.setdefault("cu_seqlens", bounds(x.device))
    return rope_triton.apply_rotary_pos_emb(x[0], angles(x.device), "thd", **options)


def by_rows(x, **options):
    return rope_triton.apply_rotary_emb(x, table(x.device), table(x.device), **options)


def heads_first(x, **options):
    tables = table(x.device), table(x.device)
    return rope_triton.rotary_embedding(x.transpose(1, 2), *tables, **options)


def heads_first_by_ids(x, **options):
    return heads_first(x, position_ids=ids(x.device), **options)


def both_by_angles(x, **options):
    return rope_triton.apply_qk_rotary_pos_emb(x, x[:, :, :1], angles(x.device), "bshd", **options)


def both_by_rows(x, **options):
    tables = table(x.device), table(x.device)
    return rope_triton.apply_qk_rotary_emb(x, x[:, :, :1], *tables, **options)


def joined(x, split=(2 * CHANNELS, CHANNELS, CHANNELS), **options):
    whole, freqs = fourfold(x), angles(x.device)
    return rope_triton.apply_fused_qkv_rotary_pos_emb(whole, freqs, freqs, split, "bshd", **options)


def fourfold(x):
    """A group of two heads of queries, one of keys and one of values."""
    return torch.cat([x] * 4, dim=-1) if isinstance(x, torch.Tensor) else x


CALLS = (
    *(by_angles, packed_by_angles, by_rows, heads_first, heads_first_by_ids),
    *(both_by_angles, both_by_rows, joined),
)
every_call = pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)


@pytest.fixture
def x(device):
    launch._launches.clear()
    return oracle.contiguous((BATCH, SEQ, HEADS, CHANNELS), torch.float32, device)


@pytest.fixture
def unchecked(monkeypatch):
    """From when it is called on, nothing may be checked."""

    def forbid():
        def refused(*_, **__):
            raise AssertionError("checked again")

        for name in vars(checks):
            if name.startswith("check_") and name not in ("check_channels", "check_no_leaf"):
                monkeypatch.setattr(checks, name, refused)

    return forbid


@every_call
@pytest.mark.parametrize("gradient", [False, True])
def test_it_is_checked_once(x, call, gradient, unchecked):
    first = call(x.requires_grad_(gradient))
    unchecked()
    again = call(x)
    for one, other in zip(parts(first), parts(again), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    with pytest.raises(AssertionError, match="checked again"):
        call(x[:, :-1].contiguous())


@pytest.mark.parametrize("gradient", [False, True])
def test_in_place_it_is_checked_once(x, gradient, unchecked):
    x.requires_grad_(gradient)
    by_rows(x.clone(), inplace=True)
    unchecked()
    given = x.clone()
    assert by_rows(given, inplace=True) is given


def parts(result):
    return result if isinstance(result, tuple) else (result,)


@every_call
@pytest.mark.parametrize("broken", ["dtype", "dimensions", "channels", "type"])
def test_after_a_good_call_a_bad_one_is_refused(x, call, broken):
    call(x)
    wrong = {
        "dtype": lambda: x.double(),
        "dimensions": lambda: x[..., None],
        "channels": lambda: x[..., : CHANNELS // 2],
        "type": lambda: Indexed(x),
    }[broken]()
    with pytest.raises((TypeError, ValueError)):
        call(wrong)


class Indexed:
    """Looks like a tensor where the calls above take a part of one, and is none."""

    def __init__(self, tensor):
        self.device, self._tensor = tensor.device, tensor

    def __getitem__(self, _):
        return self

    def transpose(self, *_):
        return self


@pytest.mark.parametrize("call", [by_angles, packed_by_angles, both_by_angles, joined])
@pytest.mark.parametrize("options", [{"cp_size": 1.0}, {"cp_rank": 0.0}], ids=str)
def test_a_number_that_only_equals_another_is_refused(x, call, options):
    call(x, cp_size=1, cp_rank=0)
    with pytest.raises(TypeError, match="must be an int"):
        call(x, **options)


@pytest.mark.parametrize("split", [(32.0, 16, 16), (32, 16), (48, 16, 0), (33, 15, 16)], ids=str)
def test_a_split_that_is_none_is_refused(x, split):
    joined(x)
    with pytest.raises(ValueError, match="qkv_split_arg_list must be"):
        joined(x, split)


@pytest.mark.parametrize("call", [c for c in CALLS if c is not joined], ids=lambda c: c.__name__)
@pytest.mark.parametrize("rounding", ["never", ["once"], None], ids=str)
def test_another_rounding_is_refused(x, call, rounding):
    call(x)
    with pytest.raises(ValueError, match="rounding must be one of"):
        call(x, rounding=rounding)


@pytest.mark.parametrize("call", [by_rows, both_by_rows])
def test_a_common_offset_is_no_part_of_the_form(x, call):
    """Each begins elsewhere in the tables: none may be launched as another was."""
    longer = x[:, : SEQ - 1].contiguous()
    results = [parts(call(longer, seqlen_offsets=offset))[0] for offset in (0, 1, 0, 1)]
    rows = table(x.device)
    for result, offset in zip(results, (0, 1, 0, 1), strict=True):
        angle = rows[offset : offset + SEQ - 1, None]
        first, second = longer.chunk(2, dim=-1)
        expected = torch.cat((first * angle - second * angle, second * angle + first * angle), -1)
        torch.testing.assert_close(result, expected)
    with pytest.raises(ValueError, match="seqlen_offsets must be from 0 to 4, got 5"):
        call(longer, seqlen_offsets=5)


def test_a_leaf_is_not_changed_in_place_after_another_was(x):
    by_rows(x.clone(), inplace=True)
    given = x.clone().requires_grad_()
    with pytest.raises(ValueError, match="a leaf that requires a gradient"):
        by_rows(given, inplace=True)
    assert torch.equal(given, x)


def test_a_number_cannot_be_rotated_in_place(x):
    with pytest.raises(ValueError, match="t must have 4 dimensions"):
        by_rows(x.sum().requires_grad_() * 1, inplace=True)


@pytest.mark.parametrize("call", [rope_triton.apply_rotary_emb, rope_triton.rotary_embedding])
def test_tables_are_two(x, call):
    with pytest.raises(TypeError, match="sin must be a torch.Tensor, got NoneType"):
        call(x, table(x.device), None)


def test_tables_of_both_are_two(x):
    with pytest.raises(TypeError, match="sin must be a torch.Tensor, got NoneType"):
        rope_triton.apply_qk_rotary_emb(x, x, table(x.device), None)


def test_learned_angles_of_a_joined_projection_are_refused_each_time(x):
    whole, freqs = fourfold(x), angles(x.device)
    split = [2 * CHANNELS, CHANNELS, CHANNELS]
    call = rope_triton.apply_fused_qkv_rotary_pos_emb
    call(whole, freqs, freqs, split, "bshd")
    with pytest.raises(ValueError, match="requires a gradient"):
        call(whole, freqs.clone().requires_grad_(), freqs, split, "bshd")
