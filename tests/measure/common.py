"""What the tests of the host's measures share."""

import functools
from pathlib import Path

import rope_triton

ROOT = Path(__file__).resolve().parents[2]
NO_GPU = "no NVIDIA GPU: torch.cuda.is_available() is False"
apply_plain = functools.partial(rope_triton.apply_rotary_pos_emb, fused=False)


def implement(monkeypatch, apply):
    """Have the package rotate by another function."""
    monkeypatch.setattr(rope_triton, "apply_rotary_pos_emb", apply)
