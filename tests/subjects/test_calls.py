"""The calls of the rotation: what they are made on, and that only the right result passes."""

import pytest
import torch

from benchmarks import _subjects
from benchmarks._engine.subject import BACKWARD, FORWARD
from benchmarks._subjects.calls import gradient
from benchmarks._subjects.rope import formula, grid, names
from benchmarks._subjects.rope.cells import RopeCell, model_cell, named_cell, path_cell
from benchmarks._subjects.rope.models import MODELS
from tests.cells import few, sized_cell

LISTED = grid.listed_calls()
# What no call of the list has: another layout, and what is done with the output.
OTHERS = ("angles-sbhd-fp32-2x64-exchanged", "angles-sbhd-bf16-2x64-thenread")
_TINY_SIZED = [
    *("bf16-4+2x16r8-packed-2x3", "fp16-1x16-il-of48-2x3", "fp32-3+1x16-transposed-2x3"),
    *("bf16-2x16-misaligned-3x1", "fp32-2+1x16-sliced-perbatch-2x3", "bf16-2+1x16-2x1"),
    *("bf16-2+1x16-cp-2x4", "fp16-2x16r8-perbatch-cp-2x4", "bf16-2x16-perbatch-2x1"),
    *("fp16-2x16-rtables-2x3", "fp16-2+1x16-reach-2x3"),
]


def tiny(name: str, tokens: int = 4) -> RopeCell:
    """A call on few tokens and heads: the interpreter takes milliseconds for a program."""
    call = names.parse(name)
    first, *keys = call.heads
    call = call._replace(heads=(min(first, 1 if call.function == "qkv" else 4), *(1 for _ in keys)))
    tokens *= 2 if call.parallel else 1
    return named_cell(str(call), tokens * call.token_bytes / 2**20)


TINY = [
    *map(tiny, (*LISTED, *OTHERS)),
    *(path_cell(path, 1 / 8, "bfloat16") for path in ("thd", "thd-short")),
    *(sized_cell(name, takes) for name in _TINY_SIZED for takes in ("angles", "tables")),
]


# --- what is called -------------------------------------------------------------------------------


def test_sizes_are_about_what_they_are_called():
    for cell in (*grid.listed_cells(), *grid.cells_of(path_cell, grid.PATH_GRIDS["full"])):
        mib = cell.bytes_moved / (4 if cell.call_name.then else 2) / 2**20
        about = cell.values[1]
        assert 0.3 * about < mib <= 1.01 * about or cell.call_name.length == "decode", cell


def test_candidates_come_once_and_the_small_grid_first():
    candidates = _subjects.candidates()
    assert len(candidates) == len(set(candidates))
    small = grid.all_cells("small")
    assert candidates[: len(small)] == small
    assert {*grid.model_cells(), *grid.all_cells("full"), *grid.listed_cells()} < {*candidates}
    checked = _subjects.checked()
    assert set(checked) < set(candidates) and {*small, *grid.model_cells()} < {*checked}
    assert [cell.values[0] for cell in checked if cell.suite == "surface"] == list(LISTED)[::-1]


def test_texts_say_which_cell_it_is():
    for cell in _subjects.candidates():
        assert _subjects.cell(cell.suite, cell.params) == cell
    quoted = _subjects.cell("paths.Forward.track_latency", ("'thd'", "32", "'bfloat16'"))
    assert quoted == path_cell("thd", 32, "bfloat16")
    for suite, *params in (
        *(("codegen",), ("rope", "128"), ("paths", "thd", "x", "bfloat16")),
        *(("paths", "no-path", "32", "bfloat16"), ("surface", "no-call", "32")),
    ):
        with pytest.raises(ValueError):
            _subjects.cell(suite, params)


