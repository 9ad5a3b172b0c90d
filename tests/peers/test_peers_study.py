"""The study of peers: what it measures, and the files that it writes."""

import io
import itertools
import json
import statistics
import sys
import types
import xml.etree.ElementTree as ET
from collections import Counter

import pytest

from benchmarks._engine.measure import cell_outcomes
from benchmarks._engine.measure.cell_outcomes import Outcome
from benchmarks._engine.system import checkout
from benchmarks._engine.system.journal import JournalError, read
from benchmarks._site import readme
from benchmarks._studies.peers import peers_study, plots, state
from benchmarks._studies.peers.experiments import EXPERIMENTS
from benchmarks._studies.peers.providers import PROVIDERS
from benchmarks._studies.runner import Notes
from tests.lab import MACHINE, UUID
from tests.peers import timer as times
from tests.peers.timer import FULL, SHA, SMALL, peers
from tests.studies import common
from tests.studies.common import study

processes = common.processes  # a fixture

timer, undrawn = times.timer, times.undrawn  # fixtures
SHIPPED = peers_study.EVIDENCE


# --- what is measured -----------------------------------------------------------------------------


def test_every_timing_is_measured_once_and_every_provider_is_known():
    for name in EXPERIMENTS:
        timings = FULL[name].timings
        assert len(set(timings)) == len(timings)
        assert set(SMALL[name].timings) < set(timings)
        assert {timing.cell.provider for timing in timings} <= PROVIDERS.keys()
        names = [figure.name for figure in FULL[name].figures]
        assert len(set(names)) == len(names)
        assert {timing.cell.provider for timing in timings} <= FULL[name].about.keys()
    assert sum(len(FULL[name].timings) for name in EXPERIMENTS) < 4500
    assert PROVIDERS.keys() == plots.STYLES.keys()
    looks = [(style.marker, style.line) for style in plots.STYLES.values()]
    assert len(set(looks)) == len(looks)  # told apart without any colour


def test_only_what_is_asked_for(timer, undrawn, capsys):
    only = [word for name in ("study", "rope-triton", "liger") for word in ("--only", name)]
    assert peers(*only) == 0
    assert {timing.cell.provider for timing in timer.measured} == {"rope-triton", "liger"}
    assert "--only rope-triton --only liger\n" in (timer.output / "study.md").read_text()
    with pytest.raises(SystemExit):
        peers("--only", "rope-tritone")
    assert "rope-tritone" in capsys.readouterr().err
    assert peers("--only", "study", "--only", "copy") == 3
    assert "study has none of copy" in capsys.readouterr().err


def test_a_larger_grid_goes_on_from_a_smaller_that_was_killed(timer, undrawn, tmp_path):
    """Also what the stopped process has measured is kept, though its group was not finished."""

    def killed(count):
        if count == 20:
            raise KeyboardInterrupt

    timer.before = killed
    assert peers("--only", "milliseconds") == 130
    assert len(read(timer.path("milliseconds"))[1:]) == 20
    timer.before = lambda count: None
    for grid in ("small", "full"):
        assert peers("--only", "milliseconds", "--output", str(tmp_path), grid=grid) == 0
    assert Counter(timer.measured) == Counter(FULL["milliseconds"].timings)  # none twice
    published = state.read_experiment(tmp_path / "milliseconds.jsonl")[1]
    assert list(published.rows) == FULL["milliseconds"].timings
    assert published.header["grid"] == "full" and "--grid" not in published.header["command"]
    assert {"machine", "commit", "software", "suite"} <= published.header.keys()


# --- processes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["study", "throughput", "bandwidth", "models"])
def test_a_process_measures_whole_points_and_not_too_many(name):
    timings = FULL[name].timings
    groups = list(peers_study.grouped(timings))
    assert sum(groups, []) == timings
    points = [{(t.direction, t.cell.values[1:]) for t in group} for group in groups]
    assert sum(map(len, points)) == len(set().union(*points))
    sizes = list(map(len, groups))
    assert max(sizes) <= 36 and statistics.median(sizes) > 18


@pytest.mark.parametrize("alone", [False, True])
def test_a_process_notes_each_row_and_alone_also_where_it_is(alone, monkeypatch):
    timings = [t for t in SMALL["study"].of(["rope-triton"]).timings if t.cell.values[3] == 32][:3]
    timings.append(timings[0]._replace(direction="backward"))

    def measure_cells(cells, direction, finished, together):
        assert together != alone
        for cell in cells:
            finished(cell, Outcome((1e-6,), (2e-6,)))

    monkeypatch.setattr(cell_outcomes, "measure_cells", measure_cells)
    stream = io.StringIO()
    peers_study.measure(timings, alone, Notes(stream), UUID)
    notes = [
        note["at"] if "at" in note else state.from_json(note["row"]).timing
        for note in map(json.loads, stream.getvalue().splitlines())
    ]
    numbered = list(itertools.chain.from_iterable(enumerate(timings)))
    assert notes == (numbered if alone else timings)


# --- files ----------------------------------------------------------------------------------------


