"""The studies ``training`` and ``parity`` on a made-up GPU with made-up answers."""

import json
import shutil
import sys

import pytest

from benchmarks._studies.training import parity, training_study
from benchmarks._studies.training.functions import PROVIDERS
from benchmarks._studies.training.sizes import POINTS
from tests.lab import COULD_NOT_RUN, SHA
from tests.studies import common
from tests.studies.common import study

processes = common.processes  # a fixture

ONLY = ("--only", "410M-2048")
SHIPPED = training_study.EVIDENCE


class Rounds:
    """What is measured. ``dies``: a provider that ends its process."""

    def __init__(self, processes):
        self.orders, self.profiled, self.dies = [], [], ""
        self.output, self.evidence = processes.output, processes.evidence
        processes.works[training_study.measure] = self.measure

    def measure(self, names, alone, notes, point, profiled):
        self.orders.append(list(names))
        self.profiled.append(profiled)
        for index, name in enumerate(names):
            notes.begin(index)
            if name == self.dies:
                raise RuntimeError("a fresh process ended with -11:\nSegmentation fault")
        for name in names:
            slow = 1.01 if PROVIDERS[name].without_rope else 1.0
            one = {"seconds": [0.1 * slow] * 3, "peak_bytes": 1 << 30}
            row = {"parts": dict.fromkeys(PROVIDERS[name].parts(), one)}
            notes.row((name, {"unavailable": "liger is not there"} if name == "liger" else row))


@pytest.fixture
def rounds(processes):
    return Rounds(processes)


def test_rounds_alternate_and_are_printed_and_stored(rounds, capsys):
    assert study("training", *ONLY, "--ship") == 0
    forth, back = list(PROVIDERS), [name for name in reversed(PROVIDERS) if name != "liger"]
    again = back[::-1]  # what is not there stays so
    assert rounds.orders == [forth, back, again, back, again, back]
    assert rounds.profiled == [True] + [False] * 5
    printed = capsys.readouterr()
    assert "410M-2048: 6 tasks, about " in printed.err
    assert "| `ours` | 101.00 | 162,218 | n/a | 1.00 |" in printed.out  # of a toy no peak is known
    assert "| +1.00% (+1.00% to +1.00%) |" in printed.out and "FAILED" not in printed.out
    for directory in (rounds.output, rounds.evidence):
        page = (directory / "410M-2048.md").read_text()
        assert "python -m benchmarks study training --only 410M-2048\n" in page and SHA[:8] in page
        head, *lines = (directory / "410M-2048.jsonl").read_text().splitlines()
        assert json.loads(head)["providers"] == forth and len(lines) == 6


def test_more_rounds_go_on_from_fewer(rounds):
    assert study("training", *ONLY, "--rounds", "2") == 0
    page = (rounds.output / "410M-2048.md").read_text()
    assert "too few rounds for an interval" in page and "--rounds 2\n" in page
    assert study("training", *ONLY) == 0 and len(rounds.orders) == 6


def test_only_some_providers(rounds, capsys):
    assert study("training", *ONLY, "--only", "ours", "--only", "none") == 0
    assert rounds.orders[0] == ["none", "ours"]
    page = (rounds.output / "410M-2048.md").read_text()
    assert "training --only 410M-2048 --only none --only ours\n" in page
    assert study("training", *ONLY) == COULD_NOT_RUN
    assert "other measurements" in capsys.readouterr().err


def test_a_provider_that_ends_the_process_is_left_out(rounds, capsys):
    rounds.dies = "ours"
    assert study("training", *ONLY) == 1
    assert "ours" in rounds.orders[0]
    assert len(rounds.orders) == 7 and not any("ours" in order for order in rounds.orders[1:])
    assert "FAILED: ours: Segmentation fault" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["training", "parity"])
def test_what_ships_is_what_the_shipped_rounds_make(name, tmp_path, capsys):
    """The pages of benchmarks/evidence/training, made again; a plot if matplotlib is here."""
    assert study(name, "--redraw", str(SHIPPED), "--output", str(tmp_path)) in (0, 1)
    made = {path.name for path in tmp_path.iterdir()} - {"parity.png"}
    points = {"parity"} if name == "parity" else set(POINTS)
    assert made == {f"{point}.{form}" for point in points for form in ("md", "jsonl")}
    for file in made:
        assert (tmp_path / file).read_bytes() == (SHIPPED / file).read_bytes(), file


