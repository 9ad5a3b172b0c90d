"""Launches are planned and compiled once, then repeated straight by Triton's function in C."""

import contextvars
import importlib
import warnings
from types import SimpleNamespace

import pytest
import torch
import triton

from rope_triton.kernel import launch
from rope_triton.kernel.launch import Launch

GRID = (4, 3, 2)
VALUES = 11, 12
TENSORS, OTHERS = ((torch.arange(n), torch.arange(3), None) for n in (6, 7))


class Driver:
    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return f"the stream of {device}"


class Compiled(triton.compiler.CompiledKernel):
    """A compiled kernel of the installed Triton, with a launcher of the test's."""

    def __init__(self, launcher):
        self.module, self.function, self.packed_metadata = "module", "function", "metadata"
        self.src, self.name, self._run = None, "kernel", launcher

    def __del__(self):  # nothing to unload
        pass


class Kernel:
    """What Triton would compile; ``first`` are the launches that it was asked for."""

    def __init__(self, launcher):
        self.compiled, self.first = Compiled(launcher), []

    def __getitem__(self, grid):
        return lambda *arguments, **options: (
            self.first.append((grid, arguments, options)) or self.compiled
        )


class FlatLauncher:
    """One whose function in C takes the kernel's arguments one by one, as that of Triton 3.6."""

    def __init__(self):
        self.launched = []

    def launch(self, *arguments):
        self.launched.append(arguments)

    def __call__(self, x, y, z, stream, function, *rest):
        self.launch(x, y, z, stream, function, *rest)


def launcher_of_triton(name, **scratch):
    """One of the installed Triton, with a function that records in place of the one in C."""
    kind = {"nvidia": "CudaLauncher", "amd": "HIPLauncher"}[name]
    made = object.__new__(getattr(importlib.import_module(f"triton.backends.{name}.driver"), kind))
    sizes = {"global_scratch_size": 0, "profile_scratch_size": 0} | scratch
    others = {"arg_annotations": "annotations", "kernel_signature": "signature", "warp_size": 64}
    own = {"num_ctas": 1, "launch_cooperative_grid": False, "launch_pdl": False}
    aligned = {"global_scratch_align": 1, "profile_scratch_align": 1}
    vars(made).update(sizes, **others, **own, **aligned, gsan_enabled=False, launched=[])
    made.launch = lambda *arguments: made.launched.append(arguments)
    return made


LAUNCHERS = {
    "nvidia": lambda: launcher_of_triton("nvidia"),
    "amd": lambda: launcher_of_triton("amd"),
    "flat": FlatLauncher,
}


@pytest.fixture(autouse=True)
def driver(monkeypatch):
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver())


@pytest.fixture
def prepared():
    """A launch that was compiled, and the arguments with which it is repeated in C."""
    launcher = FlatLauncher()
    run = Launch(Kernel(launcher), GRID, VALUES)
    run.on(*TENSORS)
    return run, launcher


