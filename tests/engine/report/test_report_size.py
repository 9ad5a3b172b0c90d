"""A report of many timings stays short, and fast to make, whatever the document holds."""

import dataclasses
import random
import re
import time

from benchmarks._engine.report.markdown import markdown
from benchmarks._engine.verdict.notes import Note
from benchmarks._engine.verdict.rules import UNITS, Key, judge_exact
from benchmarks._engine.verdict.schema import MAX_ITEMS, MAX_TIMINGS, from_json, to_json
from tests.comparisons import comparison, gpu_family


def test_what_is_too_long_is_left_out_with_a_count():
    shares = random.Random(0)
    family = gpu_family("full", slowdown=lambda key: shares.uniform(0.05, 1))
    notes = (Note("failed", "n" * 99, "base"),) * 9
    text = markdown(comparison({"gpu": family}, (), grid="full", notes=notes))
    assert len(text.encode()) < 60_000
    left = int(re.search(r"(\d+) of 1008 timings are left out here", text)[1])
    listed = re.findall(r"^🟥 ", text[text.index("All timings") :], re.MULTILINE)
    assert len(listed) + left == 1008 and left > 0
    assert "and 3 more; the JSON has all" in text


def test_a_comparison_that_no_run_gives_stays_short_and_fast():
    """It is accepted: each part is as large as the schema allows, every name its own."""
    timings, values = ([f"{i:x>40}" for i in range(count)] for count in (MAX_TIMINGS, MAX_ITEMS))
    keys = [Key("rope.Forward.track_latency", (name,) * 6) for name in timings]
    code = [metric for metric in UNITS if UNITS[metric].exact and UNITS[metric].name != "share"]
    family = gpu_family(slowdown=lambda key: 0.05)
    slower = [dataclasses.replace(family.timings[i % 96], key=key) for i, key in enumerate(keys)]
    notes = (Note("failed", ":x:@a1b2c3d" * 181, "head", tuple(keys[:9])),) * 2000
    made = comparison(
        {"gpu": dataclasses.replace(family, timings=tuple(slower))},
        tuple(
            judge_exact(Key(code[i % len(code)], (name,) * 6), 1, i + 2)
            for i, name in enumerate(values)
        ),
        **dict.fromkeys(("notes", "wrong", "unmeasured"), notes),
        discarded=(":x:@a1b2c3d" * 181,) * 2000,
        **dict.fromkeys(
            ("machine", "clocks"), {f"{i}" + "@" * 1990: "#" * 2000 for i in range(2000)}
        ),
    )
    made = from_json(to_json(made))
    start = time.process_time()
    text = markdown(made)
    assert time.process_time() - start < 10  # some processors take 3
    assert len(text.encode()) < 60_000
