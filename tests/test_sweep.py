"""The seeds' experiments: what is measured, what is kept, what is shown of it."""

import csv
import json
import statistics
import sys
import types
import xml.etree.ElementTree as ET
from collections import Counter

import pytest

from benchmarks import __main__ as entry
from benchmarks._peers.providers import PROVIDERS
from benchmarks._sweep import closeness, command, gpus, interference, plots, state, tables
from benchmarks._sweep.experiments import EXPERIMENTS, GRIDS, Timing, position
from benchmarks._sweep.state import SweepError
from benchmarks._workload import Outcome
from tests import sweeping
from tests.lab import MACHINE
from tests.sweeping import SHA, UUIDS

FULL, SMALL = GRIDS["full"], GRIDS["small"]


@pytest.fixture
def bench(monkeypatch, tmp_path):
    return sweeping.install(monkeypatch, tmp_path)


@pytest.fixture
def undrawn(monkeypatch):
    """No plot is drawn, which takes longest; the names of those that would be."""
    names = []
    monkeypatch.setattr(plots, "draw", lambda figure, *_: names.append(figure.name))
    return names


def sweep(*words) -> int:
    return entry.main(["sweep", "--grid", "small", *words])


# --- what is measured -----------------------------------------------------------------------------


def test_throughput_is_the_first_seeds():
    figures = FULL["throughput"].figures
    assert [{cell.batch for cell in figure.cells} for figure in figures] == [{1}, {2}, {4}, {8}]
    for figure in figures:
        seq_lens = {cell.seq_len for cell in figure.cells}
        assert seq_lens == {128 * i for i in range(2, 32)}
        assert {(c.hidden_size, c.heads, c.dtype, c.format) for c in figure.cells} == {
            (128, 64, "float16", "sbhd")
        }
        assert figure.metric == "gbps" and figure.direction == "forward"


def test_milliseconds_study_and_bandwidth_are_as_published():
    assert {t.cell.seq_len for t in FULL["milliseconds"].timings} == {32, 64, 128, 256, 512}
    study = FULL["study"].figures
    assert Counter(figure.direction for figure in study) == {"forward": 4, "backward": 4}
    for figure in study:  # one thing varies
        for name in ("seq_len", "hidden_size", "heads", "batch", "dtype", "format"):
            values = {getattr(cell, name) for cell in figure.cells}
            assert (len(values) > 1) == (name == figure.axis.name)
    sizes = [2**power for power in range(11)]
    for figure in FULL["bandwidth"].figures:
        assert sorted({position(figure.axis, cell) for cell in figure.cells}) == sizes
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


# --- from a command to files ----------------------------------------------------------------------


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


# --- resuming -------------------------------------------------------------------------------------


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


class Killed(BaseException):
    """Ends a run as Ctrl-C does."""


def killed_after(number: int):
    def before(uuid, timing, count):
        if count == number:
            raise Killed

    return before


def test_a_killed_run_goes_on(bench, undrawn, capsys):
    timings = SMALL["bandwidth"].timings
    bench.before = killed_after(50)
    with pytest.raises(Killed):
        sweep("--experiment", "bandwidth")
    assert len(state.read(bench.path("bandwidth")).rows) == 50
    bench.before = lambda *_: None
    assert sweep("--experiment", "bandwidth") == 0
    assert Counter(bench.measured) == Counter(timings)  # none twice
    assert f"50 of {len(timings)} timings are known" in capsys.readouterr().err
    assert sweep("--experiment", "bandwidth") == 0
    assert len(bench.answered) == len(timings)


def test_half_a_line_is_measured_again(bench, undrawn):
    sweep("--experiment", "milliseconds")
    path, count = bench.path("milliseconds"), len(bench.answered)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:10]) + lines[10][:20])
    assert sweep("--experiment", "milliseconds") == 0
    assert len(bench.answered) == count + count - 9
    assert list(state.read(path).rows) == SMALL["milliseconds"].timings


