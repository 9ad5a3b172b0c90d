"""The tables of the READMEs are those of the results that are stored."""

import json
import re

import pytest

from benchmarks import __main__ as entry
from benchmarks._site import readme as command
from benchmarks._site import readme_evidence, readme_tables
from benchmarks._studies.peers import state
from benchmarks._studies.peers.experiments import GRIDS
from benchmarks._studies.peers.state import Results, Row, header
from tests.lab import MACHINE
from tests.peers import timer as times
from tests.peers.timer import SHA


@pytest.mark.parametrize("page", command.PAGES, ids=lambda page: page.parent.name)
def test_pages_show_what_is_stored(page):
    drifted = command.drifted(page.read_text(), command.generated(page))
    assert not drifted, "python -m benchmarks readme writes them anew"


def test_every_table_has_its_place_on_one_page():
    placed = [name for names in command.PAGES.values() for name in names]
    assert sorted(placed) == sorted(command.TABLES)


def test_a_row_that_nothing_stored_has_is_an_error(tmp_path):
    with pytest.raises(
        readme_tables.ReadmeError, match="no sweep throughput in .* has transformer-engine"
    ):
        readme_tables.summary(readme_tables.results(), tmp_path)


def stored_steps(directory, *points):
    """The rounds that ship, as those of these points; in them Liger's provider failed."""
    stored = (readme_evidence.TRAINING / "410M-2048.jsonl").read_text().splitlines()
    header, *rounds = map(json.loads, stored)
    for each in rounds:
        each["rows"]["liger"] = {"error": "AssertionError: it is wrong"}
    for point in points:
        lines = map(json.dumps, [header | {"point": point}, *rounds])
        (directory / f"{point}.jsonl").write_text("\n".join(lines))


def test_a_step_that_nothing_stored_has_is_left_out(tmp_path):
    assert readme_evidence.steps(tmp_path) == []
    stored_steps(tmp_path, "410M-2048", "1.4B-4096")
    lines = readme_evidence.steps(tmp_path)
    assert sum(line.startswith("| `ours` |") for line in lines) == 2
    assert not any(line.startswith("| `liger` |") for line in lines)  # it has no figures
    assert "evidence/training/1.4B-4096.md" in " ".join(lines)


def test_goals_are_shown_of_what_is_stored(tmp_path):
    assert readme_evidence.targets(tmp_path) == []
    stored_steps(tmp_path, "1.4B-4096")
    (row,) = (line for line in readme_evidence.targets(tmp_path) if "MFU" in line)
    assert row.startswith("| `hybrid`, a step of 1.4B: MFU | 55.0% | 60.0% | ")
    stored_steps(tmp_path, "410M-2048")
    lines = readme_evidence.targets(tmp_path)
    assert "| goal | at least | aim | `410M-2048` | `1.4B-4096` |" in lines
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1


def test_the_first_page_stays_short():
    assert len((command.ROOT / "README.md").read_text().splitlines()) <= 150


def test_links_lead_to_files_and_headings_that_are_there():
    for page in (*command.PAGES, command.ROOT / "rope_triton" / "README.md"):
        for link in re.findall(r"\]\((?!https?://)([^)#]*)(#[^)]*)?\)", page.read_text()):
            target = page.parent / link[0] if link[0] else page
            assert target.exists(), (page, link)
            if link[1]:
                headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
                anchors = {re.sub(r"[^a-z -]", "", h.lower()).replace(" ", "-") for h in headings}
                assert link[1][1:] in anchors, (page, link)


@pytest.fixture
def readme(monkeypatch, tmp_path):
    """A copy of the page that has most of the tables."""
    page = command.ROOT / "benchmarks" / "README.md"
    path = tmp_path / "README.md"
    path.write_text(command.generated(page))
    monkeypatch.setattr(command, "PAGES", {path: command.PAGES[page]})
    monkeypatch.setattr(command, "ROOT", tmp_path)
    return path


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("speed", "| below 16 MB | 96 | "),
        ("history", "| `efd9757` | first correct version | "),
        ("paths", "| `qkv` | "),
        ("calls", "| `thd` | "),
    ],
)
def test_drift_is_seen_and_mended(readme, name, start, capsys):
    whole = readme.read_text()
    (found,) = re.finditer(re.escape(start) + r"\d+\.\d", tabled(whole, name))
    changed = found[0][:-1] + str((int(found[0][-1]) + 1) % 10)
    table = tabled(whole, name)
    whole = whole.replace(table, table.replace(found[0], changed))
    assert_mended(readme, whole, name, capsys)


def tabled(text, name):
    return text.partition(f"<!-- table: {name} -->")[2].partition("<!-- /table -->")[0]


def test_a_line_between_the_figures_is_seen_and_removed(readme, capsys):
    first = "<!-- table: peers -->\n"
    changed = readme.read_text().replace(first, first + "All others are slow.\n")
    assert_mended(readme, changed, "peers", capsys)


def assert_mended(readme, changed, name, capsys):
    whole = readme.read_text()
    assert changed != whole
    readme.write_text(changed)
    assert entry.main(["readme", "--check"]) == 1
    assert f"table '{name}' differs" in capsys.readouterr().out
    assert entry.main(["readme"]) == 0
    assert readme.read_text() == whole
    assert entry.main(["readme", "--check"]) == 0


def test_prose_is_left_alone(readme):
    whole = readme.read_text()
    readme.write_text(whole.replace("Optimization history", "The optimization history"))
    entry.main(["readme"])
    assert readme.read_text() == whole.replace("Optimization history", "The optimization history")


