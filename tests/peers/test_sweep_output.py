"""A sweep's output: from a command to CSV, pages and plots, and to what ships."""

import csv
import statistics
import sys
import xml.etree.ElementTree as ET
from collections import Counter

import pytest

from benchmarks import __main__ as entry
from benchmarks._measure.workload import Outcome
from benchmarks._peers.sweep import command, plots, state, tables
from benchmarks._peers.sweep.experiments import EXPERIMENTS, Timing
from tests.lab import MACHINE
from tests.peers import sweeping
from tests.peers.sweeping import FULL, SHA, SMALL, sweep

bench, undrawn = sweeping.bench, sweeping.undrawn  # fixtures


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


def test_only_the_providers_that_are_asked_for(bench, undrawn, capsys):
    assert sweep("--experiment", "study", "--providers", "rope-triton,liger") == 0
    assert {timing.cell.provider for timing in bench.measured} == {"rope-triton", "liger"}
    assert "--providers rope-triton,liger" in (bench.output / "study.md").read_text()
    with pytest.raises(SystemExit):
        sweep("--providers", "rope-tritone")
    assert "rope-tritone" in capsys.readouterr().err
    assert sweep("--experiment", "study", "--providers", "copy") == 3
    assert "study has none of copy" in capsys.readouterr().err


def test_without_matplotlib_there_are_tables(bench, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert sweep("--experiment", "milliseconds", "--output", str(tmp_path)) == 0
    assert "plots need matplotlib: pip install matplotlib" in capsys.readouterr().err
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


def test_a_line_has_a_gap_and_a_word_where_there_is_no_speed():
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
