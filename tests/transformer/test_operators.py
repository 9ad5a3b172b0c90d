"""What all operators have in common."""

from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad

from rope_triton import transformer


def test_all_launches_are_prepared():
    """Such a launch is on the tensors' device, and goes straight to what is compiled."""
    folder = Path(transformer.__file__).parent
    assert not [path.name for path in folder.glob("*.py") if "kernel[" in path.read_text()]


@pytest.mark.parametrize("name", ["linear", "matmul", "rms_norm", "softmax", "swiglu"])
def test_forward_mode_is_refused(name, device):
    """Its tangents would be lost."""
    x, square = torch.randn(4, device=device), torch.randn(4, 4, device=device)
    others = {"rms_norm": (x,), "softmax": ()}.get(name, (square,))

    def call(given):
        return getattr(transformer, name)(given, *others)

    with pytest.raises(NotImplementedError, match="no derivative in forward mode"):
        torch.func.jvp(call, (square,), (square,))
    with forward_ad.dual_level():
        assert forward_ad.unpack_dual(call(square)).tangent is None
        for gradient in (False, True):
            dual = forward_ad.make_dual(square.clone().requires_grad_(gradient), square)
            with pytest.raises(NotImplementedError, match="no derivative in forward mode"):
                call(dual)