def test_it_measures_a_commit(timer, monkeypatch, capsys):
    changed = types.SimpleNamespace(sha="", digest="digest")
    monkeypatch.setattr(checkout, "from_working_tree", lambda *_: changed)
    assert peers() == 3
    assert "rope_triton differs from HEAD" in capsys.readouterr().err and not timer.measured


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_ends_in_files(timer, name, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(plots, "_DPI", 40)  # faster
    out = tmp_path / "out"
    status = peers("--only", name, "--output", str(out))
    assert status == (1 if name == "throughput" else 0)  # where a provider is wrong
    experiment = SMALL[name]
    assert Counter(timer.measured) == Counter(experiment.timings)
    results = state.read_experiment(out / f"{name}.jsonl")[1]
    assert list(results.rows) == experiment.timings
    page = (out / f"{name}.md").read_text()
    texts = [
        MACHINE["gpu"],
        SHA[:8],
        f"python -m benchmarks study peers --only {name} --grid small",
    ]
    assert all(text in page for text in texts)
    assert all(f"- `{provider}`: " in page for provider in experiment.figures[0].providers)
    for figure in experiment.figures:
        assert f"## {figure.title}" in page and (f"]({figure.name}.png)" in page) == figure.drawn
        if not figure.drawn:
            assert not list(out.glob(f"{figure.name}.*"))
            continue
        assert (out / f"{figure.name}.png").read_bytes().startswith(b"\x89PNG")
        picture = out / f"{figure.name}.svg"
        assert all(text in picture.read_text() for text in texts)
        ET.fromstring(picture.read_bytes())
    if experiment.figures[-1].drawn:
        before = picture.read_bytes()
        plots.draw(figure, results, out)
        assert picture.read_bytes() == before


def test_without_matplotlib_there_are_tables(timer, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert peers("--only", "milliseconds", "--output", str(tmp_path)) == 0
    assert "no plots: matplotlib is not installed: pip install" in capsys.readouterr().err
    names = {path.name for path in tmp_path.iterdir()} - {"studies", "evidence"}
    assert names == {f"milliseconds.{form}" for form in ("jsonl", "md")}
    assert "![" not in (tmp_path / "milliseconds.md").read_text()


def test_what_ships_is_what_the_shipped_rows_make(undrawn, tmp_path):
    """The pages and rows of benchmarks/evidence/sweep, made again."""
    complete = set()
    for machine in SHIPPED.iterdir():
        output = tmp_path / machine.name
        assert study("peers", "--redraw", str(machine), "--output", str(output)) == 0
        made = sorted(output.iterdir())
        shipped = {path.stem for path in made}
        assert len(made) == 2 * len(shipped)
        for path in made:
            assert path.read_bytes() == (machine / path.name).read_bytes(), path
        complete |= {machine.name} if shipped == set(EXPERIMENTS) else set()
    assert complete == {readme.MACHINE}
    assert set(undrawn) == {
        figure.name for experiment in FULL.values() for figure in experiment.figures if figure.drawn
    }
    assert study("peers", "--redraw", str(tmp_path / "nowhere")) == 3


def test_what_ships_is_whole(timer, undrawn, capsys):
    assert peers("--ship") == 3
    assert peers("--ship", "--only", "copy", grid="full") == 3
    assert "full grid with every provider" in capsys.readouterr().err
    assert not timer.evidence.exists()
    assert peers("--only", "milliseconds", "--ship", grid="full") == 0
    shipped = state.read_experiment(timer.evidence / MACHINE["machine"] / "milliseconds.jsonl")[1]
    assert set(shipped.rows) == set(FULL["milliseconds"].timings)
    peers("--only", "bandwidth", "--afresh")
    assert study("peers", "--redraw", str(timer.output), "--ship") == 3


# --- what they show -------------------------------------------------------------------------------


def test_what_is_missing_and_what_is_wrong_is_said(timer, undrawn, tmp_path, capsys):
    assert peers("--only", "throughput", "--output", str(tmp_path)) == 1
    page = (tmp_path / "throughput.md").read_text()
    assert "| n/a |" in page and "| **wrong** |" in page
    assert f"12 timings n/a: ``` {times.MISSING} ```" in page
    printed = capsys.readouterr().out
    assert f"- `transformer-engine`, 12 timings n/a: ``` {times.MISSING} ```" in printed
    assert "3 timings wrong: ``` AssertionError: Tensor-likes are not close! ```" in page
    assert "| 8 | not given | +44% |" in page and "| n/a |  | wrong |  |" in page
    assert "WRONG: forward PeerCell(suite='peers', values=('seed', " in printed
    # A line has a gap, and its label a word.
    assert plots._label("fla", ["measured"] * 3) == "fla"
    assert plots._label("fla", ["n/a"] * 3) == "fla (n/a)"
    states = ["measured", "wrong", "wrong", "n/a"]
    assert plots._label("fla", states) == "fla (2 wrong, 1 n/a)"


def test_rows_of_an_older_version_are_refused():
    row = {
        "direction": "forward",
        "cell": ["copy", 64, 1, 1, 128, "bfloat16", "sbhd"],
        "gpu": "GPU-0",
    }
    with pytest.raises(JournalError, match="a row's suite must be one of .*, got None"):
        state.from_json(row)
