"""A launch that goes straight to a compiled kernel: what it is given, and that hooks see it."""

import pytest
import torch
import triton

from rope_triton import launch

GRID = (4, 3, 2)
PART = launch.Part(GRID, 0, (0, None, None), (11, 12), {})
TENSORS = torch.arange(6), torch.arange(3), None


class Driver:
    def get_current_stream(self, device):
        return f"the stream of {device}"


class Compiled:
    """A compiled kernel as Triton has it, which only notes how it was launched."""

    function, packed_metadata = "function", "metadata"

    def __init__(self):
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
    launch._straight(compiled, PART)(7, TENSORS)
    own = "the stream of 7", "function", "metadata", None, None, None
    assert compiled.straight == [(*GRID, *own, *TENSORS, 11, 12)]
    assert not compiled.by_runner


def test_a_part_begins_where_it_begins(compiled):
    launch._straight(compiled, PART._replace(begin=2))(0, TENSORS)
    (arguments,) = compiled.straight
    first, second, third = arguments[9:12]
    assert first.tolist() == [2, 3, 4, 5] and second is TENSORS[1] and third is None


def note(*_):
    raise AssertionError("only Triton's runner calls it")


@pytest.mark.parametrize("name", ["launch_enter_hook", "launch_exit_hook"])
@pytest.mark.parametrize("chained", [False, True])
def test_with_a_hook_it_goes_through_tritons_runner(compiled, monkeypatch, name, chained):
    straight = launch._straight(compiled, PART)
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
    launch._straight(compiled, PART)(0, TENSORS)
    assert len(compiled.straight) == 1 and not compiled.by_runner
