"""The journal of a measurement: sound after a kill, and of one measurement only."""

import errno
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks._engine.system import journal
from benchmarks._engine.system.files import write_atomically
from benchmarks._engine.system.journal import Journal, JournalError

ROOT = Path(__file__).resolve().parents[3]
HEADER = {"base": "a" * 40, "grid": {"seq_len": [128, 2048]}, "seed": 1}
ENTRIES = [{"round": number, "seconds": [number + 0.25, 1e-6]} for number in range(3)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "states" / "one.jsonl"


@pytest.fixture
def filled(path):
    with Journal(path, HEADER) as opened:
        for entry in ENTRIES:
            opened.append(entry)
    return path


def entries(path, header=HEADER, **options) -> list[dict]:
    with Journal(path, header, **options) as opened:
        return opened.entries


def test_entries_come_back_in_order_and_as_they_were(filled):
    with Journal(filled, HEADER) as opened:
        assert (opened.header, opened.entries) == (HEADER, ENTRIES)
        opened.append({"x": (1, 2)}, {"y": None})
        assert opened.entries == [*ENTRIES, {"x": [1, 2]}, {"y": None}]
    assert entries(filled) == journal.read(filled)[1:] == [*ENTRIES, {"x": [1, 2]}, {"y": None}]


def full(descriptor):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_costs_one_entry_and_names_the_journal(filled, monkeypatch):
    with Journal(filled, HEADER) as opened, monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError) as caught:
            opened.append({"round": 3})
        assert caught.value.filename == str(filled)
        assert opened.entries == ENTRIES
    assert entries(filled)[: len(ENTRIES)] == ENTRIES


def test_every_key_that_differs_is_named_and_nothing_changes(filled):
    before = filled.read_bytes()
    other = {"base": "c" * 40, "grid": {"seq_len": [128]}, "driver": "580"}
    with pytest.raises(JournalError) as caught:
        Journal(filled, other)
    message = str(caught.value)
    assert f"base: stored {'a' * 40!r}, present {'c' * 40!r}" in message
    assert "grid.seq_len: stored [128, 2048], present [128]" in message
    assert "driver: stored '(none)', present '580'" in message
    assert "seed: stored 1" in message and "--afresh" in message
    assert filled.read_bytes() == before
    assert entries(filled, other, may_differ=("base", "grid", "driver", "seed")) == ENTRIES


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [{"b": object()}]}])
def test_what_is_not_plain_json_is_refused(filled, value):
    with Journal(filled, HEADER) as opened:
        with pytest.raises((ValueError, TypeError)):
            opened.append({"fine": 1}, {"value": value})
        assert opened.entries == ENTRIES
    assert entries(filled) == ENTRIES


# --- damaged, foreign, in use ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", "no journal"),
        (lambda data: b"thesis", "no journal"),
        (lambda data: b"\xff\xfe\n", "line 1, is damaged"),
        (lambda data: b"[]\n", "line 1, is damaged"),
        (lambda data: b"\xef\xbb\xbf" + data, "line 1, is damaged: Unexpected UTF-8 BOM"),
        (lambda data: data.replace(b"\n", b"\r\n"), "line 1, is damaged: it ends with CR LF"),
        (lambda data: data.replace(b'"seconds"', b"seconds", 1), "line 2, is damaged"),
        (lambda data: data.replace(b"\n", b"\n\n", 1), "line 2, is damaged"),
        (lambda data: data.replace(b"1.25", b"1.25\n", 1), "line 3, is damaged"),
        (lambda data: data[data.index(b"\n") + 1 :], "holds other measurements"),
    ],
)
def test_damage_is_an_error_and_nothing_is_written(filled, damage, message):
    filled.write_bytes(damage(filled.read_bytes()))
    before = filled.read_bytes()
    with pytest.raises(JournalError, match=message) as caught:
        Journal(filled, HEADER)
    assert str(filled) in str(caught.value)
    assert str(caught.value).endswith("\nstart again with --afresh, or move the file away")
    assert filled.read_bytes() == before


