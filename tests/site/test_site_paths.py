"""The overview's section of the other paths: its data, and how it is drawn. Figures are made up."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from asv.graph import GraphSet

from benchmarks._site import overview
from benchmarks._subjects.rope import grid
from benchmarks._subjects.rope.cells import PATHS
from tests import browser as browsers
from tests import publishing
from tests.publishing import READY

GPU = "nvidia-h200"
NEWEST, BEFORE, LACKING = "8f5b0467", "8f822895", "07ff082f"
"""Measured commits, newest first: with all paths, with two of them, from before there were any."""

OF_BEFORE = ("thd", "qkv")
FORWARD_ONLY = ("tables-inplace", "then-read")
FACTORS = {"gbps": 4000, "copy_ratio": 1.0, "latency": 1e-5}
DIRECTIONS = ("Forward", "Backward")
SIZES, DTYPES = (len(grid.PATH_GRIDS["full"][name]) for name in ("mib", "dtype"))
CELLS = SIZES * DTYPES  # of a path


# --- data -----------------------------------------------------------------------------------------

SUBJECT = "of \f one \u2028 line"
LINE = {"machine": "a", "gpu": "A GPU", "branch": "main"}


def of_graphs(points: dict[str, dict[int, list[float | None]]]) -> dict:
    """The overview's data, from benchmark -> revision -> values."""
    graphs = GraphSet()
    for name, values in points.items():
        for revision, each in values.items():
            graphs.get_graph(name, LINE).add_data_point(revision, each)
    revisions = {f"{r:040x}": r for values in points.values() for r in values}
    repo = SimpleNamespace(
        get_branch_name=lambda branch: branch,
        _run_git=lambda command: "".join(f"{c}\x001\x00{SUBJECT}\n" for c in command[3:]),
    )
    conf = SimpleNamespace(
        branches=["main"], project="name", show_commit_url="url/", project_url="url"
    )
    return overview.overview(conf, repo, {}, graphs, revisions)


def test_paths_have_cells_and_changes_of_their_own():
    (line,) = of_graphs({"rope.Forward.track_copy_ratio": {3: [1.0]}})["speed"]
    assert line["paths"] is None
    data = of_graphs(
        {
            "rope.Forward.track_copy_ratio": {1: [1.0], 5: [2.0]},
            "paths.Forward.track_copy_ratio": {3: [None, 2.0], 5: [1.0, 2.0]},
            "paths.Forward.track_latency": {3: [None, 1.0], 5: [4.0, 1.5]},
        }
    )
    (line,) = data["speed"]
    assert line["all"] == [1, 3, 5] and set(data["commits"]) == {1, 3, 5}
    assert {each["subject"] for each in data["commits"].values()} == {SUBJECT}
    assert line["trend"]["Forward"] == [1.0, None, 0.5]  # the grid's alone
    values = line["paths"]["values"]
    assert values["Forward"] == {"gbps": {}, "copy_ratio": {3: [None, 2.0], 5: [1.0, 2.0]}}
    assert values["Backward"] == {"gbps": {}, "copy_ratio": {}}
    assert line["paths"]["changes"]["Forward"][5].items() >= dict(before=3, cells=1).items()
    assert line["changes"]["Forward"] == {}


def test_no_more_commits_than_the_page_shows():
    ratios = {revision: [1.0] for revision in range(20)}
    (line,) = of_graphs({"paths.Backward.track_copy_ratio": ratios})["speed"]
    kept = line["paths"]["values"]["Backward"]["copy_ratio"]
    assert list(kept) == list(range(20 - overview.DETAILED_COMMITS, 20))


def test_every_path_has_its_half_line():
    assert list(overview.CALLS) == list(PATHS)


# --- the page -------------------------------------------------------------------------------------


def made_up(metric: str, direction: str, commit: str) -> list[float | None]:
    """A value a cell, in asv's order, None where the commit has no such path.

    The newest commit is the slower one in the first cell, and the same elsewhere.
    """
    forward = direction == "Forward"
    paths = [path for path in PATHS if forward or path not in FORWARD_ONLY]
    cells = grid.path_cells({**grid.PATH_GRIDS["full"], "path": tuple(paths)})
    values = [FACTORS[metric] * (0.75 + 0.02 * index) for index in range(len(cells))]
    if commit == NEWEST:
        return values
    values[0] *= 0.8
    return [v if cell.path in OF_BEFORE else None for v, cell in zip(values, cells, strict=True)]


def add_paths(results: Path, commit: str) -> None:
    """Add made-up results of the paths to those of a commit."""
    (file,) = (results / GPU).glob(f"{commit}-*.json")
    benchmarks = json.loads((results / "benchmarks.json").read_text())
    content = json.loads(file.read_text())
    for direction in DIRECTIONS:
        for metric in FACTORS:
            name = f"paths.{direction}.track_{metric}"
            values, params = made_up(metric, direction, commit), benchmarks[name]["params"]
            content["results"][name] = [values, params, benchmarks[name]["version"]]
    file.write_text(json.dumps(content))


@pytest.fixture(scope="module")
def paths_site(tmp_path_factory):
    """A site of three commits of one GPU, two of them with paths."""
    clone = publishing.cloned(tmp_path_factory.mktemp("paths") / "clone")
    results = clone / "benchmarks" / "results"
    for file in results.glob("*/*-*.json"):
        if file.parent.name != GPU or file.name[:8] not in (NEWEST, BEFORE, LACKING):
            file.unlink()
    for commit in (NEWEST, BEFORE):
        add_paths(results, commit)
    return publishing.published(clone)


