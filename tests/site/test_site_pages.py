"""asv's own pages, with the shipped results, in a real browser."""

import html
import json
import re
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import pytest

from tests import publishing
from tests.browser import serving
from tests.publishing import READY

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
GPU = "nvidia-h200"
METRIC = "rope.Forward.track_latency"
# A middle one, so that a wrong index into the grid would show.
CELL = {
    "seq_len": "2048",
    "hidden_size": "128",
    "batch": "8",
    "dtype": "bfloat16",
    "format": "sbhd",
}

PLOT = "$('#main-graph').data('plot')"
GRID = "document.querySelectorAll('.benchmark-plot canvas.flot-base').length === {}"
LIST = "document.querySelector('#summarylist-body th.asc')"
ROW = "#summarylist-body tbody tr"
REGRESSION = "#regressions-body .regression-div > table:not(.ignored) > tbody > tr"
REGRESSIONS = "document.querySelector('#regressions-body th.desc')"
PAGES = [
    ("asv.html", "document.querySelector('.benchmark-plot canvas')"),
    (f"asv.html#summarylist?machine={GPU}", LIST),
    ("asv.html#regressions", REGRESSIONS),
    (f"asv.html#{METRIC}?machine={GPU}", PLOT),
]
"""asv's own, and what is true when they are shown."""


def loaded(browser) -> list[str]:
    """Addresses of all that the page asked for."""
    return browser.run("return performance.getEntriesByType('resource').map(entry => entry.name)")


@pytest.fixture(scope="module")
def cell(index):
    """A cell's position in the results of its metric, and asv's address of its graph."""
    benchmark = index["benchmarks"][METRIC]
    position = 0
    for name, values in zip(benchmark["param_names"], benchmark["params"], strict=True):
        texts = [value.strip("'") for value in values]
        position = position * len(texts) + texts.index(CELL[name])
    query = "&".join(
        f"p-{name}={quote(value)}"
        for name, values in zip(benchmark["param_names"], benchmark["params"], strict=True)
        for value in values
        if value.strip("'") == CELL[name]
    )
    return position, f"asv.html#{METRIC}?machine={GPU}&{query}"


def is_of_the_cell(link: str, address: str) -> bool:
    """Whether a link leads to the graph that an address of asv's shows."""
    wanted, found = (unquote(text.partition("#")[2]).split("?") for text in (address, link))
    return wanted[0] == found[0] and {*wanted[1].split("&")} <= {*found[1].split("&")}


@pytest.fixture(scope="module")
def measured(cell):
    """Commit -> the cell's stored latency in seconds."""
    contents = [json.loads(path.read_text()) for path in (RESULTS / GPU).glob("*-existing-*.json")]
    whole = (c for c in contents if METRIC in c["results"])  # a run may have been cut off before it
    return {c["commit_hash"]: c["results"][METRIC][0][cell[0]] for c in whole}


def plotted(browser, index) -> dict[str, float]:
    """Commit -> value, of what the only line of asv's graph shows."""
    (line,) = browser.run(f"return {PLOT}.getData().map(line => line.data)")
    return {index["revision_to_hash"][str(revision)]: value for revision, value in line}


def load_grid(browser, address, index):
    browser.resize(1280, 4000)  # asv draws what is in sight
    browser.load(f"{address}/asv.html", GRID.format(len(index["benchmarks"])))


def test_the_grid_shows_every_benchmark(browser, address, index):
    load_grid(browser, address, index)
    links = browser.run(
        "return [...document.querySelectorAll('.benchmark-container')].map(a => a.hash)"
    )
    assert sorted(links) == sorted(f"#{name}" for name in index["benchmarks"])


def test_no_parameter_of_a_benchmark_is_named_like_a_field_of_the_machine(index):
    """asv's legend has one entry for both, and its addresses cannot tell them apart."""
    named = {name for each in index["benchmarks"].values() for name in each["param_names"]}
    assert "target" in named and not named & index["params"].keys()


