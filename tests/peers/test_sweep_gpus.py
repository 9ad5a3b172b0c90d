"""A sweep on several GPUs: how they share the work, and lose a process."""

from collections import Counter

import pytest

from benchmarks._measure.workload import Outcome
from benchmarks._peers.sweep import gpus, state
from benchmarks._peers.sweep.state import SweepError
from tests.peers import sweeping
from tests.peers.sweeping import FULL, SMALL, UUIDS, sweep

bench, undrawn = sweeping.bench, sweeping.undrawn  # fixtures


# --- shared work ----------------------------------------------------------------------------------


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


# --- real processes -------------------------------------------------------------------------------


_PRETEND = """
import os, torch, types
from benchmarks._measure import workload
from benchmarks._peers.sweep import worker
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
        finished(cell, workload.Outcome((1e-6, 2e-6), (1e-6, 1e-6)))
workload.measure_cells = measure_cells
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


def test_a_process_that_ends_with_the_sweep_is_no_failure_of_its_timing(bench, monkeypatch):
    """Ctrl-C ends the processes first; what they were measuring is measured another time."""

    def ended(uuid, timing, count):
        if count == 2:
            monkeypatch.setattr(gpus.process, "stopping", lambda: True)
            raise gpus.ProcessLost("the process ended with -9")

    bench.before = ended
    rows = []
    gpus.measure([SMALL["bandwidth"].timings], UUIDS[:1], rows.append, sweeping.MODEL)
    assert [row.timing for row in rows] == bench.measured and len(rows) == 2