@pytest.mark.parametrize("change", [("table: paths", "table: path"), ("table: paths", "paths")])
def test_a_table_without_a_place_is_an_error(readme, change, capsys):
    readme.write_text(readme.read_text().replace(*change))
    assert entry.main(["readme"]) == 3
    assert (
        "must mark the tables speed, history, paths, calls, peers, held, training, targets, "
        "simulation once each" in capsys.readouterr().err
    )


def test_results_of_other_commits_are_named_and_not_shown(tmp_path):
    (tmp_path / "ffffffff-existing-py.json").write_text("")
    assert readme_tables.results(tmp_path) == []
    assert readme_tables.unnamed(tmp_path) == ["ffffffff-existing-py.json"]
    assert not readme_tables.unnamed()  # all that ship are named
    with pytest.raises(readme_tables.ReadmeError, match="no result"):
        readme_tables.speed(readme_tables.results(tmp_path))


def shipped(directory, name, commit=SHA):
    """Made-up results of an experiment, as they would ship."""
    experiment = GRIDS["full"][name]
    head = header(
        **{"experiment": name, "grid": "full", "commit": commit, "machine": MACHINE, "suite": "s"},
        **{
            "software": {"fla-core": "1"},
            "command": f"study peers --only {name}",
        },
    )
    rows = {timing: Row(timing, times.outcome(timing), "g") for timing in experiment.timings}
    state.write(directory / f"{name}.jsonl", Results(head, rows), experiment.timings)


def test_peers_are_shown_from_what_ships(tmp_path):
    assert readme_evidence.peers(tmp_path) == []
    for name in ("throughput", "study"):
        shipped(tmp_path, name)
    lines = readme_evidence.peers(tmp_path)
    text = "\n".join(lines)
    assert "| 1 | about 260 GB/s | +4% |" in text and "| n/a |  |" in text and "wrong" in text
    assert "fla-core 1" in text and SHA[:8] in text
    assert "(evidence/sweep/nvidia-h200/throughput-batch-1.png)" in text
    (compiled,) = (line for line in lines if line.startswith("| compile |"))
    assert re.fullmatch(r"\| compile( \| 2\.2\d, 2\.\d\d){2} \|", compiled)
    assert any("| throughput, of 120 | study, of 44 |" in line for line in lines)
    (copied,) = (line for line in lines if line.startswith("| copy |"))
    assert copied.endswith("(120) |  |")  # faster in all, and not in the study
    assert not any(line.startswith("| transformer-engine |") for line in lines)
    assert lines[-1]  # no empty line at its end


def test_goals_of_calls_are_counted_on_each_machine(monkeypatch, tmp_path):
    for machine, name in (("b", "models"), ("a", "models"), ("a", "study")):
        (tmp_path / machine).mkdir(exist_ok=True)
        shipped(tmp_path / machine, name)
    *_, first, second = readme_evidence.held(tmp_path)  # the study has no goals
    assert "(evidence/sweep/a/models.md)" in first and "(evidence/sweep/b/models.md)" in second
    counts = r" \d+ of \d\d \| \d+ of \d\d \| \d of 6 \|"
    assert re.search(rf"`{SHA[:8]}` \| without \|{counts}$", first)


def test_experiments_name_their_commits_where_they_differ(monkeypatch, tmp_path):
    other = SHA[::-1]
    for name, commit, named in (("study", SHA, 0), ("milliseconds", SHA, 0), ("study", other, 1)):
        shipped(tmp_path, name, commit)
        text = " ".join(readme_evidence.peers(tmp_path))
        assert text.count(f"study.md) at `{other[:8]}`") == named
        assert text.count(f"milliseconds.md) at `{SHA[:8]}`") == named


def test_calls_are_shown_of_the_newest_commit_that_has_them():
    host = {"host.Call.track_forward": {("'sbhd'",): 16e-6, ("'bshd'",): 15e-6}}
    host["host.Call.track_forward_backward"] = {("'sbhd'",): 129.44e-6}
    host["host.PathCall.track_forward"] = {("'thd'",): 3.28e-5}
    host["peers.Call.track_forward"] = {("'fla'",): 1e-4}
    found = [readme_tables.Stored("a" * 7, host), readme_tables.Stored("b" * 7, {})]
    *intro, _, _, _, sbhd, bshd, thd, fla = readme_tables.calls(found)
    assert "`aaaaaaa`" in " ".join(intro)
    assert sbhd == "| `apply_rotary_pos_emb`, sbhd | 16.0 | 129.4 |"
    assert bshd == "| `apply_rotary_pos_emb`, bshd | 15.0 | n/a |"
    assert (thd, fla) == ("| `thd` | 32.8 | n/a |", "| fla | 100.0 | n/a |")


def test_compiled_calls_are_shown_by_head_size_those_that_were_measured(monkeypatch, tmp_path):
    head = "| channels a head | `compile`, half precision | `compile`, float32 |"
    more = " `compile-angles`, half precision | `compile-angles`, float32 |"
    shipped(tmp_path, "throughput")
    assert head in readme_evidence.peers(tmp_path)
    shipped(tmp_path, "study")
    *_, first, last = lines = readme_evidence.peers(tmp_path)
    assert head + more in lines
    for size, line in (("192", first), ("256", last)):  # the study has no float32
        gains = r"\| [12]\.\d\d, [12]\.\d\d \|  "
        assert re.fullmatch(rf"\| {size} ({gains}){{2}}\|", line), line
    shipped(tmp_path, "models")  # which has no compiled calls, and other head sizes
    *_, also_first, also_last = lines = readme_evidence.peers(tmp_path)
    assert (also_first, also_last) == (first, last)
    assert any("| throughput, of 120 | study, of 44 | models, of 93 |" in line for line in lines)