def test_a_larger_grid_goes_on_from_a_smaller(bench, undrawn, tmp_path):
    sweep("--experiment", "milliseconds")
    full = ["sweep", "--experiment", "milliseconds", "--output", str(tmp_path)]
    assert entry.main(full) == 0
    assert Counter(bench.measured) == Counter(FULL["milliseconds"].timings)  # none twice
    published = state.read(tmp_path / "milliseconds.jsonl")
    assert list(published.rows) == FULL["milliseconds"].timings
    assert published.header["grid"] == "full" and "--grid" not in published.header["command"]


@pytest.mark.parametrize("what", ["machine", "commit", "software", "suite"])
def test_another_sweeps_state_is_refused_and_set_aside_when_asked(bench, undrawn, what, capsys):
    sweep("--experiment", "milliseconds")
    path, count = bench.path("milliseconds"), len(bench.answered)
    head, *rows = path.read_text().splitlines()
    changed = json.loads(head) | {what: {"of": "another"}}
    path.write_text("\n".join([json.dumps(changed), *rows]) + "\n")
    assert sweep("--experiment", "milliseconds") == 3
    said = capsys.readouterr().err
    assert f"{what}: stored {{'of': 'another'}}" in said and "--afresh" in said
    assert len(bench.answered) == count
    assert sweep("--experiment", "milliseconds", "--afresh") == 0
    assert len(bench.answered) == 2 * count
    aside = path.with_name("milliseconds.aside-1.jsonl")
    assert json.loads(aside.read_text().splitlines()[0])[what] == {"of": "another"}


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "{}", '{"direction": "forward", "cell": [1], "latency": [1], "gpu": ""}'],
)
def test_a_damaged_state_is_refused(bench, undrawn, line, capsys):
    sweep("--experiment", "milliseconds")
    path = bench.path("milliseconds")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], line, *lines[2:]]) + "\n")
    assert sweep("--experiment", "milliseconds") == 3
    assert f"{path}, line 2" in capsys.readouterr().err


def test_two_sweeps_do_not_share_a_state(bench, undrawn, capsys):
    sweep("--experiment", "milliseconds")
    path = bench.path("milliseconds")
    head = json.loads(path.read_text().splitlines()[0])
    with state.State(path, head):
        assert sweep("--experiment", "milliseconds") == 3
    assert "in use by another sweep" in capsys.readouterr().err


def test_a_changed_package_is_refused(bench, monkeypatch, capsys):
    arm = types.SimpleNamespace(sha="")
    monkeypatch.setattr(command.arms, "from_working_tree", lambda *_: arm)
    assert sweep() == 3
    assert "rope_triton differs from HEAD" in capsys.readouterr().err


def test_without_a_gpu_it_says_so(bench, monkeypatch, capsys):
    machine = MACHINE | {"gpu": "none"}
    monkeypatch.setattr(command._machine, "probe", lambda: (machine, "none"))
    assert sweep() == 3
    assert "no NVIDIA GPU" in capsys.readouterr().err


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


# --- several GPUs ---------------------------------------------------------------------------------


def test_gpus_are_dealt_whole_points_in_turns():
    timings = SMALL["throughput"].timings
    hands = gpus.dealt(timings, 3)
    assert Counter(sum(hands, [])) == Counter(timings)
    assert hands == gpus.dealt(timings, 3)
    points = [{(t.direction, t.cell.seq_len, t.cell.batch) for t in hand} for hand in hands]
    assert sum(map(len, points)) == len(set().union(*points)) == 12
    assert [len(each) for each in points] == [4, 4, 4]


def test_a_process_has_one_direction_and_not_too_many_timings():
    timings = FULL["study"].timings
    groups = list(gpus.groups(timings))
    assert sum(groups, []) == timings
    assert all(len({timing.direction for timing in group}) == 1 for group in groups)
    assert max(map(len, groups)) <= gpus.GROUP_TIMINGS


