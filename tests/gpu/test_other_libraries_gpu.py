"""On a GPU: the parameter matrices of flash-attention, FLA and quack, at their sizes.

Where every combination would be a kernel to compile and shows nothing new, every pair of two
parameters' values is in some case: that is what takes the time here.
"""

import pytest

from tests import covering, fences, other_libraries
from tests.other_libraries import FENCED, FLA, FLASH_ATTENTION, FLASH_ATTENTION_HEADS

pytestmark = [pytest.mark.gpu, pytest.mark.public]

fence = fences.fence  # fixture
in_a_fence = pytest.mark.usefixtures("fence")

BATCHES = covering.every(FLASH_ATTENTION | {"packed": [False]})
PACKED = covering.spanning(FLASH_ATTENTION | {"packed": [True]})


@covering.parametrize(BATCHES + PACKED)
def test_flash_attention(case):
    other_libraries.flash_attention(case, (32, 217, 4, 128), "cuda")


@covering.pairs(FLASH_ATTENTION_HEADS)
def test_flash_attention_heads_in_place(case):
    seq, channels = (781, 64) if case["heads"] == (4, 4) else (512, 128)
    other_libraries.flash_attention_heads(case, (32, seq, channels), "cuda")


@covering.pairs(FLA)
@pytest.mark.parametrize(("seq", "channels"), [(2048, 128), (4096, 256)])
def test_fla(seq, channels, case):
    other_libraries.fla(case, (2, seq, 4, channels), "cuda")


@covering.parametrize(other_libraries.head_dims(11))
def test_head_dims_of_quack(case):
    other_libraries.quack(case, (2, 17, 3), "cuda")


@in_a_fence
@covering.pairs(FLASH_ATTENTION | FENCED)
def test_tables_in_a_fence(case):
    other_libraries.flash_attention(case, (3, 301, 5, 72), "cuda")


@in_a_fence
@covering.pairs(FLA | FENCED)
def test_positions_before_the_tables_in_a_fence(case):
    other_libraries.fla(case, (2, 300, 4, 72), "cuda")


@in_a_fence
@covering.pairs(other_libraries.FORMATS | FENCED)
def test_formats_in_a_fence(case):
    other_libraries.formats(case, (3, 301, 5, 72), "cuda")


@in_a_fence
@covering.pairs(other_libraries.FUSED_QKV | FENCED)
def test_fused_qkv_in_a_fence(case):
    other_libraries.fused_qkv(case, (3, 301, 3, 72), "cuda")
