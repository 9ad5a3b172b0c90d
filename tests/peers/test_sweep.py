"""The sweep: what it measures, how it resumes after a kill, and the files that it writes."""

import dataclasses
import itertools
import os
import statistics
import sys
import types
import uuid
import xml.etree.ElementTree as ET
from collections import Counter

import pytest
import torch

from benchmarks import __main__ as entry
from benchmarks._measure import cell_outcomes
from benchmarks._measure.cell_outcomes import Outcome
from benchmarks._peers.providers import PROVIDERS
from benchmarks._peers.sweep import command, plots, state
from benchmarks._peers.sweep.experiments import EXPERIMENTS
from benchmarks._peers.sweep.state import SweepError
from benchmarks._site import readme_tables
from benchmarks._subject import BACKWARD
from benchmarks._system import gpu_monitor
from benchmarks._system.journal import Journal
from tests.lab import MACHINE, UUID
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
        assert {timing.cell.provider for timing in timings} <= FULL[name].about.keys()
    assert sum(len(FULL[name].timings) for name in EXPERIMENTS) < 4500
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


def test_a_killed_run_goes_on(bench, undrawn, monkeypatch, capsys):
    """Also what the stopped process has measured is known, though its group was not finished."""

    def killed(count):
        if count == 50:
            raise Killed

    timings, path = SMALL["bandwidth"].timings, bench.path("bandwidth")
    bench.before = killed
    with pytest.raises(Killed):
        sweep("--experiment", "bandwidth")
    assert len(state.read(path).rows) == 50
    with path.open("ab") as file:
        file.write(b'{"direction": "forw')  # a kill while it is written
    bench.before, _ = lambda count: None, capsys.readouterr()
    clock = types.SimpleNamespace(monotonic=itertools.count(0, 60).__next__)
    monkeypatch.setattr(command, "time", clock)
    assert sweep("--experiment", "bandwidth") == 0
    assert Counter(bench.measured) == Counter(timings)  # none twice
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(f"bandwidth: 50 of {len(timings)} timings are known, from ")
    assert said[1::3] == [
        "bandwidth: 81 of 162 timings in 60 s, about 157 s left (28 measured, 3 n/a)",
        "bandwidth: 162 of 162 timings in 240 s, about 0 s left (100 measured, 12 n/a)",
    ]
    assert sweep("--experiment", "bandwidth") == 0
    assert len(bench.measured) == len(timings)


def test_a_larger_grid_goes_on_from_a_smaller(bench, undrawn, tmp_path):
    sweep("--experiment", "milliseconds")
    full = ["sweep", "--experiment", "milliseconds", "--output", str(tmp_path)]
    assert entry.main(full) == 0
    assert Counter(bench.measured) == Counter(FULL["milliseconds"].timings)  # none twice
    published = state.read(tmp_path / "milliseconds.jsonl")
    assert list(published.rows) == FULL["milliseconds"].timings
    assert published.header["grid"] == "full" and "--grid" not in published.header["command"]


# --- processes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["study", "throughput", "bandwidth", "models"])
def test_a_process_measures_whole_points_and_not_too_many(name):
    timings = FULL[name].timings
    groups = list(command.grouped(timings))
    assert sum(groups, []) == timings
    points = [{(t.direction, dataclasses.astuple(t.cell)[1:]) for t in group} for group in groups]
    assert sum(map(len, points)) == len(set().union(*points))
    sizes = list(map(len, groups))
    assert max(sizes) <= 36 and statistics.median(sizes) > 18


def pretended(timings, gpu, model, file, together):
    """A process on a made-up GPU, which 2048 tokens end."""
    found = types.SimpleNamespace(
        name="Toy", uuid=uuid.UUID(os.environ["CUDA_VISIBLE_DEVICES"][4:])
    )
    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_properties = lambda index: found

    def measure_cells(cells, direction, finished, together):
        for cell in cells:
            if cell.seq_len == 2048:
                print("out of order", file=sys.stderr, flush=True)
                os._exit(9)
            finished(cell, Outcome((1e-6,), (2e-6 if together else 3e-6,)))

    cell_outcomes.measure_cells = measure_cells
    command._work(timings, gpu, model, file, together)


def unstarted(*job):
    sys.exit("no libcuda")


