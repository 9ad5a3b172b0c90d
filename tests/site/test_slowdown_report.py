"""What the site says of slowdowns and of toolchains, from asv's graphs and in a browser."""

import itertools
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from asv.graph import GraphSet

from benchmarks._site import asv_fixes, slowdown_report
from tests import publishing
from tests.publishing import READY

PARAMS = [["2048"], ["64", "128"], ["1", "8"], ["'float16'", "'bfloat16'"], ["'sbhd'"]]
NAME = "rope.Forward.track_latency"
BENCHMARKS = {NAME: {"name": NAME, "params": PARAMS}}
OLD, NEW = {"torch": "2.11", "triton": "3.6"}, {"torch": "2.13", "triton": "3.7"}
COMMITS = 30
DAY = 86_400_000  # asv's milliseconds


def report(slower, toolchains, **settings):
    """Of 8 timings on commits 0 to 29: logarithms [timings, commits], toolchain -> commits."""
    graphs, rng = GraphSet(), np.random.default_rng(0)
    for number, (software, commits) in enumerate(toolchains):
        params = {"machine": "gpu", "branch": "main", "os": None} | software
        for commit in commits:
            own = np.exp(slower[:, commit] + rng.normal(0, 0.001, 8) + 0.03 * number - 10)
            for metric, values in ("latency", own), ("copy_ratio", own / np.exp(-10)):
                graph = graphs.get_graph(NAME.replace("latency", metric), params)
                graph.add_data_point(commit, values.tolist())
    revisions = {f"{commit:040x}": commit for commit in range(COMMITS)}
    conf = SimpleNamespace(
        branches=["main"],
        **{"regressions_thresholds": {}, "regressions_first_commits": {}} | settings,
    )
    repo = SimpleNamespace(get_branch_name=str, get_date=lambda commit: int(commit, 16) * DAY)
    document = slowdown_report.report(conf, repo, BENCHMARKS, graphs, revisions)
    json.dumps(document, allow_nan=False)
    (machine,) = document["machines"]
    return machine


def nothing():
    return np.zeros((8, COMMITS))


def a_step():
    slower = nothing()
    slower[[1, 4], 15:] = 0.03
    return slower


def test_a_step_is_told_with_its_commit_and_its_cells():
    machine = report(a_step(), [(OLD, range(COMMITS))])
    (finding,) = machine["findings"]
    assert machine["status"] == "slower" and machine["judged"] == machine["timings"] == 8
    assert finding["kind"] == "step" and finding["since"] == finding["until"] == f"{15:040x}"
    assert finding["count"] == 2 and finding["change"] == pytest.approx(0.0305, abs=0.002)
    products = list(itertools.product(*PARAMS))
    expected = [[text.strip("'") for text in products[row]] for row in (1, 4)]
    assert sorted(cell["params"] for cell in finding["cells"]) == sorted(expected)
    assert finding["before"] == f"{14:040x}"
    assert re.fullmatch(
        r"main is slower than it was, since 0{7} \(1970-01-16\): 2 of 8 timings on gpu by "
        r"\+3\.[01] % in their geometric mean, by a step\.",
        machine["told"],
    )


def test_a_ramp_is_told_from_its_first_commit_on():
    slower = nothing() + 0.004 * np.clip(np.arange(COMMITS) - 11, 0, 10)
    machine = report(slower, [(OLD, range(COMMITS))])
    (finding,) = machine["findings"]
    assert finding["kind"] == "ramp" and finding["count"] == 8
    assert 10 <= int(finding["since"], 16) <= 15 <= 18 <= int(finding["until"], 16) <= 23
    assert int(finding["before"], 16) == int(finding["since"], 16) - 1
    end = f"{finding['until'][:7]} (1970-01-{int(finding['until'], 16) + 1})"
    assert machine["told"].endswith(f"by a ramp that ends with {end}.")


@pytest.mark.parametrize(
    ("slower", "commits", "status"),
    [
        (nothing(), COMMITS, "not slower"),
        (-a_step(), COMMITS, "not slower"),
        (a_step(), 10, "too short"),
    ],
)
def test_what_is_not_slower_or_not_known(slower, commits, status):
    machine = report(slower, [(OLD, range(commits))])
    assert machine["status"] == status and not machine["findings"]
    starts = {"not slower": "main is not slower", "too short": "Too few results on gpu"}
    assert machine["told"].startswith(starts[status])


def test_what_asvs_settings_accept_is_not_told():
    assert (
        report(a_step(), [(OLD, range(COMMITS))], regressions_thresholds={".*": 0.1})["findings"]
        == []
    )
    machine = report(
        a_step(), [(OLD, range(COMMITS))], regressions_first_commits={".*64, 1,.*": None}
    )
    assert machine["judged"] == 6 and machine["findings"][0]["count"] == 1


