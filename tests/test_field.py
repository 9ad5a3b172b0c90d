"""Few cases of other libraries' parameter matrices, small; ``tests/gpu`` has more and larger ones.

Every pair of two parameters' values is in some case.
"""

import pytest
import torch

from tests import field


@field.parametrize(field.spanning(field.FLASH_ATTENTION))
def test_flash_attention(case, device):
    field.flash_attention(case, (2, 3, 2, 24), device)


@field.parametrize(field.spanning(field.FLASH_ATTENTION_HEADS))
def test_flash_attention_heads_in_place(case, device):
    field.flash_attention_heads(case, (2, 3, 16), device)


@field.parametrize(field.spanning(field.FLA))
def test_fla(case, device):
    field.fla(case, (2, 4, 4, 16), device)


@field.parametrize(field.head_dims(61))
def test_head_dims_of_quack(case, device):
    field.quack(case, (1, 2, 2), device)


@pytest.fixture
def fence(case, monkeypatch):
    fence = field.Fence(case["filling"])
    fence.allocate(monkeypatch)
    return fence


@field.parametrize(field.spanning(field.FENCED))
def test_fenced(case, fence, device):
    field.fenced(case, (2, 3, 3, 24), device, fence)


@field.parametrize(field.spanning(field.FENCED_TABLES))
def test_fenced_tables(case, fence, device):
    field.fenced_tables(case, (2, 3, 3, 24), device, fence)


@field.parametrize(field.spanning(field.FENCED_QKV))
def test_fenced_qkv(case, fence, device):
    field.fenced_qkv(case, (2, 3, 1, 24), device, fence)


@pytest.mark.parametrize("where", [-1, 7], ids=["before", "after"])
@pytest.mark.parametrize("filling", ["nan", "random"])
def test_a_fence_sees_what_is_written_outside(filling, where, device):
    fence = field.Fence(filling)
    inside = fence.around(torch.ones(7, device=device))
    fence.assert_intact()
    inside.as_strided((1,), (1,), inside.storage_offset() + where).fill_(2)
    with pytest.raises(AssertionError):
        fence.assert_intact()