# --- loss curves ----------------------------------------------------------------------------------


class Curves:
    """What trains. ``dies``: a provider that ends its process."""

    def __init__(self, processes):
        self.runs, self.dies = [], ""
        self.above = {"bfloat16": 0.01, "float16": 0.001, "float32": 0.0}
        self.output, self.evidence = processes.output, processes.evidence
        processes.works[parity.train] = self.train

    def train(self, items, alone, notes):
        for index, (run, jobs) in enumerate(items):
            notes.begin(index)
            if run.provider == self.dies:
                raise RuntimeError("a fresh process ended with -11:\nSegmentation fault")
            self.runs += [(*run, *job) for job in jobs]
            level = 2.0 + self.above[run.dtype] + self.above.get(run.provider, 0)
            result = {"losses": [level] * parity.STEPS}
            if run.provider == "liger":
                result = {"unavailable": "not there"}
            notes.row([{**job._asdict(), **run._asdict(), **result} for job in jobs])


@pytest.fixture
def curves(processes):
    return Curves(processes)


def test_loss_curves_are_trained_once_and_stored(curves, capsys):
    assert study("parity", "--ship") == 0
    every = [
        (*run, *job) for run in parity.runs(parity.with_rope(PROVIDERS)) for job in parity.JOBS
    ]
    assert curves.runs == every
    printed = capsys.readouterr()
    assert "| `ours` | bfloat16 | copy | 0.0100 | 0.0200 | 2.0100 | pass |" in printed.out
    assert "| `liger` | bfloat16 | text |  |  |  | n/a |" in printed.out
    for directory in (curves.output, curves.evidence):
        head, *entries = (directory / "parity.jsonl").read_text().splitlines()
        assert json.loads(head)["text"] == parity.text_digest() and len(entries) == len(every)
        page = (directory / "parity.md").read_text()
        assert "![Loss curves](parity.png)" in page and "study parity\n" in page
        assert (directory / "parity.png").read_bytes().startswith(b"\x89PNG")
    shutil.rmtree(curves.output)
    assert study("parity", "--only", "ours", "--only", "triton-fused") == 0
    assert len(curves.runs) == len(every)  # they were there


def test_a_curve_that_is_elsewhere_fails(curves, capsys):
    curves.above["ours"] = 0.02
    assert study("parity", "--only", "ours") == 1
    out = capsys.readouterr().out
    assert "FAIL: ours in bfloat16, text" in out and "FAIL: ours in float16, copy" in out
    assert "| `ours` | bfloat16 | text | 0.0300 | 0.0200 | 2.0300 | fail |" in out


def test_a_process_that_ends_is_a_row_of_each_curve(curves, capsys):
    curves.dies = "ours"
    assert study("parity", "--only", "ours", "--only", "hybrid") == 1
    assert "ERROR: ours in float16, text: Segmentation fault" in capsys.readouterr().out
    page = (curves.output / "parity.md").read_text()
    assert "- `ours` in bfloat16, copy, error: ``` Segmentation fault ```" in page
    assert "| `hybrid` | bfloat16 | copy | 0.0100 | 0.0200 | 2.0100 | pass |" in page


def test_without_matplotlib_there_is_no_plot(curves, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert study("parity", "--only", "ours") == 0
    assert "no plots: matplotlib is not installed: pip install" in capsys.readouterr().err
    assert "parity.png" not in (curves.output / "parity.md").read_text()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("training --ship --rounds 5", "needs every provider and 6 rounds"),
        ("training --ship --only ours", "needs every provider and 6 rounds"),
        ("parity --ship --only ours", "it has not every provider with RoPE"),
        ("parity --only none --only triton-none", "loss curves are of providers with RoPE"),
    ],
)
def test_what_is_refused_is_not_measured(rounds, curves, words, why, capsys):
    assert study(*words.split()) == COULD_NOT_RUN
    assert why in capsys.readouterr().err and not rounds.orders and not curves.runs
