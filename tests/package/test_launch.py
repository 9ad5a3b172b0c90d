"""A launch that goes straight to a compiled kernel: what it is given, and that hooks see it."""

import contextvars
import importlib
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget

from rope_triton.kernel import launch

GRID = (4, 3, 2)
VALUES = 11, 12
TENSORS = torch.arange(6), torch.arange(3), None


class Driver:
    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return f"the stream of {device}"


class Compiled:
    """A compiled kernel as Triton has it, which only notes how it was launched."""

    function, packed_metadata = "function", "metadata"

    def __init__(self, backend="cuda"):
        self.metadata = SimpleNamespace(target=GPUTarget(backend, 90, 32))
        self.straight, self.by_runner = [], []

    def run(self, *arguments):
        self.straight.append(arguments)

    def __getitem__(self, grid):
        return lambda *arguments: self.by_runner.append((grid, *arguments))


@pytest.fixture
def compiled(monkeypatch):
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver())
    return Compiled()


def test_it_is_given_what_tritons_runner_gives(compiled):
    launch._direct(compiled, GRID, VALUES)(7, TENSORS)
    own = "the stream of 7", "function", "metadata", None, None, None
    assert compiled.straight == [(*GRID, *own, *TENSORS, 11, 12)]
    assert not compiled.by_runner


def launcher(name, given, **scratch):
    """One of the installed Triton, with a function that notes what it is given for the one in C."""
    kind = {"nvidia": "CudaLauncher", "amd": "HIPLauncher"}[name]
    made = object.__new__(getattr(importlib.import_module(f"triton.backends.{name}.driver"), kind))
    sizes = {"global_scratch_size": 0, "profile_scratch_size": 0} | scratch
    others = {"arg_annotations": "annotations", "kernel_signature": "signature", "warp_size": 64}
    own = {"num_ctas": 1, "launch_cooperative_grid": False, "launch_pdl": False}
    aligned = {"global_scratch_align": 1, "profile_scratch_align": 1}
    vars(made).update(sizes, **others, **own, **aligned, launch=lambda *x: given.append(x))
    return made


@pytest.mark.parametrize("name", ["nvidia", "amd"])
def test_tritons_launcher_is_bypassed(compiled, monkeypatch, name):
    """The function in C is given, argument by argument, what Triton's launcher gives it."""
    given = []
    compiled.run = launcher(name, given)
    straight = launch._direct(compiled, GRID, VALUES)
    assert not given
    own = "the stream of 7", "function", "metadata", None, None, None
    compiled.run(*GRID, *own, *TENSORS, 11, 12)

    def refused(*_):
        raise AssertionError("through Triton's launcher")

    monkeypatch.setattr(type(compiled.run), "__call__", refused)
    straight(7, TENSORS)
    expected, found = given
    assert len(found) == len(expected)
    assert all(map(same, found, expected))


