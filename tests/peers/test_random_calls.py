"""The sweep of calls drawn at random, and the goals that the package's calls are held to."""

import pytest

from benchmarks._engine.measure import inputs, timed_cell
from benchmarks._engine.measure.cell_outcomes import Outcome
from benchmarks._engine.subject import BACKWARD, FORWARD
from benchmarks._studies.peers import peers_study, state, targets
from benchmarks._studies.peers.experiments import (
    Experiment,
    Figure,
    Timing,
    measured,
    planned,
)
from benchmarks._studies.peers.peer_cells import peer_named_cell
from benchmarks._studies.peers.state import Results, Row
from benchmarks._studies.peers.targets import ONE_HEAD, WITH_ANGLES, WITH_TABLES
from benchmarks._subjects.rope import angles
from tests.peers import libraries
from tests.peers import timer as times
from tests.peers.timer import FULL, SHA, SMALL, peers
from tests.studies import common

processes = common.processes  # a fixture

timer, undrawn, here = times.timer, times.undrawn, libraries.here  # fixtures

PROVIDERS = ("rope-triton", "rope-triton-tables", "flash-attention", "quack", "liger")


# --- what is measured -----------------------------------------------------------------------------


def test_it_is_drawn_by_three_seeds_of_the_commit():
    names = list(dict.fromkeys(timing.cell.values[1] for timing in FULL["random"].timings))
    assert len(names) == 200 and len(SMALL["random"].figures[0].cells) == 12 * len(PROVIDERS)
    assert planned("random", "full", SHA[::-1]) != FULL["random"]
    cells = {timing.cell for timing in FULL["random"].timings}
    assert cells == {peer_named_cell(provider, name) for provider in PROVIDERS for name in names}
    for direction, figure in zip((FORWARD, BACKWARD), FULL["random"].figures, strict=True):
        assert figure.direction == direction
        assert set(figure.cells) == {cell for cell in cells if direction in cell.directions}


def test_stored_calls_are_those_of_the_rows_whatever_is_drawn_later():
    timings = SMALL["random"].timings
    assert measured("random", "small", timings) == SMALL["random"]
    few = [timing for timing in timings if timing.cell.provider == "quack"][:3]
    names = dict.fromkeys(timing.cell.values[1] for timing in few)
    found = {timing.cell for timing in measured("random", "full", few).timings}
    assert found == {peer_named_cell("quack", name) for name in names}


def test_all_is_compiled_side_by_side_before_it_is_timed(timer, undrawn, monkeypatch):
    monkeypatch.setattr(peers_study.os, "sched_getaffinity", lambda pid: range(6))
    timer.before = lambda count: None if timer.compiled else pytest.fail("not compiled yet")
    assert peers("--only", "random") == 0
    cells = {timing.cell: timing.direction for timing in SMALL["random"].timings}
    assert dict(timer.compiled) == cells and len(timer.compiled) == len(cells)
    timer.compiled.clear()
    assert peers("--only", "random") == 0  # all is there
    assert not timer.compiled
    timer.before = lambda count: None
    assert peers("--only", "milliseconds", "--only", "copy") == 0
    assert not timer.compiled


def test_a_process_that_compiles_makes_every_call_and_none_stops_it(monkeypatch, here):
    monkeypatch.setattr(inputs, "DEVICE", here)
    made, one = [], "fp32-2+1x16-1x4"
    monkeypatch.setattr(angles, "check_package", lambda *_: None)

    def calls(call, direction, inputs):
        made.append((call.cell, direction))
        yield from usual_calls(call, direction, inputs)

    usual_calls = timed_cell.calls
    monkeypatch.setattr(timed_cell, "calls", calls)
    cells = [peer_named_cell(provider, one) for provider in ("flash-attention", "vllm", "copy")]

    def fails(*_, **__):
        raise RuntimeError("out of order")

    libraries.install(monkeypatch, "flash-attention", fails)
    peers_study.call_once([(cell, BACKWARD) for cell in cells])
    assert made == [(cell, BACKWARD) for cell in cells]


def test_a_process_that_compiles_and_fails_is_named_and_the_rest_is_measured(
    timer,
    processes,
    undrawn,
    capsys,
):
    def fails(cells):
        raise RuntimeError("a fresh process ended with 9")

    processes.others[peers_study.call_once] = fails
    assert peers("--only", "random") == 0
    assert "not all is compiled: a fresh process ended with 9" in capsys.readouterr().err
    assert set(timer.measured) == set(SMALL["random"].timings)


# --- goals ----------------------------------------------------------------------------------------


