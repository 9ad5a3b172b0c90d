"""The overview: its data from asv's graphs, and the page in a real browser."""

import html
import itertools
import json
import math
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import _site
from benchmarks._site import asv_fixes, asv_pages, libraries, overview, page, peers, slowdown_report
from benchmarks._studies.runner import StudyError
from tests import publishing
from tests.publishing import READY

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def data(site):
    return publishing.overview_data(site)


def test_every_gpu_and_every_commit_whose_speed_was_measured_is_there(data):
    results = ROOT / "benchmarks" / "results"
    machines = {path.parent.name for path in results.glob("*/machine.json")}
    lines = {line["machine"]: line for line in data["speed"]}
    assert set(lines) == {machine for machine in machines if not machine.startswith("no-gpu")}
    stored = {
        path.name[:8]
        for path in (results / "nvidia-h200").glob("*-existing-*.json")
        if any(name.startswith("rope.") for name in json.loads(path.read_text())["results"])
    }
    shown = {data["commits"][str(r)]["hash"][:8] for r in lines["nvidia-h200"]["all"]}
    assert shown == stored


def test_a_value_is_the_one_that_was_measured(data):
    (path,) = (ROOT / "benchmarks" / "results" / "nvidia-h200").glob("8f5b0467-existing-*.json")
    stored = json.loads(path.read_text())["results"]["rope.Forward.track_gbps"]
    revision = next(r for r, c in data["commits"].items() if c["hash"].startswith("8f5b0467"))
    shown = data["speed"][0]["values"]["Forward"]["gbps"][revision]
    assert len(shown) == len(stored[0]) == math.prod(map(len, data["grid"]["values"]))
    assert shown == [float(f"{value:.4g}") for value in stored[0]]


def test_every_change_of_the_page_says_against_what_it_was_measured(data):
    line = data["speed"][0]
    newest = max(line["changes"]["Forward"], key=int)
    change = line["changes"]["Forward"][newest]
    assert change["cells"] == change["judged"] == 504
    assert str(change["before"]) in data["commits"]


def test_share_of_copy_is_the_inverse_of_the_ratio():
    assert overview.share_of_copy([2.0, 4.0, 1.0, None]) == 0.5
    assert overview.share_of_copy([None]) is None


def test_a_hostile_subject_stays_text():
    hostile = "</script><script>alert(1)</script> /*STYLE*/ <!--"
    text = page.render("<b>name</b>", {"commits": {1: {"subject": hostile}}})
    (found,) = re.findall(r'id="data">(.*?)</script>', text)
    assert json.loads(found)["commits"]["1"]["subject"] == hostile
    assert "alert(1)</script>" not in text and "<b>name" not in text


def test_an_asv_with_other_pages_is_refused(tmp_path):
    (tmp_path / "index.html").write_text("<ul></ul>")
    with pytest.raises(RuntimeError, match=r"expected .* once, before which"):
        asv_pages.adapt(tmp_path, [], [])


def test_the_browser_holds_the_page_to_ask_no_server_for_anything(site):
    assert "default-src 'none'" in (site / page.PAGE).read_text().partition("<script")[0]


def test_asv_asks_git_once_for_the_commits_between_two(monkeypatch, tmp_path):
    from asv.plugins.regressions import Regressions

    asked = []

    class Repo:
        def get_hashes_from_range(self, spec):
            asked.append(spec)
            return [spec]

    monkeypatch.setattr(_site, "publishers", [])
    _site.setup()
    (publisher,) = _site.publishers
    monkeypatch.setattr(overview, "overview", lambda *arguments: {})
    for module, name in (
        (page, "write"),
        (libraries, "localise"),
        (asv_pages, "adapt"),
        (asv_fixes, "write_empty_summaries"),
        (slowdown_report, "report"),
        (slowdown_report, "for_page"),
        (slowdown_report, "write"),
    ):
        monkeypatch.setattr(module, name, lambda *arguments: None)
    repo = Repo()
    conf = SimpleNamespace(html_dir=tmp_path, project="", regressions_first_commits={})
    publisher.publish(conf, repo, {}, {}, {})
    assert [repo.get_hashes_from_range(spec) for spec in "aba"] == [["a"], ["b"], ["a"]]
    assert asked == ["a", "b"]
    assert publisher.order < Regressions.order  # the one that asks, with the repo it is handed
    monkeypatch.setattr(peers, "EVIDENCE", tmp_path / "damaged")
    peers.EVIDENCE.write_text("{")
    with pytest.raises(StudyError, match="no journal"):
        publisher.publish(conf, repo, {}, {}, {})


def test_a_shallow_clone_publishes_what_it_measured(tmp_path):
    """It lacks the commits after which asv.conf.json looks for regressions."""
    clone = publishing.cloned(tmp_path / "clone", "--depth=1")
    head = subprocess.check_output(["git", "-C", clone, "rev-parse", "HEAD"], text=True).strip()
    (path,) = (clone / "benchmarks" / "results" / "nvidia-h200").glob("57231e58-existing-*.json")
    results = json.loads(path.read_text()) | {"commit_hash": head}
    path.with_name(path.name.replace("57231e58", head[:8])).write_text(json.dumps(results))
    site = publishing.published(clone)
    assert [c["hash"] for c in publishing.overview_data(site)["commits"].values()] == [head]


