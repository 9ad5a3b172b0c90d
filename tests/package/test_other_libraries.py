"""Few cases of other libraries' parameter matrices, small; ``tests/gpu`` has more and larger ones.

Every pair of two parameters' values is in some case.
"""

import pytest
import torch

from tests import covering, fences, other_libraries
from tests.other_libraries import FENCED, FLA, FLASH_ATTENTION, FLASH_ATTENTION_HEADS

fence = fences.fence  # fixture
in_a_fence = pytest.mark.usefixtures("fence")


@covering.pairs(FLASH_ATTENTION)
def test_flash_attention(case, device):
    other_libraries.flash_attention(case, (2, 3, 2, 24), device)


@covering.pairs(FLASH_ATTENTION_HEADS)
def test_flash_attention_heads_in_place(case, device):
    other_libraries.flash_attention_heads(case, (2, 3, 16), device)


@covering.pairs(FLA)
def test_fla(case, device):
    other_libraries.fla(case, (2, 4, 4, 16), device)


@covering.parametrize(other_libraries.head_dims(61))
def test_head_dims_of_quack(case, device):
    other_libraries.quack(case, (1, 2, 2), device)


# --- in a fence -----------------------------------------------------------------------------------


@in_a_fence
@covering.pairs(FLASH_ATTENTION | FENCED)
def test_tables_in_a_fence(case, device):
    other_libraries.flash_attention(case, (2, 3, 3, 24), device)


@in_a_fence
@covering.pairs(FLA | FENCED)
def test_positions_before_the_tables_in_a_fence(case, device):
    other_libraries.fla(case, (2, 4, 4, 24), device)


@in_a_fence
@covering.pairs(other_libraries.FORMATS | FENCED)
def test_formats_in_a_fence(case, device):
    other_libraries.formats(case, (2, 3, 3, 24), device)


@in_a_fence
@covering.pairs(other_libraries.FUSED_QKV | FENCED)
def test_fused_qkv_in_a_fence(case, device):
    other_libraries.fused_qkv(case, (2, 3, 1, 24), device)


@pytest.mark.parametrize("where", [-1, 7], ids=["before", "after"])
@pytest.mark.parametrize("filling", ["nan", "random"])
def test_a_fence_sees_what_is_written_outside(filling, where, device):
    around = fences.Fence(filling)
    inside = around.around(torch.ones(7, device=device))
    around.assert_intact()
    inside.as_strided((1,), (1,), inside.storage_offset() + where).fill_(2)
    with pytest.raises(AssertionError):
        around.assert_intact()
