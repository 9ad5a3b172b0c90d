"""The loop of all studies, by a toy study whose processes are real, and its GPU is not."""

import functools
import itertools
import re
import types

import pytest

from benchmarks._engine.system import checkout, gpu_monitor, journal, machine
from benchmarks._engine.system.journal import Journal
from benchmarks._studies import runner, study_command
from benchmarks._studies.runner import Part, Study, StudyError, Task
from tests.lab import COULD_NOT_RUN, MACHINE, UUID
from tests.studies import common, toy_work
from tests.studies.common import study

processes = common.processes  # a fixture

# The first GPU is the one of CUDA_VISIBLE_DEVICES.
TORCH = f"""
import os, types
gpu = types.SimpleNamespace(name={MACHINE["gpu"]!r}, uuid=os.environ["CUDA_VISIBLE_DEVICES"][4:])
cuda = types.SimpleNamespace(
    is_available=lambda: gpu.uuid != "", get_device_properties=lambda index: gpu
)
"""


class Squares(Part):
    """Two tasks of two numbers each."""

    name = "squares"

    def __init__(self, toy, place):
        self.toy, self.place, self.header = toy, place, {"of": toy.of, "command": "toy"}
        self.why_not_shipped = toy.why_not_shipped

    def tasks(self, entries):
        left = [n for n in self.toy.numbers if n not in [entry["item"] for entry in entries]]
        pairs = [left[at : at + 2] for at in range(0, len(left), 2)]
        return [Task(f"{pair}", 60.0, functools.partial(self.measure, pair)) for pair in pairs]

    def measure(self, pair, keep):
        self.toy.before(pair)
        runner.in_processes(
            *(self.toy.work, pair, self.toy.crashes),
            place=self.place,
            keep=lambda rows: keep(*rows),
            failed=lambda item, why: {"item": item, "why": why},
        )

    def page(self, header, entries, drawn):
        return [f"{len(entries)} squares"]

    def publish(self, header, entries, directory, final):
        super().publish(header, entries, directory, final)
        self.toy.published.append((directory.name, len(entries), final))

    def lines(self, header, entries):
        yield str(sorted(entry["item"] for entry in entries))

    def failures(self, header, entries):
        return [entry["why"] for entry in entries if "why" in entry]


@pytest.fixture
def toy(processes, monkeypatch, tmp_path):
    """The toy study, and what it is to do."""
    (tmp_path / "stub").mkdir()
    (tmp_path / "stub" / "torch.py").write_text(TORCH)
    monkeypatch.syspath_prepend(tmp_path / "stub")
    toy = types.SimpleNamespace(
        **{"work": toy_work.square, "crashes": [], "numbers": [1, 2, 3, 4], "of": "toy"},
        **{"why_not_shipped": "", "before": lambda pair: None, "published": []},
        path=processes.directory / "squares.jsonl",
        output=processes.output,
        evidence=processes.evidence,
    )
    toys = Study(
        *("squares", "Squares of numbers.", tuple),
        parts=lambda options, place: [Squares(toy, place)],
        evidence=lambda machine: processes.evidence,
    )
    monkeypatch.setitem(study_command.STUDIES, "toy", toys)
    return toy


def rows(path):
    return {row["item"]: row for row in journal.read(path)[1:]}


def test_what_is_missing_is_measured_published_and_shipped_when_complete(toy, capsys):
    assert study("toy", "--ship") == 0
    assert toy.published == [("output", 2, False), ("output", 4, False)] + [
        ("output", 4, True),
        ("evidence", 4, True),
    ]
    assert {item: row["square"] for item, row in rows(toy.evidence / "squares.jsonl").items()} == {
        1: 1,
        2: 4,
        3: 9,
        4: 16,
    }
    printed = capsys.readouterr()
    assert "squares: 2 tasks, about 2 minutes by an estimate" in printed.err
    assert re.search(r"squares: \[3, 4\], \d+ s; about 0 s left", printed.err)
    assert printed.out == f"\n# squares\n[1, 2, 3, 4]\nsquares: {toy.evidence}\n"
    assert (toy.evidence / "squares.md").read_text() == "4 squares\n"
    assert study("toy") == 0 and rows(toy.path) == rows(toy.output / "squares.jsonl")


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_a_stopped_run_goes_on(toy, stop, capsys):
    def stopped(pair):
        if pair == [3, 4]:
            raise stop

    toy.before = stopped
    assert study("toy") == (130 if stop is KeyboardInterrupt else COULD_NOT_RUN)
    toy.before = lambda pair: None if pair == [3, 4] else pytest.fail("measured twice")
    assert study("toy") == 0
    assert "squares: 2 entries are from an earlier run" in capsys.readouterr().err


