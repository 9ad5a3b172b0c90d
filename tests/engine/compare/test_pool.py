"""From the samples of fresh processes to a median each: alone, or by what was clocked beside."""

import pytest

from benchmarks._engine.compare import pool
from benchmarks._engine.compare.rounds import Round
from benchmarks._engine.verdict.rules import Key

METRIC = "toy.Call.track_forward"
CALL = Key(METRIC, ("sbhd",))


def payload(seconds, beside=None):
    timings = [[METRIC, ["sbhd"], seconds]]
    return {"timings": timings} | (
        {} if beside is None else {"beside": [[METRIC, ["sbhd"], beside]]}
    )


def in_rounds(*payloads):
    return [Round("look1", number, answers, {}) for number, answers in enumerate(payloads)]


def test_alone_it_is_the_median():
    assert pool.medians_of(payload([3.0, 1.0, 2.0])) == {CALL: 2.0}


def test_beside_other_versions_it_is_the_median_share_of_what_they_usually_take():
    # Shares of 3, 2 and 2.5, and a mean of 2 seconds.
    assert pool.medians_of(payload([3.0, 4.0, 10.0], [1.0, 2.0, 4.0])) == {CALL: 5.0}


def test_usual_is_what_all_versions_take_in_all_processes():
    base, head = payload([3.0] * 3, [1.0] * 3), payload([6.0] * 3, [3.0] * 3)
    measured = in_rounds({"base": base, "head": head})
    assert pool.medians(measured, "base") == [{CALL: 6.0}]
    assert pool.medians(measured, "head") == [{CALL: 4.0}]


def test_samples_without_one_beside_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        pool.medians_of(payload([1.0, 2.0], [1.0]))
