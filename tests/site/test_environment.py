"""What asv stores: complete, under names without a path, over nothing that was measured here."""

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from asv import results, util
from asv.commands import find
from asv.machine import Machine, MachineCollection

from benchmarks._engine.system import machine
from benchmarks._site import asv_fixes
from tests.test_asv import Scratch, asv

ROOT = Path(__file__).resolve().parents[2]
VERSION = "{}.{}".format(*sys.version_info)
TOOLCHAIN = f"torch{metadata.version('torch')}-triton{metadata.version('triton')}"
NAME = f"existing-py{VERSION}-{TOOLCHAIN}"


def test_one_line_whatever_the_interpreters_path(tmp_path):
    """The same version of Python at two paths; asv measures and publishes with our plugin."""
    scratch = Scratch(tmp_path)
    shutil.move(tmp_path / "benchmarks", tmp_path / "suite")  # ours is the package "benchmarks"
    settings = json.loads((tmp_path / "asv.conf.json").read_text())
    settings |= {"benchmark_dir": "suite", "plugins": [".benchmarks._site"]}
    settings |= {"show_commit_url": "https://example.org/"}
    (tmp_path / "asv.conf.json").write_text(json.dumps(settings))
    scratch.git("add", "suite")
    for directory in ("one", "another"):
        python = tmp_path / directory / "python"
        python.parent.mkdir()
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        options = ("-E", f"existing:{python}", "--machine", "toy")
        done = asv(
            *("run", *options, "--set-commit-hash", scratch.commit()),
            cwd=tmp_path,
            ASV_PYTHONPATH=str(tmp_path),
            PYTHONPATH=str(ROOT),
        )
        assert done.returncode == 0, done.stdout + done.stderr
    stored = [json.loads(path.read_text()) for path in tmp_path.glob("results/toy/*-*.json")]
    assert len(stored) == 2
    for result in stored:
        assert result["env_name"] == NAME
        assert result["python"] == result["params"]["python"] == VERSION
        assert scratch.file_of(result["commit_hash"]).name.endswith(f"-{NAME}.json")
    done = asv("publish", cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stdout + done.stderr
    (graph,) = tmp_path.glob("html/graphs/arch-a/**/toy.Track.track_gbps.json")
    assert len(json.loads(graph.read_text())) == 2


def test_what_ships_is_copied_over_nothing_measured_here(tmp_path):
    shipped, copies = tmp_path / asv_fixes.SHIPPED, tmp_path / asv_fixes.RESULTS
    for name in ("gpu/own-a.json", "gpu/copy-b.json", "benchmarks.json"):
        (shipped / name).parent.mkdir(parents=True, exist_ok=True)
        (shipped / name).write_text("shipped")
    asv_fixes.fill_results(tmp_path)
    for name in ("gpu/own-a.json", "gpu/own-c.json", "benchmarks.json"):
        (copies / name).write_text("own")
    later = time.time() + 9  # a pull, or a clock that was ahead
    for path in shipped.rglob("*.json"):
        path.write_text("shipped anew")
        os.utime(path, (later, later))
    asv_fixes.fill_results(tmp_path)
    copied = {path.name: path.read_text() for path in copies.rglob("*.json")}
    new = dict.fromkeys(("copy-b.json", "benchmarks.json"), "shipped anew")
    assert copied == {"own-a.json": "own", "own-c.json": "own"} | new


@pytest.fixture
def asv_mended(monkeypatch):
    """asv with what the plugin replaces, for one test."""
    for owner, name in (
        *((util, "write_json"), (results.Results, "load")),
        *((Machine, "get_unique_machine_name"), (find, "run_benchmarks")),
    ):
        monkeypatch.setattr(owner, name, vars(owner)[name])

    def run_benchmarks(benchmarks, env, results, **options):
        return SimpleNamespace(
            commit_hash="a" * 40, get_result_value=lambda *_: next(env.values), env=env
        )

    find.run_benchmarks = run_benchmarks
    for mend in (
        *(asv_fixes.keep_results, asv_fixes.name_this_machine),
        asv_fixes.refuse_to_find_nothing,
    ):
        mend.__wrapped__()


def test_a_result_stays_whole_where_the_disk_is_full(asv_mended, tmp_path, monkeypatch):
    path = tmp_path / "gpu" / "a.json"
    util.write_json(str(path), {"b": 1, "a": [2]}, 3, compact=True)
    assert json.loads(path.read_text()) == {"b": 1, "a": [2], "version": 3}

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(util.UserError, match=f"{path} cannot be written: No space left"):
        util.write_json(str(path), {"b": 2})
    assert json.loads(path.read_text())["b"] == 1 and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b'{"version": 2}', "infinite"])
def test_asv_names_a_damaged_result_and_goes_on(text, asv_mended, tmp_path):
    if text == "infinite":
        (path,) = (ROOT / "benchmarks" / "results" / "nvidia-h200").glob("8f5b0467-*.json")
        stored = json.loads(path.read_text())
        next(iter(stored["results"].values()))[0][0] = float("inf")
        text = json.dumps(stored).encode()
    (tmp_path / "machine.json").write_text('{"machine": "nvidia-h200", "version": 1}')
    path = tmp_path / "8f5b0467-existing.json"
    path.write_bytes(text)
    with pytest.raises(util.UserError, match=str(path)):
        results.Results.load(str(path))
    assert list(results.iter_results(str(tmp_path))) == []


def test_asv_files_results_under_this_machine(asv_mended, tmp_path, monkeypatch):
    """Whatever other machines its file has, as after ``asv machine --yes``."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("vm", "other"):
        MachineCollection.save(name, {"machine": name})
    monkeypatch.setattr(machine, "asv_record", lambda: {"machine": "toy-gpu", "gpu": "Toy"})
    assert vars(Machine.load())["gpu"] == "Toy"


@pytest.mark.parametrize(
    ("tool", "values", "message"),
    [
        ("existing", [1.0], "an existing environment has one version of the package"),
        ("virtualenv", [None, float("nan")], "no value of toy at aaaaaaaa, all failed or are n/a"),
    ],
)
def test_asv_finds_nothing_where_nothing_is_measured(tool, values, message, asv_mended):
    env = SimpleNamespace(tool_name=tool, values=iter([values]))
    with pytest.raises(util.UserError, match=message):
        find.run_benchmarks({"toy": {"params": []}}, env, results=None)
    env = SimpleNamespace(tool_name="virtualenv", values=iter([[2.0, float("nan")]]))
    done = find.run_benchmarks({"toy": {"params": []}}, env, results=None)
    assert done.get_result_value("toy", []) == [2.0, None]  # n/a is no slowdown


def test_asv_works_where_git_looks_at_nothing(site):
    clone = site.parent.parent
    settings = (clone / "asv.conf.json").read_text()
    assert f'"results_dir": "{asv_fixes.RESULTS}"' in settings
    own = clone / asv_fixes.RESULTS / "nvidia-h200"
    assert {path.name for path in own.iterdir()} == {
        path.name for path in (clone / asv_fixes.SHIPPED / "nvidia-h200").iterdir()
    }
    command = ["git", "-C", clone, "status", "--porcelain", "--untracked-files=all"]
    changed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert ".asv" not in changed
