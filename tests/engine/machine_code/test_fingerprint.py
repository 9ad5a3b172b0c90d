"""Finding what a package's calls compile to; needs no GPU."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from benchmarks._engine.compare import exact
from benchmarks._engine.machine_code import fingerprint, stub_driver, uncompiled, worker_pool
from benchmarks._engine.machine_code.fingerprint import Compiled
from benchmarks._engine.subject import BACKWARD, DEFAULT, FORWARD, load
from benchmarks._engine.system import process
from benchmarks._engine.system.errors import CouldNotRunError
from tests import toy

rope = load(DEFAULT)
MISSING, RAISING, UNCOMPILABLE, CRASHING, WITHOUT_KERNEL = range(1, 6)
STRIDES = 15  # and one more
COPY, STRIDED, BOTH, SPILLING = (8192 + extra for extra in range(4))

# The number of elements chooses what a call does.
SOURCE = """
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


def launch(x, what):
    out = torch.empty_like(x)
    if what == 1:
        raise NotImplementedError("not for one element")
    if what == 2:
        raise RuntimeError("broken for two elements")
    if what == 3:
        uncompilable[(1,)](out)
    if what == 4:
        os.abort()
    if what in (15, 16):  # Triton specialises neither: the machine code is the same
        outer, inner = (3, 5) if what == 15 else (5, 3)
        copy_by_strides[(1,)](out, x, outer, (inner,))
    if what in (8192, 8194):
        wide_copy[(4,)](out, x, BLOCK=2048, num_warps=4)
    if what in (8193, 8194):
        narrow_copy[(16,)](out, x, BLOCK=512, num_warps=4)
    if what == 8195:
        scan[(1,)](out, x, BLOCK=8192, num_warps=4, maxnreg=32)
    return out


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return launch(x, x.numel())

    @staticmethod
    def backward(ctx, grad):
        return launch(grad, 8193)


scale = Scale.apply
"""


def write_package(root: Path, source: str) -> Path:
    package = root / toy.PACKAGE
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(source)
    return root


def call(what, dtype="float16", target="sm_90", direction=FORWARD) -> Compiled:
    return Compiled(target, toy.Cell(what, dtype), direction)


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    """Without a GPU, pytest's process runs the interpreter."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Everything asked of the toy at once: a pool takes seconds to start."""
    root = write_package(tmp_path_factory.mktemp("toy"), SOURCE)
    kinds = (COPY, STRIDED, BOTH, STRIDES, STRIDES + 1, *range(MISSING, WITHOUT_KERNEL + 1))
    calls = [
        *map(call, kinds),
        call(COPY, direction=BACKWARD),
        call(SPILLING, "float32", "gfx942"),
        call(SPILLING, "float32"),
        call(COPY, target="gfx942"),
        call(STRIDED, target="gfx942"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRITON_INTERPRET", raising=False)
        return fingerprint.compile_all(toy, calls, root=root).facts


def test_vectorised_kernel_is_wide_and_strided_kernel_narrow(answers):
    # 16 elements of 2 bytes for each of 128 threads on NVIDIA, 8 for each of 256 on AMD.
    for target, accesses in (("sm_90", 4), ("gfx942", 2)):
        copy, strided = (answers[call(what, target=target)] for what in (COPY, STRIDED))
        assert (copy.global_accesses, copy.narrow_share) == (accesses, 0)
        assert strided.narrow_share > 0.5


def test_kernels_of_a_call_add_up(answers):
    *parts, both = (answers[call(what)] for what in (COPY, STRIDED, BOTH))
    assert both.instructions == sum(part.instructions for part in parts)
    assert both.global_accesses == sum(part.global_accesses for part in parts)
    assert both.narrow_share == parts[1].narrow_accesses / both.global_accesses
    assert both.registers == max(part.registers for part in parts)
    assert len({facts.digest for facts in (*parts, both)}) == 3


def test_only_the_backward_kernels_of_a_backward_call_count(answers):
    forward, backward = answers[call(STRIDED)], answers[call(COPY, direction=BACKWARD)]
    assert dataclasses.replace(backward, saved_bytes=0) == dataclasses.replace(
        forward, saved_bytes=0
    )


def test_spills_stack_and_shared_memory(answers):
    scan, copy = answers[call(SPILLING, "float32")], answers[call(COPY)]
    assert scan.registers <= 32
    assert scan.spilled_bytes > 0 < scan.stack_bytes
    assert scan.shared_bytes >= 4 * 4, "a float from each warp"
    assert (copy.spilled_bytes, copy.stack_bytes, copy.shared_bytes) == (0, 0, 0)


@pytest.mark.parametrize(
    ("what", "kind", "message"),
    [
        (MISSING, NotImplementedError, "not for one element"),
        (RAISING, RuntimeError, "broken for two elements"),
        (UNCOMPILABLE, RuntimeError, "too narrow a world"),
        (CRASHING, RuntimeError, "ended its process with exit status -6"),
        (WITHOUT_KERNEL, RuntimeError, "the forward call launched no Triton kernel"),
    ],
)
def test_failure_is_its_own_calls_only(answers, what, kind, message):
    assert type(answers[call(what)]) is kind
    assert message in str(answers[call(what)])


def test_strides_are_work_too(answers):
    one, other = answers[call(STRIDES)], answers[call(STRIDES + 1)]
    assert one.digest != other.digest and one.code == other.code


def test_variants_are_counted(tmp_path, monkeypatch):
    """Of one kernel: with or without a length that divides by 16, or is 1."""
    (counted,) = toy.variants("sm_90")
    root = write_package(tmp_path, toy.source())
    assert fingerprint.compile_all(toy, variants=[counted], root=root).variants == {counted: 3}


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("raise OSError('no such luck')", RuntimeError, "(?s)cannot be imported .*no such luck"),
        (None, ModuleNotFoundError, "no toy_kernel in"),
    ],
)
def test_package_that_cannot_be_imported(tmp_path, source, error, message):
    root = tmp_path if source is None else write_package(tmp_path, source)
    with pytest.raises(error, match=message):
        fingerprint.compile_all(toy, [call(COPY)], root=root)
    with pytest.raises(ModuleNotFoundError, match="toy_kernel, which .* cannot be imported"):
        fingerprint.compile_all(toy, [call(COPY)])


