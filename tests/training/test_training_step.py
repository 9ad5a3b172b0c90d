"""What asv's tracks make of the answers."""

import pytest

from benchmarks import training_step
from benchmarks.training_step import Answer

STEP = "410M-2048"
ANSWERS = {
    (STEP, "none"): Answer((0.10, 0.11), 1 << 30, 2900),
    (STEP, "ours"): Answer((0.11, 0.12), 1 << 30, None, (0.1, 0.09)),
    (STEP, "ours-eager"): NotImplementedError("this commit cannot: no such function"),
}


@pytest.mark.parametrize("suite", [training_step.Step, training_step.Attention])
def test_tracks(suite):
    track = suite()
    track.setup(ANSWERS, STEP, "ours")
    assert track.track_seconds(ANSWERS, STEP, "ours") == {"samples": [0.11, 0.12], "number": 1}
    assert track.track_rope_share(ANSWERS, STEP, "ours")["samples"] == [0.1, 0.09]
    assert track.track_peak_bytes(ANSWERS, STEP, "ours") == 1 << 30
    assert track.track_launches(ANSWERS, STEP, "none") == 2900


@pytest.mark.parametrize(
    ("setup", "provider", "why"),
    [
        (training_step.Step().setup, "ours-eager", "this commit cannot"),
        (training_step.Step.track_rope_share.setup, "none", "no RoPE"),
        (training_step.Step.track_launches.setup, "ours", "sees no kernel"),
    ],
)
def test_what_is_not_there_is_not_available(setup, provider, why):
    with pytest.raises(NotImplementedError, match=why):
        setup(ANSWERS, STEP, provider)
