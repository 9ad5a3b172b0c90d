"""Check the rope-triton that is installed: its files, and its kernel on the CPU.

``TRITON_INTERPRET=1 python smoke.py CHECKOUT``: the files are those of the checkout's package.
"""

import importlib.metadata
import sys
from pathlib import Path

INSTALLED = importlib.metadata.distribution("rope-triton")


def require_files(checkout: Path) -> None:
    listed = map(str, INSTALLED.files or ())
    installed = {name for name in listed if ".dist-info/" not in name and "__pycache__" not in name}
    sources = [*(checkout / "rope_triton").rglob("*.py"), checkout / "rope_triton" / "py.typed"]
    expected = {path.relative_to(checkout).as_posix() for path in sources}
    for names, what in ((expected - installed, "lacks"), (installed - expected, "should not have")):
        if names:
            sys.exit(f"the installed package {what} {', '.join(sorted(names))}")


def require_rotation() -> None:
    """The kernel's result and gradient are those of the formula in float64."""
    import torch  # here, where a file that is missing was named before

    import rope_triton

    generator = torch.Generator().manual_seed(0)
    t, weights = torch.randn(2, 7, 2, 3, 32, generator=generator)
    # Few turns: the interpreter's fused multiply-add rounds twice and loses long angles.
    angles = 6 * torch.rand(7, 1, 1, 16, generator=generator)
    t.requires_grad_()
    found = rope_triton.apply_rotary_pos_emb(t, torch.cat((angles, angles), -1))
    (grad,) = torch.autograd.grad(found, t, weights)

    exact = t.detach().double().requires_grad_()
    cos, sin = angles.double().cos(), angles.double().sin()
    a, b = exact.chunk(2, -1)
    formula = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    (formula_grad,) = torch.autograd.grad(formula, exact, weights.double())
    for what, got, expected in (("result", found, formula), ("gradient", grad, formula_grad)):
        error = (got.double() - expected).abs().max().item()
        if not error < 2e-6:
            sys.exit(f"the kernel's {what} is {error:g} off the formula")


if __name__ == "__main__":
    require_files(Path(sys.argv[1]).resolve())
    require_rotation()
    print(f"rope-triton {INSTALLED.version}: all files are there, and the kernel is right")
