"""The clock, the memory and the launches of a training step, on the smallest network."""

import pytest
import torch

from benchmarks._studies.training import measuring
from benchmarks._studies.training.functions import PROVIDERS
from benchmarks._studies.training.network import random_weights
from benchmarks._studies.training.sizes import ATTENTION, STEP, TINY

pytestmark = pytest.mark.gpu


def test_eager_providers_are_right_and_counted():
    names = "none-eager", "eager", "ours-eager", "transformers", "megatron", "flash-attention"
    rows = measuring.measured(TINY, names, turns=2)
    weights = random_weights(TINY.shape, torch.bfloat16, "cuda")
    held = sum(each.nbytes for each in weights.leaves())
    for name, row in rows.items():
        assert "parts" in row, f"{name}: {row}"
        assert row["parts"].keys() == {STEP, ATTENTION}
        for part in row["parts"]:
            found = row["parts"][part]
            assert len(found["seconds"]) == 2 and 0 < min(found["seconds"]) < 1
            assert found["peak_bytes"] > held and found["sdpa"] != "math"
        parts = row["parts"]
        assert parts[ATTENTION]["launches"] < parts[STEP]["launches"]
    none, plain, *ours = (row["parts"][STEP]["launches"] for row in rows.values())
    # One launch forward and one backward of each layer. Megatron Core rotates keys apart, and its
    # results lie by position: PyTorch then needs a launch more to put the gradients together. What
    # is rotated in place is part of a larger tensor, whose gradient autograd copies.
    most = [none + count * TINY.shape.layers for count in (2, 2, 5)] + [plain - 1]
    assert max(most) < plain
    for name, launches, bound in zip(names[2:], ours, most, strict=True):
        assert launches <= bound, (name, launches, bound)


def test_a_compiled_provider_is_right():
    rows = measuring.measured(TINY, ["ours"], turns=1, profiled=False)
    assert "parts" in rows["ours"], rows["ours"]


def test_a_wrong_rotation_has_no_speed(monkeypatch):
    right = PROVIDERS["ours-eager"]
    wrong = right.functions()._replace(tables=lambda angles, dtype: -angles)
    monkeypatch.setitem(PROVIDERS, "ours-eager", right._replace(functions=lambda: wrong))
    rows = measuring.measured(TINY, ["ours-eager"], turns=1)
    assert "AssertionError: ours-eager: attention." in rows["ours-eager"]["error"]