def test_a_process_that_ends_costs_one_timing(monkeypatch):
    first, *_ = SMALL["study"].of(["rope-triton"]).timings
    timings = [
        first._replace(cell=dataclasses.replace(first.cell, seq_len=length))
        for length in (256, 512, 2048, 4096)
    ]
    timings.append(timings[0]._replace(direction=BACKWARD))
    rows = []
    with monkeypatch.context() as patched:
        patched.setattr(command, "_work", pretended)
        command.measure(timings, UUID, "Toy", rows.extend)
        assert [row.timing for row in rows] == timings and {row.gpu for row in rows} == {UUID}
        lost = rows.pop(2)
        assert lost.status == "failed" and "ended with 9" in lost.outcome.error
        assert "out of order" in lost.outcome.error
        # Which of a point's timings is to blame is not known until each is alone.
        assert [row.outcome.copy for row in rows] == [(2e-6,)] * 2 + [(3e-6,)] * 2
        first_ends, again = timings[2:], []
        command.measure(first_ends, UUID, "Toy", again.extend)
        assert [row.timing for row in again] == first_ends
        assert [row.status for row in again] == ["failed", "measured", "measured"]
        with pytest.raises(SweepError, match="a Other, and found .*'Toy'"):
            command.measure(timings, UUID, "Other", rows.extend)
        patched.setattr(command, "_work", unstarted)
        with pytest.raises(SweepError, match="ended with 1(.|\n)*no libcuda"):
            command.measure(timings, UUID, "Toy", rows.extend)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SweepError, match=f"see GPU {UUID}, a Toy, and found None"):
        command.measure(timings, UUID, "Toy", rows.extend)
    assert len(rows) == 4


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["machine", "commit", "software", "suite"])
def test_another_sweeps_journal_is_refused_and_renamed_when_asked(bench, undrawn, what, capsys):
    sweep("--experiment", "milliseconds")
    path, count = bench.path("milliseconds"), len(bench.measured)
    head = state.read(path).header | {what: {"of": "another"}}
    path.unlink()
    with Journal(path, head):
        assert sweep("--experiment", "milliseconds") == 3
    assert "is in use by" in capsys.readouterr().err
    assert sweep("--experiment", "milliseconds") == 3
    said = capsys.readouterr().err
    assert f"{what}" in said and "another" in said and "--afresh" in said
    assert len(bench.measured) == count
    assert sweep("--experiment", "milliseconds", "--afresh") == 0
    assert len(bench.measured) == 2 * count
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


def test_it_measures_a_commit_on_a_gpu_that_is_free(bench, monkeypatch, capsys):
    def busy(uuid, *_):
        raise gpu_monitor.GpuBusyError(f"GPU {uuid} is in use")

    for guard in ("gpu_lock", "require_free"):
        with monkeypatch.context() as patched:
            patched.setattr(gpu_monitor, guard, busy)
            assert sweep() == 3
        assert f"GPU {UUID} is in use" in capsys.readouterr().err
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
    page = (out / f"{name}.md").read_text()
    told = [MACHINE["gpu"], SHA[:8], f"python -m benchmarks sweep --experiment {name} --grid small"]
    assert all(text in page for text in told)
    assert all(f"- `{provider}`: " in page for provider in experiment.figures[0].providers)
    for figure in experiment.figures:
        assert f"## {figure.title}" in page and (f"]({figure.name}.png)" in page) == figure.drawn
        if not figure.drawn:
            assert not list(out.glob(f"{figure.name}.*"))
            continue
        assert (out / f"{figure.name}.png").read_bytes().startswith(b"\x89PNG")
        picture = out / f"{figure.name}.svg"
        assert all(text in picture.read_text() for text in told)
        ET.fromstring(picture.read_bytes())
    if experiment.figures[-1].drawn:
        before = picture.read_bytes()
        plots.draw(figure, results, out)
        assert picture.read_bytes() == before


