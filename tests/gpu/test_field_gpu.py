"""On a GPU: the parameter matrices of flash-attention, FLA and quack, at their sizes.

Where every combination would be a kernel to compile and shows nothing new, every pair of two
parameters' values is in some case: that is what takes the time here.
"""

import pytest

from tests import field

pytestmark = [pytest.mark.gpu, pytest.mark.public]


BATCHES = field.every(field.FLASH_ATTENTION | {"packed": [False]})
PACKED = field.spanning(field.FLASH_ATTENTION | {"packed": [True]})


@field.parametrize(BATCHES + PACKED)
def test_flash_attention(case):
    field.flash_attention(case, (32, 217, 4, 128), "cuda")


@field.parametrize(field.spanning(field.FLASH_ATTENTION_HEADS))
def test_flash_attention_heads_in_place(case):
    seq, channels = (781, 64) if case["heads"] == (4, 4) else (512, 128)
    field.flash_attention_heads(case, (32, seq, channels), "cuda")


@field.parametrize(field.spanning(field.FLA))
@pytest.mark.parametrize(("seq", "channels"), [(2048, 128), (4096, 256)])
def test_fla(seq, channels, case):
    field.fla(case, (2, seq, 4, channels), "cuda")


@field.parametrize(field.head_dims(11))
def test_head_dims_of_quack(case):
    field.quack(case, (2, 17, 3), "cuda")


@pytest.fixture
def fence(case, monkeypatch):
    fence = field.Fence(case["filling"])
    fence.allocate(monkeypatch)
    return fence


@field.parametrize(field.spanning(field.FENCED))
def test_fenced(case, fence):
    field.fenced(case, (3, 301, 5, 72), "cuda", fence)


@field.parametrize(field.spanning(field.FENCED_TABLES))
def test_fenced_tables(case, fence):
    field.fenced_tables(case, (3, 301, 5, 72), "cuda", fence)


@field.parametrize(field.spanning(field.FENCED_QKV))
def test_fenced_qkv(case, fence):
    field.fenced_qkv(case, (3, 301, 3, 72), "cuda", fence)