def test_lengths_starts_and_positions():
    unequal = path_cell("thd", 256, "bfloat16")
    assert unequal.lengths == (*(2**n for n in range(13, -1, -1)), 1)
    assert unequal.positions == 2**13
    short = path_cell("thd-short", 256, "bfloat16")
    assert short.lengths == (27,) * 2401
    assert (short.positions, short.shapes) == (27, ((2401 * 27, 16, 128),))
    starts = path_cell("starts", 32, "bfloat16")
    assert starts.starts == (0, 1000, 2000, 3000) and starts.lengths == (512,) * 4
    assert starts.positions == 3512 and starts.distinct_positions == 4 * 512
    assert set(path_cell("tables", 32, "bfloat16").starts) == {0}


def test_shapes_are_those_of_the_models():
    llama = model_cell("llama-3-70b", "training", "angles")
    assert llama.shapes == ((2, 4096, 64, 128), (2, 4096, 8, 128))
    assert llama.bytes_moved == 2 * 2 * 2 * 4096 * 72 * 128
    assert llama.call_name.function == "qk" and llama.positions == 4096
    assert llama.directions == (FORWARD, BACKWARD) and set(llama.starts) == {0}
    decode = model_cell("phi-2", "decode", "tables")
    assert decode.shapes == ((64, 1, 32, 80),) * 2 and decode.call_name.rotated == 32
    assert decode.directions == (FORWARD,)
    assert decode.starts == tuple(range(0, 4096, 64)) and decode.positions == 4033
    images = model_cell("qwen-2-vl-7b", "decode", "angles")
    assert images.call_name.tables == "perbatch" and images.positions == 1


@pytest.mark.parametrize(("model", "row"), [("deepseek-v3-q", 192), ("deepseek-v3-k", 576)])
def test_latent_attention_rotates_the_last_channels_of_a_row(model, row):
    cell = model_cell(model, "decode", "angles")
    view = cell.call("cpu").operand(torch.zeros(cell.shape, device="meta"))
    assert view.shape == (64, 1, *cell.call_name.heads, 64)
    assert view.stride()[-2:] == (row, 1) and view.storage_offset() == row - 64


def test_packed_tensors_lie_side_by_side_before_values():
    for heads, ends in (("4+2", (0, 4, 6, 8)), ("4", (0, 4, 8))):
        cell = sized_cell(f"bf16-{heads}x8-packed-2x3")
        x = torch.arange(cell.shape[0])
        rows, views = x.view(2, 3, 8, 8), cell.call("cpu").operand(x)
        views = views if isinstance(views, tuple) else (views,)
        assert len(views) == len(ends) - 2
        for view, first, last in zip(views, ends[:-2], ends[1:-1], strict=True):
            assert torch.equal(view, rows[:, :, first:last]) and view.stride() == rows.stride()
            assert view.untyped_storage().data_ptr() == x.data_ptr()


def test_what_reads_the_output_next_has_a_memory_of_its_own():
    """A block that a later call writes again would stay in L2, whatever the kernel does."""
    cell = tiny("angles-sbhd-bf16-2x64-thenread")
    call, x = cell.call("cpu"), torch.randn(cell.shape).bfloat16()
    outputs = [call.forward(call.operand(x)) for _ in range(3)]
    tensors = [*outputs, *call.copies(x), x]
    assert len({tensor.data_ptr() for tensor in tensors}) == len(tensors)
    assert all(torch.equal(tensor, x) for tensor in call.copies(x))


# --- what is right --------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", TINY, ids=lambda cell: "-".join(cell.params))
def test_the_package_is_right_and_its_input_is_not(cell):
    call = cell.call("cpu")
    x, grad = (torch.randn(cell.shape).to(getattr(torch, cell.dtype)) for _ in range(2))
    before, leaf = x.clone(), call.leaf(x)
    output = call.forward(leaf)
    result = gradient(output, leaf, call.cotangent(grad.clone()))
    call.check(result, grad, BACKWARD)
    if call.in_place:  # that of a leaf is a copy, in memory of another order
        output = call.forward(call.operand(x))
    call.check(output, before, FORWARD)
    parts = zip(call.split(output), call.exact(before, FORWARD), strict=True)
    for part, exact in parts:
        torch.testing.assert_close(part.double(), exact, rtol=0.05, atol=0.05)
    with pytest.raises(AssertionError, match="not close"):
        call.check(call.operand(before), before, FORWARD)


