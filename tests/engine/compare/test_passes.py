"""The order in which a process of a comparison times its cells; no GPU, no clock."""

import gc
import types
import weakref

import pytest
import torch

from benchmarks._engine.compare import measure
from benchmarks._engine.measure import cell_outcomes, gpu_timer, timed_cell
from benchmarks._engine.subject import DEFAULT, load
from benchmarks._subjects.rope import grid
from benchmarks._subjects.rope.cells import grid_cell

CELLS = [grid_cell(seq_len, 64, 1, "float16", "sbhd") for seq_len in (16, 32, 48, 64)]
NAMES = [cell.params[0] for cell in CELLS]
RECORD, CHECK = "record", "check"
PASSES = [f"pass {number}" for number in range(1, measure.PASSES + 1)]


class Bench:
    """Stands for the GPU's timer; ``events`` tells what was done, in order, by cell.

    ``fails``: (cell, what) -> the exception that it raises then.
    """

    def __init__(self, patch):
        self.events, self.fails, self.buffers = [], {}, weakref.WeakSet()
        self.patch, self.emptied_with, self.orders = patch, [], []
        patch.setattr(timed_cell, "TimedCell", self.timed)
        patch.setattr(cell_outcomes, "gpu_is_lost", lambda: False)
        patch.setattr(gpu_timer, "warm_up", lambda seconds: self.events.append("warm up"))
        patch.setattr(gpu_timer, "launches", lambda: types.SimpleNamespace(time=float))
        patch.setattr(gpu_timer, "cold_sets", lambda bytes_moved: 2)
        patch.setattr(torch.cuda, "empty_cache", self.empty_cache)
        patch.setattr(gc, "collect", lambda: 0)
        self.hold(len(CELLS))

    def hold(self, cells: int) -> None:
        """Let memory have room for the first ``cells`` of the cells together, and no more."""
        needed = sum(timed_cell.needed_bytes(cell, 2) for cell in CELLS[:cells])
        total = needed / timed_cell.HELD_SHARE
        self.patch.setattr(torch.cuda, "mem_get_info", lambda: (0, total))

    def do(self, cell, what):
        self.events.append(f"{what} {cell.params[0]}")
        if error := self.fails.get((cell.params[0], what)):
            raise error

    def empty_cache(self):
        self.emptied_with.append(len(self.buffers))

    def timed(self, cell, directions, *, arrange):
        assert directions == ("forward", "backward")
        return TimedCell(self, cell, arrange)

    def measured(self, seed=1, cells=CELLS):
        self.answer = measure._measure(load(DEFAULT), cells, starts=False, seed=seed)
        return self.answer


class Buffers:
    pass


class TimedCell:
    def __init__(self, bench, cell, arrange):
        buffers = Buffers()
        bench.buffers.add(buffers)
        self.bench, self.cell, self.taken = bench, cell, 0
        order = [1, 2, 3, 4, 5]
        arrange(order)
        bench.orders.append(tuple(order))
        bench.do(cell, RECORD)
        self.buffers = buffers

    def sample(self, count, seconds):
        assert (count, seconds) == (1, measure.SAMPLE_SECONDS)
        self.taken += 1
        self.bench.do(self.cell, f"pass {self.taken}")

    def checked(self):
        self.bench.do(self.cell, CHECK)
        return [[float(n) for n in range(self.taken)]] * 2


@pytest.fixture
def bench(monkeypatch):
    return Bench(monkeypatch)


def passes(names):
    recorded = [f"{RECORD} {name}" for name in names]
    steps = [f"{what} {name}" for what in (*PASSES, CHECK) for name in names]
    return [*recorded, "warm up", *steps]


def timed_cells(answer):
    return list(dict.fromkeys(params[0] for _, params, _ in answer["timings"]))


def test_a_sample_of_every_cell_in_each_pass(bench):
    answer = bench.measured()
    assert bench.events == passes(NAMES)
    assert timed_cells(answer) == NAMES
    assert all(samples == [0.0, 1.0, 2.0] for *_, samples in answer["timings"])
    assert len(answer["timings"]) == 2 * len(CELLS)
    assert answer["launches"] == [1.0] * (measure.PASSES + 1)


def test_cells_that_do_not_fit_together_are_timed_in_groups(bench):
    bench.hold(3)
    bench.measured()
    assert bench.events == [*passes(NAMES[:3]), *passes(NAMES[3:])]
    assert bench.emptied_with == [0, 0], "a group begins with the memory that the first found"


def test_without_cells_the_gpu_is_warmed_up_for_the_host(bench):
    bench.measured(cells=[])
    assert bench.events == ["warm up"]


def test_both_processes_of_a_round_arrange_alike(bench):
    for seed in (1, 1, 2):
        bench.measured(seed)
    one, same, other = (bench.orders[at : at + len(CELLS)] for at in range(0, 12, len(CELLS)))
    assert one == same != other and len(set(one)) > 1


@pytest.mark.parametrize("what", [RECORD, *PASSES, CHECK])
@pytest.mark.parametrize(
    ("error", "where"),
    [(AssertionError("wrong"), "errors"), (torch.cuda.OutOfMemoryError("full"), "unavailable")],
)
def test_a_cell_that_fails_costs_only_itself(bench, what, error, where):
    bench.fails[NAMES[1], what] = error
    answer = bench.measured()
    rest = [name for name in NAMES if name != NAMES[1]]
    assert timed_cells(answer) == rest
    failed = [(metric, params[0]) for metric, params, _ in answer[where]]
    assert failed == [(metric, NAMES[1]) for metric in CELLS[1].metrics.values()]
    steps = [RECORD, *PASSES, CHECK]
    mine = [event for event in bench.events if event.endswith(f" {NAMES[1]}")]
    assert mine == [f"{step} {NAMES[1]}" for step in steps[: steps.index(what) + 1]]
    assert [event for event in bench.events if event not in mine] == passes(rest)


def test_what_a_failed_recording_took_is_free_for_the_next_cell(bench):
    bench.fails[NAMES[1], RECORD] = AssertionError("wrong")
    bench.measured()
    assert bench.emptied_with[0] == 1, "that of the first cell, and not of the second"


def test_a_lost_gpu_ends_the_process(bench, monkeypatch):
    bench.fails[NAMES[1], PASSES[1]] = RuntimeError("illegal address")
    monkeypatch.setattr(cell_outcomes, "gpu_is_lost", lambda: True)
    with pytest.raises(RuntimeError, match="illegal address"):
        bench.measured()


# --- groups ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("gib", [16, 80, 140])
@pytest.mark.parametrize("name", ["small", "full"])
def test_groups_fit_and_are_as_few_as_fit(gib, name, monkeypatch):
    total, l2 = gib * 2**30, 60 * 2**20
    monkeypatch.setattr(gpu_timer, "_l2_bytes", lambda: l2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, total))
    cells = grid.all_cells(name)
    groups = timed_cell.groups(cells)
    assert [cell for group in groups for cell in group] == cells

    def needed(group):
        sets = (gpu_timer.cold_sets(cell.bytes_moved) for cell in group)
        return sum(map(timed_cell.needed_bytes, group, sets))

    room = timed_cell.HELD_SHARE * total
    assert all(needed(group) <= room or len(group) == 1 for group in groups)
    for group, following in zip(groups, groups[1:], strict=False):
        assert needed([*group, following[0]]) > room
    if (name, gib) == ("small", 140):
        assert len(groups) <= 3
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**40, total))
    assert timed_cell.groups(cells) == groups, "what is free does not matter"
