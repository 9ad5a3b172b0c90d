"""The parameter matrices of flash-attention, FLA and quack; on a GPU at their sizes.

Any two parameters' values are in some case, and all functions run in a fence, too: their tensors
lie amid NaN or random numbers, and no step past their ends is allowed.
"""

import pytest

from tests import covering, fences, other_libraries
from tests.conftest import COMPILED
from tests.other_libraries import FLA, FLASH_ATTENTION, FLASH_ATTENTION_HEADS, FORMATS, FUSED_QKV

pytestmark = [pytest.mark.gpu_or_interpreter, pytest.mark.public]

fence = fences.fence  # fixture
in_a_fence = pytest.mark.usefixtures("fence")
FENCED = {"filling": ["none", "nan", "random"]}


@in_a_fence
@covering.pairs(FLASH_ATTENTION | FENCED)
def test_flash_attention(case, device):
    large = (32, 217, 4, 128) if case["filling"] == "none" else (3, 301, 5, 72)
    other_libraries.flash_attention(case, large if COMPILED else (2, 3, 2, 24), device)


@covering.pairs(FLASH_ATTENTION_HEADS)
def test_flash_attention_heads_in_place(case, device):
    large = (32, 781, 64) if case["heads"] == (4, 4) else (32, 512, 128)
    other_libraries.flash_attention_heads(case, large if COMPILED else (2, 3, 16), device)


@in_a_fence
@covering.pairs(FLA | FENCED)
@pytest.mark.parametrize(
    ("seq", "channels"), [(2048, 128), (4096, 256), (300, 72)] if COMPILED else [(4, 16)]
)
def test_fla(seq, channels, case, device):
    other_libraries.fla(case, (2, seq, 4, channels), device)


@covering.parametrize(other_libraries.head_dims(11 if COMPILED else 61))
def test_head_dims_of_quack(case, device):
    other_libraries.quack(case, (2, 17, 3) if COMPILED else (1, 2, 2), device)


@in_a_fence
@covering.pairs(FORMATS | FENCED)
def test_formats(case, device):
    other_libraries.formats(case, (3, 301, 5, 72) if COMPILED else (2, 3, 3, 24), device)


@in_a_fence
@covering.pairs(FUSED_QKV | FENCED)
def test_fused_qkv(case, device):
    other_libraries.fused_qkv(case, (3, 301, 3, 72) if COMPILED else (2, 3, 1, 24), device)