def test_a_cell_shows_every_measured_commit(browser, address, index, cell, measured):
    browser.load(f"{address}/{cell[1]}", PLOT)
    assert len(measured) >= 6
    assert plotted(browser, index) == pytest.approx(measured, rel=1e-6)


def test_a_cell_of_the_overview_leads_to_its_graph(browser, address, index, cell, measured):
    browser.load(f"{address}/index.html", READY)
    links = browser.run("return [...document.querySelectorAll('#map a')].map(a => a.href)")
    (link,) = (link for link in links if is_of_the_cell(link, cell[1]))
    browser.load(link, PLOT)
    assert plotted(browser, index) == pytest.approx(measured, rel=1e-6)


def test_the_list_has_a_row_for_every_cell(browser, address, site, index):
    browser.load(f"{address}/asv.html#summarylist?machine={GPU}", LIST)
    (summary,) = (site / "graphs").rglob(f"machine-{GPU}/**/summary.json")
    rows = browser.run(f"return document.querySelectorAll('{ROW}').length")
    assert rows == len(json.loads(summary.read_text())) > 3000
    links = browser.run(f"return [...document.querySelectorAll('{ROW} a')].map(a => a.hash)")
    named = {link[1:].partition("?")[0] for link in links} - {""}  # "": a commit's, elsewhere
    assert named and named <= index["benchmarks"].keys()


def test_a_row_of_the_list_leads_to_its_graph(browser, address, index, measured, cell):
    browser.load(f"{address}/asv.html#summarylist?machine={GPU}", LIST)
    names = f"{ROW} td:first-child a"
    links = browser.run(f"return [...document.querySelectorAll('{names}')].map(a => a.href)")
    (at,) = (i for i, link in enumerate(links) if "?" in link and is_of_the_cell(link, cell[1]))
    browser.run(f"document.querySelectorAll('{names}')[{at}].click()")
    browser.wait(PLOT)
    assert plotted(browser, index) == pytest.approx(measured, rel=1e-6)


def test_the_regressions_are_all_listed_and_the_feed_leads_to_them(browser, tmp_path):
    """Of results whose newest has slow timings: those that ship may have no regression."""
    clone = publishing.cloned(tmp_path / "clone")
    results = [*(clone / "benchmarks" / "results" / GPU).glob("*-existing-*.json")]
    newest = max(results, key=lambda path: json.loads(path.read_text())["date"])
    stored = json.loads(newest.read_text())
    timings = stored["results"][METRIC][0]
    timings[:] = [2 * timing for timing in timings]
    newest.write_text(json.dumps(stored))
    site = publishing.published(clone)

    found = json.loads((site / "regressions.json").read_text())["regressions"]
    assert {METRIC} == {name.partition("(")[0] for name, *_ in found}
    feed = (site / "regressions.xml").read_text()
    links = sorted(set(re.findall(r'href="([^"]*#[^"]*)"', feed)))
    assert all(re.search(rf"index\.html#{METRIC}\?", link) for link in links)
    with serving(site) as address:
        browser.load(f"{address}/asv.html#regressions", REGRESSIONS)
        rows = browser.run(f"return document.querySelectorAll('{REGRESSION}').length")
        assert rows == sum(len(regression[6]) for regression in found) == len(links) > 100
        fragment = html.unescape(links[0]).partition("#")[2]
        there = f"location.pathname === '/asv.html' && {PLOT}"
        browser.load(f"{address}/index.html#{fragment}", there)
        browser.logged()


def test_tabs_and_boxes_lead_on(browser, address, index):
    load_grid(browser, address, index)
    browser.run("document.querySelector('#nav-li-summarylist a').click()")
    browser.wait(LIST)
    browser.run("document.querySelector('#nav-li-regressions a').click()")
    browser.wait(REGRESSIONS)
    browser.run("document.querySelector('#nav-li- a').click()")
    browser.wait("$('#summarygrid-display').is(':visible')")
    browser.run(f"document.querySelector('.benchmark-container[href=\"#{METRIC}\"]').click()")
    browser.wait(PLOT)
    assert not browser.logged()
    browser.run("document.querySelector('#nav-li-overview a').click()")
    browser.wait(READY)