@pytest.mark.parametrize(("given", "used"), [("2", 2), ("all", 3)])
def test_gpus_share_the_work(monkeypatch, tmp_path, undrawn, given, used):
    bench = sweeping.install(monkeypatch, tmp_path, count=3)
    assert sweep("--experiment", "bandwidth", "--gpus", given) == 0
    assert Counter(bench.measured) == Counter(SMALL["bandwidth"].timings)
    hands = gpus.dealt(SMALL["bandwidth"].timings, used)
    for uuid, hand in zip(UUIDS, hands, strict=False):
        assert {timing for who, timing in bench.answered if who == uuid} == set(hand)
    rows = state.read(bench.path("bandwidth")).rows
    assert {row.gpu for row in rows.values()} == set(UUIDS[:used])


def test_more_gpus_than_there_are(bench, capsys):
    assert sweep("--gpus", "2") == 3
    assert "--gpus 2, and CUDA sees 1 here" in capsys.readouterr().err
    for wrong in ("0", "-1", "some"):
        with pytest.raises(SystemExit):
            sweep("--gpus", wrong)


def test_a_gpu_of_another_model_is_refused(monkeypatch, tmp_path, undrawn, capsys):
    bench = sweeping.install(monkeypatch, tmp_path, count=2)
    bench.models[UUIDS[1]] = "Other"
    assert sweep("--experiment", "bandwidth", "--gpus", "2") == 3
    assert f"{UUIDS[1]} is a Other, and the results are a Toy's" in capsys.readouterr().err


def steady(timing):
    return Outcome((timing.cell.bytes_moved / 4e12,), (1e-5,))


@pytest.mark.parametrize(("together", "status"), [(1.004, 0), (0.95, 1), (1.02, 1)])
def test_gpus_that_disturb_each_other_are_found(monkeypatch, tmp_path, together, status, capsys):
    bench = sweeping.install(monkeypatch, tmp_path, count=2)
    bench.answer = steady
    bench.slower = lambda number: together if number in (3, 4) else 1.0
    words = ["--check-gpus", "--output", str(tmp_path / "out")]
    assert sweep(*words) == status
    assert bench.workers == [*UUIDS[:2], *sorted(bench.workers[2:4]), *UUIDS[:2]]
    page = (tmp_path / "out" / "gpus.md").read_text()
    assert f"{together - 1:+.2%}" in page and "--check-gpus" in page
    answer = "DISTURB each other" if status else "leave each other's figures alone"
    assert answer in page and answer in capsys.readouterr().out


def test_a_check_of_gpus_allows_the_noise_of_the_gpus(monkeypatch, tmp_path):
    bench = sweeping.install(monkeypatch, tmp_path, count=2)
    bench.answer = steady
    bench.slower = lambda number: {3: 1.04, 4: 1.04, 6: 1.03}.get(number, 1.0)
    verdict = interference.check(UUIDS[:2])
    assert verdict.limit == pytest.approx(0.03, rel=1e-3)
    assert max(each.change for each in verdict.findings) == pytest.approx(0.04, rel=0.02)
    assert not verdict.alone
    bench.workers.clear()
    bench.slower = lambda number: {3: 1.02, 4: 1.02, 6: 1.03}.get(number, 1.0)
    assert interference.check(UUIDS[:2]).alone


def test_one_gpu_disturbs_nobody(bench, capsys):
    assert sweep("--check-gpus") == 3
    assert "two GPUs or more" in capsys.readouterr().err


# --- real processes -------------------------------------------------------------------------------

_PRETEND = """
import os, torch, types
from benchmarks import _workload
from benchmarks._sweep import worker
gpu = os.environ["CUDA_VISIBLE_DEVICES"]
properties = types.SimpleNamespace(name="Toy", uuid=gpu.removeprefix("GPU-"))
torch.cuda.device_count = lambda: 1
torch.cuda.get_device_properties = lambda index: properties
def measure_cells(cells, direction, finished):
    print("a library that prints")
    for cell in cells:
        if cell.seq_len == 2048:
            print("out of order", file=sys.stderr, flush=True)
            os._exit(9)
        finished(cell, _workload.Outcome((1e-6, 2e-6), (1e-6, 1e-6)))
_workload.measure_cells = measure_cells
worker.main()
"""