@pytest.mark.parametrize("paired", [0, 1, 5])
def test_a_toolchains_cost_is_told_and_is_no_slowdown_of_ours(paired):
    old, new = range(15), range(15 - paired, COMMITS)
    machine = report(nothing(), [(OLD, old), (NEW, new)])
    (cost,) = machine["toolchains"]
    assert machine["status"] == "not slower" and cost["exact"] is bool(paired)
    assert cost["changed"] == {"torch": ["2.11", "2.13"], "triton": ["3.6", "3.7"]}
    assert cost["cost"] == pytest.approx(0.0305, abs=0.002)
    low, high = cost["interval"]
    assert low < cost["cost"] < high and high - low < 0.01
    assert "torch 2.11 → 2.13, triton 3.6 → 3.7: +3.0 % [" in cost["told"]
    newest = f"{14:040x}"[:7]
    how = {
        0: "an estimate",
        1: f"measured on {newest} with both",
        5: f"measured on 5 commits up to {newest} with both",
    }
    assert how[paired] in cost["told"]


def test_a_step_is_told_across_a_change_of_toolchain():
    machine = report(a_step(), [(OLD, range(18)), (NEW, range(17, COMMITS))])
    (finding,) = machine["findings"]
    assert finding["count"] == 2 and finding["since"] == f"{15:040x}"


def test_asv_still_reads_its_settings_as_expected():
    conf = SimpleNamespace(
        branches=["main"], regressions_first_commits={r"a\.b\(1": None, r"a\.c": "abc"}
    )
    repo = SimpleNamespace(
        get_new_range_spec=lambda *_: "", get_hash_from_name=str, get_hashes_from_range=lambda _: []
    )
    first = asv_fixes.first_revisions(conf, repo, {"abc": 5, "old": 2}, "main")
    assert [first(name) for name in ("a.b(1, 2)", "a.b(2)", "a.c(1)")] == [None, 2, 6]


# --- the published site ---------------------------------------------------------------------------


def test_a_clones_history_gives_an_answer(site):
    document = json.loads((site / slowdown_report.FILE).read_text())
    (machine,) = document["machines"]
    assert machine["machine"] == "nvidia-h200" and machine["status"] == "not slower"
    assert 500 < machine["judged"] < machine["timings"] == 1168
    data = publishing.overview_data(site)["slowdowns"]
    assert data == document["machines"]


def test_the_page_tells_slowdowns_and_toolchains(browser, address, site):
    """With a finding and a toolchain put into the page's data: links lead to the cells' graphs."""
    shown = json.loads((site / slowdown_report.FILE).read_text())["machines"][0]
    browser.load(f"{address}/index.html", READY)
    assert browser.text("#slowdowns-told p") == f"{shown['told']} {shown['rest']}"
    assert browser.text("#slowdowns-told strong") == shown["told"] and "304 more" in shown["rest"]

    cells = [
        {"benchmark": NAME, "params": ["2048", "128", "8", "bfloat16", "sbhd"], "change": 0.03}
    ]
    cells += [
        {
            "benchmark": "paths.Backward.track_latency",
            "params": ["qk", "4", "bfloat16"],
            "change": 0.02,
        }
    ]
    commits = {"before": "c" * 40, "since": "a" * 40, "until": "b" * 40}
    found = {"kind": "ramp", **commits, "count": 9, "change": 0.025, "cells": cells}

    def change(data):
        (machine,) = data["slowdowns"]
        machine |= {"status": "slower", "told": "main is slower", "findings": [found]}
        machine |= {"toolchains": [{"told": "torch 1 → 2: +0.3 %"}]}

    publishing.change_overview(site, "slower.html", change)
    browser.load(f"{address}/slower.html", READY)
    text = browser.text("#slowdowns-told")
    assert "main is slower" in text and "torch 1 → 2: +0.3 %" in text
    assert "ramp from aaaaaaa to bbbbbbb: 9 slower, +2.5 % in the geometric mean" in text
    assert "Forward 2048, 128, 8, bfloat16, sbhd +3.0 %" in text and "and 7 more" in text
    links = browser.run(
        "return [...document.querySelectorAll('#slowdowns-told li li a')].map(a => a.href)"
    )
    assert [re.search("#([^?]*)", link)[1] for link in links] == [c["benchmark"] for c in cells]
    for link in links:
        browser.load(link, "$('#main-graph').data('plot')")
        points = browser.run(
            "return $('#main-graph').data('plot').getData().map(l => l.data.length)"
        )
        assert len(points) == 1 and points[0] > 3
