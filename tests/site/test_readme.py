"""The pages' tables are those of stored results, and the pages' links lead somewhere."""

import json
import re
import subprocess

import pytest

from benchmarks import __main__ as entry
from benchmarks._site import readme, readme_tables
from benchmarks._studies.peers.targets import GOALS

ROOT = readme.ROOT
LONGEST = {
    **{"README.md": 120, ".github/CONTRIBUTING.md": 180},
    **{"benchmarks/README.md": 250, "benchmarks/METHOD.md": 250},
}


@pytest.mark.parametrize("page", readme.PAGES)
def test_pages_show_what_is_stored(page):
    path = ROOT / page
    assert path.read_text() == readme.generated(path), "python -m benchmarks readme writes it anew"


def test_every_table_is_shown_once():
    shown = [name for page in readme.PAGES for name in readme.marked((ROOT / page).read_text())]
    assert sorted(shown) == sorted(readme_tables.TABLES)


def test_pages_stay_short():
    lengths = {page: len((ROOT / page).read_text().splitlines()) for page in LONGEST}
    assert all(length <= LONGEST[page] for page, length in lengths.items()), lengths


def anchors(page):
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}


def pages():
    done = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True)
    return [ROOT / name for name in done.stdout.splitlines()]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    for path, heading in re.findall(r"\]\((?!\w+:)([^)#]*)#?([^)]*)\)", page.read_text()):
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not heading or heading in anchors(target), (path, heading)


def test_commands_exist(capsys):
    with pytest.raises(SystemExit):
        entry.main(["--help"])
    listed = capsys.readouterr().out
    for page in pages():
        for name in re.findall(r"-m benchmarks (\w+)", page.read_text()):
            assert f"    {name} " in listed, page


@pytest.fixture
def page(monkeypatch, tmp_path):
    """A copy of a page with tables."""
    path = tmp_path / "METHOD.md"
    path.write_text((ROOT / "benchmarks" / "METHOD.md").read_text())
    monkeypatch.setattr(readme, "PAGES", (path.name,))
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    return path


def test_a_changed_table_is_written_anew_and_prose_is_left_alone(page, capsys):
    text = page.read_text()
    mark, row = "<!-- table: simulation -->\n", re.search(r"\| normal.*\n", text)[0]
    for changed in (text.replace(row, ""), text.replace(mark, mark + "The verdict is right.\n")):
        page.write_text("Prose.\n" + changed)
        assert entry.main(["readme"]) == 0
        assert page.read_text() == "Prose.\n" + text
        assert capsys.readouterr().out == "METHOD.md is written anew\n"


@pytest.mark.parametrize(
    ("old", "new"), [("table: simulation", "table: simulated"), ("<!-- /table -->", "")]
)
def test_a_mark_that_names_no_table_or_has_no_end_is_an_error(page, old, new, capsys):
    page.write_text(page.read_text().replace(old, new))
    assert entry.main(["readme"]) == 3
    assert f"must mark tables by lines {'<!-- table: NAME -->'}" in capsys.readouterr().err


def test_every_result_that_ships_is_a_named_step():
    shipped = {path.name[:7] for path in readme_tables.RESULTS.glob("*-existing-*.json")}
    assert shipped == set(readme_tables.STEPS)


def stored_steps(directory, *points):
    """The rounds that ship, as those of these points; in them Llama's formula failed."""
    stored = (readme_tables.TRAINING / "410M-2048.jsonl").read_text().splitlines()
    head, *rounds = map(json.loads, stored)
    for one in rounds:
        one["rows"]["eager"] = {"error": "AssertionError: it is wrong"}
    for point in points:
        lines = map(json.dumps, [head | {"point": point}, *rounds])
        (directory / f"{point}.jsonl").write_text("\n".join(lines))


def test_steps_that_are_stored_are_shown_beside_their_targets(tmp_path):
    stored_steps(tmp_path, "410M-2048", "1.4B-4096")
    *_, first, last = readme_tables.training(tmp_path)
    assert re.match(r"\| \[410M-2048\]\(.*\.md\) \| `\w{7}` \| n/a \| \d+\.\d \|", first)
    assert last.startswith("| [1.4B-4096](")
    lines = readme_tables.training_targets(tmp_path)
    assert lines[0] == "| target | at least | aim | 410M-2048 | 1.4B-4096 |"
    assert any(line.startswith("| `hybrid`, a step of 1.4B: MFU | 55.0% | ") for line in lines)
    assert len({line.count("|") for line in lines}) == 1


def rows_of(lines):
    rows = [line.strip("|").split("|") for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows]


def gain(timings, least, median, most, faster):
    return f"{least}, {median}" + f" ({faster})" * (faster != "0") if median else ""


def test_peers_are_shown_as_the_page_of_each_experiment_has_them():
    (_, *titles), _, *rows = rows_of(readme_tables.peers())
    assert len(titles) == len(list(readme_tables.SWEEP.glob("*.jsonl")))
    for column, title in enumerate(titles, 1):
        page = (readme_tables.EVIDENCE / re.search(r"\((.*)\)", title)[1]).read_text()
        table = page.partition("| provider | timings |")[2].partition("\n\n")[0].splitlines()
        gains = {provider: gain(*numbers) for provider, *numbers in rows_of(table[2:])}
        assert all(row[column] == gains.get(row[0], "") for row in rows)


def test_faster_compiled_calls_are_counted_once():
    def faster(cells):
        return sum(map(int, re.findall(r"\((\d+)\)", " ".join(cells))))

    peers = {row[0]: row for row in rows_of(readme_tables.peers())}
    (_, *titles), _, *rows = rows_of(readme_tables.compiled())
    for provider in ("compile", "compile-angles"):
        columns = [n for n, title in enumerate(titles, 1) if title.startswith(f"`{provider}`")]
        assert faster(row[n] for row in rows for n in columns) == faster(peers[provider])


def test_targets_are_counted_as_the_page_of_each_machine_has_them():
    _, _, *rows = rows_of(readme_tables.held())
    judged = [
        path for path in readme_tables.SWEEPS.rglob("*.md") if "Hold their" in path.read_text()
    ]
    assert len(rows) == len(judged)
    for link, _, _, *counts in rows:
        page = ROOT / "benchmarks" / re.search(r"\((.*)\)", link)[1]
        shown = ", ".join(f"{name} {count}" for name, count in zip(GOALS, counts, strict=True))
        assert shown in " ".join(page.read_text().split())