@pytest.mark.parametrize("name", fingerprint._REFUSED_VARIABLES)
def test_environment_that_changes_the_compiler(name, tmp_path, monkeypatch):
    monkeypatch.setenv(name, "1")
    with pytest.raises(CouldNotRunError, match=f"unset {name}"):
        fingerprint.compile_all(toy, [call(COPY)], root=write_package(tmp_path, SOURCE))


def test_unknown_architecture(tmp_path):
    root = write_package(tmp_path, SOURCE)
    for jobs in {"calls": [call(COPY, target="sm_1")]}, {"enumerations": [("sm_1", "listed")]}:
        with pytest.raises(ValueError, match="expected some of"):
            fingerprint.compile_all(toy, **jobs, root=root)


# --- the package itself ---------------------------------------------------------------------------


def of_rope(suite, *params, target="sm_90", direction=FORWARD) -> Compiled:
    return Compiled(target, rope.cell(suite, params), direction)


SMALL = ("rope", "64", "128", "2", "float16", "sbhd")


def test_runs_agree_wherever_the_package_lies(tmp_path):
    """Each run has its own compiler cache; debug information, which has paths in it, differs."""
    shutil.copytree(process.ROOT / rope.PACKAGE, tmp_path / "a" / "longer" / "path" / rope.PACKAGE)
    calls = [
        of_rope(*SMALL),
        of_rope(*SMALL, direction=BACKWARD),
        of_rope("rope", "8192", *SMALL[2:]),
        of_rope("rope", "64", "64", "2", "bfloat16", "bshd", target="gfx942"),
    ]
    facts = fingerprint.compile_all(rope, calls).facts
    moved = fingerprint.compile_all(rope, calls, root=tmp_path / "a" / "longer" / "path").facts
    assert facts == moved
    assert len({fact.digest for fact in facts.values()}) == len(calls)
    for fact in facts.values():
        assert fact.registers > 0
        assert fact.instructions > fact.global_accesses > 1


OTHER_TILES = """
_tile_of = tile_of
def tile_of(item, decoding, heads, channels, width, **facts):
    tile = _tile_of(item, decoding, heads, channels, width, **facts)
    return tile._replace(heads=tile.heads // 2) if channels == 128 else tile
"""


def test_a_change_of_the_kernel_for_some_heads_is_seen_there_alone(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__")
    copy = shutil.copytree(process.ROOT / rope.PACKAGE, tmp_path / rope.PACKAGE, ignore=ignored)
    with (copy / "kernel" / "tiles.py").open("a") as file:
        file.write(OTHER_TILES)
    narrow, wide = (
        rope.cell("rope", ("512", channels, "4", "float16", "sbhd")) for channels in ("64", "128")
    )
    base, head = (
        exact.compiled(rope, root, "sm_90", [narrow, wide], (), enumerations=()).facts
        for root in (process.ROOT, tmp_path)
    )
    assert {key.params for key in base if base[key] != head[key]} == {wide.params}
    assert {key.params for key in base} == {narrow.params, wide.params}


@pytest.mark.parametrize(("arch", "multiprocessors"), [("sm_90", 132), ("sm_80", 108)])
def test_a_persistent_kernel_has_the_grid_of_the_gpu(arch, multiprocessors):
    grid = process.call(grid_of, "linear-fp16-16384x100x1024", arch)
    assert grid == (multiprocessors, 1, 1)


def grid_of(name: str, arch: str) -> tuple:
    driver = stub_driver.StubDriver.activate(arch)
    uncompiled.call(driver, rope.cell("modules", (name,)), FORWARD)
    return driver.launches[0].grid


def launch(cells):
    driver = stub_driver.StubDriver.activate("sm_90")
    for cell in cells:
        uncompiled.call(driver, cell, FORWARD)


def test_a_process_finds_in_tritons_cache_what_was_compiled(tmp_path):
    """Whichever kernel it launches first; else each process of a comparison compiles them again."""
    cells = [
        rope.cell("surface", (name, "4")) for name in ("tables-thd-bf16-1x48", "qk-thd-bf16-3x96")
    ]
    ledger = worker_pool.Ledger("compiled")
    ledger.cache = tmp_path
    fingerprint.compile_all(rope, [Compiled("sm_90", c, FORWARD) for c in cells], ledger=ledger)
    there = set(tmp_path.iterdir())
    process.call(launch, cells[::-1], env={"TRITON_CACHE_DIR": str(tmp_path)})
    assert set(tmp_path.iterdir()) == there and len(there) >= len(cells)
