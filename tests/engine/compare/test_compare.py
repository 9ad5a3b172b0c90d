"""``python -m benchmarks compare`` from its arguments to its exit status, see ``lab``."""

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks._engine.compare import exact, measure, rounds, session
from benchmarks._engine.report.markdown import markdown
from benchmarks._engine.subject import keys_of
from benchmarks._engine.system.checkout import Version
from benchmarks._engine.verdict.rules import Answer
from tests import toy
from tests.lab import (
    ALL,
    BACKWARD,
    CANNOT_TELL,
    CELLS,
    CHECKS,
    COMPILE,
    COULD_NOT_RUN,
    FAIL,
    FORWARD,
    HOST,
    IMPORT,
    LARGE,
    LAUNCHES,
    MACHINE,
    ONCE_KEY,
    PASS,
    REGISTERS,
    ROUNDS,
    SMALL,
    SPILLS,
    VARIANTS,
    WARM_START,
    behaviour_of,
    both,
)

# --- the three answers ----------------------------------------------------------------------------


def test_no_slower_passes(lab, capsys):
    lab.versions({}, {})
    assert lab.compare() == PASS
    result = lab.found
    assert result.answer is Answer.PASS
    assert {name: len(f.timings) for name, f in result.families.items()} == {"gpu": 8, "host": 4}
    assert (result.rounds, result.extension) == (ROUNDS, 0)
    assert not (result.wrong or result.notes or result.discarded or result.identical)
    assert lab.gpu.answered == ALL
    assert "PASS: no regression, 95 % upper bounds: GPU " in capsys.readouterr().out


@pytest.mark.parametrize("side", ["head", "base"])
def test_slower_cells_fail_and_faster_ones_do_not(lab, side):
    slow = {"slower": {SMALL: 1.05}}
    lab.versions(*([{}, slow] if side == "head" else [slow, {}]))
    assert lab.compare() == (FAIL if side == "head" else PASS)
    assert lab.found.base.name == "base"
    changed = [timing for timing in lab.found.timings if timing.change != "none"]
    assert {timing.key for timing in changed} == set(both(SMALL))
    for timing in changed:
        assert (timing.change, timing.answer) == (
            ("slower", Answer.FAIL) if side == "head" else ("faster", Answer.PASS)
        )
        assert 0.045 < abs(timing.effect) < 0.055


@pytest.mark.parametrize(
    ("head", "slower"),
    [({"start": 0.14}, set()), ({"start": 0.2}, {WARM_START}), ({"import": 0.2}, {IMPORT})],
)
def test_first_calls_and_imports_fail_by_a_large_factor(lab, head, slower):
    lab.gpu.starts = True
    lab.versions({}, head)
    assert lab.compare() == (FAIL if slower else PASS)
    changes = {timing.key.metric: timing.change for timing in lab.found.families["start"].timings}
    assert changes == {
        metric: "slower" if metric in slower else "none" for metric in (IMPORT, WARM_START, COMPILE)
    }


@pytest.fixture
def processes(lab):
    """All processes that are started, in their order."""
    started = []

    class Process(measure.Process):
        def __init__(self, subject, root, cache, *more):
            super().__init__(subject, root, cache, *more)
            self.cache, self.killed = cache, threading.Event()
            started.append(self)

        def kill(self):
            super().kill()
            self.killed.set()

    lab.patch.setattr(measure, "Process", Process)
    return started


def test_all_processes_find_what_was_compiled_before(lab, processes):
    kernels, compiled = [], exact.compiled

    def compiled_too(subject, root, *rest, **options):
        (rest[-1].cache / f"kernel of {root.name}").mkdir()
        return compiled(subject, root, *rest)

    lab.gpu.before = lambda number: kernels.append([*processes[0].cache.iterdir()])
    lab.patch.setattr(exact, "compiled", compiled_too)
    lab.versions({}, {"slower": {SMALL: 1.2}})
    assert lab.compare() == FAIL
    assert len({process.cache for process in processes}) == 1
    checked_first = lab.gpu.jobs[0][0].name
    assert f"kernel of {checked_first}" in {path.name for path in kernels[0]}
    assert [len(paths) for paths in kernels[1:]] == [2] * (ALL - 1)


