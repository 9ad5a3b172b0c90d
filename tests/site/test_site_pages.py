"""asv's own pages, with the shipped results, in a real browser, and old links to them."""

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
BOX = "document.querySelector('.benchmark-plot canvas')"
GRID = "document.querySelectorAll('.benchmark-plot canvas.flot-base').length === {}"
LIST = "document.querySelector('#summarylist-body th.asc')"
ROW = "#summarylist-body tbody tr"
REGRESSION = "#regressions-body .regression-div > table:not(.ignored) > tbody > tr"
REGRESSIONS = "document.querySelector('#regressions-body th.desc')"


def loaded(browser) -> list[str]:
    """Addresses of all that the page asked for."""
    return browser.run("return performance.getEntriesByType('resource').map(entry => entry.name)")


@pytest.fixture(scope="module")
def cell(index):
    """A cell's position in the results of its metric, and asv's address of its graph."""
    benchmark = index["benchmarks"][METRIC]
    position, query = 0, [f"machine={GPU}"]
    for name, values in zip(benchmark["param_names"], benchmark["params"], strict=True):
        at = [value.strip("'") for value in values].index(CELL[name])
        position = position * len(values) + at
        query.append(f"p-{name}={quote(values[at])}")
    return position, f"asv.html#{METRIC}?{'&'.join(query)}"


def is_of_the_cell(link: str, address: str) -> bool:
    """Whether a link leads to the graph that an address of asv's shows."""
    wanted, shown = (unquote(text.partition("#")[2]).split("?") for text in (address, link))
    return wanted[0] == shown[0] and {*wanted[1].split("&")} <= {*shown[1].split("&")}


@pytest.fixture(scope="module")
def measured(cell):
    """Commit -> the cell's stored latency in seconds."""
    contents = [json.loads(path.read_text()) for path in (RESULTS / GPU).glob("*-existing-*.json")]
    complete = (c for c in contents if METRIC in c["results"])
    return {c["commit_hash"]: c["results"][METRIC][0][cell[0]] for c in complete}


def plotted(browser, index) -> dict[str, float]:
    """Commit -> value, of what the only line of asv's graph shows."""
    (line,) = browser.run(f"return {PLOT}.getData().map(line => line.data)")
    return {index["revision_to_hash"][str(revision)]: value for revision, value in line}


def load_grid(browser, address, index):
    browser.resize(1280, 4000)  # asv draws what is in sight
    browser.load(f"{address}/asv.html", GRID.format(len(index["benchmarks"])))


def test_the_grid_shows_every_benchmark_and_the_tabs_lead_on(browser, address, index):
    load_grid(browser, address, index)
    links = browser.run(
        "return [...document.querySelectorAll('.benchmark-container')].map(a => a.hash)"
    )
    assert sorted(links) == sorted(f"#{name}" for name in index["benchmarks"])
    for tab, shown in (
        ("nav-li-summarylist", LIST),
        ("nav-li-regressions", REGRESSIONS),
        ("nav-li-", "$('#summarygrid-display').is(':visible')"),
    ):
        browser.run(f"document.querySelector('#{tab} a').click()")
        browser.wait(shown)
    browser.run(f"document.querySelector('.benchmark-container[href=\"#{METRIC}\"]').click()")
    browser.wait(PLOT)
    assert not browser.logged()
    browser.run("document.querySelector('#nav-li-overview a').click()")
    browser.wait(f"location.pathname === '/index.html' && {READY}")


def test_no_parameter_of_a_benchmark_is_named_like_a_field_of_the_machine(index):
    """asv's legend has one entry for both, and its addresses cannot tell them apart."""
    names = {n for benchmark in index["benchmarks"].values() for n in benchmark["param_names"]}
    assert "target" in names and not names & index["params"].keys()


def test_a_cell_of_the_overview_leads_to_its_graph(browser, address, index, cell, measured):
    browser.load(f"{address}/", READY)
    links = browser.run("return [...document.querySelectorAll('#map a')].map(a => a.href)")
    (link,) = (link for link in links if is_of_the_cell(link, cell[1]))
    browser.load(link, PLOT)
    assert len(measured) >= 6 and plotted(browser, index) == pytest.approx(measured, rel=1e-6)


