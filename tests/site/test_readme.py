"""The pages' tables are those of stored results, and the pages' links lead somewhere."""

import re
import subprocess

import pytest

from benchmarks import __main__ as entry
from benchmarks._site import readme

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
    assert sorted(shown) == sorted(readme.TABLES)


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
    shipped = {path.name[:7] for path in readme.RESULTS.glob("*-existing-*.json")}
    assert shipped == set(readme.STEPS)
