"""The goals of a step beside rounds."""

import pytest

from benchmarks._studies.training import goals, results
from benchmarks._studies.training.results import Stored
from benchmarks._studies.training.sizes import PARTS, POINTS, STEP

GPU = "NVIDIA H200"


def row(seconds, memory=100):
    return {"parts": {part: {"seconds": seconds, "peak_bytes": memory} for part in PARTS}}


def round_of(number, **others):
    """Clocks are slower in each round. In two turns something disturbs only one of a pair."""
    slow = 1 + number / 10

    def faster(speed, memory=100, disturbed=(1, 1, 1)):
        turns = zip((0.1, 0.2, 0.3), disturbed, strict=True)
        return row([seconds * slow * factor / speed for seconds, factor in turns], memory)

    return {
        **{"none": faster(1), "triton-none": faster(0.7), "compiled": faster(1)},
        "hybrid": faster(1.01 + number / 100, 80, disturbed=(1, 1 / 3, 2)),
        "triton": faster(0.8),
        "triton-fused": {"unavailable": "too little memory"},
    } | others


def shown(point, rounds):
    """By its title, the cell of each goal; of another point there is a goal, but no cell."""
    other = "840M-2048" if point.startswith("410M") else "410M-2048"
    measured = {
        name: Stored({}, rounds, results.figures(POINTS[name], GPU, rounds))
        for name in (point, other)
    }
    rows = {title: cells for title, _, _, *cells in goals.rows(measured)}
    assert "" in [cell for _, cell in rows.values()]
    return {title: cell for title, (cell, _) in rows.items() if cell}


def test_speed_is_paired_turn_by_turn_and_a_miss_is_marked():
    cells = shown("410M-2048", [round_of(number) for number in range(6)])
    assert cells["`hybrid` over `compiled`, a step"] == "1.035 (1.010 to 1.060)"
    assert cells["`triton` over `compiled`, a step of 410M"] == "**0.800 (0.800 to 0.800)** missed"
    forward = "`triton-none` over `none`, causal attention (cuDNN), forward"
    assert cells[f"{forward}, heads of 64"] == "**0.700 (0.700 to 0.700)** missed"
    assert shown("1.4B-2048", [round_of(0)] * 6)[f"{forward}, heads of 128"].startswith("0.700 (")
    few = shown("410M-2048", [round_of(number) for number in range(5)])
    assert few["`hybrid` over `compiled`, a step"] == "1.030 (too few rounds for an interval)"


@pytest.mark.parametrize(
    ("memory", "cell"), [(80, "0.800"), (90, "0.900"), (95, "**0.950** missed")]
)
def test_less_memory_is_better(memory, cell):
    cells = shown("840M-4096", [round_of(0, hybrid=row([0.1] * 3, memory))])
    assert cells["`hybrid` over `compiled`, a step: peak memory"] == cell


@pytest.mark.parametrize(("mfu", "cell"), [(0.56, "56.0%"), (0.5, "**50.0%** missed")])
def test_mfu(mfu, cell):
    seconds = POINTS["1.4B-2048"].flops(STEP) / results.PEAK_FLOPS[GPU] / mfu
    cells = shown("1.4B-2048", [round_of(0, hybrid=row([seconds] * 3))])
    assert cells["`hybrid`, a step of 1.4B: MFU"] == cell


def test_a_provider_without_figures_is_not_available():
    rounds = [round_of(0), round_of(1, hybrid={"error": "ValueError: no"})]
    cells = shown("410M-2048", rounds)
    fused = "`triton-fused` over `triton`, a step of 410M-2048"
    assert cells[fused] == cells["`hybrid` over `compiled`, a step"] == "n/a"
    assert cells["`hybrid` over `compiled`, a step: peak memory"] == "n/a"
    for rows in rounds:
        del rows["triton"], rows["compiled"]
    cells = shown("1.4B-2048", rounds)
    assert {cell for title, cell in cells.items() if "a step" in title} == {"n/a"}