def test_of_too_many_kernels_the_newer_half_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "_MOST_KERNELS", 4)
    path = session.cache(tmp_path, MACHINE)
    for age in range(5):
        (path / f"{age}").mkdir()
        (path / f"{age}" / "kernel.cubin").touch()
        os.utime(path / f"{age}", (1000 - age, 1000 - age))
        names = {path.name for path in session.cache(tmp_path, MACHINE).iterdir()}
        assert names == ({"0", "1"} if age == 4 else set(map(str, range(age + 1))))


def test_the_base_is_checked_while_the_head_is_compiled(lab):
    asked, compiled = threading.Event(), exact.compiled
    roots, together = [], threading.Barrier(2)

    def before(number):
        asked.set()
        if number <= CHECKS:
            together.wait(30)
            time.sleep(0.3)  # both are on the GPU when their answers are asked for

    def compiled_too(subject, root, *rest, **options):
        roots.append(root)
        if len(roots) == 2:
            assert asked.wait(30) and lab.gpu.begun == 1
        return compiled(subject, root, *rest)

    lab.gpu.before = before
    lab.patch.setattr(rounds, "CHECKED_AT_ONCE", 2)
    lab.patch.setattr(exact, "compiled", compiled_too)
    lab.versions({}, {})
    assert lab.compare() == PASS
    assert {root for root, _ in lab.gpu.jobs[:CHECKS]} == set(roots)


@pytest.mark.parametrize("head", [{}, {"wrong": [SMALL, LARGE]}, {"fails": {SMALL: [3]}}])
def test_every_process_is_used_or_stopped(lab, processes, head):
    lab.versions({}, head)
    lab.compare()
    assert all(process.stopped for process in processes)
    assert len(processes) - lab.gpu.answered - len(lab.gpu.clocked) <= rounds.AHEAD


def test_processes_of_the_next_turns_import_while_one_measures(lab, processes):
    waiting = []
    lab.gpu.before = lambda number: waiting.append(len(processes) - number - len(lab.gpu.clocked))
    lab.versions({}, {})
    assert lab.compare() == PASS
    assert waiting[CHECKS:] == [rounds.AHEAD] * (2 * ROUNDS - 1) + [1]


def test_when_one_check_fails_to_answer_the_others_end(lab, processes):
    in_time = []

    def before(number):
        if number == 2:
            raise measure.ProcessError("it died")
        in_time.append(processes[0].killed.wait(10))

    lab.patch.setattr(rounds, "CHECKED_AT_ONCE", 2)
    lab.gpu.before = before
    lab.versions({}, {})
    assert lab.compare() == COULD_NOT_RUN
    assert in_time == [True]


def test_wrong_output_fails_and_has_no_speed(lab):
    lab.versions({}, {"wrong": [SMALL], "slower": {SMALL: 0.5}})
    assert lab.compare() == FAIL
    assert lab.wrong == list(f"{metric} {SMALL}: it is wrong" for metric in (FORWARD, BACKWARD))
    timed = {timing.key for timing in lab.found.timings}
    assert set(both(LARGE)) <= timed and not timed & set(both(SMALL))


@pytest.mark.parametrize("base_too", [False, True])
def test_wrong_everywhere_is_not_timed_at_all(lab, capsys, base_too):
    wrong = {"wrong": [" ".join(cell.params) for cell in CELLS]}
    lab.versions(wrong if base_too else {}, wrong)
    assert lab.compare() == (COULD_NOT_RUN if base_too else FAIL)
    assert lab.gpu.answered == CHECKS
    output = capsys.readouterr()
    if base_too:
        assert "no cell is right in both versions: toy.Forward" in output.err
    else:
        assert len(lab.wrong) == 8


