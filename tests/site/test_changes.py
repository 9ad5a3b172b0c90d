"""What the overview says of the last commits: changes beyond each cell's own noise, and links."""

import json

import numpy as np
import pytest

from benchmarks._site import changes, reports
from tests import publishing
from tests.publishing import READY
from tests.site.test_site_pages import GPU

QUIET, LOUD = 0.001, 0.02


def latencies(*last: float, noise=(QUIET, LOUD), results=changes.FEWEST + 1):
    """A series of a quiet cell and a loud one, then the last result of both."""
    rng = np.random.default_rng(0)
    rows = np.exp(rng.normal(0, noise, (results, 2)))
    rows[-1] = 1
    return dict(enumerate([*rows.tolist(), list(last)]))


def newest(series, least=0.01):
    return changes.timings(series, 1, least)[max(series)]


def test_each_cell_is_judged_by_its_own_noise():
    found = newest(latencies(1.03, 1.03))
    assert found.items() >= dict(cells=2, judged=2, up=1, down=0, worst=0.03, at=0).items()
    assert newest(latencies(0.97, 0.97)).items() >= dict(up=0, down=1, worst=None).items()
    assert newest(latencies(1.03, 1.3)).items() >= dict(up=2, worst=0.3, at=1).items()


def test_what_asvs_settings_accept_is_no_change():
    assert newest(latencies(1.03, 1.3), np.array([0.05, 0.01]))["up"] == 1


def test_cells_with_too_little_history_are_not_judged():
    series = latencies(1.5, 1.5, results=changes.FEWEST)
    assert newest(series).items() >= dict(cells=2, judged=0, up=0, before=7).items()
    assert changes.timings({3: [1.0]}, 8, 0.01) == {}


def test_a_change_is_told_against_the_measured_commit_before():
    series = {2: [1.0, None], 5: [2.0, None], 9: [None, 1.0]}
    found = changes.timings(series, 8, 0.01)
    assert list(found) == [5] and found[5].items() >= dict(before=2, cells=1, median=1.0).items()


def test_no_false_alarm_where_nothing_changed():
    """Of 500 cells of different noise, each judged with 40 results: the fence of a normal."""
    rng = np.random.default_rng(1)
    noise = rng.choice([0.002, 0.01, 0.05], 500)
    rows = np.exp(rng.normal(0, noise, (80, 500)))
    found = changes.timings(dict(enumerate(rows.tolist())), 40, 0.01)
    assert sum(each["up"] + each["down"] for each in found.values()) < 0.002 * 40 * 500


def test_any_difference_of_an_exact_value_counts():
    found = changes.exact({1: [0, 48, 64, None], 4: [16, 47, 64, 1]}, 8)
    assert found == {4: {"up": 1, "down": 1}}


def test_every_stored_report_is_known_by_its_head():
    found = reports.reports("https://example.org", "main")
    stored = sorted(reports.REPORTS.rglob("*.json"))
    links = [report["url"] for each in found.values() for report in each]
    assert len(links) == len(stored) and all((path.with_suffix(".md")).is_file() for path in stored)
    head = json.loads((reports.REPORTS / "fail.json").read_text())["head"]["sha"]
    (report,) = found[head]
    assert report["answer"] == "fail"
    assert report["url"].endswith("/blob/main/benchmarks/evidence/reports/fail.md")


def test_a_change_links_its_range_and_its_report(browser, address, site):
    data = publishing.overview_data(site)
    browser.load(f"{address}/index.html", READY)
    links = browser.run(
        """return [...document.querySelectorAll("#changes > li")].map((item) =>
            [...item.querySelectorAll(".links a")].map((link) => link.href))"""
    )
    newest, before = (data["commits"][str(r)]["hash"] for r in data["speed"][0]["all"][:-3:-1])
    assert links[0] == [f"https://github.com/rope-triton/rope-triton/compare/{before}...{newest}"]
    found = [link for each in links for link in each if "/blob/" in link]
    assert [link.rpartition("reports/")[2] for link in found] == ["traded/fail.md", "fail.md"]


def test_only_a_cell_beyond_its_noise_is_told_as_slower(browser, address, site):
    def change(data):
        (line,) = data["speed"]
        assert line["machine"] == GPU
        step = line["changes"]["Forward"][str(line["all"][-1])]
        step |= {"judged": 500, "up": 1, "down": 3, "worst": 0.5, "at": 0}

    publishing.change_overview(site, "one-slower.html", change)
    browser.load(f"{address}/one-slower.html", READY)
    text = browser.text("#changes > li")
    assert (
        "1 slower, 3 faster beyond their noise, of 500 cells; worst +50.0 % at 128, 64, 1" in text
    )
    assert "too few earlier results to judge 4 cells" in text


@pytest.mark.parametrize(("head", "reported"), [("fail", 1), ("none", 0)])
def test_a_slowdown_links_its_range_and_its_report(browser, address, site, head, reported):
    commits = {"before": "a" * 40, "since": "b" * 40, "until": "b" * 40}
    found = {"kind": "step", **commits, "count": 0, "change": 0.02, "cells": []}

    def change(data):
        (machine,) = data["slowdowns"]
        machine |= {"status": "slower", "findings": [found]}
        about = {"base": "a" * 40, "answer": head, "url": "https://github.com/report"}
        data["reports"] = {"b" * 40: [about]} if reported else {}

    publishing.change_overview(site, f"slowdown-{head}.html", change)
    browser.load(f"{address}/slowdown-{head}.html", READY)
    text = browser.text("#slowdowns-told")
    assert "in the geometric mean, aaaaaaa...bbbbbbb" in text
    assert ("report of aaaaaaa...bbbbbbb: fail" in text) == bool(reported)
