"""The overview in a real browser: what it shows, where it leads, and how it looks."""

import html
import itertools
import math
import re
import time
from pathlib import Path

import pytest

from benchmarks._site import page
from benchmarks._studies.peers.experiments import GRIDS
from tests import publishing
from tests.publishing import READY

CSS = Path(page.__file__).with_name("overview.css").read_text()
DAY = 24 * 60 * 60 * 1000
BASE, HEAD = "a" * 40, "b" * 40


@pytest.fixture(scope="module")
def data(site):
    return publishing.overview_data(site)


@pytest.fixture
def load_changed(browser, address, site):
    """Load the overview with its data changed."""
    numbers = itertools.count()

    def load(change):
        name = (
            f"changed{next(numbers)}-{time.monotonic_ns()}.html"  # a browser keeps what it loaded
        )
        publishing.change_overview(site, name, change)
        browser.load(f"{address}/{name}", READY)

    return load


def texts(browser, selector: str) -> list[str]:
    return browser.run(
        f"return [...document.querySelectorAll({selector!r})].map((node) => node.innerText)"
    )


def table(browser, selector: str) -> dict[str, list[str]]:
    """First cell -> the others, of the rows of a table."""
    rows = browser.run(
        f"""return [...document.querySelectorAll("{selector} tbody tr")].map((row) =>
            [...row.cells].map((cell) => cell.innerText))"""
    )
    return {name: rest for name, *rest in rows}


# --- is main slower? ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "days", "waiting", "shown", "is_bad"),
    [
        ("pass", 0, 3, "No. Last measured today on nvidia-h200 (pass)", False),
        ("fail", 1, 3, "Yes. Last measured 1 day ago on nvidia-h200 (fail)", True),
        ("cannot tell", 2, 1, "It cannot be told. Last measured 2 days ago", True),
        ("pass", 9, 3, "Unknown. Last measured 9 days ago on nvidia-h200 (pass)", True),
        ("pass", 9, 0, "No. Last measured 9 days ago", False),
        ("pass", 9, None, "Unknown. Last measured 9 days ago", True),
    ],
)
def test_the_nightly_answer_comes_first(
    browser, load_changed, answer, days, waiting, shown, is_bad
):
    last = {
        **{"answer": answer, "base": BASE, "head": HEAD, "machine": "nvidia-h200"},
        **{"report": "https://github.com/report", "waiting": waiting},
    }
    measured = 1000 * time.time() - days * DAY
    load_changed(lambda data: data.update(nightly=last | {"measured": measured}))
    text = browser.text("#answer")
    assert text.startswith(shown) and "main at bbbbbbb against aaaaaaa." in text
    assert bool(texts(browser, "#answer strong.bad")) == is_bad
    since = {3: "3 commits of the kernel", 1: "1 commit of", 0: "has not changed since", None: ""}
    assert since[waiting] in text
    link = "document.querySelector('#answer a').href"
    assert browser.run(f"return {link}") == "https://github.com/report"


def test_without_an_answer_it_says_so(browser, address):
    browser.load(f"{address}/index.html", READY)
    assert browser.text("#answer").startswith("Unknown: ")


def test_what_measures_nothing_any_more_is_seen(browser, load_changed):
    now = 1000 * time.time()

    def change(data):
        data["built"] = now - 5 * DAY
        for line in (*data["speed"], *data["codegen"]):
            line |= {"measured": now - 4 * DAY, "waiting": 0}
        data["speed"][0]["waiting"] = 2

    load_changed(change)
    *machines, built = texts(browser, "#ages li")
    assert len(machines) == 2 and all("last measured 4 days ago at" in text for text in machines)
    assert texts(browser, "#ages .bad") == [
        "2 commits of the kernel not measured yet",
        "This page was built 5 days ago: nothing updates it any more.",
    ]
    assert "0 commits of the kernel not measured yet" in machines[1]


# --- what it shows --------------------------------------------------------------------------------


