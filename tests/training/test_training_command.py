"""``python -m benchmarks training`` on a made-up GPU with made-up answers."""

import contextlib
import itertools
import json
import sys
import types

import pytest

from benchmarks import __main__ as entry
from benchmarks._training import command, measuring, parity, parity_command
from benchmarks._training.providers import PROVIDERS
from benchmarks._training.sizes import POINTS
from tests.lab import COULD_NOT_RUN, MACHINE, SHA, UUID, free_gpu

ONLY = ("--only", "410M-2048")
WATCHED = {"samples": 9, "under_load": 9, "processes": 1, "events": {}}
CLOCKS = {"sm_mhz": [1900, 1900, 1900], "memory_mhz": [3200, 3200, 3200]}


class Bench:
    """What is measured. ``before`` is called with each process's number, and may end it."""

    def __init__(self, root):
        self.state, self.evidence = root / "state", root / "evidence"
        self.orders, self.profiled, self.before = [], [], lambda number, noted: None

    @property
    def directory(self):
        return self.state / MACHINE["machine"] / SHA[:8]

    def call(self, work, point, names, profiled, uuid, gpu, noted, env):
        """In place of a process that measures."""
        assert work is command._work and env == {"CUDA_VISIBLE_DEVICES": UUID}
        self.before(len(self.orders), noted)
        self.orders.append(names)
        self.profiled.append(profiled)
        rows = {}
        for name in names:
            slow = 1.01 if PROVIDERS[name].without_rope else 1.0
            one = {"seconds": [0.1 * slow] * 3, "peak_bytes": 1 << 30}
            rows[name] = {"parts": dict.fromkeys(PROVIDERS[name].parts(), one)}
        if "liger" in rows:
            rows["liger"] = {"unavailable": "liger is not there"}
        return rows


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """A machine with a GPU, on which nothing else runs, and a clean checkout."""
    bench = Bench(tmp_path)
    watching = types.SimpleNamespace(summary=lambda: WATCHED | CLOCKS)
    monkeypatch.setattr(command, "SCRATCH", bench.state)
    monkeypatch.setattr(command, "EVIDENCE", bench.evidence)
    free_gpu(monkeypatch, bench, tmp_path)
    monkeypatch.setattr(command.gpu_monitor, "Watch", lambda uuid: contextlib.nullcontext(watching))
    return bench


def training(*words) -> int:
    return entry.main(["training", *words])


def test_rounds_alternate_and_are_shown_and_stored(bench, capsys):
    assert training(*ONLY, "--ship") == 0
    forth, back = list(PROVIDERS), [name for name in reversed(PROVIDERS) if name != "liger"]
    again = [name for name in forth if name != "liger"]  # what is not there stays so
    assert bench.orders == [forth, back, again, back, again, back]
    assert bench.profiled == [True] + [False] * 5
    said = capsys.readouterr()
    assert "410M-2048: 6 rounds each of none-eager, eager," in said.err.splitlines()[0]
    assert "about " in said.err and "410M-2048: round 6 of 6" in said.err
    assert "| `ours` | 101.00 | 162,218 | n/a | 1.00 |" in said.out  # of a toy no peak is known
    assert "| +1.00% (+1.00% to +1.00%) |" in said.out and "FAILED" not in said.out
    for directory in (bench.directory / "output", bench.evidence):
        page = (directory / "410M-2048.md").read_text()
        assert "python -m benchmarks training --only 410M-2048\n" in page and SHA[:8] in page
        head, *rounds = (directory / "410M-2048.jsonl").read_text().splitlines()
        assert json.loads(head)["providers"] == forth and len(rounds) == 6


def test_a_killed_run_goes_on(bench, capsys):
    def killed(number, noted):
        if number == 2:
            raise KeyboardInterrupt

    bench.before = killed
    assert training(*ONLY) == 130
    assert "stopped; the same command resumes" in capsys.readouterr().err
    published = bench.directory / "output" / "410M-2048.md"
    assert "too few rounds for an interval" in published.read_text()
    bench.before = lambda number, noted: None
    assert training(*ONLY) == 0 and len(bench.orders) == 6
    assert "410M-2048: 2 rounds were there already" in capsys.readouterr().err
    assert training(*ONLY) == 0 and len(bench.orders) == 6
    assert training(*ONLY, "--providers", "ours,none") == COULD_NOT_RUN
    assert "other measurements" in capsys.readouterr().err
    assert training(*ONLY, "--providers", "ours,none", "--afresh") == 0
    assert bench.orders[6] == ["none", "ours"]


