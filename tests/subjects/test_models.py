"""The calls that models make."""

import pytest
import torch

from benchmarks._subjects.rope import grid, models, package_calls
from benchmarks._subjects.rope.forms import BACKWARD, FORWARD
from benchmarks._subjects.rope.models import MODELS, ModelCell


def test_shapes_are_those_of_the_models():
    llama = ModelCell("llama-3-70b", "training", "angles")
    assert llama.shapes == ((2, 4096, 64, 128), (2, 4096, 8, 128))
    assert llama.bytes_moved == 2 * 2 * 2 * 4096 * 72 * 128
    assert llama.of.function == "qk" and set(llama.starts) == {0} and llama.positions == 4096
    decode = ModelCell("phi-2", "decode", "tables")
    assert decode.shapes == ((64, 1, 32, 80),) * 2 and decode.hidden_size == 32
    assert decode.starts == tuple(range(0, 4096, 64)) and decode.positions == 4033
    images = ModelCell("qwen-2-vl-7b", "decode", "angles")
    assert images.of.tables == "perbatch" and images.positions == 1


@pytest.mark.parametrize(("model", "row"), [("deepseek-v3-q", 192), ("deepseek-v3-k", 576)])
def test_latent_attention_rotates_the_last_channels_of_a_row(model, row):
    cell = ModelCell(model, "decode", "angles")
    x = torch.zeros(cell.shape, dtype=torch.bfloat16, device="meta")
    view = cell.call("cpu").operand(x)
    assert view.shape == (64, 1, *MODELS[model].heads, 64)
    assert view.stride()[-2:] == (row, 1) and view.storage_offset() == row - 64


@pytest.mark.parametrize("model", ["llama-3-8b", "deepseek-v3-k"])
def test_it_is_timed_beside_a_copy_of_as_many_bytes(model):
    cell = ModelCell(model, "decode", "tables")
    x = torch.zeros(cell.shape, dtype=torch.bfloat16)
    copied = cell.call("cpu").copies(x)
    assert 2 * copied.untyped_storage().nbytes() == cell.bytes_moved


@pytest.mark.parametrize("cell", models.cells(), ids=str)
def test_no_rotation_is_wrong(cell, monkeypatch):
    monkeypatch.setitem(MODELS, cell.model, MODELS[cell.model]._replace(batch=2, seq_len=3))
    monkeypatch.setattr(models, "_DECODED", 4)
    call = cell.call("cpu")
    x = torch.randn(cell.shape).to(torch.bfloat16)
    with pytest.raises(AssertionError, match="not close"):
        package_calls.check(call.operand(x), x, call, FORWARD)


def test_every_call_is_compared_and_each_direction_is_tracked():
    cells = models.cells()
    assert len(set(cells)) == len(cells) == 4 * len(MODELS)
    assert set(cells) <= set(grid.candidates()) and set(cells) <= set(grid.checked_cells())
    for direction, steps in ((FORWARD, {"training", "decode"}), (BACKWARD, {"training"})):
        tracked = models.grid(direction)
        assert {cell.step for cell in cells if direction in cell.directions} == steps
        assert set(tracked["step"]) == steps and tracked["model"] == tuple(MODELS)
    for cell in cells:
        assert grid.cell_of("model_calls.Forward", grid.subject_params(cell)) == cell


@pytest.mark.parametrize(
    "cell", models.cells(), ids=lambda cell: "-".join(grid.subject_params(cell))
)
def test_every_call_is_right(cell, monkeypatch):
    model = MODELS[cell.model]
    few = tuple(min(count, 1 + index) for index, count in enumerate(model.heads))
    monkeypatch.setitem(MODELS, cell.model, model._replace(heads=few, batch=2, seq_len=3))
    monkeypatch.setattr(models, "_DECODED", 4)
    monkeypatch.setattr(models, "_CONTEXT", 64)  # the interpreter's fma rounds twice
    call = cell.call("cpu")
    x, grad = (torch.randn(cell.shape).to(torch.bfloat16) for _ in range(2))
    leaf = call.leaf(x)
    output = call.forward(leaf)
    package_calls.check(output, x, call, FORWARD)
    if BACKWARD in cell.directions:
        gradient = package_calls.gradient(output, leaf, call.cotangent(grad))
        package_calls.check(gradient, grad, call, BACKWARD)