def same(one, other):
    """Equal, and of tensors the same ones."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one is other or (not isinstance(one, torch.Tensor) and one == other)


def launch_by_triton(monkeypatch, kernel, grid):
    """Launch on ``OTHERS`` by the runner, without hooks."""
    with monkeypatch.context() as patched:
        for hook in ("launch_enter_hook", "launch_exit_hook"):
            patched.setattr(triton.knobs.runtime, hook, None)
        kernel.compiled[grid](*OTHERS, *VALUES, stream="the stream of -1")


@pytest.mark.parametrize("name", LAUNCHERS)
def test_the_function_in_c_gets_what_tritons_runner_gives_it(monkeypatch, name):
    launcher = LAUNCHERS[name]()
    kernel = Kernel(launcher)
    run = Launch(kernel, GRID, VALUES, num_warps=2)
    run.on(*TENSORS)
    assert same(tuple(kernel.first[0][1]), (*TENSORS, *VALUES)) and len(kernel.first) == 1
    assert kernel.first[0][::2] == (GRID, {"num_warps": 2})
    assert not launcher.launched, "launched twice"
    launch_by_triton(monkeypatch, kernel, GRID)

    def refused(*_):
        raise AssertionError("through Triton's launcher")

    monkeypatch.setattr(type(launcher), "__call__", refused)
    run.on(*OTHERS)
    expected, result = launcher.launched
    assert same(result, expected)
    assert len(kernel.first) == 1


@pytest.mark.parametrize("name", LAUNCHERS)
def test_what_the_function_in_c_gets_is_found_once_for_each_compiled_kernel(monkeypatch, name):
    launcher = LAUNCHERS[name]()
    kernel = Kernel(launcher)
    Launch(kernel, GRID, VALUES).on(*TENSORS)
    launch_by_triton(monkeypatch, kernel, (2, 1, 1))
    longer = Launch(kernel, (2, 1, 1), VALUES)
    monkeypatch.setattr(launch, "_arguments_in_c", None)
    longer.on(*TENSORS)
    longer.on(*OTHERS)
    expected, result = launcher.launched
    assert same(result, expected)


class TakesTheTensorsFirst(FlatLauncher):
    def __call__(self, x, y, z, stream, function, metadata, *hooks_and_arguments):
        self.launch(*hooks_and_arguments, stream, function)


class HasAnotherFunction(FlatLauncher):
    launch = property()

    def __call__(self, *arguments):
        self.launched.append(arguments)


class LaunchesTwice(FlatLauncher):
    def __call__(self, *arguments):
        super().__call__(*arguments)
        super().__call__(*arguments)


@pytest.mark.parametrize("kind", [TakesTheTensorsFirst, HasAnotherFunction, LaunchesTwice])
def test_a_launcher_that_is_not_understood_is_used_as_it_is_and_warned_of_once(kind):
    launcher = kind()
    run = Launch(Kernel(launcher), GRID, VALUES)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")
        run.on(*TENSORS)
        assert not launcher.launched
        run.on(*OTHERS)
        Launch(Kernel(kind()), GRID, VALUES).on(*TENSORS)
    (warning,) = warned
    assert f"how Triton {triton.__version__} launches" in str(warning.message)
    assert len(launcher.launched) == (2 if kind is LaunchesTwice else 1)
    assert any(item is OTHERS[0] for item in launcher.launched[0])


def test_memory_is_allocated_at_each_launch_where_a_kernel_needs_it():
    asked = []

    def allocate(size, alignment, stream):
        asked.append((size, alignment, stream))
        return f"scratch {len(asked)}"

    launcher = launcher_of_triton("nvidia", global_scratch_size=16)
    run = Launch(Kernel(launcher), GRID, VALUES)
    run.on(*TENSORS)
    assert not asked
    here = contextvars.copy_context()
    here.run(triton.set_allocator, allocate)
    for _ in range(2):
        here.run(run.on, *TENSORS)
    assert asked == [(4 * 3 * 2 * 16, 1, "the stream of 0")] * 2
    assert ["scratch 1" in arguments for arguments in launcher.launched] == [True, False]


@pytest.mark.parametrize("name", ["launch_enter_hook", "launch_exit_hook"])
@pytest.mark.parametrize("chained", [False, True])
def test_a_hook_sees_the_launch(prepared, monkeypatch, name, chained):
    def hook(*_):
        pass

    run, launcher = prepared
    hooks = triton.knobs.HookChain() if chained else hook
    with monkeypatch.context() as patched:
        patched.setattr(triton.knobs.runtime, name, hooks)
        if chained:
            run.on(*TENSORS)
            assert hooks not in launcher.launched.pop()[:-5]  # it is empty
            hooks.add(hook)
        run.on(*TENSORS)
    assert any(item is hooks for item in launcher.launched.pop())
    run.on(*TENSORS)
    assert not any(item is hooks for item in launcher.launched.pop())


def test_descriptors_are_of_the_tensors_of_the_call():
    launcher = FlatLauncher()
    kernel = Kernel(launcher)
    run = Launch(kernel, GRID, (5,), (None, (1, 8), None), num_warps=4)
    one, other = (torch.arange(64.0).view(4, 16) for _ in range(2))
    run.on(one, one, None)
    ((_, first, _),) = kernel.first
    run.on(other, other, None)
    for x, arguments in ((one, first), (other, launcher.launched[0][-4:])):
        tensor, blocks, none, value = arguments
        assert tensor is x and blocks.base is x and (none, value) == (None, 5)
        assert (blocks.shape, blocks.strides, blocks.block_shape) == ([4, 16], [16, 1], [1, 8])


# --- plans ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["", "value", "shape", "strides", "dtype", "alignment", "none"])
def test_planned_plans_once_for_each_specialization(change):
    def plan(*arguments):
        return SimpleNamespace(arguments=arguments)

    x = torch.zeros(4, 16)
    made = launch.planned(plan, x, 5)
    changed = {
        "shape": torch.zeros(5, 16),
        "strides": torch.zeros(4, 32)[:, :16],
        "dtype": x.half(),
        "alignment": torch.zeros(65)[1:].view(4, 16),
        "none": None,
    }.get(change, torch.ones(4, 16))
    other = launch.planned(plan, changed, 6 if change == "value" else 5)
    assert (other is made) == (not change)


def test_the_oldest_plans_are_dropped(monkeypatch):
    monkeypatch.setattr(launch, "_MAX_CACHED", 3)
    launch.cache.clear()

    def plan(number):
        return number

    for n in range(1, 5):
        launch.planned(plan, n)
        assert list(launch.cache.values()) == list(range(max(1, n - 2), n + 1))
