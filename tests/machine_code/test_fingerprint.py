"""Finding what a package's calls compile to; needs no GPU."""

import dataclasses
import shutil
import textwrap
from pathlib import Path

import pytest
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from benchmarks._machine_code import fingerprint, stub_driver, uncompiled, worker_pool
from benchmarks._subjects import metrics
from benchmarks._subjects.rope import grid
from benchmarks._subjects.rope.cells import ListedCell
from benchmarks._subjects.transformer.modules import ModuleCell
from benchmarks._system import process

# --- a package made for these tests ---------------------------------------------------------------

# Its channels choose what a call does, in the grid's order of magnitude so that all compile.
COPY, STRIDED, BOTH, SPILLING = 64, 128, 192, 256
HERE = ("sm_90", "float16", "sbhd", "forward")
SMALL, LARGE = (metrics.SIZES[name] for name in ("small", "large"))
MISSING, RAISING, UNCOMPILABLE, CRASHING, WITHOUT_KERNEL, STRIDES = range(1, 7)

TOY = """
import os

import torch
import triton
import triton.language as tl

print("printed by the package")


@triton.jit
def wide_copy(out_ptr, in_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(in_ptr + at))


@triton.jit
def narrow_copy(out_ptr, in_ptr, BLOCK: tl.constexpr):
    at = 3 * (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    tl.store(out_ptr + at, tl.load(in_ptr + at))


@triton.jit
def scan(out_ptr, in_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.cumsum(tl.load(in_ptr + at), 0))


@triton.jit
def copy_by_strides(out_ptr, in_ptr, stride_0, strides):
    at = tl.arange(0, 8)[:, None] * stride_0 + tl.arange(0, 8)[None, :] * strides[0]
    tl.store(out_ptr + at, tl.load(in_ptr + at))


@triton.jit
def uncompilable(out_ptr):
    tl.static_assert(False, "too narrow a world")


@triton.jit
def copy_of_a_length(out_ptr, in_ptr, SEQ_LEN: tl.constexpr):
    tl.store(out_ptr + SEQ_LEN, tl.load(in_ptr))


class RotaryPositionEmbedding:
    def __init__(self, dim):
        self.dim = dim

    def __call__(self, seq_len):
        return torch.empty(seq_len, 1, 1, self.dim)


def launch(t, what, tensor_format):
    out = torch.empty_like(t)
    if what == 1:
        raise NotImplementedError("not for one channel")
    if what == 2:
        raise RuntimeError("broken for two channels")
    if what == 3:
        uncompilable[(1,)](out)
    if what == 4:
        os.abort()
    if what == 6:
        # Triton specialises neither, so that both formats have the same machine code.
        inner, outer = (5, 3) if tensor_format == "sbhd" else (3, 5)
        copy_by_strides[(1,)](out, t, outer, (inner,))
    if what in (64, 192):
        wide_copy[(4,)](out, t, BLOCK=2048, num_warps=4)
    if what in (128, 192) and t.shape[0] == 64:
        narrow_copy[(16,)](out, t, BLOCK=512, num_warps=4)
    elif what == 128 and tensor_format == "sbhd":
        copy_of_a_length[(1,)](out, t, SEQ_LEN=t.shape[0])
    elif what == 128:
        narrow_copy[(1,)](out, t, BLOCK=512)
    if what == 256:
        scan[(1,)](out, t, BLOCK=8192, num_warps=4, maxnreg=32)
    return out


class Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, freqs, tensor_format):
        ctx.tensor_format = tensor_format
        return launch(t, t.shape[3], tensor_format)

    @staticmethod
    def backward(ctx, grad):
        return launch(grad, 128, ctx.tensor_format), None, None


def apply_rotary_pos_emb(t, freqs, tensor_format):
    return Apply.apply(t, freqs, tensor_format)
"""