def test_no_machine_is_asked_for_what_it_never_measured(browser, address, index):
    """It would say 404 in the console; an empty answer would fill the legend."""
    machines = {params["machine"] for params in index["graph_param_list"]}
    assert len(machines) > 1
    for name in (METRIC, "codegen.Codegen.track_registers"):
        browser.load(f"{address}/asv.html#{name}", PLOT)
        asked = {urlsplit(url).path for url in loaded(browser) if f"/{name}.json" in url}
        of = {machine for machine in machines if any(f"/machine-{machine}/" in a for a in asked)}
        assert len(of) == 1, asked
    assert not browser.logged()
    browser.load(f"{address}/asv.html#{METRIC}?machine=no-gpu-x86_64", "$('#error').is(':visible')")


def test_the_legend_tells_architectures_apart_and_covers_nothing(browser, address, index):
    browser.load(f"{address}/asv.html#codegen.Codegen.track_registers", PLOT)
    benchmark = index["benchmarks"]["codegen.Codegen.track_registers"]
    (targets,) = (
        values
        for name, values in zip(benchmark["param_names"], benchmark["params"], strict=True)
        if name == "target"
    )
    assert browser.run(
        "return [...document.querySelectorAll('#legend .legendLabel')].map(e => e.innerText)"
    ) == [f"target {value}" for value in (text.strip("'") for text in targets)]
    colors = browser.run(f"return {PLOT}.getData().map(line => line.color)")
    assert len({*colors}) == len(targets) == 8
    legend, plot = browser.run(
        """return ['#legend', '#main-graph canvas'].map((each) => {
            const {top, bottom} = document.querySelector(each).getBoundingClientRect();
            return [top, bottom]; })"""
    )
    assert plot[1] <= legend[0] < legend[1] <= 900
    browser.run("document.getElementById('show-legend').click()")
    browser.wait("!document.querySelector('#legend td')")


def test_a_graph_that_is_not_shown_is_no_error(browser, address):
    browser.load(f"{address}/asv.html#{METRIC}?machine={GPU}", PLOT)
    browser.run("document.querySelector('#nav-li-summarylist a').click()")
    browser.wait(LIST)
    browser.resize(900, 700)
    browser.run(f"location.hash = '{METRIC}?machine={GPU}'")
    browser.wait("$('#main-graph').is(':visible')")
    assert 0 < browser.run(f"return {PLOT}.width()") < 900


@pytest.mark.parametrize(("page", "ready"), PAGES)
def test_asvs_pages_are_as_wide_as_a_phone(browser, address, page, ready):
    browser.resize(400, 850, phone=True)
    browser.load(f"{address}/{page}", ready)
    found = browser.run("return [innerWidth, document.documentElement.scrollWidth]")
    assert found == [400, 400]
    tops = browser.run(
        "return [...document.querySelectorAll('nav, [id$=-display], #graph-display > div')]"
        ".filter(e => e.offsetHeight).map(e => [e.getBoundingClientRect().left, e.offsetWidth])"
    )
    assert all(left >= 0 and left + width <= 400 for left, width in tops)


@pytest.mark.parametrize(
    ("page", "ready"),
    [*PAGES, ("index.html", READY), ("error.html", "document.readyState === 'complete'")],
)
def test_a_page_asks_no_other_host_for_anything(browser, address, page, ready):
    browser.load(f"{address}/{page}", ready)
    assert {urlsplit(url).netloc for url in loaded(browser)} <= {urlsplit(address).netloc}


def test_a_library_that_was_tampered_with_does_not_run(browser, address, site):
    text = (site / "asv.html").read_text()
    jquery = 'jquery.min.js" integrity="sha384-'
    assert text.count(jquery) == 1
    (site / "tampered.html").write_text(text.replace(jquery, jquery + "0"))
    browser.load(f"{address}/tampered.html", "location.pathname.endsWith('/error.html')")
    assert any("integrity" in line for line in browser.logged())