def same(one, other):
    """Equal, and of tensors the same ones."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one is other or (not isinstance(one, torch.Tensor) and one == other)


def test_memory_is_allocated_where_a_kernel_needs_it(compiled, monkeypatch):
    given, asked = [], []

    def allocate(size, alignment, stream):
        asked.append((size, alignment, stream))
        return "scratch"

    compiled.run = launcher("nvidia", given, global_scratch_size=16)
    straight = launch._direct(compiled, GRID, VALUES)
    assert not asked
    here = contextvars.copy_context()
    here.run(triton.set_allocator, allocate)
    here.run(straight, 7, TENSORS)
    assert asked == [(4 * 3 * 2 * 16, 1, "the stream of 7")]
    assert "scratch" in given[0]


def test_the_installed_and_the_pinned_triton_are_tested():
    """Whoever raises the pin or installs another runs the tests of this file and of the GPU on it,
    and then names it in ``launch``."""
    pins = (Path(__file__).parents[2] / "constraints.txt").read_text()
    (pinned,) = re.findall(r"^triton==(\S+)", pins, re.MULTILINE)
    assert {pinned, triton.__version__} <= launch._TESTED_TRITONS


@pytest.mark.parametrize(
    ("version", "backend"),
    [("3.8.0", "cuda"), ("3.7.1+git0123abcd", "cuda"), ("3.7.10", "cuda"), (None, "xpu")],
)
def test_elsewhere_it_goes_through_tritons_runner(monkeypatch, version, backend):
    """Of the compiled kernel itself, asked for nothing private."""
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver())
    monkeypatch.setattr(triton, "__version__", version or triton.__version__)
    monkeypatch.setattr(launch, "_innermost", note)
    compiled = Compiled(backend)
    launch._direct(compiled, GRID, VALUES)(7, TENSORS)
    (given,) = compiled.by_runner
    assert not compiled.straight and same(given, (GRID, *TENSORS, 11, 12))


def test_tritons_runner_gives_what_the_straight_way_gives(monkeypatch):
    """That of the installed Triton, with a launcher that only notes."""
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver())
    noted = []
    kernel = object.__new__(triton.compiler.CompiledKernel)
    kernel.module, kernel.function, kernel.packed_metadata = "module", "function", "metadata"
    kernel.metadata = Compiled().metadata
    kernel.src, kernel.name, kernel._run = None, "kernel", lambda *given: noted.append(given)
    monkeypatch.setattr(triton.knobs.runtime, "launch_enter_hook", None)
    monkeypatch.setattr(triton.knobs.runtime, "launch_exit_hook", None)
    launch._direct(kernel, GRID, VALUES)(0, TENSORS)
    monkeypatch.setattr(triton, "__version__", "3.8.0")
    launch._direct(kernel, GRID, VALUES)(0, TENSORS)
    straight, by_runner = noted
    assert same(straight, by_runner)


def note(*_):
    raise AssertionError("only Triton's runner calls it")


@pytest.mark.parametrize("name", ["launch_enter_hook", "launch_exit_hook"])
@pytest.mark.parametrize("chained", [False, True])
def test_with_a_hook_it_goes_through_tritons_runner(compiled, monkeypatch, name, chained):
    straight = launch._direct(compiled, GRID, VALUES)
    with monkeypatch.context() as patched:
        hooks = triton.knobs.HookChain() if chained else note
        patched.setattr(triton.knobs.runtime, name, hooks)
        if chained:
            straight(0, TENSORS)
            assert len(compiled.straight) == 1  # an empty chain has nothing to call
            compiled.straight.clear()
            hooks.add(note)
        straight(0, TENSORS)
        assert compiled.by_runner == [(GRID, *TENSORS, 11, 12)] and not compiled.straight
    straight(0, TENSORS)
    assert len(compiled.straight) == 1


def test_no_chain_at_all_is_no_hook(compiled, monkeypatch):
    monkeypatch.setattr(triton.knobs.runtime, "launch_enter_hook", None)
    launch._direct(compiled, GRID, VALUES)(0, TENSORS)
    assert len(compiled.straight) == 1 and not compiled.by_runner


def test_arguments_follow_the_kernels_names_not_the_plans_order(compiled, monkeypatch):
    monkeypatch.setattr(launch, "_launches", {})
    kernel, made = Kernel(compiled), []
    kernel.arg_names = ["x_ptr", "y_ptr", "z_ptr", "first", "second"]

    def plan(*given):
        made.append(given)
        return launch.Plan(GRID, {"second": 12, "first": 11}, {"num_warps": 2})

    for _ in range(2):
        cached = launch._launches.get("key")
        launch.run("key", cached, kernel, plan, TENSORS, "options")
    assert len(made) == 1 and same(made[0], (*TENSORS, "options"))
    ((grid, given, options),), (straight,) = kernel.given, compiled.straight
    assert grid == GRID and options == {"num_warps": 2}
    assert same(given, (*TENSORS, *VALUES)) and same(straight[-5:], given)


class Kernel:
    """One that Triton would compile, which notes its first launches."""

    def __init__(self, compiled):
        self.compiled, self.given = compiled, []

    def __getitem__(self, grid):
        return lambda *given, **options: self.given.append((grid, given, options)) or self.compiled


BLOCKS = None, (1, 8), None


@pytest.fixture
def prepared(compiled):
    kernel = Kernel(compiled)
    return launch.Prepared(kernel, GRID, (5,), BLOCKS, num_warps=4), kernel


def test_a_prepared_launch_is_repeated_with_descriptors_of_the_tensors_it_is_given(prepared):
    run, kernel = prepared
    one, other = (torch.arange(64.0).view(4, 16) for _ in range(2))
    run(one, one, None)
    ((grid, given, options),) = kernel.given
    assert (grid, options) == (GRID, {"num_warps": 4}) and given[2:] == (None, 5)
    assert given[1].base is one and given[1].block_shape == [1, 8] and given[1].strides == [16, 1]
    assert not kernel.compiled.straight
    run(other, other, None)
    assert len(kernel.given) == 1
    ((*_, first, blocks, none, value),) = kernel.compiled.straight
    assert first is other and blocks.base is other and (none, value) == (None, 5)
    assert vars(blocks) == vars(given[1]) | {"base": other}


def planned_by(*arguments):
    """Another object each time."""
    return SimpleNamespace(arguments=arguments)


@pytest.mark.parametrize("change", ["", "value", "shape", "strides", "dtype", "alignment", "none"])
def test_a_plan_is_made_once_for_each_specialization(monkeypatch, change):
    monkeypatch.setattr(launch, "_plans", {})
    x = torch.zeros(4, 16)
    made = launch.planned(planned_by, x, 5)
    changed = {
        "shape": torch.zeros(5, 16),
        "strides": torch.zeros(4, 32)[:, :16],
        "dtype": x.half(),
        "alignment": torch.zeros(65)[1:].view(4, 16),
        "none": None,
    }.get(change, torch.ones(4, 16))
    other = launch.planned(planned_by, changed, 6 if change == "value" else 5)
    assert (other is made) == (not change)