def test_without_matplotlib_there_are_tables(bench, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert sweep("--experiment", "milliseconds", "--output", str(tmp_path)) == 0
    assert "no plots: matplotlib is not installed: pip install" in capsys.readouterr().err
    names = {path.name for path in tmp_path.iterdir()} - {"state", "evidence"}
    assert names == {f"milliseconds.{form}" for form in ("jsonl", "md")}
    assert "![" not in (tmp_path / "milliseconds.md").read_text()


def test_what_ships_is_what_the_shipped_rows_make(undrawn, tmp_path):
    """The pages and rows of benchmarks/evidence/sweep, made again."""
    whole = set()
    for machine in command.EVIDENCE.iterdir():
        output = tmp_path / machine.name
        assert entry.main(["sweep", "--redraw", str(machine), "--output", str(output)]) == 0
        made = sorted(output.iterdir())
        shipped = {path.stem for path in made}
        assert len(made) == 2 * len(shipped)
        for path in made:
            assert path.read_bytes() == (machine / path.name).read_bytes(), path
        whole |= {machine.name} if shipped == set(EXPERIMENTS) else set()
    assert whole == {readme_tables.MACHINE}
    assert len(undrawn) == 4 + 2 + 8 + 6
    assert entry.main(["sweep", "--redraw", str(tmp_path / "nowhere")]) == 3


def test_what_ships_is_whole(bench, undrawn, capsys):
    assert sweep("--ship") == 3
    assert entry.main(["sweep", "--ship", "--providers", "copy"]) == 3
    assert "full grid with every provider" in capsys.readouterr().err
    assert not bench.evidence.exists()
    assert entry.main(["sweep", "--experiment", "milliseconds", "--ship"]) == 0
    shipped = state.read(bench.evidence / MACHINE["machine"] / "milliseconds.jsonl")
    assert set(shipped.rows) == set(FULL["milliseconds"].timings)
    sweep("--experiment", "bandwidth", "--afresh")
    assert entry.main(["sweep", "--redraw", str(bench.output), "--ship"]) == 3


# --- what they show -------------------------------------------------------------------------------


def test_what_is_missing_and_what_is_wrong_is_said(bench, undrawn, tmp_path, capsys):
    assert sweep("--experiment", "throughput", "--output", str(tmp_path)) == 1
    page = (tmp_path / "throughput.md").read_text()
    assert "| n/a |" in page and "| **wrong** |" in page
    assert f"12 timings n/a: ``` {sweeping.MISSING} ```" in page
    printed = capsys.readouterr().out
    assert f"transformer-engine: nothing measured: {sweeping.MISSING}" in printed
    assert "3 timings wrong: ``` AssertionError: Tensor-likes are not close! ```" in page
    assert "| 8 | not given | +44% |" in page and "| n/a |  | wrong |  |" in page
    assert "WRONG: forward PeerCell(provider='seed'" in printed
    # A line has a gap, and its label a word.
    assert plots._label("fla", ["measured"] * 3) == "fla"
    assert plots._label("fla", ["n/a"] * 3) == "fla (n/a)"
    states = ["measured", "wrong", "wrong", "n/a"]
    assert plots._label("fla", states) == "fla (2 wrong, 1 n/a)"


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


def test_a_models_page_has_a_row_for_each_model_and_a_column_for_each_provider(
    bench, undrawn, tmp_path
):
    def answer(timing):
        if getattr(timing.cell, "model", "") == "deepseek-v3-q" and timing.cell.provider == "liger":
            return Outcome(unavailable="liger has no interleaved rotation")
        share = {"rope-triton": 1.0, "quack": 0.5}.get(timing.cell.provider, 0.8)
        return Outcome((1e-5 / share,), (1e-5,))

    bench.answer = answer
    assert sweep("--experiment", "models", "--output", str(tmp_path)) == 0
    assert not undrawn
    page = (tmp_path / "models.md").read_text()
    forward, backward, decode, *_ = (p for p in page.split("\n## ") if p.startswith("Share of"))
    columns = "rope-triton | rope-triton-tables | copy | flash-attention | fla | liger | quack"
    assert f"| model | {columns} | vllm | flashinfer |" in forward and "vllm" not in backward
    latent = "| deepseek-v3-q | 1.000 | 0.800 | 0.800 | 0.800 | 0.800 | n/a | 0.500 |"
    assert all(latent in part for part in (forward, backward, decode))
    assert "| quack | 20 | 2.00 | 2.00 | 2.00 | 0 |" in page
    assert "- `liger`, 3 timings n/a: ``` liger has no interleaved rotation ```" in page
    assert "- `flash-attention`: apply_rotary_emb of each tensor" in page
