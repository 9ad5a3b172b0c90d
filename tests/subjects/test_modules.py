"""The calls of the package's other modules that are compared, and what they are checked by."""

import importlib
import inspect
import pkgutil
import sys

import pytest
import torch

from benchmarks._engine.subject import BACKWARD, FORWARD
from benchmarks._subjects.calls import gradient
from benchmarks._subjects.rope import angles, grid
from benchmarks._subjects.transformer import modules
from benchmarks._subjects.transformer.modules import FUNCTIONS, ModuleCell, listed_calls, parsed
from benchmarks._subjects.transformer.transformer_calls import COMPOSED
from rope_triton import integrations

LISTED = listed_calls()
MIB = 2**20
# How a parameter is in a call: an operand or a word. Others have their defaults, and the code that
# other values run is in calls of the rotation.
DEFAULTS = {"scale", "eps", "ignore_index", "convention", "interleaved", "seqlen_offsets"}
DEFAULTS |= {"cos_k", "sin_k", "num_heads_q", "rope_dim_offset", "inverse", "cp_size", "cp_rank"}
DEFAULTS |= {"transpose_output_memory", "inplace_gradient"}
WORDS = {"alibi_slopes": "alibi", "relu": "relu", "bias": "bias", "residual": "residual"}
WORDS |= {"reduction": "sum", "unsqueeze_dim": "tokensfirst"}
# Not called on a GPU, or calls of the rotation by another name.
OTHERS = {
    "transformer": {"interleaved_rows"},
    "integrations.flash_attention": {"apply_rotary_emb"},
    "integrations.transformers": {"patch", "Convention"},
    "integrations.megatron": {"patch"},
    "integrations.vllm": set(),
}
NEEDS_ITS_LIBRARY = {"torchtitan"}


def test_the_list_has_names_of_calls_of_a_size_that_can_be_timed():
    assert not {*LISTED} & {*grid.listed_calls()}
    assert max(map(len, LISTED)) <= 80  # what a report reads
    for name, cell in LISTED.items():
        assert parsed(name) == cell == ModuleCell(name)
        # Smaller ones need hundreds of tensors to be cold, larger ones more than a GPU has.
        assert 6 * MIB <= cell.bytes_moved <= 1024 * MIB


@pytest.mark.parametrize(
    "name",
    [
        *("", "linear", "linear-bf16", "linear-bf16-4x4", "linear-bf16-4x4x4x4"),
        "linear-bf16-4x4x0",
        *("linear-bf16-4x4x4-alibi", "linear-bf16-4x4x4-relu-bias", "linear-bf16-4x4x4-"),
        *("linear-bf16-04x4x4", "linear-half-4x4x4", "Linear-bf16-4x4x4", "gelu-bf16-4x4"),
        *("linear-bf16-4x4x4-relu-relu", "attention-bf16-1x4x1x1x16-packed-misaligned"),
    ],
)
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match="no call of a module has the name"):
        parsed(name)


def public(name: str) -> set[str]:
    """What a module of the package defines and shows, or lists."""
    module = importlib.import_module(f"rope_triton.{name}")
    own = (n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__)
    return {*getattr(module, "__all__", [n for n in own if not n.startswith("_")])}


def test_every_public_function_is_called():
    called_in = {name: set() for name in OTHERS}
    for name in FUNCTIONS.keys() - COMPOSED.keys():
        called_in[FUNCTIONS[name].module].add(FUNCTIONS[name].function)
    assert called_in == {name: public(name) - others for name, others in OTHERS.items()}
    names = {module.name for module in pkgutil.iter_modules(integrations.__path__)}
    names = {name for name in names - NEEDS_ITS_LIBRARY if not name.startswith("_")}
    assert {f"integrations.{name}" for name in names} == {*OTHERS} - {"transformer"}


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in COMPOSED])
def test_every_parameter_is_in_a_call(name):
    listed = [cell for cell in LISTED.values() if cell.function == name]
    words = {word for cell in listed for word in cell.words}
    assert words == {*FUNCTIONS[name].words}  # each option that there is, is called
    cell = small(listed[0])
    call = cell.call("cpu")
    arguments = call.arguments(call.operand(values(cell)))
    optional = {parameter for parameter, word in WORDS.items() if word in words}
    parameters = set(inspect.signature(call._function).parameters)
    assert parameters - DEFAULTS == {*arguments} - DEFAULTS | optional


def test_dense_calls_are_the_same_each_time():
    assert modules.dense() == modules.dense() != modules.dense(1)
    assert {cell.module for cell in modules.dense()} == {"transformer"}


# --- what is right --------------------------------------------------------------------------------


def small(cell: ModuleCell) -> ModuleCell:
    """The call on few tokens: the interpreter takes milliseconds for each program.

    In float32 in place of bfloat16, whose products the interpreter has wrong.
    """
    most = {"batch": 2, "tokens": 40, "rows": 37, "inner": 48, "vocabulary": 300, "columns": 136}
    most |= {"heads": 4, "kv_heads": 2 if hasattr(cell.size, "heads") else 1, "layers": 1}
    sizes = (min(size, most.get(name, size)) for name, size in vars(cell.size).items())
    dtype = "fp16" if cell.dtype == "float16" else "fp32"
    return modules.named(cell.function, dtype, sizes, cell.words)


