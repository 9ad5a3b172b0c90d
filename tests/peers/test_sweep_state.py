"""What a sweep keeps as it goes: it goes on from there, or is refused, and says how far it is."""

import json
import types
from collections import Counter

import pytest

from benchmarks import __main__ as entry
from benchmarks._measure.workload import Outcome
from benchmarks._peers.sweep import command, state
from tests.lab import MACHINE
from tests.peers import sweeping
from tests.peers.sweeping import FULL, SMALL, sweep

bench, undrawn = sweeping.bench, sweeping.undrawn  # fixtures


# --- going on -------------------------------------------------------------------------------------


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


# --- refused --------------------------------------------------------------------------------------


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
    monkeypatch.setattr(command.checkout, "from_working_tree", lambda *_: arm)
    assert sweep() == 3
    assert "rope_triton differs from HEAD" in capsys.readouterr().err


def test_without_a_gpu_it_says_so(bench, monkeypatch, capsys):
    machine = MACHINE | {"gpu": "none"}
    monkeypatch.setattr(command._machine, "probe", lambda: (machine, "none"))
    assert sweep() == 3
    assert "no NVIDIA GPU" in capsys.readouterr().err