def test_processes_see_one_gpu_each_and_a_lost_one_costs_one_timing(monkeypatch):
    monkeypatch.setattr(gpus, "_MAIN", _PRETEND)
    study = SMALL["study"].of(["rope-triton"])
    timings = [timing for timing in study.timings if timing.direction == "forward"][:4]
    lost = [timing for timing in timings if timing.cell.seq_len == 2048][:1]
    timings = [timing for timing in timings if timing.cell.seq_len != 2048] + lost
    found: dict = {}
    hands = [timings, timings[:1]]
    gpus.measure(hands, UUIDS[:2], lambda row: found.setdefault((row.gpu, row.timing), row), "Toy")
    assert found.keys() == {
        (uuid, timing) for uuid, hand in zip(UUIDS, hands, strict=False) for timing in hand
    }
    for (_, timing), row in found.items():
        if timing in lost:
            assert row.status == "failed" and "ended with 9" in row.outcome.error
            assert "out of order" in row.outcome.error
        else:
            assert row.outcome == Outcome((1e-6, 2e-6), (1e-6, 1e-6))


def test_a_process_that_sees_no_gpu_is_refused():
    with pytest.raises(SweepError, match="sees 0, the first none"):
        gpus.Worker(UUIDS[0]).__enter__()


def test_a_process_that_cannot_start_is_refused(monkeypatch):
    monkeypatch.setattr(gpus, "_MAIN", "sys.exit('no libcuda')")
    with pytest.raises(SweepError, match="ended with 1(.|\\n)*no libcuda"):
        gpus.Worker(UUIDS[0]).__enter__()


def test_a_process_that_says_nothing_is_ended(monkeypatch):
    monkeypatch.setattr(gpus, "CELL_SECONDS", 0.5)
    monkeypatch.setattr(gpus, "_MAIN", "import time\ntime.sleep(60)")
    with pytest.raises(SweepError, match="ended with -9"):
        gpus.Worker(UUIDS[0]).__enter__()


# --- is it close? ---------------------------------------------------------------------------------


def test_the_result_is_close_by_the_promised_tolerance_and_not_by_any(device):
    found = list(closeness.checks((16,), device, heads=4))
    passes = {(each["against"], each["tolerance"]): each["passes"] for each in found}
    assert_close, allclose = closeness.TOLERANCES
    assert passes[closeness.PROMISED]
    assert not passes[closeness.UNROUNDED, allclose]
    assert not passes[closeness.IN_HALF, assert_close]
    for each in found:
        assert each["passes"] == (each["outside"] == 0)
        assert 0 <= each["largest"] < 0.01


def test_a_wrong_result_is_not_close(monkeypatch, device):
    import rope_triton

    right = rope_triton.apply_rotary_pos_emb
    monkeypatch.setattr(
        rope_triton, "apply_rotary_pos_emb", lambda x, freqs, form: right(x, -freqs, form)
    )
    assert not any(each["passes"] for each in closeness.checks((16,), device, heads=4))


def test_the_page_says_what_is_close_and_why(bench, undrawn, monkeypatch, tmp_path):
    assert sweep("--experiment", "milliseconds", "--output", str(tmp_path)) == 0
    page = (tmp_path / "milliseconds.md").read_text()
    assert "passes for every length" in page and "fails: 25.00%" in page
    assert closeness.WHY in page

    def wrong(seq_len):
        return [each | {"passes": False} for each in right(seq_len)]

    right = sweeping.check
    monkeypatch.setattr(sweeping, "check", wrong)
    assert sweep("--experiment", "milliseconds", "--afresh", "--output", str(tmp_path)) == 1
    assert "**FAILS**" in (tmp_path / "milliseconds.md").read_text()