@pytest.mark.parametrize("model", MODELS)
def test_calls_of_models_are_right(model):
    for step, takes in (("training", "angles"), ("decode", "tables"), ("decode", "angles")):
        cell = few(model_cell(model, step, takes))
        live, x = cell.call("cpu"), torch.randn(cell.shape).bfloat16()
        live.check(live.forward(live.operand(x)), x, FORWARD)


@pytest.mark.parametrize(
    ("name", "as_if"),
    [
        ("angles-bshd-bf16-4x64-il", "angles-bshd-bf16-4x64"),
        ("angles-bshd-fp32-4x64-perhead", "angles-bshd-fp32-4x64"),
        ("angles-sbhd-fp32-4x64-perbatch", "angles-sbhd-fp32-4x64"),
        ("angles-bshd-fp32-4x64-starts", "angles-bshd-fp32-4x64"),
        ("angles-bshd-fp32-4x64-cp", "angles-bshd-fp32-4x64"),
        ("angles-thd-fp32-4x64-cp", "angles-thd-fp32-4x64"),
        ("angles-thd-fp32-4x64-halves", "angles-thd-fp32-4x64"),
        ("angles-bshd-fp32-4x64r32", "angles-bshd-fp32-4x64"),
        ("tables-bshd-fp32-4x64-offset", "tables-bshd-fp32-4x64"),
        ("attention-bhsd-fp32-4x64-ids", "attention-bhsd-fp32-4x64"),
        ("attention-bhsd-fp32-4x64-pereach", "attention-bhsd-fp32-4x64"),
        ("angles-bshd-fp32-4x64", "angles-bshd-fp32-4x64-transposed"),
        ("angles-bshd-fp32-4x64", "angles-bshd-fp32-4x64-misaligned"),
    ],
)
def test_output_of_another_call_is_wrong(name, as_if):
    """The check tells calls apart: without this it might accept any of them."""
    pair = [tiny(call, tokens=8 if "-cp" in call else 16) for call in (name, as_if)]
    call, other = (cell.call("cpu") for cell in pair)
    x = torch.randn(max(cell.shape[0] for cell in pair)).to(getattr(torch, pair[0].dtype))
    output = other.forward(other.operand(x))
    with pytest.raises(AssertionError):
        call.check(output, x, FORWARD)


@pytest.mark.parametrize(
    "name", ["fp32-2+1x16-2x37", "bf16-2x16r8-il-2x37", "fp16-2x16-reach-2x37"]
)
def test_every_element_of_every_part_is_checked(name, monkeypatch):
    cell = sized_cell(name)
    row = 2 * cell.bytes_moved // 37  # of a position, at least
    monkeypatch.setattr(formula, "CHECKED_BYTES", 16 * row)
    call, x = cell.call("cpu"), torch.randn(cell.shape).to(getattr(torch, cell.dtype))
    output = call.forward(call.operand(x))
    call.check(output, x, FORWARD)
    pair = isinstance(output, tuple)
    for index in range(len(call.split(output))):
        for position in (0, 15, 16, 31, 32, 36):
            for mistake in (0.25, torch.nan):
                wrong = tuple(map(torch.clone, output)) if pair else output.clone()
                call.split(wrong)[index][1, position, -1, -1] += mistake  # a view
                with pytest.raises(AssertionError):
                    call.check(wrong, x, FORWARD)


def test_other_dtypes_and_orders_are_wrong_and_so_is_a_call_that_is_not_in_place():
    cell = tiny("tables-bshd-bf16-4x64-inplace")
    call, x = cell.call("cpu"), torch.randn(cell.shape).bfloat16()
    output = call.forward(call.operand(x.clone()))
    call.check(output, x, FORWARD)
    for wrong in (output.double(), output.roll(1, dims=-1), output.roll(1, dims=-2), output.mT):
        with pytest.raises(AssertionError):
            call.check(wrong, x, FORWARD)
    call.call_through(lambda value: value.clone() if isinstance(value, torch.Tensor) else value)
    with pytest.raises(AssertionError, match="did not rotate in place"):
        call.forward(call.operand(x))