def test_a_provider_that_ends_the_process_is_left_out(bench, capsys):
    def dies(number, noted):
        if number == 0:
            noted.write_text("ours")
            bench.before = lambda number, noted: None
            raise RuntimeError("a fresh process ended with -11:\nSegmentation fault")

    bench.before = dies
    assert training(*ONLY) == 1
    assert len(bench.orders) == 6 and not any("ours" in order for order in bench.orders)
    assert "FAILED: ours: Segmentation fault" in capsys.readouterr().out


def test_a_process_that_ends_before_any_provider_could_not_run(bench, capsys):
    def refused(number, noted):
        raise RuntimeError("a fresh process ended with 1:\nno libcuda")

    bench.before = refused
    assert training(*ONLY) == COULD_NOT_RUN
    assert "no process can measure" in capsys.readouterr().err
    assert not (bench.directory / "output").exists()


def test_it_ends_before_its_budget_does(bench, capsys, monkeypatch):
    clock = types.SimpleNamespace(monotonic=itertools.count(0, 50).__next__)
    monkeypatch.setattr(command, "time", clock)
    assert training(*ONLY, "--budget", "8") == 1
    assert 0 < len(bench.orders) < 6
    err = capsys.readouterr().err
    assert f"410M-2048: no time for round {len(bench.orders) + 1} of 6, about " in err
    assert "the same command goes on from there" in err


def test_410m_fits_into_ten_minutes_and_all_into_two_hours():
    seconds = {}
    for name, point in POINTS.items():
        first, other = command.cost(point, tuple(PROVIDERS))
        seconds[name] = first + 5 * other
        assert other < first < command.process.CALL_SECONDS
    assert seconds["410M-2048"] < 10 * 60
    assert sum(seconds.values()) < 120 * 60


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ship", "--rounds", "5"], "at least 6 rounds"),
        (["--ship", "--providers", "ours,none"], "what ships has every provider"),
    ],
    ids=["few", "some"],
)
def test_what_does_not_ship(bench, words, said, capsys):
    assert training(*ONLY, *words) == COULD_NOT_RUN
    assert said in capsys.readouterr().err and not bench.orders


def test_without_a_gpu_it_says_so(bench, monkeypatch, capsys):
    monkeypatch.setattr(command.machine, "probe", lambda: (MACHINE | {"gpu": "none"}, "none"))
    assert training(*ONLY) == COULD_NOT_RUN
    assert "could not run: a training step needs an NVIDIA GPU" in capsys.readouterr().err


def test_a_process_refuses_another_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(measuring, "measured", lambda *_, **__: pytest.fail("it was measured"))
    with pytest.raises(command.TrainingError, match="was to see GPU"):
        command._work(POINTS["410M-2048"], ["ours"], True, UUID, "Toy", tmp_path / "noted")


# --- loss curves ----------------------------------------------------------------------------------


class Curves:
    """What trains. ``before`` is called with each run, and may end the process."""

    def __init__(self):
        self.runs, self.before = [], lambda run, noted: None
        self.above = {"bfloat16": 0.01, "float16": 0.001, "float32": 0.0}

    def call(self, work, run, jobs, uuid, gpu, noted, env):
        """In place of a process that trains."""
        assert work is parity_command._work and env == {"CUDA_VISIBLE_DEVICES": UUID}
        self.before(run, noted)
        self.runs += [(*run, *job) for job in jobs]
        losses = [2.0 + self.above[run.dtype] + self.above.get(run.provider, 0)] * parity.STEPS
        result = {"unavailable": "not there"} if run.provider == "liger" else {"losses": losses}
        return [{**job._asdict(), **run._asdict(), **result} for job in jobs]


@pytest.fixture
def curves(bench, monkeypatch):
    curves = Curves()
    monkeypatch.setattr(command.process, "call", curves.call)
    return curves