def write_package(root: Path, source: str) -> Path:
    package = root / fingerprint.PACKAGE
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(textwrap.dedent(source))
    return root


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    """Without a GPU, pytest's process runs the interpreter."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Path:
    return write_package(tmp_path_factory.mktemp("toy"), TOY)


@pytest.fixture(scope="module")
def toy_facts(toy):
    """Everything asked of the toy at once: a pool takes seconds to start."""
    calls = [(*HERE, what) for what in (COPY, STRIDED, BOTH, *range(MISSING, STRIDES + 1))]
    calls += [
        ("sm_90", "float16", "bshd", "forward", STRIDES),
        ("sm_90", "float16", "sbhd", "backward", COPY),
        ("sm_80", "float32", "sbhd", "forward", SPILLING),
        ("gfx942", "float16", "sbhd", "forward", COPY),
        ("gfx942", "float16", "sbhd", "forward", STRIDED),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRITON_INTERPRET", raising=False)
        facts = fingerprint.compile_all([(*call, *SMALL) for call in calls], root=toy).facts
    return {call[:-2]: answer for call, answer in facts.items()}


@pytest.fixture
def sm_90(toy_facts):
    """Forward calls of the toy on sm_90, by number of channels."""
    return {call[4]: facts for call, facts in toy_facts.items() if call[:4] == HERE}


def test_vectorised_kernel_is_wide_and_strided_kernel_narrow(sm_90, toy_facts):
    # 16 elements of 2 bytes for each of 128 threads on NVIDIA, 8 for each of 256 on AMD.
    assert (sm_90[COPY].global_accesses, sm_90[COPY].narrow_share) == (4, 0)
    amd, strided = (toy_facts["gfx942", *HERE[1:], what] for what in (COPY, STRIDED))
    assert (amd.global_accesses, amd.narrow_share) == (2, 0)
    assert sm_90[STRIDED].narrow_share > 0.5 < strided.narrow_share


def test_kernels_of_a_call_add_up(sm_90):
    parts, both = (sm_90[COPY], sm_90[STRIDED]), sm_90[BOTH]
    assert both.instructions == sum(part.instructions for part in parts)
    assert both.global_accesses == sum(part.global_accesses for part in parts)
    assert both.narrow_share == parts[1].narrow_accesses / both.global_accesses
    assert both.registers == max(part.registers for part in parts)
    assert len({facts.digest for facts in (*parts, both)}) == 3


def test_only_the_backward_kernels_of_a_backward_call_count(sm_90, toy_facts):
    assert toy_facts["sm_90", "float16", "sbhd", "backward", COPY] == sm_90[STRIDED]


def test_spills_stack_and_shared_memory(sm_90, toy_facts):
    scan = toy_facts["sm_80", "float32", "sbhd", "forward", SPILLING]
    assert scan.registers <= 32
    assert scan.spilled_bytes > 0
    assert scan.stack_bytes > 0
    assert scan.shared_bytes >= 4 * 4, "a float from each warp"
    copy = sm_90[COPY]
    assert (copy.spilled_bytes, copy.stack_bytes, copy.shared_bytes) == (0, 0, 0)


@pytest.mark.parametrize(
    ("what", "kind", "message"),
    [
        (MISSING, NotImplementedError, "not for one channel"),
        (RAISING, RuntimeError, "broken for two channels"),
        (UNCOMPILABLE, RuntimeError, "too narrow a world"),
        (CRASHING, RuntimeError, "ended its process with exit status -6"),
        (WITHOUT_KERNEL, RuntimeError, "the forward call launched no Triton kernel"),
    ],
)
def test_failure_is_its_own_calls_only(sm_90, what, kind, message):
    assert type(sm_90[what]) is kind
    assert message in str(sm_90[what])


def test_strides_are_work_too(sm_90, toy_facts):
    swapped = toy_facts["sm_90", "float16", "bshd", "forward", STRIDES]
    assert swapped.digest != sm_90[STRIDES].digest
    assert dataclasses.replace(swapped, digest=sm_90[STRIDES].digest) == sm_90[STRIDES]


def test_numbers_among_arguments_keep_their_places():
    tensor = torch.empty(8, 32)
    described = TensorDescriptor(tensor, [8, 32], [32, 1], [4, 16])
    assert stub_driver._numbers((tensor, 3, True, 0.5, None, "half", (4, tensor))) == (
        *(None, 3, True, 0.5, None),  # the None is no argument, the tensor and the text are
        (4, None),
    )
    assert stub_driver._numbers([described])[0][:4] == (None, (8, 32), (32, 1), (4, 16))


def test_variants(toy):
    forward, backward, fixed = sweeps = [
        HERE,
        (*HERE[:3], "backward"),
        ("sm_90", "float16", "bshd", "forward"),
    ]
    counts = fingerprint.compile_all((), sweeps, root=toy).variants
    lengths = len(uncompiled.SWEPT_SEQ_LENS)
    assert counts == {forward: lengths, backward: lengths, fixed: 1}


def test_package_without_the_function_is_not_applicable(tmp_path):
    root = write_package(
        tmp_path,
        "class RotaryPositionEmbedding:\n"
        "    def __init__(self, dim): pass\n"
        "    def __call__(self, seq_len): return torch.empty(seq_len, 1, 1, 128)\n"
        "import torch\n",
    )
    names = {
        (*HERE, 128, *SMALL): "apply_rotary_pos_emb",
        ("sm_90", "float16", "thd", "backward", 4): "apply_rotary_pos_emb",
        ("sm_90", "float16", "qkv", "forward", 4): "apply_fused_qkv_rotary_pos_emb",
        ("sm_90", "float16", "tables-inplace", "forward", 4): "apply_rotary_emb",
    }
    for call, answer in fingerprint.compile_all(names, (), root).facts.items():
        assert type(answer) is NotImplementedError
        assert str(answer) == f"cannot import name '{names[call]}' from 'rope_triton'"


# --- what is refused whole ------------------------------------------------------------------------

CALL = (*HERE, 128, *SMALL)


def test_package_that_cannot_be_imported(tmp_path):
    root = write_package(tmp_path, "raise OSError('no such luck')")
    with pytest.raises(RuntimeError, match="(?s)cannot be imported from .*no such luck"):
        fingerprint.compile_all([CALL], (), root)


def test_missing_package(tmp_path, monkeypatch):
    with pytest.raises(ModuleNotFoundError, match="no rope_triton in"):
        fingerprint.compile_all([CALL], (), tmp_path)
    monkeypatch.setattr(fingerprint, "PACKAGE", "rope_triton_that_is_missing")
    with pytest.raises(ModuleNotFoundError, match="cannot be imported"):
        fingerprint.compile_all([CALL])


@pytest.mark.parametrize("name", fingerprint._REFUSED_VARIABLES)
def test_environment_that_changes_the_compiler(name, monkeypatch):
    monkeypatch.setenv(name, "1")
    with pytest.raises(RuntimeError, match=f"unset {name}"):
        fingerprint.compile_all([CALL])


@pytest.mark.parametrize("call", [("sm_1", *CALL[1:]), (*CALL[:3], "sideways", *CALL[4:])])
def test_unknown_call(call):
    with pytest.raises(ValueError, match="expected one of"):
        fingerprint.compile_all([call])


# --- the package itself ---------------------------------------------------------------------------


def test_runs_agree_wherever_the_package_lies(tmp_path):
    """Each run has its own compiler cache; debug information, which has paths in it, differs."""
    original = process.ROOT / fingerprint.PACKAGE
    shutil.copytree(original, tmp_path / "a" / "longer" / "path" / fingerprint.PACKAGE)
    calls = [
        CALL,
        (*HERE, 128, *LARGE),
        ("sm_90", "float16", "sbhd", "backward", 128, *SMALL),
        ("gfx942", "bfloat16", "bshd", "forward", 64, *SMALL),
    ]
    facts = fingerprint.compile_all(calls).facts
    assert facts == fingerprint.compile_all(calls, root=tmp_path / "a" / "longer" / "path")[0]
    assert len({fact.digest for fact in facts.values()}) == len(calls)
    for fact in facts.values():
        assert fact.registers > 0
        assert fact.instructions > fact.global_accesses > 1


def test_forms_of_the_surface(monkeypatch):
    """The facts of asv's ``Surface``, also of a form that rotates its gradient in place."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    in_place = next(name for name, form in grid.listed_calls().items() if form.inplace)
    calls = [
        ("sm_90", form, direction)
        for form in ("qk-bshd-bf16-32x128", in_place)
        for direction in ("forward", "backward")
    ]
    facts = [*map(fingerprint.compile_forms(calls).get, calls)]
    assert all(each.registers > 8 for each in facts)
    assert len({each.digest for each in facts}) == 4