@pytest.fixture(scope="module")
def paths_address(paths_site):
    with browsers.serving(paths_site) as url:
        yield url


def table(browser) -> dict[str, dict[str, list[str]]]:
    """Path -> direction -> what its cells say."""
    bodies = browser.run(
        """const rows = (body) => [...body.rows].slice(1).map((row) =>
            [row.cells[0].innerText, [...row.cells].slice(1).map((cell) => cell.innerText)]);
        return [...document.querySelectorAll("#paths tbody")].map((body) =>
            [body.querySelector("code").innerText, rows(body)]);"""
    )
    return {path: dict(rows) for path, rows in bodies}


def changed(site: Path, name: str, change: Callable[[dict], None]) -> None:
    """Add a page to the site: the overview where the only line of speed is changed in place."""
    publishing.change_overview(site, name, lambda data: change(*data["speed"]))


def test_a_history_without_paths_has_no_heading_for_them(browser, paths_site, paths_address):
    changed(paths_site, "without.html", lambda line: line.update(paths=None))
    browser.load(f"{paths_address}/without.html", READY)
    assert browser.run("return document.getElementById('paths').offsetHeight") == 0
    assert "Other paths" not in browser.text("main")


def test_every_path_is_there_with_its_call_and_cells(browser, paths_address):
    browser.load(f"{paths_address}/index.html", READY)
    found = table(browser)
    assert list(found) == list(PATHS)
    for path in FORWARD_ONLY:
        assert found[path]["backward"] == ["n/a"] * CELLS
    # 0.75 of a copy's latency is 1.33 of its speed; asv's order is the size, then the type.
    assert found["thd"]["forward"][:2] == ["1.33 3000", "1.27 3160"]
    assert found["thd"]["forward"][SIZES] == "1.30 3080"
    # A row further up, where there is no tables-inplace.
    factor = 0.75 + 0.02 * CELLS * (list(PATHS).index("starts") - 1)
    assert found["starts"]["backward"][0] == f"{1 / factor:.2f} {4000 * factor:.0f}"
    shown = browser.text("#paths")
    assert all(call in shown for call in overview.CALLS.values())
    classes = browser.run(  # coloured as those of the map
        "return [...document.querySelectorAll('#paths td[class^=s]')].map(td => td.className)"
    )
    assert len(classes) == (11 + 9) * CELLS and classes[0] == "s6"
    assert len(set(classes)) > 3


def test_an_older_commit_shows_what_it_had(browser, paths_address):
    browser.load(f"{paths_address}/index.html", READY)
    browser.choose("commit", BEFORE[:7])
    found = table(browser)
    have = {path for path in found if found[path]["forward"] != ["n/a"] * CELLS}
    assert have == set(OF_BEFORE) and browser.text("#paths-note") == ""
    browser.choose("commit", LACKING[:7])  # before there were any: those of the first that has them
    assert table(browser) == found
    note = f"Measured at {BEFORE[:7]}: none of them was at {LACKING[:7]}."
    assert browser.text("#paths-note") == note
    said = browser.text("#changes > li")
    assert "Forward, paths" in said and "Backward, paths" in said
    assert said.count(f"0.0 % median; too few earlier results to judge {2 * CELLS} cells") == 2


def test_a_cell_leads_to_its_graph(browser, paths_address):
    browser.load(f"{paths_address}/index.html", READY)
    row = "#paths tbody:nth-of-type(3) tr:nth-child(3)"  # qkv, backward
    link = browser.run(f"return document.querySelector('{row} td:nth-child({SIZES + 1}) a').href")
    plot = "$('#main-graph').data('plot')"
    browser.load(link, plot)
    (line,) = browser.run(f"return {plot}.getData().map(line => line.data.map(p => p[1]))")
    index = 2 * CELLS + DTYPES * (SIZES - 1)  # 256 MiB, float32
    assert line == pytest.approx([FACTORS["latency"] * (0.75 + 0.02 * index)] * 2)


def test_a_newest_commit_without_paths_shows_the_one_before(browser, paths_site, paths_address):
    def without_the_newest(line):
        for metrics in line["paths"]["values"].values():
            for of_commits in metrics.values():
                del of_commits[str(line["all"][-1])]

    changed(paths_site, "without.html", without_the_newest)
    browser.load(f"{paths_address}/without.html", READY)
    note = f"Measured at {BEFORE[:7]}: none of them was at {NEWEST[:7]}."
    assert browser.text("#paths-note") == note
    assert table(browser)["qkv"]["forward"][0] != "n/a"


def test_a_line_of_paths_alone_draws_without_a_word(browser, paths_site, paths_address):
    def of_paths_alone(line):
        for direction in DIRECTIONS:
            line["values"][direction] = {"gbps": {}, "copy_ratio": {}}
            line["trend"][direction] = [None] * len(line["all"])
            line["changes"][direction] = {}

    changed(paths_site, "alone.html", of_paths_alone)
    browser.load(f"{paths_address}/alone.html", READY)
    assert table(browser)["qkv"]["forward"][0] != "n/a"


def test_the_page_opens_with_a_commit_that_has_both_directions(browser, paths_site, paths_address):
    def cut_off(line):
        for values in line["values"]["Forward"].values():
            values.pop(str(line["all"][-1]))

    changed(paths_site, "cut-off.html", cut_off)
    browser.load(f"{paths_address}/cut-off.html", READY)
    chosen = "return document.getElementById('commit').selectedOptions[0].text"
    assert browser.run(chosen).startswith(BEFORE[:7])
    browser.choose("commit", NEWEST[:7])
    assert browser.run(chosen).startswith(NEWEST[:7])
