"""What tests of the kernel on a GPU share: calls at real sizes, and losses."""

import pytest
import torch

import rope_triton
from benchmarks._subjects.rope import angles
from tests import oracle
from tests.oracle import MODES

all_modes = pytest.mark.parametrize("mode", MODES, ids=str)


def model_angles(seq, channels, rotary_percent=1.0, interleaved=False):
    """The angles of positions 0 .. seq - 1, ``[seq, 1, 1, channels * rotary_percent]``.

    Not the package's: of angles that are all 0, each result would be right.
    """
    pairs = angles.exact(0, seq, int(channels * rotary_percent)).float()
    return angles.by_channel(pairs, interleaved).cuda()


def apply(t, freqs, mode):
    return rope_triton.apply_rotary_pos_emb(
        t, freqs, mode.tensor_format, interleaved=mode.interleaved
    )


def inputs(mode, seq, batch, heads, channels):
    """``t``, which requires a gradient, the angles of a model, and a cotangent."""
    shape = mode.shape(seq, batch, heads, channels)
    t = oracle.contiguous(shape, mode.dtype, "cuda").requires_grad_()
    freqs = model_angles(seq, channels, mode.rotary_percent, mode.interleaved)
    return t, freqs, oracle.random_like(t)


def overlapping(output):
    """A loss whose gradient has stride 0: all its elements lie at one address."""
    return output.sum() * 2


def non_overlapping(output):
    return (output * torch.ones_like(output)).sum()


LOSSES = {"overlapping": overlapping, "non_overlapping": non_overlapping}
