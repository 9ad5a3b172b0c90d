"""What all operators have in common."""

from pathlib import Path

from rope_triton import transformer


def test_all_operators_are_made_so():
    folder = Path(transformer.__file__).parent
    made = [path.name for path in folder.glob("*.py") if "torch.library" in path.read_text()]
    assert made == ["operators.py"]


def test_all_launches_are_prepared():
    """Such a launch is on the tensors' device, and goes straight to what is compiled."""
    folder = Path(transformer.__file__).parent
    assert not [path.name for path in folder.glob("*.py") if "kernel[" in path.read_text()]