def test_a_run_ends_before_its_budget_does(toy, monkeypatch, capsys):
    """A task is estimated at a minute, and takes two: there is no time for the second."""
    clock = types.SimpleNamespace(monotonic=itertools.count(0, 120).__next__, time_ns=lambda: 1)
    monkeypatch.setattr(runner, "time", clock)
    monkeypatch.setattr(study_command, "time", types.SimpleNamespace(monotonic=lambda: 0.0))
    assert study("toy", "--ship", "--budget", "5") == 1
    printed = capsys.readouterr().err
    assert "squares: no time for [3, 4]; the same command goes on from there" in printed
    assert "squares: does not ship: not all of it is measured" in printed
    assert list(rows(toy.path)) == [1, 2] and not toy.evidence.exists()
    monkeypatch.undo()


def test_no_time_for_anything_publishes_nothing(toy):
    assert study("toy", "--budget", "0.5") == 1
    assert not toy.published


def test_a_journal_of_something_else_is_refused_and_renamed_when_asked(toy, capsys):
    study("toy")
    first, toy.of = rows(toy.path), "another"
    assert study("toy") == COULD_NOT_RUN
    printed = capsys.readouterr().err
    assert "of: stored 'toy', present 'another'" in printed and "--afresh" in printed
    with Journal(toy.path, {"of": "toy", "command": "toy"}):
        assert study("toy") == COULD_NOT_RUN
    assert "is in use by" in capsys.readouterr().err
    assert study("toy", "--afresh") == 0
    (aside,) = toy.path.parent.glob("squares.[0-9]*.jsonl")
    assert rows(aside) == first and journal.read(toy.path)[0]["of"] == "another"


def test_what_does_not_ship_is_refused_before_it_is_measured(toy, monkeypatch, capsys, tmp_path):
    toy.why_not_shipped = "it is too small"
    assert study("toy", "--ship") == COULD_NOT_RUN
    assert "squares would not ship: it is too small" in capsys.readouterr().err
    changed = checkout.Version("working tree", "", "digest", tmp_path)
    monkeypatch.setattr(checkout, "from_working_tree", lambda *_: changed)
    assert study("toy", "--ship") == COULD_NOT_RUN
    assert "rope_triton differs from HEAD" in capsys.readouterr().err
    assert not toy.published


def test_it_needs_a_gpu_that_is_free(toy, monkeypatch, capsys):
    def busy(uuid, *_):
        raise gpu_monitor.GpuBusyError(f"GPU {uuid} is in use")

    for guard in ("gpu_lock", "require_free"):
        with monkeypatch.context() as patched:
            patched.setattr(gpu_monitor, guard, busy)
            assert study("toy") == COULD_NOT_RUN
        assert f"GPU {UUID} is in use" in capsys.readouterr().err
    monkeypatch.setattr(machine, "probe", lambda: (MACHINE | {"gpu": "none"}, "none"))
    assert study("toy") == COULD_NOT_RUN
    assert "study toy needs an NVIDIA GPU" in capsys.readouterr().err


# --- processes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("work", "lost", "alone"),
    [(toy_work.square, 2, False), (toy_work.square, 1, True), (toy_work.together, 2, True)],
)
def test_an_item_that_ends_its_process_costs_itself(toy, work, lost, alone):
    """Where a process does not say at which item it was, the next one does."""
    toy.numbers, toy.work, toy.crashes = [1, 2], work, [lost]
    assert study("toy") == 1
    stored, other = rows(toy.path), 3 - lost
    assert "ended with 9" in stored[lost]["why"]
    assert (stored[other]["square"], stored[other]["alone"]) == (other**2, alone)
    if work is toy_work.square:
        assert toy_work.WHOLE in stored[lost]["why"]


def test_processes_that_never_say_where_they_end_are_no_results(toy, capsys):
    toy.work = toy_work.silent
    assert study("toy") == COULD_NOT_RUN
    assert f"no process can measure on {UUID}: a fresh process ended" in capsys.readouterr().err
    assert not toy.published


def test_a_process_refuses_another_gpu(toy, monkeypatch, capsys):
    monkeypatch.setattr(machine, "probe", lambda: (MACHINE | {"gpu": "Other"}, "sm_90"))
    assert study("toy") == COULD_NOT_RUN
    printed = capsys.readouterr().err
    assert f"was to see GPU {UUID}, a Other, and found" in printed and not toy.published


def test_an_error_of_a_study_is_no_fault_of_the_suite(toy, capsys):
    def refused(pair):
        raise StudyError("nothing to square")

    toy.before = refused
    assert study("toy") == COULD_NOT_RUN
    assert capsys.readouterr().err.endswith("could not run: nothing to square\n")
