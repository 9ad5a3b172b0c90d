"""Models' calls by other libraries: what is called, what is right, and what each cannot do."""

import pytest
import torch

from benchmarks._engine.subject import BACKWARD, FORWARD, Unavailable
from benchmarks._studies.peers import adapter, peer_cells
from benchmarks._studies.peers.peer_cells import peer_model_cell, peer_named_cell
from benchmarks._studies.peers.providers import MODEL_CALLS, PROVIDERS
from benchmarks._subjects.rope.models import MODELS
from tests.cells import few, near
from tests.peers import libraries
from tests.peers.libraries import FORWARD_ONLY, called

here = libraries.here  # fixture

STEPS = ("training", "decode")
IN_PLACE = {"liger", "vllm"}
MODEL_CELLS = [
    few(peer_model_cell(provider, model, step))
    for step in STEPS
    for model in MODELS
    for provider in MODEL_CALLS
]
NAMED = (
    *("bf16-4+2x32r16-packed-2x3", "fp16-2+1x32-il-of96-2x3", "fp32-2+2x32-transposed-2x3"),
    *("bf16-2x32-misaligned-3x1", "fp16-2+1x32-sliced-perbatch-2x3", "bf16-1x264-1x3"),
    *("bf16-2+2x36r20-1x3", "fp32-2+1x32-cp-2x4", "bf16-2+1x32-perbatch-cp-2x4"),
    *("bf16-2+1x32-rtables-2x3", "bf16-2+1x32-reach-2x3"),
)
NAMED_CELLS = [
    near(peer_named_cell(provider, name))
    for name in NAMED
    for provider in ("rope-triton", "rope-triton-tables", "flash-attention", "quack", "liger")
]
LATENT = ("deepseek-v3-q", "deepseek-v3-k")
INTERLEAVED = (*LATENT, "glm-4-9b", "fp16-2+1x32-il-of96-2x3")
REFUSED = {
    **{("liger", name): "takes queries and keys" for name in NAMED if "+" not in name},
    **{("liger", name): "has no interleaved rotation" for name in INTERLEAVED},
    **{("flashinfer", model): "takes queries and keys" for model in LATENT},
    ("flashinfer", "gpt-neox-20b"): "takes multiples of 32 channels, got 24",
    ("quack", "bf16-2x32-misaligned-3x1"): "takes memory aligned to 16 bytes",
    ("quack", "bf16-2+2x36r20-1x3"): "takes multiples of 8 channels, got 20",
    ("flash-attention", "bf16-1x264-1x3"): "takes up to 256 channels, got 264",
}
UNMOVED = "qwen-2-vl-7b", "decode"  # its tokens are at position 0
# Sequences that begin at rows of their own: by their positions, and by their tables.
MOVED = [("llama-3-8b", "decode"), ("qwen-2-vl-7b", "training")]


@pytest.mark.parametrize(
    "cell", [*MODEL_CELLS, *NAMED_CELLS], ids=lambda cell: "-".join(cell.params)
)
def test_every_call_is_right_or_refused(here, cell):
    for direction in cell.directions:
        reason = REFUSED.get(cell.params[:2])
        if direction == BACKWARD and cell.provider in FORWARD_ONLY:
            reason = reason or "has no backward pass"
        if reason:
            with pytest.raises(Unavailable, match=f"{cell.provider} {reason}"):
                called(cell, direction, here)
            continue
        call, rotate, x, before = called(cell, direction, here)
        call.check(rotate(), before, direction)
        assert torch.equal(x, before) or cell.provider in IN_PLACE
        assert call.in_place == (cell.provider in IN_PLACE)
        if cell.provider != "copy" and cell.params[1:] != UNMOVED:
            unrotated = call.operand if direction == FORWARD else call.cotangent
            with pytest.raises(AssertionError, match="not close"):
                call.check(unrotated(before), before, direction)


@pytest.mark.parametrize(("model", "step"), MOVED)
@pytest.mark.parametrize("provider", [p for p in MODEL_CALLS if p in libraries.FUNCTIONS])
def test_the_row_at_which_a_sequence_begins_counts(here, monkeypatch, provider, model, step):
    """A library that let every sequence begin at the same row would be found wrong."""
    cell = few(peer_model_cell(provider, model, step))
    with monkeypatch.context() as patched:
        rows = adapter.Peer._rows
        patched.setattr(adapter.Peer, "_rows", lambda *args: rows(*args)[:1].expand_as(rows(*args)))
        call, rotate, _, given = called(cell, FORWARD, here)
    with pytest.raises(AssertionError, match="not close"):
        call.check(rotate(), given, FORWARD)


def test_all_are_measured_on_the_same_bytes_and_by_what_they_take():
    assert MODEL_CALLS.keys() < PROVIDERS.keys() and all(MODEL_CALLS.values())
    for cell in MODEL_CELLS:
        ours = few(cell.by("rope-triton"))
        assert cell.bytes_moved == ours.bytes_moved and cell.shapes == ours.shapes
        assert cell.call_name.with_angles == (cell == ours)
        assert peer_cells.SUITES[cell.suite](*cell.values) == cell