def test_the_list_has_a_row_for_every_cell_that_leads_to_its_graph(
    browser, address, site, index, measured, cell
):
    browser.load(f"{address}/asv.html#summarylist?machine={GPU}", LIST)
    (summary,) = (site / "graphs").rglob(f"machine-{GPU}/**/summary.json")
    rows = browser.run(f"return document.querySelectorAll('{ROW}').length")
    assert rows == len(json.loads(summary.read_text())) > 3000
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

    regressions = json.loads((site / "regressions.json").read_text())["regressions"]
    assert {METRIC} == {name.partition("(")[0] for name, *_ in regressions}
    feed = (site / "regressions.xml").read_text()
    links = sorted(set(re.findall(r'href="([^"]*#[^"]*)"', feed)))
    assert all(re.search(rf"index\.html#{METRIC}\?", link) for link in links)
    with serving(site) as address:
        browser.load(f"{address}/asv.html#regressions", REGRESSIONS)
        rows = browser.run(f"return document.querySelectorAll('{REGRESSION}').length")
        assert rows == sum(len(regression[6]) for regression in regressions) == len(links) > 100
        fragment = html.unescape(links[0]).partition("#")[2]
        there = f"location.pathname === '/asv.html' && {PLOT}"
        browser.load(f"{address}/index.html#{fragment}", there)
        browser.logged()


def test_no_machine_is_asked_for_what_it_never_measured(browser, address, index):
    """It would say 404 in the console; an empty answer would fill the legend."""
    machines = {params["machine"] for params in index["graph_param_list"]}
    assert len(machines) > 1
    for name in (METRIC, "codegen.Codegen.track_registers"):
        browser.load(f"{address}/asv.html#{name}", PLOT)
        asked = {urlsplit(url).path for url in loaded(browser) if f"/{name}.json" in url}
        answering = {name for name in machines if any(f"/machine-{name}/" in url for url in asked)}
        assert len(answering) == 1, asked
    assert not browser.logged()
    browser.load(f"{address}/asv.html#{METRIC}?machine=no-gpu-x86_64", "$('#error').is(':visible')")


def test_the_legend_tells_architectures_apart_and_covers_nothing(browser, address, index):
    browser.load(f"{address}/asv.html#codegen.Codegen.track_registers", PLOT)
    benchmark = index["benchmarks"]["codegen.Codegen.track_registers"]
    targets = benchmark["params"][benchmark["param_names"].index("target")]
    labels = "return [...document.querySelectorAll('#legend .legendLabel')].map(e => e.innerText)"
    expected = [f"target {text}" for text in (target.strip("'") for target in targets)]
    assert browser.run(labels) == expected
    colors = browser.run(f"return {PLOT}.getData().map(line => line.color)")
    assert len({*colors}) == len(targets) > 7  # asv has seven
    legend, plot = browser.run(
        """return ['#legend', '#main-graph canvas'].map((selector) => {
            const {top, bottom} = document.querySelector(selector).getBoundingClientRect();
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


@pytest.mark.parametrize(
    ("page", "ready"),
    [
        ("asv.html", BOX),
        (f"asv.html#summarylist?machine={GPU}", LIST),
        ("asv.html#regressions", REGRESSIONS),
        (f"asv.html#{METRIC}?machine={GPU}", PLOT),
        ("index.html", READY),
        ("error.html", "document.readyState === 'complete'"),
    ],
)
def test_a_page_is_as_wide_as_a_phone_and_asks_no_other_host(browser, address, page, ready):
    browser.resize(400, 850, phone=page != "error.html")  # asv's page of an error is for a desktop
    browser.load(f"{address}/{page}", ready)
    widths = browser.run("return [innerWidth, document.documentElement.scrollWidth]")
    assert widths == [400, 400]
    boxes = browser.run(
        "return [...document.querySelectorAll('nav, [id$=-display], #graph-display > div')]"
        ".filter(e => e.offsetHeight).map(e => [e.getBoundingClientRect().left, e.offsetWidth])"
    )
    assert all(left >= 0 and left + width <= 400 for left, width in boxes)
    assert {urlsplit(url).netloc for url in loaded(browser)} <= {urlsplit(address).netloc}


OLD = {
    "/": BOX,
    f"/summarylist?machine={GPU}&python=3.12": LIST,
    "regressions": REGRESSIONS,
    f"{METRIC}?machine={GPU}&p-format=%27sbhd%27&commits=8f5b0467": PLOT,
}
"""Fragment of an address from when asv's page was index.html, as in its feed -> what it shows."""


@pytest.mark.parametrize(("fragment", "shown"), OLD.items(), ids=OLD)
def test_an_old_link_to_asvs_pages_leads_to_them(browser, address, fragment, shown):
    browser.load(
        f"{address}/index.html#{fragment}", f"location.pathname === '/asv.html' && {shown}"
    )
    there = browser.run("return location.pathname + location.search + location.hash")
    # asv writes its own, and how it is sorted.
    assert there.replace("#/", "#").startswith(f"/asv.html#{fragment.lstrip('/')}")
    browser.logged()  # asv asks every machine for every benchmark, and not all have each
    browser.load(f"{address}/index.html", READY)
    browser.run(f"location.hash = '{fragment}'")  # entered by hand
    browser.wait(f"location.pathname === '/asv.html' && {shown}")
    browser.logged()
