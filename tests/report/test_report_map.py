"""The many timings of a report: its maps, its groups, and how it stays short."""

import dataclasses
import itertools
import random
import re
import time

import numpy as np
import pytest

from benchmarks._report.grouping import grouped
from benchmarks._report.markdown import markdown
from benchmarks._report.terminal import terminal
from benchmarks._subjects.rope.grid import PATH_GRIDS, path_cells
from benchmarks._verdict.judge import judge
from benchmarks._verdict.rules import (
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
from benchmarks._verdict.schema import MAX_ITEMS, MAX_TIMINGS, from_json, to_json
from tests.comparisons import (
    bell,
    codegen,
    comparison,
    failing,
    gpu_family,
    host_family,
    slow_in_one_format,
    start_family,
)

# --- maps -----------------------------------------------------------------------------------------


def map_rows(text):
    """Of each size in a map, the symbols of its cells."""
    rows = re.findall(r"^\| (\d+ × \d+) \| (.*) \|$", text, re.MULTILINE)
    return [(size, [cell.split() for cell in cells.split(" | ")]) for size, cells in rows]


def test_map_has_a_symbol_for_each_timing():
    rows = map_rows(markdown(failing()))
    assert [size for size, _ in rows] == ["128 × 64", "128 × 128", "2048 × 64", "2048 × 128"]
    for _, drawn in rows:
        # Forward, backward: bfloat16, float16, float32; bshd, sbhd; batch 1, 4.
        assert drawn == [["⬜⬜", "⬜⬜"], ["⬜⬜", "⬜🟥"], ["⬜⬜", "⬜⬜"]] * 2


def path_family(slowdown):
    names = [
        Key(metric, tuple(map(str, dataclasses.astuple(cell))))
        for cell in path_cells(PATH_GRIDS["small"])
        for metric in cell.metrics.values()
    ]
    base, head = (np.exp(0.001 * bell(seed, 12, len(names))) * 1e-5 for seed in (7, 8))
    return judge(names, base, head * [1 + slowdown(name) for name in names])


def test_other_paths_have_a_map_of_their_own():
    gpu, slow = gpu_family(), ("qkv", "32", "bfloat16")
    more = path_family(lambda key: 0.05 if key.params == slow else 0)
    family = dataclasses.replace(gpu, timings=gpu.timings + more.timings)
    made = comparison({"gpu": family}, ())
    assert map_rows(markdown(made)) == map_rows(markdown(comparison({"gpu": gpu}, ())))
    rows = dict(
        re.findall(r"^\| ([a-z0-9-]+) \| ([^|]* \| [^|]*) \|$", markdown(made), re.MULTILINE)
    )
    assert rows == {
        **dict.fromkeys(("starts", "tables", "tables-bhsd", "partial"), "⬜⬜⬜ | ⬜⬜⬜"),
        **dict.fromkeys(("thd", "thd-short", "qk", "head-96"), "⬜⬜⬜ | ⬜⬜⬜"),
        **dict.fromkeys(("tables-inplace", "then-read"), "⬜⬜⬜ | ✖️✖️✖️"),
        "qkv": "⬜🟥⬜ | ⬜🟥⬜",
    }
    assert "2 timings: Forward + Backward qkv, 32 MiB, bfloat16" in markdown(made).replace(
        "&nbsp;", " "
    )
    assert "Forward qkv, 32 MiB, bfloat16" in terminal(made)
    assert "other paths" not in markdown(comparison({"gpu": gpu}, ()))


def test_map_of_timings_that_not_both_sides_have():
    gpu = gpu_family()
    made = comparison({"gpu": dataclasses.replace(gpu, timings=gpu.timings[1:])}, ())
    text = markdown(made)
    assert "✖️ not timed on both sides: 1" in text
    assert sum("✖️" in pair for _, drawn in map_rows(text) for cell in drawn for pair in cell) == 1


# --- groups ---------------------------------------------------------------------------------------


def test_groups_are_whole_products_of_alike_timings():
    timings = gpu_family(slowdown=slow_in_one_format).timings
    groups = grouped(timings)
    assert sorted(t.key for g in groups for t in g.timings) == sorted(t.key for t in timings)
    assert len(groups) < len(timings) / 3
    for group in groups:
        members = {(t.key.metric, *t.key.params) for t in group.timings}
        assert members == set(itertools.product(*group.axes))
        effects = [timing.effect for timing in group.timings]
        floor = max(timing.floor for timing in group.timings)
        assert max(effects) - min(effects) <= max(floor, 0.25 * max(map(abs, effects)))


def test_host_calls_of_different_kinds_are_never_one_group():
    groups = grouped([*host_family().timings, *start_family().timings])
    assert sorted(group.axes[0] for group in groups) == [
        ("host.Call.track_forward",),
        ("host.Call.track_forward_backward",),
        ("host.FirstCall.track_compile",),
        ("host.FirstCall.track_warm_start",),
    ]


# --- more than fits -------------------------------------------------------------------------------


def test_full_grid_is_read_in_groups():
    gpu = gpu_family("full", slow_in_one_format)
    text = markdown(comparison({"gpu": gpu}, codegen(), grid="full"))
    assert len(text) < 60_000
    [row] = [line for line in text.splitlines() if line.startswith("| 🟥 42")]
    label = "42 timings: Forward + Backward any size, batch 4, float16, sbhd"
    assert row.replace("&nbsp;", " ").startswith(f"| 🟥 {label} | 3.31 to 337 µs ")
    assert listed(text) == 1008 and "left out" not in text
    assert len(map_rows(text)) == 2 * 21
    assert "<details><summary>Map of the GPU timings" in text


def listed(text):
    """Timings in the groups of the list of everything."""
    groups = re.findall(
        r"^(?:🟥|🟨|⬜|🔵) (\d+): ", text[text.index("All timings") :], re.MULTILINE
    )
    return sum(map(int, groups))


def test_what_is_too_long_is_said_to_be_left_out():
    shares = random.Random(0)
    family = gpu_family("full", slowdown=lambda key: shares.uniform(0.05, 1))
    noisy = comparison({"gpu": family}, (), grid="full", notes=("n" * 99,) * 9)
    text = markdown(noisy)
    assert 50_000 < len(text.encode()) < 60_000
    left = int(re.search(r"(\d+) of 1008 timings are left out here", text)[1])
    assert listed(text) + left == 1008 and left > 0
    assert "and 3 more; the JSON has all" in text


def scattered(subjects, effect=lambda i: 0.1 * (1 + i % 7), **numbers):
    """Timings of these subjects, inconclusive and slower or as the numbers say, by RULES["gpu"]."""
    usual = gpu_family().timings[0]
    timings = []
    for i, key in enumerate(subjects):
        size = effect(i)
        given = {"low": size, "effect": size, "upper": size, "high": size, "p_slower": 1.0}
        given |= {"p_faster": 1.0, "floor": 0.005, "mde": 0.01, **numbers}
        told = (given[name] for name in ("effect", "upper", "floor", "p_slower", "p_faster"))
        answer, change = answered(*told, RULES["gpu"])
        made = {"key": key, "answer": answer, "change": change, **given}
        timings.append(dataclasses.replace(usual, **made))
    mean = MeanChange(len(timings), 0.1, 0.05, 0.2)
    return Family(
        tuple(timings), Control(len(timings), 0, 0.001, 0.001), mean, Spread(0.001, 0.001, 0.5)
    )


def named(metric, *axes):
    """Subjects of a metric with every combination of as many values of each parameter."""
    return [Key(metric, tuple(map(str, each))) for each in itertools.product(*map(range, axes))]


def long_names(metric, count=MAX_TIMINGS):
    """As many and as long as are accepted, every parameter of each its own."""
    return [Key(metric, (f"{i:x>40}",) * 6) for i in range(count)]


FORWARD, PATH = "rope.Forward.track_latency", "paths.Forward.track_latency"
CODE = [metric for metric in UNITS if UNITS[metric].exact and UNITS[metric].name != "share"]
LONG = long_names(FORWARD)
LONG_TEXTS = {f"{i}" + "@" * 1990: "#" * 2000 for i in range(2000)}
# Documents that no run gives and that are accepted: all of them large, each in a way of its own.
TIMED = {
    "long names": lambda: scattered(LONG),
    "all slower": lambda: scattered(LONG, p_slower=0.001),
    "every effect another": lambda: scattered(LONG, lambda i: (i * 7919 % 2003) / 1000),
    "groups of many axes": lambda: scattered(
        named(FORWARD, 2, 2, 2, 2, 2, 62), lambda i: 0.01 * (i % 97)
    ),
    "a full map": lambda: scattered(named(FORWARD, 1500, 1, 1, 1, 1)),
    "a full map of paths": lambda: scattered(named(PATH, 750, 1, 2)),
    "a wide map of paths": lambda: scattered(named(PATH, 1, 1500, 1)),
    "scattered sizes": lambda: scattered([Key(FORWARD, (f"{i}",) * 5) for i in range(MAX_TIMINGS)]),
}
WORST = {
    **{name: lambda make=make: {"families": {"gpu": make()}} for name, make in TIMED.items()},
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
        **dict.fromkeys(
            ("notes", "wrong", "discarded", "unmeasured"), (":x:@a1b2c3d" * 181,) * 2000
        ),
        **dict.fromkeys(("machine", "clocks"), LONG_TEXTS),
    },
}


@pytest.mark.parametrize("name", WORST)
def test_a_comparison_that_no_run_gives_stays_short_and_fast(name):
    given = {"families": {}, "exact": ()} | WORST[name]()
    made = from_json(to_json(comparison(**given, minutes=1e4)))
    start = time.process_time()
    text = markdown(made)
    assert time.process_time() - start < 5  # some processors take 2
    assert len(text.encode()) < 60_000
    if name == "scattered sizes":
        assert "No map: the timings are spread over a grid" in text
    if name != "texts":  # a terminal gets all of them
        assert max(map(len, terminal(made).splitlines())) <= 100