def test_calls_of_the_transformer(monkeypatch):
    """Likewise: n/a where the forward computes the gradients."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    calls = [
        ("sm_90", form, direction)
        for form in ("softmax-fp16-4096x1000", "linearcrossentropy-fp16-500x100x32000")
        for direction in ("forward", "backward")
    ]
    *facts, missing = map(fingerprint.compile_forms(calls).get, calls)
    assert isinstance(missing, NotImplementedError)
    assert all(each.registers > 8 for each in facts)
    assert len({each.digest for each in facts}) == 3


def grid_of(form: str, arch: str) -> tuple:
    driver = stub_driver.StubDriver.activate(arch)
    uncompiled.call(driver, ModuleCell(form), "forward")
    return driver.launches[0].grid


@pytest.mark.parametrize(("arch", "multiprocessors"), [("sm_90", 132), ("sm_80", 108)])
def test_a_persistent_kernel_has_the_grid_of_the_gpu(arch, multiprocessors, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    grid = process.call(grid_of, "linear-fp16-16384x100x1024", arch)
    assert grid == (multiprocessors, 1, 1)


def launch(cells):
    driver = stub_driver.StubDriver.activate("sm_90")
    for cell in cells:
        uncompiled.call(driver, cell, "forward")


def test_a_process_finds_in_tritons_cache_what_was_compiled(tmp_path, monkeypatch):
    """Whichever kernel it launches first; else each process of a comparison compiles them again."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    cells = [ListedCell(name, 4) for name in ("tables-thd-bf16-1x48", "qk-thd-bf16-3x96")]
    ledger = worker_pool.Ledger("compiled")
    ledger.cache = tmp_path
    calls = [("sm_90", cell.dtype, cell.name, "forward", cell.mib) for cell in cells]
    fingerprint.compile_all(calls, ledger=ledger)
    there = set(tmp_path.iterdir())
    process.call(launch, cells[::-1], env={"TRITON_CACHE_DIR": str(tmp_path)})
    assert set(tmp_path.iterdir()) == there and len(there) >= len(cells)
