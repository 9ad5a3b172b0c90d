"""A sweep on several GPUs: how they share the work, and what a lost process costs."""

import threading
from collections import Counter

import pytest

from benchmarks._measure.workload import Outcome
from benchmarks._peers.sweep import gpus, state
from benchmarks._peers.sweep.state import SweepError
from tests.lab import MACHINE
from tests.peers import sweeping
from tests.peers.sweeping import FULL, SMALL, UUIDS, sweep

bench, undrawn = sweeping.bench, sweeping.undrawn  # fixtures


@pytest.mark.parametrize(("name", "count"), [("study", 1), ("study", 8), ("throughput", 500)])
def test_a_process_measures_whole_points_of_one_direction_and_not_too_many(name, count):
    timings = FULL[name].timings
    groups = gpus.grouped(timings, count)
    assert sum(groups, []) == timings
    assert all(len({timing.direction for timing in group}) == 1 for group in groups)
    points = [{(t.direction, *list(vars(t.cell).values())[1:]) for t in group} for group in groups]
    assert sum(map(len, points)) == len(set().union(*points))
    assert max(map(len, groups)) <= gpus.GROUP_TIMINGS
    assert len(groups) >= min(count, len(set().union(*points)))


@pytest.mark.parametrize(("given", "used"), [("2", 2), ("all", 3)])
def test_gpus_share_the_work(monkeypatch, tmp_path, undrawn, given, used):
    bench = sweeping.install(monkeypatch, tmp_path, count=3)
    barrier = threading.Barrier(used, timeout=30)
    begun: set = set()

    def begin(uuid, timing, count):
        if uuid not in begun:
            begun.add(uuid)
            barrier.wait()  # else one could take everything before the others start

    bench.before = begin
    assert sweep("--experiment", "bandwidth", "--gpus", given) == 0
    assert Counter(bench.measured) == Counter(SMALL["bandwidth"].timings)
    rows = state.read(bench.path("bandwidth")).rows
    assert {row.gpu for row in rows.values()} == set(UUIDS[:used])
    assert {(row.gpu, timing) for timing, row in rows.items()} == set(bench.answered)


def test_more_gpus_than_there_are(bench, capsys):
    assert sweep("--gpus", "2") == 3
    assert "--gpus 2, and CUDA sees 1 here" in capsys.readouterr().err
    for wrong in ("0", "-1", "some"):
        with pytest.raises(SystemExit):
            sweep("--gpus", wrong)


def test_an_error_on_one_gpu_ends_the_others(bench):
    """Within the timing that each is measuring, and with the error."""

    def fails(uuid, timing, count):
        if count == 2:
            raise SweepError("another model")

    bench.before = fails
    rows = []
    with pytest.raises(SweepError, match="another model"):
        gpus.measure(FULL["study"].timings, UUIDS[:3], rows.append, MACHINE["gpu"])
    assert len(rows) < 20


# --- real processes -------------------------------------------------------------------------------


_PRETEND = """
import os, torch, types
from benchmarks._measure import workload
from benchmarks._peers.sweep import gpus
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
gpus.work(sys.argv[2])
"""


def test_processes_see_one_gpu_each_and_a_lost_one_costs_one_timing(monkeypatch):
    monkeypatch.setattr(gpus, "_WORK", _PRETEND)
    timings = [t for t in SMALL["study"].of(["rope-triton"]).timings if t.direction == "forward"]
    lost = [timing for timing in timings if timing.cell.seq_len == 2048][:1]
    timings = [*lost, *(timing for timing in timings if timing.cell.seq_len != 2048)][:3]
    rows = []
    gpus.measure(timings, UUIDS[:2], rows.append, "Toy")
    assert Counter(row.timing for row in rows) == Counter(timings)
    assert {row.gpu for row in rows} <= set(UUIDS[:2])
    for row in rows:
        if row.timing in lost:
            assert row.status == "failed" and "ended with 9" in row.outcome.error
            assert "out of order" in row.outcome.error
        else:
            assert row.outcome == Outcome((1e-6, 2e-6), (1e-6, 1e-6))
    with pytest.raises(SweepError, match=f"{UUIDS[0]} alone, a Other, and found gpu 'Toy'"):
        gpus.measure(timings, UUIDS[:1], rows.append, "Other")


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (gpus._WORK, "found gpus 0"),
        ("sys.exit('no libcuda')", "ended with 1(.|\\n)*no libcuda"),
        ("import time\ntime.sleep(60)", "ended with -9"),
    ],
)
def test_a_process_without_its_gpu_is_refused(monkeypatch, work, message):
    monkeypatch.setattr(gpus, "_WORK", work)
    if "sleep" in work:
        monkeypatch.setattr(gpus, "CELL_SECONDS", 0.5)
    with pytest.raises(SweepError, match=message):
        next(gpus.rows(UUIDS[0], SMALL["study"].timings[:1], "Toy"))


def test_a_process_that_ends_with_the_sweep_is_no_failure_of_its_timing(bench, monkeypatch):
    """Ctrl-C ends the processes first; what they were measuring is measured another time."""

    def ended(uuid, timing, count):
        if count == 2:
            monkeypatch.setattr(gpus.process, "stopping", lambda: True)
            raise gpus.ProcessLost("the process ended with -9")

    bench.before = ended
    rows = []
    gpus.measure(SMALL["bandwidth"].timings, UUIDS[:1], rows.append, MACHINE["gpu"])
    assert [row.timing for row in rows] == bench.measured and len(rows) == 2
