"""The stored rounds of a comparison: whole or absent after a kill, resumed only where equal."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks._compare import state as module
from benchmarks._compare.state import State, StateError, write_atomically

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = {"base": "a" * 40, "head": "b" * 40, "grid": {"seq_len": (128, 2048)}, "seed": 1}


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "state"


def fill(state, phase="look1", rounds=2):
    for number in range(rounds):
        for arm in ("base", "head"):
            state.save(phase, number, arm, {"seconds": [number + 0.25, 1e-6], "arm": arm})


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "lock"}


def test_rounds_come_back_in_order_and_as_they_were(directory):
    with State.open(directory, MANIFEST) as state:
        fill(state, rounds=11)
        state.save("facts", 0, "head", {"registers": 40})
    with State.open(directory, MANIFEST) as state:
        rounds = state.rounds("look1")
        assert [done.number for done in rounds] == list(range(11))
        assert rounds[10].payloads["base"] == {"seconds": [10.25, 1e-6], "arm": "base"}
        assert rounds[10].payloads["head"]["arm"] == "head"
        assert state.load("facts", 0, "head") == {"registers": 40}
        assert state.load("facts", 0, "base") is None
        assert state.rounds("facts") == state.rounds("look2") == []


def test_a_result_is_written_once(directory):
    with State.open(directory, MANIFEST) as state:
        state.save("look1", 0, "base", {"x": 1})
        with pytest.raises(StateError, match="written once"):
            state.save("look1", 0, "base", {"x": 2})
        assert state.load("look1", 0, "base") == {"x": 1}


def test_every_field_that_differs_is_named_and_nothing_changes(directory):
    with State.open(directory, MANIFEST) as state:
        fill(state)
    before = contents(directory)
    other = MANIFEST | {"head": "c" * 40, "grid": {"seq_len": (128,)}, "driver": "580"}
    del other["seed"]
    with pytest.raises(StateError) as caught:
        State.open(directory, other)
    message = str(caught.value)
    assert f"head: stored {'b' * 40!r}, present {'c' * 40!r}" in message
    assert "grid.seq_len: stored [128, 2048], present [128]" in message
    assert "driver: stored '(none)', present '580'" in message
    assert "seed: stored 1" in message and "base:" not in message
    assert "another directory" in message
    assert contents(directory) == before


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1: 2}, {"a": [{"b": object()}]}])
def test_what_is_not_plain_json_is_refused(directory, value):
    with State.open(directory, MANIFEST) as state:
        with pytest.raises(ValueError, match="plain JSON with finite numbers"):
            state.save("look1", 0, "base", {"value": value})
        assert state.load("look1", 0, "base") is None


@pytest.mark.parametrize(
    ("phase", "number", "arm"),
    [("../look", 0, "base"), ("look1", -1, "base"), ("look1", 0, "other"), ("aside", 0, "base")],
)
def test_a_bad_key_is_refused(directory, phase, number, arm):
    with State.open(directory, MANIFEST) as state, pytest.raises(ValueError, match="must be"):
        state.save(phase, number, arm, {})


# Halves and disturbed rounds


def test_a_half_round_does_not_count_and_is_measured_again(directory):
    with State.open(directory, MANIFEST) as state:
        fill(state, rounds=1)
        state.save("look1", 1, "head", {"x": 1})
        state.save("facts", 0, "head", {"registers": 40})
    with State.open(directory, MANIFEST) as state:
        assert state.discard_incomplete_rounds("look1", "look2") == 1
        assert state.discard_incomplete_rounds("look1", "look2") == 0
        assert [done.number for done in state.rounds("look1")] == [0]
        assert state.load("facts", 0, "head") == {"registers": 40}
        (aside,) = state.aside()
        assert aside[:3] == ("look1", 1, 0) and aside.payloads == {"head": {"x": 1}}
        assert "before every arm" in aside.reason
        for arm in ("base", "head"):
            state.save("look1", 1, arm, {"x": 2})
    with State.open(directory, MANIFEST) as state:
        assert state.discard_incomplete_rounds() == 1  # of all phases: the lone fact
        assert [done.number for done in state.rounds("look1")] == [0, 1]
        assert state.load("look1", 1, "head") == {"x": 2}


def test_a_disturbed_round_is_kept_as_evidence_with_its_reason(directory):
    with State.open(directory, MANIFEST) as state:
        state.save("look1", 0, "base", {"x": 1})
        state.set_aside("look1", 0, "hot", unsaved={"head": {"x": 9}})
        fill(state, rounds=1)
        state.set_aside("look1", 0, "still hot")
    with State.open(directory, MANIFEST) as state:
        assert state.rounds("look1") == []
        first, second = state.aside()
        assert first.reason == "hot"
        assert first.payloads == {"base": {"x": 1}, "head": {"x": 9}}
        assert (second.attempt, second.reason) == (1, "still hot")
        assert set(second.payloads) == {"base", "head"}


def test_setting_aside_needs_a_reason(directory):
    with State.open(directory, MANIFEST) as state, pytest.raises(ValueError, match="a reason"):
        state.set_aside("look1", 0, "")


def test_a_third_arm_makes_a_round_complete_where_one_is_asked_for(directory):
    arms = ("base", "head", "control")
    with State.open(directory, MANIFEST, arms) as state:
        fill(state, rounds=2)
        state.save("look1", 0, "control", {"x": 1})
        assert [done.number for done in state.rounds("look1")] == [0]
        assert state.discard_incomplete_rounds() == 1


# Foreign, damaged, in use


def test_a_foreign_directory_is_left_as_it_was(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(StateError, match=r"thesis\.tex is no file of a comparison"):
        State.open(tmp_path, MANIFEST)
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_file_is_no_directory(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StateError, match="not a directory"):
        State.open(tmp_path / "file", MANIFEST)


def edit(name, change):
    def damage(directory):
        path = directory / name
        path.write_bytes(change(path.read_bytes()))

    return damage


def renamed(directory):
    (directory / "look1.0001.0.base.json").rename(directory / "look1.0003.0.base.json")


RESULT = "look1.0001.0.base.json"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (edit(RESULT, lambda data: data[: len(data) // 2]), "damaged"),
        (edit(RESULT, lambda data: b""), "damaged"),
        (edit(RESULT, lambda data: b"\xff\xfe"), "damaged"),
        (edit(RESULT, lambda data: b"[]"), "not a file of"),
        (edit(RESULT, lambda data: b'{"registers": 40}'), "not a file of"),
        (edit(RESULT, lambda data: data.replace(b"1.25", b"1.24")), "checksum"),
        (edit(RESULT, lambda data: data.replace(b'"schema": 1', b'"schema": 2')), "schema 2"),
        (edit("manifest.json", lambda data: data[:-3]), "damaged"),
        (edit("manifest.json", lambda data: data.replace(b"bbb", b"bbc")), "checksum"),
        (lambda directory: (directory / "manifest.json").unlink(), "no manifest.json"),
        (lambda directory: (directory / "look1.0002.0.aside.json").unlink(), "was removed"),
        (lambda directory: (directory / "look1.0000.0.other.json").touch(), "no file of"),
        (renamed, "renamed"),
    ],
)
def test_damage_is_an_error_and_nothing_is_written(directory, damage, message):
    with State.open(directory, MANIFEST) as state:
        fill(state, rounds=3)
        state.set_aside("look1", 2, "hot")
        state.save("look1", 2, "base", {"x": 1})
    damage(directory)
    (directory / ".tmp-look1.0009.0.base.json").write_bytes(b"half")
    before = contents(directory)
    with pytest.raises(StateError, match=message):
        State.open(directory, MANIFEST)
    assert contents(directory) == before


def test_a_symbolic_link_is_foreign(directory, tmp_path):
    State.open(directory, MANIFEST).close()
    (tmp_path / "elsewhere").write_text("precious")
    (directory / "look1.0000.0.base.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateError, match="no file of"):
        State.open(directory, MANIFEST)


def test_leftovers_of_a_killed_write_go(directory):
    State.open(directory, MANIFEST).close()
    (directory / ".tmp-look1.0000.0.base.json").write_bytes(b"half")
    State.open(directory, MANIFEST).close()
    assert sorted(os.listdir(directory)) == ["lock", "manifest.json"]


def test_a_second_opener_is_told_the_pid_of_the_first(directory):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(directory=str(directory), manifest=MANIFEST)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(StateError, match=rf"in use by pid {holder.pid} \(.*python"):
            State.open(directory, MANIFEST)
        holder.kill()
        holder.wait()
        State.open(directory, MANIFEST).close()  # a kill frees it


HOLDER = """
import time
from benchmarks._compare.state import State
state = State.open({directory!r}, {manifest!r})
print("open", flush=True)
time.sleep(60)
"""


# Kills


class Killed(BaseException):
    """Stands for SIGKILL: after it, no code of the process has any effect."""


STEPS = [("write", "before"), ("fsync", "before"), ("fsync", "after"), ("replace", "before")]
STEPS += [("replace", "after"), ("directory", "before")]


def die_at(monkeypatch, step, when):
    """Raise at one step of a write, and at every effect on the disk after it."""
    dead = []
    real = {name: getattr(os, name) for name in ("fsync", "replace", "unlink")}

    def dying(name):
        def call(*arguments):
            if dead:
                raise Killed
            # The second fsync is that of the directory.
            here = name if name != "fsync" or not calls.count("fsync") else "directory"
            calls.append(name)
            if (here, "before") == (step, when):
                dead.append(True)
                raise Killed
            result = real[name](*arguments)
            if (here, "after") == (step, when):
                dead.append(True)
                raise Killed
            return result

        return call

    calls = []
    for name in real:
        monkeypatch.setattr(module.os, name, dying(name))
    if step == "write":
        original = Path.open

        def half(path, *arguments):
            with original(path, *arguments) as stream:
                stream.write(b'{"format": "rope')
            dead.append(True)
            raise Killed

        monkeypatch.setattr(module.Path, "open", half)


@pytest.mark.parametrize(("step", "when"), STEPS)
@pytest.mark.parametrize("act", ["save", "set_aside"])
def test_a_kill_at_any_step_leaves_nothing_or_the_whole(directory, act, step, when):
    with State.open(directory, MANIFEST) as state:
        fill(state, rounds=1)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            die_at(patch, step, when)
            if act == "save":
                state.save("look1", 1, "base", {"x": 1})
            else:
                state.set_aside("look1", 0, "hot")
    whole = (step, when) in {("replace", "after"), ("directory", "before")}
    with State.open(directory, MANIFEST) as state:
        assert not list(directory.glob(".tmp*"))
        if act == "save":
            assert state.load("look1", 1, "base") == ({"x": 1} if whole else None)
            assert len(state.rounds("look1")) == 1
        else:
            assert len(state.aside()) == whole
            assert len(state.rounds("look1")) == (not whole)


@pytest.mark.parametrize(("step", "when"), STEPS)
def test_a_kill_while_starting_leaves_a_state_that_starts(directory, step, when):
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        die_at(patch, step, when)
        State.open(directory, MANIFEST)
    with State.open(directory, MANIFEST) as state:
        fill(state)
        assert len(state.rounds("look1")) == 2


def test_an_error_of_the_disk_leaves_no_scratch(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(tmp_path / "x.json", b"{}")
    assert os.listdir(tmp_path) == []


WRITER = """
import itertools
from benchmarks._compare.state import State
state = State.open({directory!r}, {manifest!r})
state.discard_incomplete_rounds()
for number in itertools.count(len(state.rounds("look1"))):
    for arm in ("base", "head"):
        state.save("look1", number, arm, {{"seconds": [number] * 20000}})
        print("saved", flush=True)
"""


@pytest.mark.parametrize("saves", [3, 4])
def test_a_killed_writer_loses_at_most_what_it_was_writing(directory, saves):
    code = WRITER.format(directory=str(directory), manifest=MANIFEST)
    rounds = 0
    for milliseconds in (0, 1, 3):
        writer = subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        with writer:
            for _ in range(saves):
                assert writer.stdout.readline() == "saved\n"
            time.sleep(milliseconds / 1000)  # into the next write, wherever that is by then
            writer.kill()
        assert writer.returncode == -signal.SIGKILL
        with State.open(directory, MANIFEST) as state:
            done = state.rounds("look1")
            assert len(done) >= rounds + saves // 2
            assert [round.number for round in done] == list(range(len(done)))
            for round in done:
                assert round.payloads["head"] == {"seconds": [round.number] * 20000}
            rounds = len(done)


def test_the_files_are_plain_json(directory):
    with State.open(directory, MANIFEST) as state:
        fill(state, rounds=1)
    document = json.loads((directory / "look1.0000.0.head.json").read_text())
    assert document["schema"] == module.SCHEMA
    assert document["content"]["payload"]["arm"] == "head"