def test_loss_curves_are_trained_once_and_stored(curves, bench, capsys):
    assert training("--parity", "--ship") == 0
    every = [
        (*run, *job) for run in parity.runs(parity.with_rope(PROVIDERS)) for job in parity.JOBS
    ]
    assert curves.runs == every
    said = capsys.readouterr()
    assert said.err.startswith("parity-256: 108 loss curves, of eager, ours-eager, transformers")
    assert "minutes by an estimate" in said.err
    assert "| `ours` | bfloat16 | copy | 0.0100 | 0.0200 | 2.0100 | pass |" in said.out
    assert "| `liger` | bfloat16 | text |  |  |  | n/a |" in said.out
    for directory in (bench.directory / "output", bench.evidence):
        head, *entries = (directory / "parity.jsonl").read_text().splitlines()
        assert json.loads(head)["text"] == parity.text_digest() and len(entries) == len(every)
        page = (directory / "parity.md").read_text()
        assert "![Loss curves](parity.png)" in page and "training --parity\n" in page
        assert (directory / "parity.png").read_bytes().startswith(b"\x89PNG")
    assert training("--parity", "--providers", "ours,triton-fused") == 0
    assert len(curves.runs) == len(every)  # they were there


def test_loss_curves_go_on_after_a_kill(curves, capsys):
    def killed(run, noted):
        if len(curves.runs) == 3 * len(parity.JOBS):
            raise KeyboardInterrupt

    curves.before = killed
    assert training("--parity", "--providers", "ours,none") == 130
    curves.before = lambda run, noted: None
    assert training("--parity", "--providers", "ours,none") == 0
    assert len(set(curves.runs)) == len(curves.runs) == 4 * len(parity.JOBS)
    assert {run[0] for run in curves.runs} == {"eager", "ours"}


def test_a_curve_that_is_elsewhere_fails(curves, capsys):
    curves.above["ours"] = 0.02
    assert training("--parity", "--providers", "ours") == 1
    out = capsys.readouterr().out
    assert "FAIL: ours in bfloat16, text" in out and "FAIL: ours in float16, copy" in out
    assert "| `ours` | bfloat16 | text | 0.0300 | 0.0200 | 2.0300 | fail |" in out


def test_a_process_that_ends_is_a_row_of_each_curve(curves, bench, capsys):
    def dies(run, noted):
        if run.provider == "ours":
            noted.touch()
            raise RuntimeError("a fresh process ended with -11:\nSegmentation fault")

    curves.before = dies
    assert training("--parity", "--providers", "ours,hybrid") == 1
    assert "ERROR: ours in float16, text: Segmentation fault" in capsys.readouterr().out
    page = (bench.directory / "output" / "parity.md").read_text()
    assert "- `ours` in bfloat16, copy, error: ``` Segmentation fault ```" in page
    assert "| `hybrid` | bfloat16 | copy | 0.0100 | 0.0200 | 2.0100 | pass |" in page


def test_a_process_that_finds_no_gpu_trains_nothing(curves, bench, capsys):
    def refused(run, noted):
        raise RuntimeError("a fresh process ended with 1:\nno libcuda")

    curves.before = refused
    assert training("--parity") == COULD_NOT_RUN
    assert "no process can train on" in capsys.readouterr().err
    assert not (bench.directory / "output").exists()


def test_loss_curves_end_before_their_budget_does(curves, capsys):
    assert training("--parity", "--budget", "0.2", "--providers", "ours") == 1
    assert not curves.runs
    said = capsys.readouterr()
    assert "no time for eager in float32" in said.err
    assert "NOT RUN: ours in bfloat16, copy: 0 of 3 seeds" in said.out


def test_without_matplotlib_there_is_no_plot(curves, bench, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert training("--parity", "--providers", "ours") == 0
    assert "no plot: matplotlib is not installed: pip install" in capsys.readouterr().err
    assert "parity.png" not in (bench.directory / "output" / "parity.md").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--providers", "none,triton-none"], "loss curves are of providers with RoPE, got"),
        ([*ONLY], "no --only, no --rounds"),
        (["--rounds", "7"], "no --only, no --rounds"),
        (["--ship", "--providers", "ours"], "what ships has every provider"),
    ],
)
def test_what_has_no_loss_curves(curves, words, said, capsys):
    assert training("--parity", *words) == COULD_NOT_RUN
    assert said in capsys.readouterr().err and not curves.runs


def test_without_a_gpu_there_are_no_loss_curves(curves, monkeypatch, capsys):
    monkeypatch.setattr(command.machine, "probe", lambda: (MACHINE | {"gpu": "none"}, "none"))
    assert training("--parity") == COULD_NOT_RUN
    assert "could not run: a training step needs an NVIDIA GPU" in capsys.readouterr().err


def test_a_process_that_trains_refuses_another_gpu(monkeypatch, tmp_path):
    with pytest.raises(parity_command.ParityError, match="was to see GPU"):
        parity_command._work(parity.Run("ours", "bfloat16"), [], UUID, "Toy", tmp_path / "noted")
