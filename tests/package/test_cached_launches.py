"""A call like an earlier one is launched without new checks; any other call is checked.

Calls are alike if all but the values in their tensors is equal: their specialization key, see
``rope_triton.kernel.launch``.
"""

import pytest
import torch

from rope_triton import checks
from rope_triton.kernel import launch
from tests import oracle
from tests.package import calls
from tests.package.calls import CALLS, CHANNELS, SEQ, joined, parts

every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@pytest.fixture
def x(device):
    launch.cache.clear()
    return calls.random(device)


@pytest.fixture
def unchecked(monkeypatch):
    """From when it is called on, nothing may be checked."""

    def forbid():
        def refused(*_, **__):
            raise AssertionError("checked again")

        for name in vars(checks):
            if name.startswith("check_") and name not in ("check_channels", "check_in_place"):
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


@every_call
@pytest.mark.parametrize("broken", ["dtype", "dimensions", "channels"])
def test_after_a_good_call_a_bad_one_is_refused(x, call, broken):
    call(x)
    wrong = {
        "dtype": lambda: x.double(),
        "dimensions": lambda: x[..., None],
        # Fewer than half: tables as wide as x have a value for each channel.
        "channels": lambda: x[..., : CHANNELS // 2 - 2],
    }[broken]()
    with pytest.raises((TypeError, ValueError)):
        call(wrong)


@pytest.mark.parametrize("call", [calls.by_angles, calls.packed, calls.both_by_angles, joined])
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


@pytest.mark.parametrize("call", [CALLS[name] for name in CALLS if name != "joined"])
@pytest.mark.parametrize("rounding", ["never", ["once"], None], ids=str)
def test_another_rounding_is_refused(x, call, rounding):
    call(x)
    with pytest.raises(ValueError, match="rounding must be one of"):
        call(x, rounding=rounding)


@pytest.mark.parametrize("call", [calls.by_tables, calls.both_by_tables])
def test_a_common_offset_is_no_part_of_the_key(x, call):
    """Each begins elsewhere in the tables: none may be launched as another was."""
    longer = x[:, : SEQ - 1].contiguous()
    results = [parts(call(longer, seqlen_offsets=offset))[0] for offset in (0, 1, 0, 1)]
    for result, offset in zip(results, (0, 1, 0, 1), strict=True):
        rows = (table[offset : offset + SEQ - 1, None] for table in calls.tables(x.device))
        expected = oracle.rotate_by_tables(longer, *rows, False).float()
        torch.testing.assert_close(result, expected)
    with pytest.raises(ValueError, match="seqlen_offsets must be from 0 to 4, got 5"):
        call(longer, seqlen_offsets=5)


def test_a_leaf_is_not_changed_in_place_after_another_was(x):
    calls.by_tables(x.clone(), inplace=True)
    leaf = x.clone().requires_grad_()
    with pytest.raises(ValueError, match="a leaf that requires a gradient"):
        calls.by_tables(leaf, inplace=True)
    assert torch.equal(leaf, x)


def test_a_number_cannot_be_rotated_in_place(x):
    with pytest.raises(ValueError, match="x must have 4 dimensions"):
        calls.by_tables(x.sum().requires_grad_() * 1, inplace=True)