HOLDER = """
import pathlib, time
from benchmarks._engine.system.journal import Journal
opened = Journal(pathlib.Path({path!r}), {header!r})
print("open", flush=True)
time.sleep(60)
"""


def test_a_second_opener_is_told_the_pid_of_the_first(filled):
    code = HOLDER.format(path=str(filled), header=HEADER)
    line = [sys.executable, "-c", code]
    with subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(JournalError, match=rf"in use by pid {holder.pid} \(.*python"):
            Journal(filled, HEADER)
        threading.Timer(0.2, holder.kill).start()
        assert entries(filled, wait=True) == ENTRIES  # a kill frees it
    assert entries(filled) == ENTRIES


# --- kills ----------------------------------------------------------------------------------------


def test_a_line_that_was_being_written_is_dropped_wherever_it_was_cut(filled):
    data = filled.read_bytes()
    last = data.splitlines(keepends=True)[-1]
    for length in range(len(last)):
        filled.write_bytes(data[: len(data) - len(last) + length])
        if length:
            with pytest.raises(JournalError, match="was cut"):
                journal.read(filled)
        with Journal(filled, HEADER) as opened:
            assert opened.entries == ENTRIES[:-1]
            opened.append(ENTRIES[-1])
        assert filled.read_bytes() == data


class Killed(BaseException):
    """Stands for SIGKILL: after it, no code of the process has any effect."""


@pytest.mark.parametrize("step", range(6))
def test_a_kill_while_starting_leaves_a_journal_that_starts(path, monkeypatch, step):
    steps = itertools.count()

    def dying(call):
        def either(*arguments):
            if next(steps) >= step:
                raise Killed
            call(*arguments)
            if next(steps) >= step:
                raise Killed

        return either

    with monkeypatch.context() as patch:
        for name in ("fsync", "replace", "unlink"):
            patch.setattr(os, name, dying(getattr(os, name)))
        with pytest.raises(Killed):
            Journal(path, HEADER)
    with Journal(path, HEADER) as opened:
        opened.append(ENTRIES[0])
    assert entries(path) == ENTRIES[:1]
    assert sorted(os.listdir(path.parent)) == ["one.jsonl", "one.jsonl.lock"]


def test_an_error_of_the_disk_leaves_no_scratch(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(tmp_path / "x.json", b"{}")
    assert os.listdir(tmp_path) == []


WRITER = """
import itertools, pathlib
from benchmarks._engine.system.journal import Journal
opened = Journal(pathlib.Path({path!r}), {header!r})
for number in itertools.count(len(opened.entries)):
    opened.append({{"round": number, "seconds": [number] * 20000}})
    print("saved", flush=True)
"""


def test_a_killed_writer_loses_at_most_what_it_was_writing(path):
    code, count = WRITER.format(path=str(path), header=HEADER), 0
    for milliseconds in (0, 1, 3):
        line = [sys.executable, "-c", code]
        with subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
            for _ in range(3):
                assert writer.stdout.readline() == "saved\n"
            time.sleep(milliseconds / 1000)  # into the next write, wherever that is by then
            writer.kill()
        assert writer.returncode == -signal.SIGKILL
        stored = entries(path)
        assert len(stored) >= count + 3
        assert all(
            entry == {"round": number, "seconds": [number] * 20000}
            for number, entry in enumerate(stored)
        )
        count = len(stored)


def test_the_newest_journals_are_kept_and_those_in_use(filled):
    others = [filled.with_name(f"{number}.jsonl") for number in range(3)]
    for age, other in enumerate(others, 1):
        with Journal(other, HEADER):
            pass
        os.utime(other, (age, age))
    with Journal(filled, HEADER):
        os.utime(filled, (0, 0))
        journal.keep_newest(filled.parent, 1)
        left = sorted(path.name for path in filled.parent.iterdir())
        assert left == ["2.jsonl", "2.jsonl.lock", "one.jsonl", "one.jsonl.lock"]
    journal.keep_newest(filled.parent, 1)
    assert [path.name for path in filled.parent.glob("*.jsonl")] == ["2.jsonl"]
