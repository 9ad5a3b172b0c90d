"""The forms in which the public functions can be called, and those that are compared."""

import inspect
import itertools

import pytest
import torch

import rope_triton
from benchmarks._subjects.rope import grid, package_calls, surface
from benchmarks._subjects.rope.forms import BACKWARD, FORWARD
from benchmarks._subjects.rope.surface import FUNCTIONS, OPTIONS, Form, SurfaceCell, forms, parsed

FORMS = forms()
TOKENS = 4
# How a parameter of a public function is an option of a form.
PARAMETERS = {
    **dict.fromkeys(("t", "x", "q", "k", "qkv"), "format"),
    **dict.fromkeys(("freqs", "q_freqs", "k_freqs", "cos", "sin"), "tables"),
    **dict.fromkeys(("start_positions", "seqlen_offsets", "position_ids"), "position"),
    **dict.fromkeys(("cp_size", "cp_rank"), "parallel"),
    **{"tensor_format": "format", "cu_seqlens": "format", "qkv_split_arg_list": "heads"},
    **{"interleaved": "interleaved", "inplace": "inplace", "rounding": "rounding"},
    "inplace_gradient": "inplace",
}
# Plain PyTorch has no kernel, and the last is ignored.
NO_OPTIONS = {"fused", "max_seqlen"}


def values_of(form: Form) -> set[tuple]:
    """The options of a form, each with its value."""
    rotated = "all" if form.rotated == form.channels else "part"
    given = {name: getattr(form, name) for name in ("function", "format", "dtype", *OPTIONS)}
    return set((given | {"channels": form.channels, "rotated": rotated}).items())


def pairs_of(names) -> set[frozenset]:
    return {
        frozenset(pair)
        for name in names
        for pair in itertools.combinations(sorted(values_of(parsed(name)), key=str), 2)
    }


def test_list_is_of_few_forms_each_once():
    lines = [line for line in surface.LIST.read_text().splitlines() if not line.startswith("#")]
    assert len(set(lines)) == len(lines) == len(FORMS)
    assert 150 <= len(FORMS) <= 320
    assert max(map(len, FORMS)) <= 80  # what a report reads


@pytest.mark.parametrize("name", FORMS)
def test_name_says_all_of_a_form(name):
    assert parsed(name) == FORMS[name] and FORMS[name].name == name


@pytest.mark.parametrize(
    "name",
    [
        *("", "angles", "angles-bshd-bf16", "angles-bshd-bf16-64", "angles-bshd-bf16-64x128-what"),
        *("Angles-bshd-bf16-64x128", "angles-bshd-half-64x128", "angles-bhsd-bf16-64x128"),
        *("angles-bshd-bf16-64x128r128", "angles-bshd-bf16-64x128r63", "angles-bshd-bf16-64x64r65"),
        # Words in another order, and combinations that no function takes.
        *("angles-bshd-bf16-64x128-cp-il", "angles-bshd-bf16-64x128-inplace"),
        *("qkv-bshd-bf16-8x128-rtables", "attention-bhsd-bf16-8x128-starts"),
        *("tables-bshd-fp32-8x128-t32", "angles-thd-bf16-8x128-perbatch"),
    ],
)
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match="no form of a call has the name"):
        parsed(name)


def test_any_two_options_that_can_meet_do():
    """If this fails, add forms to the list that have the pairs which are missing."""
    possible = pairs_of(cell.form for seed in range(3) for cell in surface.dense(seed))
    missing = sorted(sorted(pair, key=str) for pair in possible - pairs_of(FORMS))
    assert not missing, missing[:10]


def test_every_public_function_and_parameter_is_an_option():
    functions = {name for name in rope_triton.__all__ if name.startswith(("apply_", "rotary_emb"))}
    assert functions == set(FUNCTIONS.values())
    known = {"function", "format", "dtype", "heads", "channels", "rotated", *OPTIONS}
    for name in functions:
        parameters = set(inspect.signature(getattr(rope_triton, name)).parameters)
        assert parameters <= PARAMETERS.keys() | NO_OPTIONS, name
    assert set(PARAMETERS.values()) <= known


