"""What all operators have in common."""

import contextlib
from pathlib import Path

import torch

from rope_triton import transformer


def test_a_kernel_is_launched_on_the_device_of_its_first_argument(device, monkeypatch):
    entered = []

    @contextlib.contextmanager
    def device_of(tensor):
        entered.append(tensor.shape)
        yield
        entered.append("left")

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    x = torch.randn(3, 16, device=device, requires_grad=True)
    transformer.softmax(x).sum().backward()
    assert entered == [(3, 16), "left"] * 2


def test_all_operators_are_made_so():
    folder = Path(transformer.__file__).parent
    made = [path.name for path in folder.glob("*.py") if "custom_op" in path.read_text()]
    assert made == ["operators.py"]