def values(cell: ModuleCell, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return (torch.randn(cell.shape) * cell.deviation).to(getattr(torch, cell.dtype))


def called(cell: ModuleCell):
    """A call, its output and gradient, and what these were computed from."""
    call = cell.call("cpu")
    x, grad = values(cell), values(cell, 1)
    before = x.clone()
    if call.with_gradients or call.in_place:
        return call, {FORWARD: (call.forward(call.operand(x)), before)}
    leaf = call.leaf(x)
    output = call.forward(leaf)
    result = gradient(output, leaf, call.cotangent(grad))
    return call, {FORWARD: (output, before), BACKWARD: (result, grad)}


SMALL = sorted({small(cell).name for cell in LISTED.values()})


@pytest.mark.parametrize("name", SMALL)
def test_every_call_is_right_and_other_results_are_refused(name):
    call, results = called(ModuleCell(name))
    for direction, (output, x) in results.items():
        call.check(output, x, direction)
        parts = call.split(output)
        for index, part in enumerate(parts):
            part = part.detach()
            wrong = [1.3 * part, part.clone().fill_(torch.nan), part[..., None]]
            if part.dim() > 1:  # one row alone
                wrong.append(part.clone(memory_format=torch.contiguous_format))
                wrong[-1].view(-1, part.shape[-1])[-1].mul_(3).add_(0.5)
            for bad in wrong:
                with pytest.raises(AssertionError, match="a row is off|expected"):
                    others = parts[:index] + (bad,) + parts[index + 1 :]
                    call.check(others, x, direction)


@pytest.mark.parametrize(
    ("name", "as_if"),
    [
        ("attention-fp32-1x40x4x2x16-alibi", "attention-fp32-1x40x4x2x16"),
        ("linear-fp32-16x48x64-relu", "linear-fp32-16x48x64"),
        ("matmul-fp32-1x48x48x48-ta", "matmul-fp32-1x48x48x48"),
        ("crossentropy-fp32-40x300-sum", "crossentropy-fp32-40x300"),
        ("swiglu-fp32-32x64-halves", "swiglu-fp32-32x64"),
        ("hf-fp32-1x8x8x8x16-tokensfirst", "hf-fp32-1x8x8x8x16"),
    ],
)
def test_results_of_another_call_are_refused(name, as_if):
    for direction, (output, x) in called(ModuleCell(name))[1].items():
        other, expected = called(ModuleCell(as_if))
        other.check(*expected[direction], direction)
        with pytest.raises(AssertionError):
            other.check(output, x, direction)


def test_a_mask_that_is_off_by_one_is_refused():
    cell = ModuleCell("attention-fp32-1x40x4x2x16")
    call, results = called(cell)
    q, k, v = call.operand(results[FORWARD][1])
    later = (t.roll(-1, dims=1) for t in (k, v))
    shifted = call._function(q, *later)
    with pytest.raises(AssertionError, match="a row is off"):
        call.check(shifted, results[FORWARD][1], FORWARD)


@pytest.mark.parametrize("name", ["linear-fp32-16x48x64-bias-relu", "linear-fp32-16x48x64-relu"])
def test_a_sum_that_is_almost_0_may_have_either_sign_and_no_other(name):
    cell = ModuleCell(name)
    call, x, grad = cell.call("cpu"), values(cell), values(cell, 1)
    rows, weight, *bias = call.operand(x)
    weight[:, :2], rows[:, :2] = 1.0, torch.tensor([3.0, -3.0])
    rows[0, 2:] = 0.0
    for values_of_bias in bias:
        values_of_bias[5] = 1e-7
    (cotangent,) = call.split(call.cotangent(grad))
    sums = torch.nn.functional.linear(rows, weight, *bias)
    large = sums[1].argmax()
    cotangent[0, 5] = cotangent[1, large] = 10.0
    leaf = call.leaf(x)

    def masked(mask):
        out = torch.nn.functional.linear(*leaf) * mask
        return gradient(out, leaf, cotangent)

    mask = sums > 0
    call.check(masked(mask), grad, BACKWARD)
    mask[0, 5] ^= True
    call.check(masked(mask), grad, BACKWARD)
    mask[1, large] = False
    with pytest.raises(AssertionError, match="a row is off"):
        call.check(masked(mask), grad, BACKWARD)


def test_a_rotation_with_the_wrong_sign_is_refused(monkeypatch):
    cell = ModuleCell("rotaryattention-fp32-1x40x48x4x2x16")
    call, results = called(cell)
    right = angles.exact
    monkeypatch.setattr(angles, "exact", lambda *positions: -right(*positions))
    other = cell.call("cpu")
    leaf = other.leaf(values(cell))
    output = other.forward(leaf)
    wrong = {FORWARD: output}
    wrong[BACKWARD] = gradient(output, leaf, other.cotangent(values(cell, 1)))
    for direction, (_, x) in results.items():
        other.check(wrong[direction], x, direction)
        with pytest.raises(AssertionError, match="a row is off"):
            call.check(wrong[direction], x, direction)


def test_a_version_without_a_function_is_not_available(monkeypatch):
    cell = ModuleCell("softmax-fp32-4x64")
    monkeypatch.delattr("rope_triton.transformer.softmax")
    with pytest.raises(NotImplementedError, match="there is no rope_triton.transformer.softmax"):
        cell.call("cpu")
    monkeypatch.setitem(sys.modules, "rope_triton.transformer", None)
    with pytest.raises(NotImplementedError, match="there is no rope_triton.transformer.softmax"):
        cell.call("cpu")


def test_a_package_that_is_not_there_is_no_version_without_a_function(monkeypatch):
    cell = ModuleCell("softmax-fp32-4x64")
    for name in [name for name in sys.modules if name.partition(".")[0] == "rope_triton"]:
        monkeypatch.delitem(sys.modules, name)

    class Missing:
        def find_spec(name, *_):
            if name == "rope_triton":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Missing, *sys.meta_path])
    with pytest.raises(ModuleNotFoundError, match="No module named 'rope_triton'"):
        cell.call("cpu")
