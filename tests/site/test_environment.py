"""The names under which results are stored: they hold no path of the machine that measured."""

import json
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

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


def test_what_ships_is_copied_over_nothing_newer(tmp_path):
    shipped, copies = tmp_path / asv_fixes.SHIPPED, tmp_path / asv_fixes.RESULTS
    for name in ("gpu/a.json", "gpu/b.json", "benchmarks.json"):
        (shipped / name).parent.mkdir(parents=True, exist_ok=True)
        (shipped / name).write_text("shipped")
    asv_fixes.fill_results(tmp_path)
    for name, seconds in (("gpu/a.json", 1), ("gpu/b.json", -1), ("gpu/own.json", 0)):
        (copies / name).write_text("own")
        changed = (shipped / "gpu" / "b.json").stat().st_mtime + seconds
        os.utime(copies / name, (changed, changed))
    asv_fixes.fill_results(tmp_path)
    found = {path.name: path.read_text() for path in copies.rglob("*.json")}
    expected = {"a.json": "own", "own.json": "own", "b.json": "shipped"}
    assert found == expected | {"benchmarks.json": "shipped"}
    assert {path.read_text() for path in shipped.rglob("*.json")} == {"shipped"}


def test_asv_works_where_git_looks_at_nothing(site):
    clone = site.parent.parent
    settings = (clone / "asv.conf.json").read_text()
    assert f'"results_dir": "{asv_fixes.RESULTS}"' in settings
    own = clone / asv_fixes.RESULTS / "nvidia-h200"
    assert {path.name for path in own.iterdir()} == {
        path.name for path in (clone / asv_fixes.SHIPPED / "nvidia-h200").iterdir()
    }
    command = ["git", "-C", clone, "status", "--porcelain", "--untracked-files=all"]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert ".asv" not in found


def test_no_stored_result_names_a_path():
    for path in (ROOT / "benchmarks" / "results").glob("*/*-*.json"):
        result = json.loads(path.read_text())
        texts = [path.name, result["env_name"], result["python"], *result["params"].values()]
        assert not [text for text in texts if text and ("/" in text or "_bin_" in text)], path