def test_every_section_is_drawn(browser, address, data, index):
    browser.load(f"{address}/index.html", READY)
    (line,) = data["speed"]
    assert browser.run("return document.querySelectorAll('canvas').length") == 3
    cells = browser.run("return document.querySelectorAll('#map td[class^=s] a').length")
    assert cells == math.prod(map(len, data["grid"]["values"]))
    assert f"{cells} of {cells}" in browser.text("#tiles")
    changed = browser.text("#changes")
    assert all(data["commits"][str(r)]["hash"][:7] in changed for r in line["all"][-8:])
    benchmark = index["benchmarks"]["codegen.Codegen.track_registers"]
    targets = benchmark["params"][benchmark["param_names"].index("target")]
    counts = table(browser, "#codegen-table")
    assert list(counts) == [target.strip("'") for target in targets]
    assert all(re.fullmatch(r"[\d.]+( → [\d.]+)?", text) for row in counts.values() for text in row)


def test_every_call_has_its_description_and_cells(browser, address, data):
    browser.load(f"{address}/index.html", READY)
    rows = browser.run(
        """return [...document.querySelectorAll("#paths tbody")].map((body) =>
            [...body.rows].map((row) => [...row.cells].map((cell) => cell.innerText)))"""
    )
    values, grid = data["speed"][0]["paths"]["values"], data["paths_grid"]["Backward"]
    of_grid = dict(zip(grid["names"], grid["values"], strict=True))
    sizes, dtypes = len(of_grid["mib"]), len(of_grid["dtype"])
    shown = {title[0].partition(" ")[0]: (title[0], *directions) for title, *directions in rows}
    assert {name: texts[0] for name, texts in shown.items()} == {
        name: f"{name} {call}" for name, call in data["calls"].items()
    }
    for at, path in enumerate(of_grid["path"]):  # asv's order is the path, the size, the type
        _, _, (direction, *squares) = shown[path]
        assert direction == "backward"
        for column, text in enumerate(squares):
            index = dtypes * (sizes * at + column % sizes) + column // sizes
            ratio, gbps = (values["Backward"][m][index] for m in ("copy_ratio", "gbps"))
            assert text.split() == [f"{1 / ratio:.2f}", f"{gbps:.0f}"]
    forward_only = set(shown) - set(of_grid["path"])
    assert forward_only and all(set(shown[name][2][1:]) == {"n/a"} for name in forward_only)


def test_a_batch_of_other_libraries_has_its_lines_and_speeds(browser, address, data):
    browser.load(f"{address}/index.html", READY)
    drawings = set()
    for batch in data["peers"]["batches"]:
        browser.choose("peers-batch", batch["batch"])
        labels = texts(browser, "#peers .u-series .u-label")
        assert labels[1:] == list(batch["gbps"])
        rows = table(browser, "#peers-table")
        assert {name: text.split("\n")[0] for name, (_, text) in rows.items()} == (
            data["peers"]["providers"]
        )
        for name, rates in batch["gbps"].items():
            assert float(rows[name][0]) == pytest.approx(rates[-1], abs=0.51)
        drawings.add(browser.run("return document.querySelector('#peers canvas').toDataURL()"))
    assert len(drawings) == len(data["peers"]["batches"])
    assert all(text in browser.text("#peers-source") for text in data["peers"]["source"])


def test_a_library_without_a_speed_says_why(browser, load_changed):
    gap = {"provider": "fla", "status": "wrong", "reason": "not close", "count": 30, "of": 30}

    def change(data):
        data["peers"]["batches"][0]["gbps"].pop("fla")
        data["peers"]["batches"][0]["without"] = [gap]

    load_changed(change)
    speed, text = table(browser, "#peers-table")["fla"]
    assert speed == "wrong" and text.endswith("wrong at 30 of 30 lengths: not close")


@pytest.mark.parametrize("missing", ["speed", "codegen"])
def test_the_sections_do_not_need_each_other(browser, load_changed, missing):
    load_changed(lambda data: data.update({missing: []}))
    heights = {
        name: browser.run(f"return document.getElementById('{name}').offsetHeight")
        for name in ("speed", "codegen", "peers")
    }
    assert heights.pop(missing) == 0 and min(heights.values()) > 100
    unmeasured = "No commit has been measured on a GPU yet." in browser.text("main")
    assert unmeasured == (missing == "speed")