def test_what_was_never_measured_has_an_empty_graph_on_the_front_page(tmp_path):
    graphs = SimpleNamespace(get_graph_group={"a.b": ["a graph"]}.get)
    asv_fixes.write_empty_summaries(tmp_path, ["a.b", "a.c"], graphs)
    (path,) = tmp_path.rglob("*.json")
    assert path == tmp_path / "graphs" / "summary" / "a.c.json" and path.read_text() == "[]"


def test_no_rise_of_bandwidth_is_a_regression(site):
    regressions = json.loads((site / "regressions.json").read_text())["regressions"]
    assert not [row[0] for row in regressions if "gbps" in row[0]]


def test_it_draws_in_a_browser_without_a_word(browser, address, data):
    browser.load(f"{address}/index.html", READY)
    dom = browser.run("return document.documentElement.outerHTML")
    assert dom.count("<canvas") == 3  # bandwidth, trend and other libraries
    of_the_map = browser.run("return document.querySelector('#map').outerHTML")
    cells = re.findall(r'<td class="s\d">', of_the_map)
    assert len(cells) == math.prod(map(len, data["grid"]["values"]))
    for line in data["speed"][0]["all"]:
        assert data["commits"][str(line)]["hash"][:7] in dom


def test_what_the_browser_says_is_seen(browser, address, site):
    text = (site / page.PAGE).read_text()
    (site / "broken.html").write_text(text.replace('"use strict";', "nothing.here();"))
    browser.load(f"{address}/broken.html", "document.readyState === 'complete'")
    with pytest.raises(AssertionError, match="nothing is not defined"):
        browser.load(f"{address}/index.html", READY)


def test_links_lead_to_files_and_to_graphs_that_exist(browser, address, site, index):
    browser.load(f"{address}/index.html", READY)
    dom = browser.run("return document.documentElement.outerHTML")
    links = {html.unescape(link) for link in re.findall(r'href="([^"]+)"', dom)}
    own = {link[1:] for link in links if link.startswith("#")}
    assert "codegen" in own and all(f'id="{name}"' in dom for name in own)
    local = {link for link in links if not link.startswith(("https://github.com/", "#"))}
    local.remove("api/rope_triton.html")  # hidden until its pages are made
    assert len(local) > 500
    assert all((site / re.split("[?#]", link)[0]).is_file() for link in local)
    benchmarks = {link.split("#")[1].split("?")[0] for link in local if "?" in link}
    assert "rope.Forward.track_latency" in benchmarks and benchmarks <= index["benchmarks"].keys()


def test_a_graphs_values_are_those_that_asv_shows():
    from asv.graph import Graph

    graph = Graph("name", {})
    graph.add_data_point(7, [None, math.nan])
    graph.add_data_point(5, [1.0, None])
    graph.add_data_point(3, [1.0, 2.0])
    graph.add_data_point(3, [2.0, None])
    series = overview.Series(graph)
    assert dict(series) == {3: [1.5, 2.0], 5: [1.0, None]} and list(series) == [3, 5]
    assert [(r, v) for r, v, _ in graph.get_data()] == list(series.items())


# Where each text of a chart's axis begins and ends, by chart and line.
DRAWN_TEXTS = """
window.drawn = {};
const canvas = CanvasRenderingContext2D.prototype, draw = canvas.fillText;
canvas.fillText = function (text, x, y, ...more) {
  const charts = [...document.querySelectorAll("canvas")];
  const line = [charts.indexOf(this.canvas), y, this.textAlign];
  const half = this.measureText(text).width / 2;
  (drawn[line] ??= {})[x] = [x - half, x + half];
  return draw.call(this, text, x, y, ...more);
};
"""


def test_numbers_below_a_chart_stand_apart_on_a_phone(browser, address):
    browser.resize(360, 844)
    browser.load(f"{address}/index.html", READY)
    browser.run(DRAWN_TEXTS)
    browser.resize(359, 844)  # draws all again
    browser.wait("Object.keys(drawn).length > 10")
    lines = browser.run("return Object.values(drawn).map(Object.values)")
    rows = [sorted(line) for line in lines if len(line) > 2]
    assert len(rows) >= 3  # the lengths of two charts, and the commits
    for row in rows:
        assert all(end + 4 < start for (_, end), (start, _) in itertools.pairwise(row)), row


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 500, 800, 1280])
def test_nothing_is_cut_or_wider_than_the_screen(browser, address, width, scheme):
    browser.resize(width, 844)
    browser.prefer(scheme)
    browser.load(f"{address}/index.html", READY)
    found = browser.run("return [innerWidth, document.documentElement.scrollWidth]")
    assert found == [width, width]
    cells = "#peers, #peers td, #peers th, #peers .u-legend, #paths td, #paths th"
    scrolled = f".scroll, {cells}" if width == 390 else cells  # nor must a phone scroll to read
    parts = f"[...document.querySelectorAll('{scrolled}')]"
    assert browser.run(f"return {parts}.length") > 100
    assert not browser.run(f"return {parts}.some(part => part.scrollWidth > part.clientWidth)")
    beyond = "[...document.querySelectorAll('#peers *')].filter(e => e.getBoundingClientRect()"
    assert browser.run(f"return {beyond}.right > {width}).length") == 0
    background = browser.run("return getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, re.findall(r"\d+", background)[:3])) > 3 * 128
    assert light == (scheme == "light")