@pytest.mark.parametrize("name", FORMS)
def test_sizes_are_about_what_they_are_called(name):
    for cell in (each for each in surface.cells() if each.form == name):
        mib = cell.bytes_moved / 2**21
        assert 0.3 * cell.mib < mib <= 1.01 * cell.mib or cell.of.length == "decode", cell


def test_candidates_come_once_and_the_small_grid_first():
    cells = grid.candidates()
    assert len(cells) == len(set(cells)) > 1000
    suites = [cell.suite for cell in cells]
    assert suites[0] == "rope" and suites.index("model_calls") == len(grid.all_cells("small"))
    checked = grid.checked_cells()
    assert set(checked) < set(cells)
    assert [cell.form for cell in checked if cell.suite == "surface"] == list(FORMS)[::-1]


def test_dense_calls_are_the_same_each_time_and_of_every_size():
    cells = surface.dense()
    assert cells == surface.dense() != surface.dense(1)
    forms = [cell.of for cell in cells]
    for name, values in OPTIONS.items():
        assert {getattr(form, name) for form in forms} == set(values)


def small(name: str) -> SurfaceCell:
    """The form on few tokens and heads: the interpreter takes milliseconds for each program."""
    form = parsed(name)
    form = form._replace(heads=1 if form.function == "qkv" else min(form.heads, 4))
    tokens = TOKENS * (2 if form.parallel else 1)
    return SurfaceCell(form.name, tokens * form.token_bytes / 2**20)


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_right(name):
    cell = small(name)
    call = cell.call("cpu")
    x, grad = (torch.randn(cell.shape).to(getattr(torch, cell.dtype)) for _ in range(2))
    given, leaf = (x.clone(), grad.clone()), call.leaf(x)
    output = call.forward(leaf)
    gradient = package_calls.gradient(output, leaf, call.cotangent(grad))
    package_calls.check(gradient, given[1], call, BACKWARD)
    if call.in_place:  # that of a leaf is a copy, in memory of another order
        output = call.forward(call.operand(x))
        assert gradient.data_ptr() == call.cotangent(grad).data_ptr()
    package_calls.check(output, given[0], call, FORWARD)


@pytest.mark.parametrize(
    ("name", "as_if"),
    [
        ("angles-bshd-bf16-4x64-il", "angles-bshd-bf16-4x64"),
        ("angles-bshd-fp32-4x64-perhead", "angles-bshd-fp32-4x64"),
        ("angles-sbhd-fp32-4x64-perbatch", "angles-sbhd-fp32-4x64"),
        ("angles-bshd-fp32-4x64-starts", "angles-bshd-fp32-4x64"),
        ("angles-bshd-fp32-4x64-cp", "angles-bshd-fp32-4x64"),
        ("angles-thd-fp32-4x64-cp", "angles-thd-fp32-4x64"),
        ("angles-bshd-fp32-4x64r32", "angles-bshd-fp32-4x64"),
        ("tables-bshd-fp32-4x64-offset", "tables-bshd-fp32-4x64"),
        ("attention-bhsd-fp32-4x64-ids", "attention-bhsd-fp32-4x64"),
        ("attention-bhsd-fp32-4x64-pereach", "attention-bhsd-fp32-4x64"),
        ("angles-bshd-fp32-4x64", "angles-bshd-fp32-4x64-transposed"),
        ("angles-bshd-fp32-4x64", "angles-bshd-fp32-4x64-misaligned"),
    ],
)
def test_output_of_another_form_is_wrong(name, as_if):
    """The check tells the forms apart: without this it might accept any of them."""
    tokens = 16
    cells = [SurfaceCell(each, tokens * parsed(each).token_bytes / 2**20) for each in (name, as_if)]
    call, other = (cell.call("cpu") for cell in cells)
    elements = max(cell.shape[0] for cell in cells)
    x = torch.randn(elements).to(getattr(torch, cells[0].dtype))
    output = other.forward(other.operand(x))
    with pytest.raises(AssertionError):
        package_calls.check(output, x, call, FORWARD)
