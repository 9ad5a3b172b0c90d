"""A report of many timings stays short, and fast to make, whatever the document holds."""

import dataclasses
import random
import re
import time

import pytest

from benchmarks._engine.report.markdown import markdown
from benchmarks._engine.report.terminal import terminal
from benchmarks._engine.verdict.note import Note
from benchmarks._engine.verdict.rules import (
    RULES,
    UNITS,
    Control,
    Family,
    Key,
    MeanChange,
    Spread,
    answered,
    judge_exact,
)
from benchmarks._engine.verdict.schema import MAX_ITEMS, MAX_TIMINGS, from_json, to_json
from tests.comparisons import comparison, gpu_family


def test_what_is_too_long_is_left_out_with_a_count():
    shares = random.Random(0)
    family = gpu_family("full", slowdown=lambda key: shares.uniform(0.05, 1))
    notes = (Note("failed", "n" * 99, "base"),) * 9
    text = markdown(comparison({"gpu": family}, (), notes=notes))
    assert len(text.encode()) < 60_000
    left = int(re.search(r"(\d+) of 1008 timings are left out here", text)[1])
    listed = re.findall(r"^🟥 ", text[text.index("All timings") :], re.MULTILINE)
    assert len(listed) + left == 1008 and left > 0
    assert "and 3 more; the JSON has all" in text


def scattered(keys, **numbers):
    """Timings of these keys, inconclusive and slower or as the numbers say, by RULES["gpu"]."""
    usual = gpu_family().timings[0]
    timings = []
    for i, key in enumerate(keys):
        size = (i * 7919 % 2003) / 1000
        given = {"low": size, "effect": size, "upper": size, "high": size, "p_slower": 1.0}
        given |= {"p_faster": 1.0, "floor": 0.005, "mde": 0.01, **numbers}
        timings.append(answered(dataclasses.replace(usual, key=key, **given), RULES["gpu"]))
    mean = MeanChange(len(timings), 0.1, 0.05, 0.2)
    control, spread = Control(len(timings), 0, 0.001, 0.001), Spread(0.001, 0.001, 0.5)
    return Family(tuple(timings), control, mean, spread)


def long_names(metric, count=MAX_TIMINGS):
    """As many and as long as are accepted, every parameter of each its own."""
    return [Key(metric, (f"{i:x>40}",) * 6) for i in range(count)]


FORWARD = "rope.Forward.track_latency"
CODE = [metric for metric in UNITS if UNITS[metric].exact and UNITS[metric].name != "share"]
LONG = long_names(FORWARD)
LONG_TEXTS = {f"{i}" + "@" * 1990: "#" * 2000 for i in range(2000)}
NOTES = (Note("failed", ":x:@a1b2c3d" * 181, "head", tuple(LONG[:9])),) * 2000
# Documents that no run gives and that are accepted: all of them large, each in a way of its own.
LARGE = {
    "inconclusive": lambda: {"families": {"gpu": scattered(LONG)}},
    "all slower": lambda: {"families": {"gpu": scattered(LONG, p_slower=0.001)}},
    "exact values": lambda: {
        "exact": tuple(
            judge_exact(key._replace(metric=CODE[i % len(CODE)]), 1, i + 2)
            for i, key in enumerate(long_names(FORWARD, MAX_ITEMS))
        )
    },
    "identical": lambda: {
        "families": {
            "gpu": dataclasses.replace(scattered(LONG, p_slower=0.001), mean=None, spread=None)
        },
        "identical": frozenset(LONG),
    },
    "texts": lambda: {
        **dict.fromkeys(("notes", "wrong", "unmeasured"), NOTES),
        "discarded": (":x:@a1b2c3d" * 181,) * 2000,
        **dict.fromkeys(("machine", "clocks"), LONG_TEXTS),
    },
}


@pytest.mark.parametrize("name", LARGE)
def test_a_comparison_that_no_run_gives_stays_short_and_fast(name):
    given = {"families": {}, "exact": ()} | LARGE[name]()
    made = from_json(to_json(comparison(**given, minutes=1e4)))
    start = time.process_time()
    text = markdown(made)
    assert time.process_time() - start < 5  # some processors take 2
    assert len(text.encode()) < 60_000
    if name != "texts":  # a terminal gets all of them
        assert max(map(len, terminal(made).splitlines())) <= 100
