"""The sweep: what it measures, how it resumes after a kill, and the files that it writes."""

import csv
import json
import statistics
import sys
import types
import xml.etree.ElementTree as ET
from collections import Counter

import pytest

from benchmarks import __main__ as entry
from benchmarks._measure.workload import Outcome
from benchmarks._peers.providers import PROVIDERS
from benchmarks._peers.sweep import command, plots, state, tables
from benchmarks._peers.sweep.experiments import EXPERIMENTS, Timing
from benchmarks._system.journal import Journal
from tests.lab import MACHINE
from tests.peers import sweeping
from tests.peers.sweeping import FULL, SHA, SMALL, sweep

bench, undrawn = sweeping.bench, sweeping.undrawn  # fixtures


# --- what is measured -----------------------------------------------------------------------------


def test_the_experiments_are_those_of_the_seeds():
    figures = FULL["throughput"].figures
    assert [{cell.batch for cell in figure.cells} for figure in figures] == [{1}, {2}, {4}, {8}]
    for figure in figures:
        seq_lens = {cell.seq_len for cell in figure.cells}
        assert seq_lens == {128 * i for i in range(2, 32)}
        assert {(c.hidden_size, c.heads, c.dtype, c.format) for c in figure.cells} == {
            (128, 64, "float16", "sbhd")
        }
        assert figure.metric == "gbps" and figure.direction == "forward"
    assert {t.cell.seq_len for t in FULL["milliseconds"].timings} == {32, 64, 128, 256, 512}
    study = FULL["study"].figures
    assert Counter(figure.direction for figure in study) == {"forward": 4, "backward": 4}
    for figure in study:  # one thing varies
        for name in ("seq_len", "hidden_size", "heads", "batch", "dtype", "format"):
            values = {getattr(cell, name) for cell in figure.cells}
            assert (len(values) > 1) == (name == figure.axis)
    sizes = [2**power for power in range(11)]
    for figure in FULL["bandwidth"].figures:
        assert sorted(set(map(figure.position, figure.cells))) == sizes
        assert figure.metric == "share"


def test_every_timing_is_measured_once_and_every_provider_is_known():
    for name in EXPERIMENTS:
        timings = FULL[name].timings
        assert len(set(timings)) == len(timings)
        assert set(SMALL[name].timings) < set(timings)
        assert {timing.cell.provider for timing in timings} <= PROVIDERS.keys()
        names = [figure.name for figure in FULL[name].figures]
        assert len(set(names)) == len(names)
    assert sum(len(FULL[name].timings) for name in EXPERIMENTS) < 2200
    assert PROVIDERS.keys() == plots.STYLES.keys()
    looks = [(style.marker, style.line) for style in plots.STYLES.values()]
    assert len(set(looks)) == len(looks)  # told apart without any colour


def test_only_the_providers_that_are_asked_for(bench, undrawn, capsys):
    assert sweep("--experiment", "study", "--providers", "rope-triton,liger") == 0
    assert {timing.cell.provider for timing in bench.measured} == {"rope-triton", "liger"}
    assert "--providers rope-triton,liger" in (bench.output / "study.md").read_text()
    with pytest.raises(SystemExit):
        sweep("--providers", "rope-tritone")
    assert "rope-tritone" in capsys.readouterr().err
    assert sweep("--experiment", "study", "--providers", "copy") == 3
    assert "study has none of copy" in capsys.readouterr().err


# --- going on -------------------------------------------------------------------------------------


class Killed(BaseException):
    """Ends a run as Ctrl-C does."""


def test_a_killed_run_goes_on(bench, undrawn, capsys):
    def killed(uuid, timing, count):
        if count == 50:
            raise Killed

    timings, path = SMALL["bandwidth"].timings, bench.path("bandwidth")
    bench.before = killed
    with pytest.raises(Killed):
        sweep("--experiment", "bandwidth")
    assert len(state.read(path).rows) == 50
    with path.open("ab") as file:
        file.write(b'{"direction": "forw')  # a kill while it is written
    bench.before = lambda *_: None
    assert sweep("--experiment", "bandwidth") == 0
    assert Counter(bench.measured) == Counter(timings)  # none twice
    assert f"50 of {len(timings)} timings are known" in capsys.readouterr().err
    assert sweep("--experiment", "bandwidth") == 0
    assert len(bench.answered) == len(timings)


