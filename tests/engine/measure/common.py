"""Shared by the tests of the host's measures."""

from pathlib import Path

import rope_triton
from tests.package import plain

ROOT = Path(__file__).resolve().parents[3]
NO_GPU = "no NVIDIA GPU: torch.cuda.is_available() is False"


def implement(monkeypatch, apply):
    """Have the package rotate by another function."""
    monkeypatch.setattr(rope_triton, "apply_rotary_pos_emb", apply)


def change(monkeypatch, what):
    """Let ``what`` be made of the first tensor that each function of the package returns."""

    def changed(function):
        def call(*args, **options):
            output = function(*args, **options)
            if isinstance(output, tuple):
                return what(output[0]), *output[1:]
            return output.copy_(what(output)) if options.get("inplace") else what(output)

        return call

    for name, function in plain.FUNCTIONS.items():
        monkeypatch.setattr(rope_triton, name, changed(function))