@pytest.mark.parametrize(
    ("worse", "metric", "status"),
    [
        ({"launches": 2}, LAUNCHES.metric, FAIL),
        ({"variants": 7}, VARIANTS, FAIL),
        ({"registers": 48}, REGISTERS, PASS),  # the clock judges these, they are only shown
        ({"spills": 48}, SPILLS, PASS),
    ],
)
def test_exact_metric_that_got_worse(lab, worse, metric, status):
    lab.versions({}, worse)
    assert lab.compare() == status
    answer = Answer.FAIL if status == FAIL else Answer.PASS
    worse = [value for value in lab.found.exact if value.change == "worse"]
    assert [(value.key.metric, value.answer) for value in worse] == [(metric, answer)]
    assert all(timing.answer is Answer.PASS for timing in lab.found.timings)


def test_noise_cannot_be_told(lab):
    lab.versions({}, {})
    lab.gpu.noise = lambda subject, number: 1.0
    assert lab.compare() == CANNOT_TELL
    assert lab.found.extension == session.EXTENSION_ROUNDS
    assert not any(timing.answer is Answer.FAIL for timing in lab.found.timings)


@pytest.mark.parametrize("slower", [1.0, 1.2])
def test_a_busy_host_is_told_from_a_slower_call(lab, slower):
    """Up to twice as slow from process to process, for both versions in it."""
    lab.versions({}, {"slower": {HOST[0]: slower}})
    paces = np.random.default_rng(0).uniform(1, 2, 200)
    lab.gpu.host_pace = lambda number: paces[number]
    assert lab.compare() == (PASS if slower == 1 else FAIL)
    host = [timing for timing in lab.found.timings if timing.key.metric in HOST]
    assert len(host) == 4 and all(timing.mde < 0.1 for timing in host)
    for timing in host:
        expected = slower - 1 if timing.key.metric == HOST[0] else 0
        assert timing.effect == pytest.approx(expected, abs=0.02)