def test_a_larger_grid_goes_on_from_a_smaller(bench, undrawn, tmp_path):
    sweep("--experiment", "milliseconds")
    full = ["sweep", "--experiment", "milliseconds", "--output", str(tmp_path)]
    assert entry.main(full) == 0
    assert Counter(bench.measured) == Counter(FULL["milliseconds"].timings)  # none twice
    published = state.read(tmp_path / "milliseconds.jsonl")
    assert list(published.rows) == FULL["milliseconds"].timings
    assert published.header["grid"] == "full" and "--grid" not in published.header["command"]


def test_progress_is_said_from_time_to_time(capsys):
    now = [0.0]
    progress = command._Progress("study", 10, 4, lambda: now[0])
    row = state.Row(SMALL["study"].timings[0], Outcome(latency=(1.0,)), "")
    for _ in range(6):
        now[0] += 6
        progress.tell(row)
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "study: 6 of 10 timings in 12 s, about 24 s left (2 measured)",
        "study: 8 of 10 timings in 24 s, about 12 s left (4 measured)",
        "study: 10 of 10 timings in 36 s, about 0 s left (6 measured)",
    ]


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["machine", "commit", "software", "suite"])
def test_another_sweeps_journal_is_refused_and_renamed_when_asked(bench, undrawn, what, capsys):
    sweep("--experiment", "milliseconds")
    path, count = bench.path("milliseconds"), len(bench.answered)
    head = state.read(path).header | {what: {"of": "another"}}
    path.unlink()
    with Journal(path, head):
        assert sweep("--experiment", "milliseconds") == 3
    assert "is in use by" in capsys.readouterr().err
    assert sweep("--experiment", "milliseconds") == 3
    said = capsys.readouterr().err
    assert f"{what}" in said and "another" in said and "--afresh" in said
    assert len(bench.answered) == count
    assert sweep("--experiment", "milliseconds", "--afresh") == 0
    assert len(bench.answered) == 2 * count
    (aside,) = path.parent.glob("milliseconds.[0-9]*.jsonl")
    assert state.read(aside).header[what] == {"of": "another"}


@pytest.mark.parametrize(
    "entry", [{}, {"direction": "forward", "cell": [1], "latency": [1], "gpu": ""}]
)
def test_an_entry_that_is_no_row_is_refused(bench, undrawn, entry, capsys):
    sweep("--experiment", "milliseconds")
    path = bench.path("milliseconds")
    head = state.read(path).header
    path.unlink()
    with Journal(path, head) as journal:
        journal.append(entry)
    assert sweep("--experiment", "milliseconds") == 3
    assert f"{path}, line 2, is no row" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["format", "schema"])
def test_another_kind_of_file_is_refused(tmp_path, key):
    path = tmp_path / "throughput.jsonl"
    path.write_text(json.dumps({"format": state.FORMAT, "schema": state.SCHEMA, key: "?"}) + "\n")
    with pytest.raises(state.SweepError, match=f"no sweep of {key}"):
        state.read(path)


def test_checks_that_an_earlier_version_stored_are_passed_over(bench, undrawn, tmp_path):
    sweep("--experiment", "milliseconds", "--output", str(tmp_path))
    path = tmp_path / "milliseconds.jsonl"
    before = state.read(path)
    with path.open("a") as file:
        file.write('{"check":{"seq_len":32,"passes":true}}\n')
    assert state.read(path) == before