def judged(name, copy=2.0, roofline=(), **seconds):
    """What is judged of one call, forward, that takes these times, by its goal."""
    names = {"ours": "rope-triton", "tables": "rope-triton-tables", "flash": "flash-attention"}
    rows = {}
    for key, value in seconds.items():
        timing = Timing(FORWARD, peer_named_cell(names.get(key, key), name))
        one = Outcome((value,), (copy,), roofline=roofline) if value else Outcome(unavailable="n/a")
        rows[timing] = Row(timing, one, "GPU-0")
    cells = tuple(timing.cell for timing in rows)
    figure = Figure("random-forward", "Calls", FORWARD, "share", "name", cells)
    experiment = Experiment("random", "Calls", (figure,), judged=True)
    (point,) = targets.points(experiment, Results({}, rows))
    return {judgement.goal: judgement for judgement in point.judgements}


LARGE, MIDDLE, SMALL_CALL = "bf16-64x128-1x1024", "bf16-64x128-1x256", "bf16-64x128-1x64"


@pytest.mark.parametrize(
    ("name", "slowest", "least"),
    [(LARGE, 1.01, 0.96), (MIDDLE, 1.01, 0.9), (SMALL_CALL, 1.05, 0.9)],
)
def test_the_fastest_rival_is_what_a_call_is_held_to(name, slowest, least):
    rivals = {"flash": 4.0, "quack": 3.0, "liger": 5.0}
    for by_tables, ours, held in (
        (3.0 * slowest - 1e-6, 3.0 / least - 1e-6, True),
        (3.0 * slowest + 1e-6, 3.0 / least + 1e-6, False),
    ):
        judgements = judged(name, ours=ours, tables=by_tables, **rivals)
        assert judgements.keys() == {WITH_TABLES, WITH_ANGLES}
        for judgement in judgements.values():
            assert judgement.beside == "quack" and judgement.held == held
        assert judgements[WITH_ANGLES].least == least
    without = judged(name, ours=1.0, tables=1.0, flash=4.0, quack=0.0)
    assert without[WITH_TABLES].beside == "flash-attention"
    assert judged(name, ours=1.0, tables=1.0) == {}
    assert judged(name, ours=1.0, tables=0.0, flash=1.0).keys() == {WITH_ANGLES}


@pytest.mark.parametrize(("quack", "beside"), [(1.5, "roofline"), (2.5, "quack")])
def test_by_angles_the_slower_of_the_roofline_and_the_fastest_rival_counts(quack, beside):
    """The roofline takes 2 s, a call 4 s."""
    (judgement,) = judged(LARGE, ours=4.0, quack=quack, roofline=(2.0,)).values()
    assert (judgement.goal, judgement.beside) == (WITH_ANGLES, beside)
    assert judgement.ratio == max(0.5, quack / 4.0)
    (judgement,) = judged(LARGE, ours=4.0, roofline=(2.0,)).values()
    assert judgement.beside == "roofline" and not judgement.held


def test_samples_of_the_roofline_are_the_first_and_paired():
    timing = Timing(FORWARD, peer_named_cell("rope-triton", LARGE))
    row = Row(timing, Outcome((4.0, 5.0, 4.0), (1.0,) * 3, roofline=(2.0, 2.5)), "GPU-0")
    assert state.from_json(state.as_json(row)) == row and row.share_of_roofline == 0.5


@pytest.mark.parametrize(
    ("name", "beside"),
    [
        *(("bf16-8+8x128-1x512", "liger"), ("bf16-8+8x128r64-1x512", "quack")),
        *(("bf16-8+8x128-perbatch-64x1", "liger"), ("bf16-8+8x128-64x1", "quack")),
    ],
)
def test_a_rival_that_does_less_does_not_count(name, beside):
    judgements = judged(name, ours=2.0, tables=2.0, liger=1.0, quack=1.5)
    assert {judgement.beside for judgement in judgements.values()} == {beside}


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        *(("bf16-1x64-8x8192", True), ("bf16-1x64-of576-2x64", True), ("bf16-1x64-1x8192", False)),
        *(("bf16-2x64-8x8192", False), ("bf16-1x64-perbatch-8x8192", False)),
        *(("bf16-1x64-64x1", False), ("bf16-1+1x64-8x8192", False)),
    ],
)
def test_one_head_with_a_batch_is_held_to_a_copy(name, counts):
    for ours, held in ((2.1, True), (2.2, False)):
        judgements = judged(name, ours=ours)
        assert (ONE_HEAD in judgements) == counts
        if counts:
            assert judgements[ONE_HEAD].held == held and judgements[ONE_HEAD].beside == "copy"


@pytest.mark.parametrize(("roofline", "beside"), [(1.9, "copy"), (2.1, "roofline")])
def test_one_head_is_held_to_the_roofline_where_that_is_slower_than_a_copy(roofline, beside):
    judgement = judged("bf16-1x64-8x8192", ours=2.2, roofline=(roofline,))[ONE_HEAD]
    assert (judgement.beside, judgement.held) == (beside, beside == "roofline")
