"""Rounds to figures and tables."""

import math

import pytest

from benchmarks._studies.training import results
from benchmarks._studies.training.results import Interval
from benchmarks._studies.training.sizes import ATTENTION, PARTS, POINTS, STEP

POINT = POINTS["410M-2048"]


def row(seconds, launches=3000):
    counted = {"launches": launches, "sdpa": "cuDNN"} if launches else {}
    step = {"seconds": seconds, "peak_bytes": 20 << 30} | counted
    part = step | {"seconds": [each / 50 for each in seconds]}
    return {"parts": dict.fromkeys(PARTS, part) | {STEP: step}}


def round_of(number):
    """The clock of each round is another; a turn is disturbed for both."""
    slow = 1 + number / 10
    base = [0.1 * slow, 0.1 * slow, 0.2 * slow]
    return {
        "none": row(base, 2900 if number == 0 else 0),
        "ours": row([each * (1.01 + number / 1e4) for each in base], not number and 3000),
        "liger": {"unavailable": "liger is not there"},
    }


def found(rounds, gpu="NVIDIA H200"):
    return {
        (figure.part, figure.provider): figure for figure in results.figures(POINT, gpu, rounds)
    }


def test_figures():
    figures = found([round_of(number) for number in range(6)])
    none, ours = figures[STEP, "none"], figures[STEP, "ours"]
    assert none.seconds == pytest.approx(0.125) and none.rounds == 6
    assert none.tokens_per_second == pytest.approx(16384 / 0.125)
    # 24 layers of 4 * 1024^2 + 3 * 1024 * 2816, the head, and attention: 6 operations each.
    elements = 24 * (4 * 1024**2 + 3 * 1024 * 2816) + 1024 * 50304 + 24 * 2048 * 1024
    assert none.mfu == pytest.approx(6 * 16384 * elements / 0.125 / 989e12)
    assert (none.peak_bytes, none.launches, none.sdpa) == (20 << 30, 2900, "cuDNN")
    assert none.rope is None and ours.launches == 3000
    assert ours.rope == Interval(*map(pytest.approx, (0.01025, 0.01, 0.0105)))
    assert figures[ATTENTION, "ours"].seconds == pytest.approx(ours.seconds / 50)
    assert found([round_of(0)], "NVIDIA A100")[STEP, "none"].mfu is None


def test_too_few_rounds_have_no_interval():
    share = found([round_of(number) for number in range(5)])[STEP, "ours"].rope
    assert share is not None and math.isclose(share.estimate, 0.0102) and share[1:] == (None, None)


def test_what_failed_in_one_round_has_no_figures():
    error = "Traceback ...\n  a line\nAssertionError: ours: layer.q differs\n"
    rounds = [round_of(0), round_of(1) | {"ours": {"error": error}}]
    ours = found(rounds)[STEP, "ours"]
    assert (ours.status, ours.why) == ("failed", "AssertionError: ours: layer.q differs")
    assert found(rounds)[STEP, "liger"].status == "n/a"
    rounds = [round_of(0) | {"none": {"error": error}}]
    assert found(rounds)[STEP, "ours"].rope is None