def test_control_that_sees_a_change_cannot_tell(lab):
    """Rounds 1, 2, 5, 6, ... are slow on both sides: a version differs from itself.

    So are later blocks of two rounds, by more: these are no two states of a process.
    """

    def pace(subject, number):
        numbered = (number - CHECKS - 1) // 2
        return 1.1 ** (3 * (numbered // 2) + (numbered % 4 in (1, 2)))

    lab.versions({}, {})
    lab.gpu.pace = pace
    assert lab.compare(rounds=12) == CANNOT_TELL
    assert lab.found.families["gpu"].control.failed


@pytest.mark.parametrize("slower", [False, True])
def test_same_machine_code_overrules_noise_and_forbids_a_slowdown(lab, slower):
    lab.versions({"code": "ret"}, {"code": "ret"} | ({"slower": {SMALL: 1.05}} if slower else {}))
    if not slower:
        lab.gpu.noise = lambda subject, number: 0.01 if subject.metric in HOST else 0.2
    status = lab.compare("base", "head", "--all")
    assert status == (CANNOT_TELL if slower else PASS)
    assert len(lab.found.identical) == 8
    assert lab.found.families["gpu"].mean is None
    assert lab.found.families["host"].mean.timings == len(lab.found.families["host"].timings)
    assert lab.gpu.answered == ALL  # the machine code tells: no second look


@pytest.mark.parametrize("every", [False, True])
def test_nothing_is_timed_on_the_gpu_where_all_machine_code_is_the_same(lab, every):
    lab.versions({"code": "ret"}, {"code": "ret"})
    assert lab.compare("base", "head", *["--all"] * every) == PASS
    result = lab.found
    timed = {t.key for t in result.timings if t.key in result.identical}
    assert len(result.identical) == 8 and len({s.params for s in timed}) == (4 if every else 0)
    assert [*result.families] == ["gpu", "host"][not every :]
    noted = "4 of 4 cells with the same machine code were not timed"
    assert any(note.startswith(noted) for note in lab.notes) == (not every)
    assert ("--all" in result.reproduce) == every


def test_unknown_architecture_is_noted(lab):
    lab.versions({}, {})
    lab.arch = "sm_999"
    assert lab.compare() == PASS
    assert any("sm_999" in note for note in lab.notes)
    assert {value.key.metric for value in lab.found.exact} == {LAUNCHES.metric}


# --- cells of several suites ----------------------------------------------------------------------


def test_cells_of_all_suites_are_timed(lab):
    lab.with_once()
    lab.versions({}, {"slower": {" ".join(ONCE_KEY.params): 1.05}})
    assert lab.compare() == FAIL
    timed = {timing.key for timing in lab.found.families["gpu"].timings}
    assert timed == {ONCE_KEY}.union(*map(keys_of, CELLS))
    assert [t.key for t in lab.found.timings if t.answer is Answer.FAIL] == [ONCE_KEY]


def test_one_timing_alone_is_compared(lab):
    lab.with_once()
    lab.versions({}, {"slower": {LARGE: 1.05}})
    assert lab.compare("base", "head", "--only", ONCE_KEY.words) == PASS
    assert {timing.key for timing in lab.found.timings} == {ONCE_KEY}
    assert lab.found.reproduce.endswith(f" --only '{ONCE_KEY.words}'")
    assert "no more was timed than --only names" in lab.notes
    assert lab.compare() == FAIL and len(lab.found.timings) == 13  # kept apart


@pytest.mark.parametrize("changed", [False, True])
def test_costly_cells_are_checked_where_they_may_have_changed(lab, changed):
    lab.patch.setattr(toy, "CHECKED_IF_CHANGED", CELLS[:1])
    for tag in ("base", "head"):
        lab.write(**{"is": tag})
        (lab.root / lab.package / "costly.py").write_text(tag if changed else "")
        lab.commit(tag, **{"is": tag})
    assert lab.compare() == PASS
    checked = lab.gpu.jobs[0][1]["cells"]
    assert (["toy", [*CELLS[0].params]] in checked) == changed
    assert set(keys_of(CELLS[0])) <= {timing.key for timing in lab.found.timings}


# --- order, and what processes are given ----------------------------------------------------------


def test_processes_alternate_and_know_their_round(lab):
    lab.versions({}, {})
    assert lab.compare() == PASS
    names = [behaviour_of(root)["is"] for root, _ in lab.gpu.jobs][CHECKS:]
    orders = {("base", "head", "head", "base"), ("head", "base", "base", "head")}
    assert {tuple(names[i : i + 4]) for i in range(0, len(names), 4)} <= orders
    tasks = [job["task"] for _, job in lab.gpu.jobs]
    assert tasks == ["check"] * CHECKS + ["measure"] * (ALL - CHECKS)
    pairs = [lab.gpu.jobs[i : i + 2] for i in range(CHECKS, ALL, 2)]
    assert all(one[1] == other[1] for one, other in pairs)


def test_which_order_comes_first_is_drawn_from_the_versions():
    first = {}
    for digest in ("one", "other"):
        versions = {name: Version(name, "", digest, Path()) for name in ("base", "head")}
        plan = rounds.Plan("toy", versions, Path(), "", 0.0)
        orders = [plan.order(number) for number in range(200)]
        assert all(orders[i] == orders[i + 1][::-1] for i in range(0, 200, 2))
        first[digest] = [order[0] for order in orders[::2]]
        assert 30 < first[digest].count("base") < 70
    assert first["one"] != first["other"]


# --- the reports ----------------------------------------------------------------------------------


def test_reports_are_written_whole_and_progress_goes_beside_them(lab, tmp_path, capsys):
    lab.versions({}, {})
    path = tmp_path / "report.md"
    assert lab.compare("base", "head", "--markdown", str(path)) == PASS
    assert path.read_text() == markdown(lab.found)
    assert lab.found.reproduce == f"python -m benchmarks compare base head --rounds {ROUNDS}"
    output = capsys.readouterr()
    assert f"look1: round 3 of {ROUNDS}" in output.err
    assert "look1" not in output.out
