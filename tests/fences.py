"""Tensors in the middle of memory that is not theirs, so that a step past their ends shows."""

import math

import pytest
import torch

import rope_triton

FUNCTIONS = (
    *("apply_rotary_pos_emb", "apply_qk_rotary_pos_emb", "apply_fused_qkv_rotary_pos_emb"),
    *("apply_rotary_emb", "rotary_embedding"),
)


class Fence:
    """What is read of it by mistake is NaN, or a large index.

    Mistakes in writing are seen: also where the filling is NaN and what was computed from it is, as
    another filling is random numbers.
    """

    # More than the largest tile reaches beyond a tensor; an odd one takes the alignment away too.
    MARGINS = {"nan": 1 << 14, "random": (1 << 14) - 3}

    def __init__(self, filling: str):
        self._filling = filling
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.allocated = 0

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Let the package work in here: on what it is given, allocates, and gets as gradients."""
        for name in FUNCTIONS:
            patch.setattr(rope_triton, name, self._fenced(getattr(rope_triton, name)))
        new_empty = torch.Tensor.new_empty

        def empty_like(t, **_):
            self.allocated += 1
            return self._empty(t.shape, t.dtype, t.device)

        def fenced_new_empty(t, size, **options):
            if options:  # the interpreter's own
                return new_empty(t, size, **options)
            self.allocated += 1
            return self._empty(size, t.dtype, t.device)

        patch.setattr(torch, "empty_like", empty_like)
        patch.setattr(torch.Tensor, "new_empty", fenced_new_empty)

    def around(self, tensor):
        """A contiguous copy of a tensor; anything else as it is."""
        if not isinstance(tensor, torch.Tensor):
            return tensor
        return self._empty(tensor.shape, tensor.dtype, tensor.device).copy_(tensor)

    def assert_intact(self) -> None:
        for frame, before in self._kept:
            assert torch.equal(frame.view(torch.uint8), before.view(torch.uint8))

    def _fenced(self, function):
        def call(x, *arguments, **options):
            arguments = map(self.around, arguments)
            named = {name: self.around(value) for name, value in options.items()}
            out = function(self.around(x), *arguments, **named)
            for entry in out if isinstance(out, tuple) else (out,):
                entry.register_hook(self.around)
            return x.copy_(out) if options.get("inplace") else out

        return call

    def _empty(self, shape, dtype, device):
        n, margin = math.prod(shape), self.MARGINS[self._filling]
        memory = torch.empty(n + 2 * margin, dtype=dtype, device=device)
        if not dtype.is_floating_point:
            memory.random_(1 << 24, 1 << 30)
        elif self._filling == "random":
            memory.normal_()
        else:
            memory.fill_(torch.nan)
        self._kept += [(x, x.clone()) for x in (memory[:margin], memory[margin + n :])]
        strides = torch.empty(shape, device="meta").stride()
        # No view of the memory: autograd would follow each change of one.
        inside = torch.empty(0, dtype=dtype, device=device)
        inside.set_(memory.untyped_storage(), margin, shape, strides)
        return inside.fill_(torch.nan) if dtype.is_floating_point else inside


@pytest.fixture
def fence(case, monkeypatch):
    """The package works in a fence, filled as the test's ``case`` says, and leaves it intact."""
    if case["filling"] == "none":
        yield
        return
    fence = Fence(case["filling"])
    fence.install(monkeypatch)
    yield fence
    assert fence.allocated
    fence.assert_intact()