# --- where it leads -------------------------------------------------------------------------------


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
    assert {"rope.Forward.track_latency", "paths.Backward.track_latency"} < benchmarks
    assert benchmarks <= index["benchmarks"].keys()


def test_a_change_links_its_range_and_its_report(browser, address, data):
    browser.load(f"{address}/index.html", READY)
    links = browser.run(
        """return [...document.querySelectorAll("#changes li")].map((item) =>
            [...item.querySelectorAll(":scope > div a")].map((link) => link.href))"""
    )
    newest, before = (data["commits"][str(r)]["hash"] for r in data["speed"][0]["all"][:-3:-1])
    assert links[0] == [f"https://github.com/rope-triton/rope-triton/compare/{before}...{newest}"]
    reports = [link for of_commit in links for link in of_commit if "/blob/" in link]
    assert [link.rpartition("reports/")[2] for link in reports] == ["traded/fail.md", "fail.md"]


CHOSEN = """return Object.fromEntries([...document.querySelectorAll("select")].map((select) =>
    [select.id, select.selectedOptions[0].text]))"""


def test_what_is_chosen_is_in_the_address(browser, address):
    browser.load(f"{address}/index.html#peers", READY)
    usual = browser.run(CHOSEN)
    browser.run(
        """for (const select of document.querySelectorAll("select")) {
            select.selectedIndex = select.length - 1;
            select.dispatchEvent(new Event("change", { bubbles: true }));
        }"""
    )
    chosen, shown = browser.run(CHOSEN), browser.text("#tiles")
    assert {"format", "direction", "peers-batch"}.isdisjoint(dict(usual.items() & chosen.items()))
    search, fragment = browser.run("return [location.search, location.hash]")
    assert fragment == "#peers"
    browser.load(f"{address}/index.html{search}{fragment}", READY)
    assert browser.run(CHOSEN) == chosen != usual and browser.text("#tiles") == shown
    browser.load(f"{address}/index.html?dtype=%3Cscript%3E&line=0&nothing=there#nowhere", READY)
    assert browser.run(CHOSEN) == usual


def test_every_heading_leads_to_itself(browser, address):
    browser.load(f"{address}/index.html", READY)
    links = browser.run("return [...document.querySelectorAll('h2 > a')].map((a) => a.hash)")
    assert len(links) == browser.run("return document.querySelectorAll('h2').length") >= 7
    browser.load(f"{address}/index.html#changed", READY)
    top = browser.run("return document.querySelector('#changed').getBoundingClientRect().top")
    assert -50 < top < 900
    # None is taken for an old link to asv's pages.
    for name in browser.run("return [...document.querySelectorAll('[id]')].map((node) => node.id)"):
        browser.run(f"location.hash = '{name}'")
    assert browser.run("return location.pathname") == "/index.html"


# --- how it looks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 800, 1280])
def test_nothing_is_cut_or_wider_than_the_screen(browser, address, width, scheme):
    browser.resize(width, 844)
    browser.prefer(scheme)
    browser.load(f"{address}/index.html", READY)
    widths = browser.run("return [innerWidth, document.documentElement.scrollWidth]")
    assert widths == [width, width]
    parts = "[...document.querySelectorAll('td, th, .u-legend, .tile, #answer, #ages li')]"
    assert browser.run(f"return {parts}.length") > 100
    cut = f"{parts}.filter((part) => part.scrollWidth > part.clientWidth)"
    assert browser.run(f"return {cut}.map((part) => part.outerHTML)") == []
    background = browser.run("return getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, re.findall(r"\d+", background)[:3])) > 3 * 128
    assert light == (scheme == "light")


def test_charts_take_the_colors_of_the_scheme(browser, address):
    browser.load(f"{address}/index.html", READY)
    light = browser.run("return document.querySelector('#peers canvas').toDataURL()")
    browser.prefer("dark")
    browser.wait(f"document.querySelector('#peers canvas').toDataURL() !== '{light}'")


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_every_library_has_a_color_of_its_own(scheme):
    text = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)[scheme]
    colors = dict(re.findall(r"--lib-([\w-]+): (#\w+);", text))
    assert set(colors) == set(GRIDS["full"]["throughput"].figures[0].providers)
    assert len(set(colors.values())) == len(colors)