def test_it_measures_a_commit_on_a_gpu(bench, monkeypatch, capsys):
    with monkeypatch.context() as patched:
        changed = types.SimpleNamespace(sha="")
        patched.setattr(command.checkout, "from_working_tree", lambda *_: changed)
        assert sweep() == 3
    assert "rope_triton differs from HEAD" in capsys.readouterr().err
    monkeypatch.setattr(command.machine, "probe", lambda: (MACHINE | {"gpu": "none"}, "none"))
    assert sweep() == 3
    assert "no NVIDIA GPU" in capsys.readouterr().err


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_ends_in_files(bench, name, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(plots, "_DPI", 40)  # faster
    out = tmp_path / "out"
    status = sweep("--experiment", name, "--output", str(out))
    assert status == (1 if name == "throughput" else 0)  # where a provider is wrong
    experiment = SMALL[name]
    assert Counter(bench.measured) == Counter(experiment.timings)
    results = state.read(out / f"{name}.jsonl")
    assert list(results.rows) == experiment.timings
    _check_csv(out / f"{name}.csv", experiment)
    page = (out / f"{name}.md").read_text()
    told = [MACHINE["gpu"], SHA[:8], f"python -m benchmarks sweep --experiment {name} --grid small"]
    assert all(text in page for text in told)
    for figure in experiment.figures:
        assert f"]({figure.name}.png)" in page
        assert (out / f"{figure.name}.png").read_bytes().startswith(b"\x89PNG")
        picture = out / f"{figure.name}.svg"
        assert all(text in picture.read_text() for text in told)
        ET.fromstring(picture.read_bytes())
    before = picture.read_bytes()
    plots.draw(figure, results, out)
    assert picture.read_bytes() == before


def _check_csv(path, experiment):
    lines = path.read_text().splitlines()
    comments = [line for line in lines if line.startswith("#")]
    assert len(comments) == 3 and MACHINE["gpu"] in comments[0] and SHA[:8] in comments[1]
    rows = list(csv.DictReader(lines[len(comments) :]))
    assert len(rows) == len(experiment.timings)
    for row, timing in zip(rows, experiment.timings, strict=True):
        expected = sweeping.outcome(timing)
        assert (row["direction"], row["provider"]) == (timing.direction, timing.cell.provider)
        if not expected.latency:
            assert row["latency_s"] == row["gbps"] == "" and row["reason"]
            continue
        seconds = statistics.median(expected.latency)
        assert float(row["latency_s"]) == pytest.approx(seconds, rel=1e-5)
        gbps = timing.cell.bytes_moved / seconds / 1e9
        assert float(row["gbps"]) == pytest.approx(gbps, rel=1e-4)


def test_without_matplotlib_there_are_tables(bench, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert sweep("--experiment", "milliseconds", "--output", str(tmp_path)) == 0
    assert "no plots: matplotlib is not installed: pip install" in capsys.readouterr().err
    names = {path.name for path in tmp_path.iterdir()} - {"state", "evidence"}
    assert names == {f"milliseconds.{form}" for form in ("jsonl", "csv", "md")}
    assert "![" not in (tmp_path / "milliseconds.md").read_text()


def test_redraw_needs_no_gpu_and_gives_the_same(bench, undrawn, monkeypatch, tmp_path):
    sweep("--experiment", "bandwidth", "--output", str(tmp_path / "there"))
    monkeypatch.setattr(command, "_sweep", None)
    words = ["sweep", "--redraw", str(tmp_path / "there"), "--output", str(tmp_path / "here")]
    assert entry.main(words) == 0
    for path in sorted((tmp_path / "there").iterdir()):
        assert (tmp_path / "here" / path.name).read_bytes() == path.read_bytes()
    assert entry.main(["sweep", "--redraw", str(tmp_path / "nowhere")]) == 3


def test_what_ships_is_what_the_shipped_rows_make(undrawn, tmp_path):
    """The CSV files, pages and rows of benchmarks/evidence/sweep, made again."""
    assert entry.main(["sweep", "--redraw", str(command.EVIDENCE), "--output", str(tmp_path)]) == 0
    made = sorted(tmp_path.iterdir())
    assert len(made) == 3 * len(EXPERIMENTS)
    for path in made:
        assert path.read_bytes() == (command.EVIDENCE / path.name).read_bytes(), path.name


def test_what_ships_is_whole(bench, undrawn, capsys):
    assert sweep("--ship") == 3
    assert entry.main(["sweep", "--ship", "--providers", "copy"]) == 3
    assert "full grid with every provider" in capsys.readouterr().err
    assert not bench.evidence.exists()
    assert entry.main(["sweep", "--experiment", "milliseconds", "--ship"]) == 0
    shipped = state.read(bench.evidence / "milliseconds.jsonl")
    assert set(shipped.rows) == set(FULL["milliseconds"].timings)
    sweep("--experiment", "bandwidth", "--afresh")
    assert entry.main(["sweep", "--redraw", str(bench.output), "--ship"]) == 3


# --- what they show -------------------------------------------------------------------------------


def test_figures_show_their_metric(bench, undrawn, tmp_path):
    sweep("--output", str(tmp_path))
    for name in EXPERIMENTS:
        results = state.read(tmp_path / f"{name}.jsonl")
        for figure in SMALL[name].figures:
            row = results.rows[Timing(figure.direction, figure.cells[0])]
            expected = {
                "gbps": row.timing.cell.bytes_moved / row.seconds / 1e9,
                "milliseconds": row.seconds * 1e3,
                "share": pytest.approx(row.copy_seconds / row.seconds, rel=0.02),
            }
            assert tables.value(figure, row) == expected[figure.metric]
            first = tables.figure_table(figure, results)[2].split(" | ")
            assert float(first[1]) == pytest.approx(tables.value(figure, row), abs=0.5)
    assert len(undrawn) == 4 + 2 + 8 + 6


def test_what_is_missing_and_what_is_wrong_is_said(bench, undrawn, tmp_path, capsys):
    assert sweep("--experiment", "throughput", "--output", str(tmp_path)) == 1
    page = (tmp_path / "throughput.md").read_text()
    assert "| n/a |" in page and "| **wrong** |" in page
    assert f"12 timings n/a: ``` {sweeping.MISSING} ```" in page
    assert "3 timings wrong: ``` AssertionError: Tensor-likes are not close! ```" in page
    assert "| 8 | not given | +44% |" in page and "| n/a |  | wrong |  |" in page
    assert "WRONG: forward PeerCell(provider='seed'" in capsys.readouterr().out
    # A line has a gap, and its label a word.
    assert plots._label("fla", ["measured"] * 3) == "fla"
    assert plots._label("fla", ["n/a"] * 3) == "fla (n/a)"
    states = ["measured", "wrong", "wrong", "n/a"]
    assert plots._label("fla", states) == "fla (2 wrong, 1 n/a)"


def test_the_seeds_figures_stand_beside_ours(bench, undrawn, tmp_path):
    bench.answer = lambda timing: Outcome((1e-5,), (1e-5,))
    sweep("--experiment", "throughput", "--output", str(tmp_path))
    lines = (tmp_path / "throughput.md").read_text().splitlines()
    first, second, fourth, eighth = (line for line in lines if line.startswith("| ") if "%" in line)
    assert first.startswith("| 1 | about 260 GB/s | +4% |")
    assert second.startswith("| 2 | about 310 GB/s | +24% |")
    assert fourth.startswith("| 4 | not given | +36% |")
    assert eighth.startswith("| 8 | not given | +44% |") and eighth.endswith("| +0% |")
    assert "https://github.com/nicksypark/rope-triton" in "\n".join(lines)


def test_what_is_faster_than_the_package_is_counted(bench, undrawn, tmp_path):
    """In the bandwidth experiment, the tables are faster in the forward."""

    def answer(timing):
        fast = timing.cell.provider == "rope-triton-tables" and timing.direction == "forward"
        units = {"compile": 3, "compile-angles": 5}.get(timing.cell.provider, 1 if fast else 2)
        return Outcome((units * 1e-5,), (1e-5,))

    bench.answer = answer
    sweep("--experiment", "bandwidth", "--output", str(tmp_path))
    page = (tmp_path / "bandwidth.md").read_text()
    assert "| rope-triton-tables | 18 | 0.50 | 0.75 | 1.00 | 9 |" in page
    assert "| compile | 18 | 1.50 | 1.50 | 1.50 | 0 |" in page
    # Of 1, 32 and 256 MiB, two dtypes, both ways.
    assert "at least 1.50 times as fast as `compile`, in 8 timings" in page
    assert "at least 2.50 times as fast as `compile-angles`, in 8 timings" in page
