"""The error of the package's rotation, from inputs to figure; without a GPU."""

import dataclasses

import pytest
import torch

import rope_triton
from benchmarks import _subjects
from benchmarks._engine.measure import accuracy, inputs
from benchmarks._subjects import metric_list
from benchmarks._subjects.rope import angles
from benchmarks._subjects.rope.cells import path_cell
from tests import oracle
from tests.package import plain

CELLS = {key: eager for key, eager in _subjects.eager().items() if eager.kind == "error"}
ERROR, PATH_ERROR = "host.Error.track_error", "host.PathError.track_error"
OWN, PATHS = ([key for key in CELLS if key[0] == metric] for metric in (ERROR, PATH_ERROR))


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch, one_thread):
    """Small CPU tensors in plain PyTorch."""
    monkeypatch.setattr(inputs, "DEVICE", "cpu")
    plain.install(monkeypatch)


def error(metric, *params):
    """The error of a call on fewer tokens."""
    eager = CELLS[metric, params]
    if metric == PATH_ERROR:
        path, _, dtype = eager.cell.values
        return accuracy.error(path_cell(path, 1 / 4, dtype), eager.direction)
    return accuracy.error(dataclasses.replace(eager.cell, lengths=(256,)), eager.direction)


def exact_rotation(t, freqs, tensor_format, interleaved=False):
    """A rotation in float64, rounded once to the dtype of ``t``."""
    freqs = freqs.double()
    cos, sin = (oracle.pairs(x, interleaved)[..., 0] for x in (freqs.cos(), freqs.sin()))
    first, second = oracle.pairs(t.double(), interleaved).unbind(-1)
    turned = first * cos - second * sin, second * cos + first * sin
    joined = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return joined.to(t.dtype)


@pytest.mark.parametrize("key", OWN, ids=lambda key: "-".join(key[1]))
def test_perfect_result_has_the_error_1(key, monkeypatch):
    monkeypatch.setattr(rope_triton, "apply_rotary_pos_emb", exact_rotation)
    assert error(key[0], *key[1]) == 1.0


def lossy(function, loss):
    """The function, with a relative loss in the first tensor that it returns."""

    def call(*args, **options):
        output = function(*args, **options)
        if isinstance(output, tuple):
            return output[0] * (1 + loss), *output[1:]
        return output.mul_(1 + loss) if options.get("inplace") else output * (1 + loss)

    return call


@pytest.mark.parametrize("key", PATHS, ids=lambda key: "-".join(key[1]))
def test_error_of_a_path_is_that_of_its_roundings_and_shows_a_loss(key, monkeypatch):
    float32 = key[1][2] == "float32"
    assert 0.999 < error(key[0], *key[1]) < (2 if float32 else 1.01)
    for name, function in plain.FUNCTIONS.items():
        changed = lossy(function, 2.0**-16 if float32 else 2.0**-7)
        monkeypatch.setattr(rope_triton, name, changed)
    assert error(key[0], *key[1]) > 2


def test_long_positions_are_long(monkeypatch):
    """A reduction of the angles that loses one bit in 2^20 shows there and only there."""

    def apply(t, freqs, *options, **more):
        return exact_rotation(t, freqs.double() * (1 + 2.0**-30), *options, **more)

    monkeypatch.setattr(rope_triton, "apply_rotary_pos_emb", apply)
    short, long = (error(ERROR, "forward", "float32", p, "False") for p in ("short", "long"))
    assert short < 20 < 100 < long


def test_long_positions_have_the_angles_of_the_package():
    for first in metric_list.POSITIONS.values():
        expected = rope_triton.RotaryPositionEmbedding(128, device="cpu")(64, offset=first)
        made = angles.by_channel(angles.exact(first, 64, 128)).float()
        torch.testing.assert_close(made, expected, rtol=angles.TOLERANCE, atol=0)
